"""The report of a race: which entrants reached the score, when, after how many steps, and the learning curves.

In a race without a score to reach: what the entrants scored in the end.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from asyncrl.core.aggregates import optimality_gap, probability_of_improvement
from asyncrl.core.statistics import LEAST, Sample, median, over_games
from asyncrl.plots.curves import Curve, draw_curves, read_curve, save_figure
from asyncrl.storage.run_folder import safe_name
from asyncrl.studies.documents import Block, Code, Heading, Items, Picture, Table, Text, write_pages
from asyncrl.studies.figures import colours_of
from asyncrl.studies.measure import hardware
from asyncrl.studies.race_figures import draw_arrivals, draw_overview, draw_profiles, draw_scores
from asyncrl.studies.race_results import (
    LAST,
    Lap,
    Result,
    equal_time,
    mean_places,
    merits_of,
    name_of,
    rank,
    read_lap,
    time_unit,
    told_score,
    told_time,
)
from asyncrl.studies.races import OWN, Conditions, Entrant, RaceFile


def write_report(file: RaceFile, runs_dir: Path, say: Callable[[str], None]) -> Path:
    """Read all runs of the race and write RUNS_DIR/report/; returns the path of report.md.

    `say` gets the table of each environment.
    """
    laps = [read_lap(file, start, runs_dir) for start in file.starts]
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    write_runs(folder / "runs.csv", laps)
    write_evaluations(folder / "evaluations.csv", laps)
    ranked = {env_id: rank([lap for lap in laps if lap.start.env_id == env_id]) for env_id in file.environments}
    blocks: list[Block] = [Heading("Which way of running in parallel is best?", 1)]
    if len(ranked) > 1:
        blocks += _overview(folder, ranked, file, laps)
    blocks += _aggregates(folder, ranked, order_of(laps))
    for env_id, conditions in file.environments.items():
        own = [lap for lap in laps if lap.start.env_id == env_id]
        results = ranked[env_id]
        unit = time_unit(results)
        table = _table(results, unit, conditions)
        say(_plain(env_id if conditions.score is None else f"{env_id} to {conditions.score:g}", table))
        blocks += [Heading(env_id), Text(_told(conditions, own)), table, Text(_note(conditions))]
        blocks += _figures(folder, env_id, conditions, own, results)
        blocks += [Table(run_titles(unit), [_run_row(lap, unit) for lap in own])]
    machines = Counter(hardware(lap.folder) for lap in laps if lap.run.complete)
    blocks += [Heading("How it was measured"), Items([f"{count} runs on {own}" for own, count in machines.items()])]
    blocks += [Code("\n".join(file.commands))]
    write_pages(folder, blocks)
    return folder / "report.md"


def _note(conditions: Conditions) -> str:
    """What the columns of the tables mean."""
    censored = "> if at least half of the runs ended before they reached the score. "
    end = "the last update" if conditions.score is None else "the snapshot whose evaluation reached the score"
    return (
        f"Medians over seeds: with 95 % intervals from {LEAST} seeds on, else with all runs. "
        f"{'' if conditions.score is None else censored}Time counts from the moment all workers were ready to {end}; "
        f"core time is that times the cores a run could use. Best score: each run's best evaluation. Last score: the "
        f"mean of its last {LAST} evaluations. Where entrants take "
        f"different times, there is also what each had when the fastest was done."
    )


def _table(results: Sequence[Result], unit: str, conditions: Conditions) -> Table:
    """A row per entrant; a column for their scores at equal time if their times differ."""
    table = Table(titles(unit, conditions), [_row(result, unit, conditions) for result in results])
    minutes = equal_time(results)
    if minutes is None:
        return table
    scores = [_told_median(result.scores_at(minutes), told_score) for result in results]
    return Table(
        (*table.titles[:2], f"score after {told_time(minutes, unit)} {unit}", *table.titles[2:]),
        [[*row[:2], score, *row[2:]] for row, score in zip(table.rows, scores, strict=True)],
    )


def titles(unit: str, conditions: Conditions) -> tuple[str, ...]:
    """Columns of the table of entrants."""
    success = "last score" if conditions.score is None else "reached"
    return ("entrant", success, unit, "steps", f"core-{unit}", "steps per second", "best score")


def _row(result: Result, unit: str, conditions: Conditions) -> list[str]:
    def told(minutes: float) -> str:
        return told_time(minutes, unit)

    reached = f"{result.reached} of {len(result.laps)}"
    rates = Sample.complete([lap.run.throughput for lap in result.laps])
    return [
        name_of(result.entrant),
        _told_median(result.last_scores, told_score) if conditions.score is None else reached,
        _told_median(result.minutes, told),
        _told_median(result.steps, "{:,.0f}".format),
        _told_median(result.core_minutes, told),
        f"{rates.median:,.0f}",
        told_score(result.best_scores.median),
    ]


def _told_median(sample: Sample, form: Callable[[float], str]) -> str:
    """A median with its interval, or with all runs if there are too few for one; censored ones are bounds."""
    if sample.median == -math.inf:  # no scores
        return ""
    estimate = replace(median(sample), bound="" if math.isfinite(sample.median) else ">")
    if estimate.has_interval or len(sample.values) == 1:
        return estimate.told(form)
    runs = sorted(zip(sample.as_infinite, sample.values, strict=True))
    return f"{estimate.told(form)} ({', '.join(('' if known < math.inf else '> ') + form(own) for known, own in runs)})"


POLICIES = {
    "greedy": "with the best actions",
    "sampled": "with actions drawn as workers draw them",
    OWN: "with the actions of each method's own default",
}
"""How all entrants were evaluated."""


def run_titles(unit: str) -> tuple[str, ...]:
    """Columns of the table of runs."""
    return (
        "entrant", "seed", "state", "steps", unit, "steps to the score", f"{unit} to it", "last score", "best score",
    )  # fmt: skip


def _run_row(lap: Lap, unit: str) -> list[str]:
    return [
        name_of(lap.start.entrant),
        str(lap.start.seed),
        lap.run.state or "not made",
        f"{lap.run.steps:,}",
        told_time(lap.run.seconds / 60, unit),
        f"{lap.at[1]:,}" if lap.at else "",
        told_time(lap.at[0], unit) if lap.at else "",
        told_score(lap.last_score),
        told_score(lap.run.best_score()),
    ]


def write_runs(path: Path, laps: Sequence[Lap]) -> None:
    """Write runs.csv: a row per planned run, also those that never reached the score, failed or are missing."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("environment", "backend", *(title.replace(" ", "_") for title in run_titles("seconds"))))
        for lap in laps:
            cells = [cell.replace(",", "") for cell in _run_row(lap, "seconds")]
            writer.writerow((lap.start.env_id, lap.start.entrant.backend, *cells))


