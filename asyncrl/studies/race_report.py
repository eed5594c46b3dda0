"""The report of a race: which entrants reached the score, when, after how many steps, and the learning curves.

In a race without a score to reach: what the entrants scored in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from asyncrl.core.aggregates import optimality_gap, probability_of_improvement
from asyncrl.core.statistics import LEAST, Sample, median, over_games
from asyncrl.plots.curves import Curve, draw_curves
from asyncrl.storage.run_folder import safe_name
from asyncrl.studies.documents import Block, code, heading, items, paragraph, picture, table, write_csv, write_pages
from asyncrl.studies.figures import colours_of
from asyncrl.studies.measure import Measurement, machines, measure_all
from asyncrl.studies.plan import OWN, Settings, StudyFile
from asyncrl.studies.race import LAST, MINUTE, Result, equal_time, mean_places, merits_of, names_of, rank, time_unit
from asyncrl.studies.race_figures import draw_arrivals, draw_overview, draw_profiles, draw_scores

POLICIES = {
    "greedy": "with the best actions",
    "sampled": "with actions drawn as workers draw them",
    OWN: "with the actions of each method's own default",
}
"""How all entrants were evaluated."""
Named = tuple[str, Measurement]
"""A run and the name of its entrant."""


def write_report(file: StudyFile, runs_dir: Path, say: Callable[[str], None]) -> Path:
    """Read all runs of the race and write RUNS_DIR/report/; returns the path of report.md.

    `say` gets the table of each environment.
    """
    measurements = measure_all(file, runs_dir)
    runs = list(zip(names_of(file.cells), measurements, strict=True))
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    _write_tables(folder, runs, file)
    started = {name: run.cell.algorithm for name, run in runs if run.state}
    colours = dict(zip(started, colours_of(list(started.values())), strict=True))
    ranked = {env_id: rank(runs, env_id, settings.reference) for env_id, settings in file.environments.items()}
    blocks = [*_overview(folder, ranked, colours), *_aggregates(folder, ranked, colours)]
    for env_id, settings in file.environments.items():
        own, results = [pair for pair in runs if pair[1].cell.env_id == env_id], ranked[env_id]
        unit = time_unit(results)
        titles, rows = _columns(results, settings, unit)
        say(_plain(env_id if settings.score is None else f"{env_id} to {settings.score:g}", [titles, *rows]))
        cells = [_run_row(name, run, settings, unit) for name, run in own]
        blocks += [heading(env_id), paragraph(_told(settings, own)), table(titles, rows), paragraph(_note(settings))]
        blocks += _figures(folder / safe_name(env_id), env_id, settings, own, results, colours)
        blocks += [table(list(cells[0]), [list(row.values()) for row in cells])] if cells else []
    blocks += [heading("How it was measured"), items(machines(measurements)), code("\n".join(file.commands))]
    return write_pages(folder, "Which way of running in parallel is best?", blocks)


def told_time(minutes: float, unit: str) -> str:
    """Minutes in minutes or seconds, with one decimal; with two digits if it is less than one."""
    time = minutes * MINUTE[unit]
    return f"{time:.1f}" if time >= 1 else f"{time:.2g}"


def told_score(score: float | None) -> str:
    """A score with four digits; nothing if there is none (None or -inf)."""
    return "" if score is None or not math.isfinite(score) else f"{score:.4g}"


def _told_median(sample: Sample, form: Callable[[float], str]) -> str:
    """A median with its interval, or with all runs if there are too few for one; censored ones are bounds."""
    if sample.median == -math.inf:  # no scores
        return ""
    estimate = replace(median(sample), bound="" if math.isfinite(sample.median) else ">")
    if estimate.has_interval or len(sample.values) == 1:
        return estimate.told(form)
    runs = sorted(zip(sample.as_infinite, sample.values, strict=True))
    return f"{estimate.told(form)} ({', '.join(('' if known < math.inf else '> ') + form(own) for known, own in runs)})"


def _told(settings: Settings, runs: Sequence[Named]) -> str:
    finished = sum(run.complete for _, run in runs)
    limits = [f"{settings.max_seconds / 60:g} minutes"] if settings.max_seconds else []
    limits += [f"{settings.max_steps:,} steps"] if settings.max_steps else []
    most = f"; a run had at most {' and '.join(limits)}" if limits else ""
    aim = "No score to reach" if settings.score is None else f"The score to reach is {settings.score:g}"
    return (
        f"{aim}, in the mean of {settings.evaluation_episodes} whole episodes {POLICIES[settings.evaluation_policy]}. "
        f"{finished} of {len(runs)} runs finished{most}."
    )


def _note(settings: Settings) -> str:
    """What the columns of the tables mean."""
    censored = "> if at least half of the runs ended before they reached the score. "
    end = "the last update" if settings.score is None else "the snapshot whose evaluation reached the score"
    return (
        f"Medians over seeds: with 95 % intervals from {LEAST} seeds on, else with all runs. "
        f"{'' if settings.score is None else censored}Time counts from the moment all workers were ready to {end}; "
        f"core time is that times the cores a run could use. Best score: each run's best evaluation. Last score: the "
        f"mean of its last {LAST} evaluations. Where entrants take "
        f"different times, there is also what each had when the fastest was done."
    )


def _columns(results: Sequence[Result], settings: Settings, unit: str) -> tuple[list[str], list[list[str]]]:
    """The titles and a row per entrant; with a column for scores at equal time if their times differ."""

    def told(minutes: float) -> str:
        return told_time(minutes, unit)

    columns: dict[str, Callable[[Result], str]] = {"entrant": lambda result: result.name}
    if settings.score is None:
        columns["last score"] = lambda result: _told_median(result.last_scores(), told_score)
    else:
        columns["reached"] = lambda result: f"{result.reached} of {len(result.runs)}"
    if (until := equal_time(results)) is not None:
        columns[f"score after {told(until)} {unit}"] = lambda result: _told_median(
            result.last_scores(until), told_score
        )
    columns |= {
        unit: lambda result: _told_median(result.minutes, told),
        "steps": lambda result: _told_median(result.steps, "{:,.0f}".format),
        f"core-{unit}": lambda result: _told_median(result.core_minutes, told),
        "steps per second": lambda result: f"{Sample.complete([run.throughput for run in result.runs]).median:,.0f}",
        "best score": lambda result: told_score(result.best_scores.median),
    }
    return list(columns), [[column(result) for column in columns.values()] for result in results]


def _plain(title: str, lines: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *rows])


def _run_row(name: str, run: Measurement, settings: Settings, unit: str) -> dict[str, str]:
    at = run.reach(settings.reference) if settings.reference else None
    return {
        "entrant": name,
        "seed": str(run.cell.seed),
        "state": run.state or "not made",
        "steps": f"{run.steps:,}",
        unit: told_time(run.seconds / 60, unit),
        "steps to the score": f"{at.steps:,}" if at else "",
        f"{unit} to it": told_time(at.seconds / 60, unit) if at else "",
        "last score": told_score(run.last_score(LAST)),
        "best score": told_score(run.best_score()),
    }


def _write_tables(folder: Path, runs: Sequence[Named], file: StudyFile) -> None:
    """Write runs.csv, with all planned runs, and evaluations.csv, the learning curves with a row per evaluation."""
    rows, evaluations = [], []
    for name, run in runs:
        place = {"environment": run.cell.env_id, "backend": run.cell.backend}
        told = _run_row(name, run, file.environments[run.cell.env_id], "seconds")
        rows.append(place | {key.replace(" ", "_"): cell.replace(",", "") for key, cell in told.items()})
        rows[-1]["entrant"] = name
        evaluations += [
            place
            | {"entrant": name, "seed": run.cell.seed, "steps": each.steps}
            | {"seconds": told_time(each.seconds / 60, "seconds"), "score": f"{each.score:g}"}
            for each in run.evaluations
        ]
    write_csv(folder / "runs.csv", rows)
    write_csv(folder / "evaluations.csv", evaluations)


def _overview(folder: Path, ranked: Mapping[str, Sequence[Result]], colours: Mapping[str, str]) -> list[Block]:
    """Several environments beside each other: medians, and a picture with every run."""
    places = mean_places(list(ranked.values()))
    if len(ranked) < 2 or not places:
        return []
    columns, at_equal_time = {}, {}
    for env_id, results in ranked.items():
        if any(result.reference for result in results):
            unit = time_unit(results)
            columns[f"{env_id} ({unit})"] = {
                one.name: ("" if math.isfinite(one.minutes.median) else "> ") + told_time(one.minutes.bound, unit)
                for one in results
            }
        else:
            columns[env_id] = {one.name: told_score(one.last_scores().median) for one in results}
        if until := equal_time(results):
            at_equal_time[f"{env_id}, {told_time(until, 'minutes')} minutes"] = {
                one.name: told_score(one.last_scores(until).median) for one in results
            }
    columns["mean place"] = {name: f"{place:.1f}" for name, place in places.items()}

    def beside(columns: Mapping[str, Mapping[str, str]]) -> Block:
        rows = [[name, *(column.get(name, "") for column in columns.values())] for name in places]
        return table(["entrant", *columns], rows)

    blocks = [
        heading("All environments"),
        beside(columns),
        paragraph("Medians over seeds: the last score, or the time to the score where there is one to reach."),
    ]
    if at_equal_time:
        blocks += [paragraph("At equal time, when the fastest entrant was done:"), beside(at_equal_time)]
    caption = "A dot is a run, a bar the median of the seeds; the best mean place is on top."
    return [*blocks, picture(draw_overview(ranked, colours, list(places)), folder / "overview", caption)]


def _aggregates(folder: Path, ranked: Mapping[str, Sequence[Result]], colours: Mapping[str, str]) -> list[Block]:
    """Entrants that have runs in every environment, compared run by run: probabilities, aggregates, profiles."""
    everywhere = [name for name in colours if all(any(name == r.name for r in own) for own in ranked.values())]
    if len(everywhere) < 2:
        return []
    merits: dict[str, list[list[float]]] = {name: [] for name in everywhere}
    scores: dict[str, list[list[float]]] = {name: [] for name in everywhere}
    for results in ranked.values():
        for result in results:
            if result.name in merits:
                merits[result.name].append(merits_of(result, results))
                scores[result.name] += [] if result.reference else merits[result.name][-1:]
    rows = [
        [one, *("" if one == other else str(probability_of_improvement(own, merits[other])) for other in everywhere)]
        for one, own in merits.items()
    ]
    blocks = [
        heading("Run against run"),
        table(["entrant", *everywhere], rows),
        paragraph(
            "How likely a run of the row's entrant is better than one of the column's, in the mean over environments: "
            f"sooner at the score, or with a higher last score. Intervals from {LEAST} seeds on."
        ),
    ]
    if any(scores.values()):
        rows = [[name, str(over_games(own)), f"{optimality_gap([*chain(*own)]):.2f}"] for name, own in scores.items()]
        blocks += [
            table(["entrant", "interquartile mean", "optimality gap"], rows),
            paragraph(
                "Last scores over all environments and seeds, with the lowest run of an environment as 0 and the "
                "highest as 1 (for Atari, a random player and a human). The gap is how far runs fall short of 1."
            ),
        ]
    caption = "The share of an entrant's runs, over all environments, that are better than x."
    return [*blocks, picture(draw_profiles(merits, colours), folder / "profiles", caption)]


def _figures(
    place: Path,
    env_id: str,
    settings: Settings,
    runs: Sequence[Named],
    results: Sequence[Result],
    colours: Mapping[str, str],
) -> list[Block]:
    """Learning curves over minutes and over steps, and when each run reached the score, in files that begin `place`."""
    curves = [
        Curve(
            place,
            {"algorithm": name, "env_id": env_id, "workers": ""},
            [{"steps": each.steps, "seconds": each.seconds, "mean": each.score} for each in run.evaluations],
        )
        for name, run in runs
        if run.evaluations
    ]
    serial = all(run.cell.backend == "serial" for _, run in runs)
    blocks = []
    for axis in ("steps",) if serial else ("minutes", "steps"):
        if curves:
            figure = draw_curves(curves, axis, env_id, colours=colours)
            if settings.score is not None:
                figure.axes[0].axhline(settings.score, color="0.5", linewidth=1, linestyle=":")
            caption = (
                f"Score over {'time' if axis == 'minutes' else axis}: a faint line per seed, a strong one for the "
                f"median.{' Runs end at the score.' if settings.stop_at_reference else ''}"
            )
            blocks.append(picture(figure, place.with_name(f"{place.name}-{axis}"), caption))
    if results and settings.score is None:
        caption = "The last score of each run: a dot is a run, a bar the median of the seeds."
        blocks.append(picture(draw_scores(results, colours), place.with_name(f"{place.name}-scores"), caption))
    elif results:
        caption = "When each run reached the score: a dot is a run, a bar the median; arrows are runs that never did."
        blocks.append(picture(draw_arrivals(results, colours), place.with_name(f"{place.name}-arrivals"), caption))
    return blocks