def write_evaluations(path: Path, laps: Sequence[Lap]) -> None:
    """Write evaluations.csv, the learning curves: a row per evaluation, with steps and seconds at its snapshot."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("environment", "backend", "entrant", "seed", "steps", "seconds", "score"))
        for lap in laps:
            run = (lap.start.env_id, lap.start.entrant.backend, name_of(lap.start.entrant), lap.start.seed)
            for each in lap.run.evaluations:
                writer.writerow((*run, each.steps, told_time(each.seconds / 60, "seconds"), f"{each.score:g}"))


def _told(conditions: Conditions, laps: Sequence[Lap]) -> str:
    finished = sum(lap.run.complete for lap in laps)
    limits = [f"{conditions.max_minutes:g} minutes"] if conditions.max_minutes else []
    limits += [f"{conditions.max_steps:,} steps"] if conditions.max_steps else []
    most = f"; a run had at most {' and '.join(limits)}" if limits else ""
    aim = "No score to reach" if conditions.score is None else f"The score to reach is {conditions.score:g}"
    return (
        f"{aim}, in the mean of {conditions.evaluation_episodes} whole episodes "
        f"{POLICIES[conditions.evaluation_policy]}. "
        f"{finished} of {len(laps)} runs finished{most}."
    )


def _plain(title: str, table: Table) -> str:
    """The table for the terminal."""
    lines = [table.titles, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.titles))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *rows])


def _overview(folder: Path, ranked: Mapping[str, Sequence[Result]], file: RaceFile, laps: Sequence[Lap]) -> list[Block]:
    """All environments beside each other: medians, and a picture with every run."""
    places = mean_places(list(ranked.values()))
    if not places:
        return []
    columns = [_column(env_id, results, file.environments[env_id]) for env_id, results in ranked.items()]
    rows = [
        [name_of(entrant), *(cells.get(entrant, "") for _, cells in columns), f"{place:.1f}"]
        for entrant, place in places.items()
    ]
    save_figure(draw_overview(ranked, order_of(laps), list(places)), folder / "overview.png")
    return [
        Heading("All environments"),
        Table(("entrant", *(title for title, _ in columns), "mean place"), rows),
        Text("Medians over seeds: the last score, or the time to the score where there is one to reach."),
        *_at_equal_time(ranked, places),
        Picture("overview.png", "A dot is a run, a bar the median of the seeds; the best mean place is on top."),
    ]


def _at_equal_time(ranked: Mapping[str, Sequence[Result]], entrants: Iterable[Entrant]) -> list[Block]:
    """The same medians of scores when the fastest entrant was done, for environments where times differ."""
    columns = {env_id: (minutes, results) for env_id, results in ranked.items() if (minutes := equal_time(results))}
    if not columns:
        return []
    titles = [f"{env_id}, {told_time(minutes, 'minutes')} minutes" for env_id, (minutes, _) in columns.items()]
    scores = [
        {result.entrant: told_score(result.scores_at(minutes).median) for result in results}
        for minutes, results in columns.values()
    ]
    rows = [[name_of(entrant), *(own.get(entrant, "") for own in scores)] for entrant in entrants]
    return [Text("At equal time, when the fastest entrant was done:"), Table(("entrant", *titles), rows)]


def _column(env_id: str, results: Sequence[Result], conditions: Conditions) -> tuple[str, dict[Entrant, str]]:
    """A column of the overview: its title, and the median of each entrant."""
    if conditions.score is None:
        return env_id, {result.entrant: told_score(result.last_scores.median) for result in results}
    unit = time_unit(results)
    return f"{env_id} ({unit})", {
        result.entrant: ("" if math.isfinite(result.minutes.median) else "> ") + told_time(result.minutes.bound, unit)
        for result in results
    }


def _aggregates(folder: Path, ranked: Mapping[str, Sequence[Result]], order: Sequence[Entrant]) -> list[Block]:
    """Entrants that have runs in every environment, compared run by run: probabilities, aggregates, profiles."""
    everywhere = [one for one in order if all(any(one == r.entrant for r in results) for results in ranked.values())]
    if len(everywhere) < 2:
        return []
    merits = {one: [merits_of(one, results) for results in ranked.values()] for one in everywhere}
    scores = {one: [merit for merit, of_scores in own if of_scores] for one, own in merits.items()}
    ours = {one: [merit for merit, _ in own] for one, own in merits.items()}
    names = [name_of(one) for one in everywhere]

    def told(one: Entrant, other: Entrant) -> str:
        return "" if one == other else str(probability_of_improvement(ours[one], ours[other]))

    rows = [[name_of(one), *(told(one, other) for other in everywhere)] for one in everywhere]
    blocks: list[Block] = [
        Heading("Run against run"),
        Table(("entrant", *names), rows),
        Text(
            "How likely a run of the row's entrant is better than one of the column's, in the mean over environments: "
            f"sooner at the score, or with a higher last score. Intervals from {LEAST} seeds on."
        ),
    ]
    if any(scores.values()):
        rows = [
            [
                name_of(one),
                str(over_games(own)),
                f"{optimality_gap([score for runs in own for score in runs]):.2f}",
            ]
            for one, own in scores.items()
        ]
        blocks += [
            Table(("entrant", "interquartile mean", "optimality gap"), rows),
            Text(
                "Last scores over all environments and seeds, with the lowest run of an environment as 0 and the "
                "highest as 1 (for Atari, a random player and a human). The gap is how far runs fall short of 1."
            ),
        ]
    save_figure(draw_profiles(ours, order), folder / "profiles.png")
    return [
        *blocks,
        Picture("profiles.png", "The share of an entrant's runs, over all environments, that are better than x."),
    ]


def order_of(laps: Sequence[Lap]) -> list[Entrant]:
    """The entrants that were started, in the order of their colours."""
    return list(dict.fromkeys(lap.start.entrant for lap in laps if lap.run.state))


def _figures(
    folder: Path, env_id: str, conditions: Conditions, laps: Sequence[Lap], results: Sequence[Result]
) -> list[Block]:
    """Learning curves over minutes and over steps, and when each run reached the score."""
    place = safe_name(env_id)
    pictures: list[Block] = []
    curves = [curve for lap in laps if lap.run.state and (curve := _curve(lap)).rows]
    order = order_of(laps)
    names = [name_of(entrant) for entrant in order]
    colours = dict(zip(names, colours_of([entrant.algorithm for entrant in order]), strict=True))
    serial = all(lap.start.entrant.backend == "serial" for lap in laps)
    for axis in ("minutes", "steps"):
        if curves and not (axis == "minutes" and serial):
            figure = draw_curves(curves, axis, env_id, colours=colours)
            if conditions.score is not None:
                figure.axes[0].axhline(conditions.score, color="0.5", linewidth=1, linestyle=":")
            save_figure(figure, folder / f"{place}-{axis}.png")
            pictures.append(
                Picture(
                    f"{place}-{axis}.png",
                    f"Score over {'time' if axis == 'minutes' else axis}: a faint line per seed, a strong one for the "
                    f"median.{' Runs end at the score.' if conditions.stop_at_score else ''}",
                )
            )
    if conditions.score is None and results:
        save_figure(draw_scores(results, order, env_id), folder / f"{place}-scores.png")
        pictures.append(
            Picture(f"{place}-scores.png", "The last score of each run: a dot is a run, a bar the median of the seeds.")
        )
    if conditions.score is not None and results:
        save_figure(draw_arrivals(results, order), folder / f"{place}-arrivals.png")
        pictures.append(
            Picture(
                f"{place}-arrivals.png",
                "When each run reached the score: a dot is a run, a bar the median; arrows are runs that never did.",
            )
        )
    return pictures


def _curve(lap: Lap) -> Curve:
    """The run's curve, labelled by the entrant's name alone."""
    curve = read_curve(lap.folder)
    return Curve(
        curve.path, {"page": name_of(lap.start.entrant), "env_id": lap.start.env_id, "workers": ""}, curve.rows
    )
