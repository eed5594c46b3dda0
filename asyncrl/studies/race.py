"""The results of a race: which entrants reached the score, when, after how many steps; tables, figures and a report.

In a race without a score to reach: what the entrants scored in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from asyncrl.core.statistics import LEAST, Sample, comparison, median, normalized
from asyncrl.plots.figures import Line, Panel, colours_of, draw, method_name, unit_of
from asyncrl.storage.run_folder import safe_name
from asyncrl.studies.documents import (
    Block,
    heading,
    how_measured,
    learning_curves,
    paragraph,
    picture,
    plain_table,
    report_in,
    score_text,
    table,
    time_text,
    write_pages,
    write_runs,
)
from asyncrl.studies.measure import LAST, Group, Measurement, measure_all
from asyncrl.studies.scores import human_normalized
from asyncrl.studies.study import OWN, Cell, Settings, Study

POLICIES = {
    "greedy": "with the best actions",
    "sampled": "with actions sampled as workers sample them",
    OWN: "with each method's default policy",
}
"""How all entrants were evaluated."""
IN_TURNS = "Times are meaningless on the serial backend, whose workers take turns: compare steps."
WIDE = 30
"""From this ratio of the largest time to the smallest on, an axis of times is logarithmic."""
Named = tuple[str, Measurement]
"""A run and the name of its entrant."""
Colours = Mapping[str, str]
"""By entrant."""
CLOSE = 0.9
"""Share of the longest time from which on times count as equal."""


@dataclass(frozen=True)
class Result(Group):
    """All finished runs of an entrant in an environment."""

    name: str
    """A method, with its backend if there are several."""
    by_steps: bool = False
    """Whether steps are compared, not seconds: workers of an entrant took turns."""

    @property
    def effort(self) -> Sample:
        """What it took to reach the score: seconds, or steps."""
        return self.steps if self.by_steps else self.seconds

    @property
    def core_seconds(self) -> Sample:
        """Seconds times the cores that the run could use."""
        seconds = self.seconds
        values = [time * max(1, run.cores) for time, run in zip(seconds.values, self.runs, strict=True)]
        return Sample(tuple(values), seconds.reached)

    @property
    def best_scores(self) -> Sample:
        """The best evaluation of each run; -inf for a run without one."""
        return _scores([run.best_score() for run in self.runs])

    def last_scores(self, seconds: float = math.inf) -> Sample:
        """The mean of each run's last evaluations at that time, or at its end; -inf for a run without any."""
        return _scores([run.last_score(LAST, seconds) for run in self.runs])

    @property
    def standing(self) -> tuple[float, float]:
        """Results are ordered by it, the smallest first.

        By median time (or steps) to the score, then those that never reached it by best score. If there is no score to
        reach, by last score.
        """
        if self.reference is None:
            return -self.last_scores().median, 0.0
        return self.effort.median, -self.best_scores.median


Ranked = Mapping[str, Sequence[Result]]
"""Results by environment."""


def _scores(scores: Sequence[float | None]) -> Sample:
    return Sample.complete([-math.inf if score is None else score for score in scores])


def names_of(cells: Sequence[Cell]) -> list[str]:
    """The entrant that each cell is a run of: its method, with its backend if the race has several."""
    several = len({cell.backend for cell in cells}) > 1
    return [method_name(cell.algorithm) + (f", {cell.backend}" if several else "") for cell in cells]


def rank(runs: Sequence[tuple[str, Measurement]], env_id: str) -> list[Result]:
    """The results in an environment, best first, of all entrants with a finished run; `runs` with their names."""
    groups: dict[str, list[Measurement]] = {}
    for name, run in runs:
        if run.cell.env_id == env_id and run.complete:
            groups.setdefault(name, []).append(run)
    by_steps = any(run.cell.backend == "serial" for own in groups.values() for run in own)
    return sorted((Result(own, name, by_steps) for name, own in groups.items()), key=lambda result: result.standing)


def equal_time(results: Sequence[Result]) -> float | None:
    """Seconds at which entrants with equal steps can be compared: when the last run of the fastest one ended.

    None if there is a score to reach, if times are meaningless, or if the slowest takes hardly longer.
    """
    if not results or results[0].reference or results[0].by_steps:
        return None
    fastest = min(results, key=lambda result: result.seconds.median)
    seconds = max(fastest.seconds.values)
    return seconds if seconds < CLOSE * max(result.seconds.median for result in results) else None


def mean_places(environments: Sequence[Sequence[Result]]) -> dict[str, float]:
    """The mean place of each entrant over environments, best first.

    Entrants with equal results share their places. One without a finished run in an environment is behind all others
    there.
    """
    places: list[dict[str, float]] = []
    for results in environments:
        standings = [result.standing for result in results]
        shared = [fmean(i for i, other in enumerate(standings, 1) if other == own) for own in standings]
        places.append(dict(zip([result.name for result in results], shared, strict=True)))
    names = {name for own in places for name in own}
    means = {name: fmean(own.get(name, len(own) + 1) for own in places) for name in names}
    return dict(sorted(means.items(), key=lambda item: (item[1], item[0])))


def merits_of(result: Result, results: Sequence[Result]) -> list[float]:
    """What the runs of a result are worth among all results of its environment, from 0 to about 1.

    Scores are normalised: by a random player and a human in Atari, elsewhere by the lowest and the highest run. Where
    there is a score to reach, a run is worth the least time (or steps) divided by its own; 0 if it never got there.
    """
    if result.reference:
        least = min(effort for other in results for effort in other.effort.as_infinite)
        return [least / effort if math.isfinite(effort) else 0.0 for effort in result.effort.as_infinite]
    scores, *others = ([s for s in one.last_scores().values if math.isfinite(s)] for one in (result, *results))
    percents = [human_normalized(result.runs[0].cell.env_id, score) for score in scores]
    known = [percent / 100 for percent in percents if percent is not None]
    together = [score for own in others for score in own]
    return known if len(known) == len(percents) else normalized(scores, min(together), max(together))


def time_unit(results: Sequence[Result]) -> tuple[str, float]:
    """Unit of time for the entrants of an environment, and its seconds: that of the latest known median."""
    medians = [median for result in results if math.isfinite(median := result.seconds.median)]
    return unit_of("minutes", max(medians, default=math.inf))


def write_report(study: Study, say: Callable[[str], None]) -> Path:
    """Read all runs of the race and write RUNS_DIR/report/; returns the path of report.md.

    `say` gets the table of each environment.
    """
    runs = list(zip(names_of(study.cells), measure_all(study), strict=True))
    folder = report_in(study.runs_dir)
    rows_of_runs = write_runs(folder, runs)
    started = {name: run.cell.algorithm for name, run in runs if run.state}
    colours = dict(zip(started, colours_of(list(started.values())), strict=True))
    ranked = {env_id: rank(runs, env_id) for env_id in study.environments}
    blocks = [*_overview(folder, ranked, colours), *_aggregates(folder, ranked, colours)]
    for env_id, settings in study.environments.items():
        own = [pair for pair in runs if pair[1].cell.env_id == env_id]
        results = ranked[env_id]
        rows = _rows(results)
        say(env_id if settings.score is None else f"{env_id} to {settings.score:g}")
        say(plain_table(rows))
        blocks += [heading(env_id), paragraph(_conditions(settings, own)), table(rows), paragraph(_note(settings))]
        blocks += _figures(folder / safe_name(env_id), env_id, own, results, colours)
        blocks.append(table([row for row in rows_of_runs if row["environment"] == env_id]))
    blocks += how_measured([run for _, run in runs], study.commands)
    return write_pages(folder, "Comparison of parallel designs", blocks)


# --------------------------------------------------------------------------------------------------------- numbers


def median_text(sample: Sample, form: Callable[[float], str]) -> str:
    """A median with its interval, or with all runs if there are too few for one; censored ones are bounds."""
    if sample.median == -math.inf:  # no scores
        return ""
    estimate = replace(median(sample), bound="" if math.isfinite(sample.median) else ">")
    if estimate.has_interval or len(sample.values) == 1:
        return estimate.told(form)
    runs = sorted(zip(sample.as_infinite, sample.values, strict=True))
    return f"{estimate.told(form)} ({', '.join(('' if known < math.inf else '> ') + form(own) for known, own in runs)})"


# ---------------------------------------------------------------------------------------------------------- tables


def _conditions(settings: Settings, runs: Sequence[Named]) -> str:
    finished = sum(run.complete for _, run in runs)
    limits = [f"{settings.max_seconds / 60:g} minutes"] if settings.max_seconds else []
    limits += [f"{settings.max_steps:,} steps"] if settings.max_steps else []
    most = f"; a run had at most {' and '.join(limits)}" if limits else ""
    in_turns = "" if all(run.cell.backend != "serial" for _, run in runs) else f" {IN_TURNS}"
    aim = "There is no target score" if settings.score is None else f"The target score is {settings.score:g}"
    return (
        f"{aim}; scores are means of {settings.evaluation_episodes} whole episodes "
        f"{POLICIES[settings.evaluation_policy]}. {finished} of {len(runs)} runs finished{most}.{in_turns}"
    )


def _note(settings: Settings) -> str:
    """What the columns of the tables mean."""
    censored = "> if at least half of the runs ended before they reached the score. "
    end = "the last update" if settings.score is None else "the snapshot whose evaluation reached the score"
    return (
        f"Medians over seeds: with 95 % intervals from {LEAST} seeds on, else with all runs. "
        f"{'' if settings.score is None else censored}Time counts from the moment all workers were ready to {end}; "
        f"core time is that times the cores a run could use. Best score: each run's best evaluation. Last score: the "
        f"mean of its last {LAST} evaluations."
    )


def _rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """A row per entrant; with a column for scores at equal time if their times differ."""
    unit, size = time_unit(results)
    until = equal_time(results)
    rows = []
    for result in results:
        row = {"entrant": result.name}
        if result.reference:
            row["reached"] = f"{result.reached} of {len(result.runs)}"
        else:
            row["last score"] = median_text(result.last_scores(), score_text)
        if until is not None:
            row[f"score after {time_text(until / size)} {unit}"] = median_text(result.last_scores(until), score_text)
        row[unit] = median_text(result.seconds, lambda seconds: time_text(seconds / size))
        row["steps"] = median_text(result.steps, "{:,.0f}".format)
        row[f"core-{unit}"] = median_text(result.core_seconds, lambda seconds: time_text(seconds / size))
        row["steps per second"] = f"{result.throughput.median:,.0f}"
        row["best score"] = score_text(result.best_scores.median)
        rows.append(row)
    return rows


def _overview(folder: Path, ranked: Ranked, colours: Colours) -> list[Block]:
    """Several environments beside each other: medians, and a picture with every run."""
    places = mean_places(list(ranked.values()))
    if len(ranked) < 2 or not places:
        return []
    rows: dict[str, dict[str, str]] = {name: {"entrant": name} for name in places}
    for env_id, results in ranked.items():
        (unit, size), until = time_unit(results), equal_time(results)
        found = {result.name: result for result in results}
        for name, row in rows.items():
            result = found.get(name)
            if any(each.reference for each in results):
                row[f"{env_id} ({unit})"] = median_bound(result.seconds, size) if result else ""
            else:
                row[env_id] = score_text(result.last_scores().median) if result else ""
            if until is not None:
                title = f"{env_id} after {time_text(until / 60)} minutes"
                row[title] = score_text(result.last_scores(until).median) if result else ""
    caption = "Each dot is a run, each bar the median over seeds; the best mean rank is on top."
    panels = [_dots(results, colours, list(places), env_id) for env_id, results in ranked.items()]
    width, height = 1.6 + 2.2 * len(ranked), 0.4 * len(places) + 1.1
    return [
        heading("All environments"),
        table([row | {"mean rank": f"{places[name]:.1f}"} for name, row in rows.items()]),
        paragraph(
            "Medians over seeds: the last score, or the time to the target score if there is one. If entrants take "
            "different times, the score of each at the time when the fastest finished is shown as well."
        ),
        picture(draw([panels], height, width, share_y="row"), folder / "overview", caption),
    ]


def median_bound(seconds: Sample, size: float) -> str:
    """A median time, or the bound that is known of it."""
    return ("" if math.isfinite(seconds.median) else "> ") + time_text(seconds.bound / size)


def _aggregates(folder: Path, ranked: Ranked, colours: Colours) -> list[Block]:
    """Entrants that have runs in every environment, compared run by run: probabilities, aggregates, profiles."""
    merits = {
        name: [merits_of(result, results) for results in ranked.values() for result in results if result.name == name]
        for name in colours
    }
    merits = {name: own for name, own in merits.items() if len(own) == len(ranked) and all(own)}
    if len(merits) < 2:
        return []
    caption = "The share of an entrant's runs, over all environments, that are better than x."
    return [
        heading("Pairwise comparison"),
        table(comparison(merits)),
        paragraph(
            "The probability that a run of the row's method is better than a run of another (faster to the score, or "
            f"with a higher last score), averaged over environments. Intervals from {LEAST} seeds on. Interquartile "
            "mean and optimality gap (how far runs fall short of 1) come from the fastest run's time divided by "
            "a run's own time (steps instead of time on the serial backend), or from last scores, scaled so that the "
            "lowest run of an environment is 0 and the highest is 1 (for Atari, a random player and a human)."
        ),
        picture(draw_profiles(merits, colours), folder / "profiles", caption),
    ]


# --------------------------------------------------------------------------------------------------------- figures


def draw_profiles(merits: Mapping[str, Sequence[Sequence[float]]], colours: Colours) -> Figure:
    """Performance profiles: a step for each run of each environment (Dolan & More 2002, Agarwal et al. 2021)."""
    from scipy.stats import ecdf

    x = np.linspace(0.0, max(1.0, *(merit for own in merits.values() for runs in own for merit in runs)), 501)
    marks = []
    for name, own in merits.items():
        # Each environment counts alike, however many runs it has.
        shares = np.mean([ecdf(runs).sf.evaluate(x) for runs in own], axis=0)
        marks.append(Line(x, shares, colours[name], name))
    label = "x: normalised score, or the fastest run's time to the score divided by the run's own"
    return draw([[Panel(marks, label, "share of runs better than x", y_limits=(0, 1.02))]], 3.5, 7.0)


def _dots(
    results: Sequence[Result], colours: Colours, names: Sequence[str], title: str = "", steps: bool = False
) -> Panel:
    """A row per entrant, a dot per run and a bar at their median: times or `steps` to the score, or last scores.

    Rings below are scores at equal time.
    """
    timed = any(result.reference for result in results)
    if steps:
        unit, size = unit_of("steps", max(max(result.steps.values) for result in results))
        label, samples = f"{unit.removesuffix('s')} steps to the score", [result.steps for result in results]
    elif timed:
        unit, size = time_unit(results)
        label, samples = f"{unit} to the score", [result.seconds for result in results]
    else:
        size, label, samples = 1.0, f"mean of the last {LAST} evaluations", [r.last_scores() for r in results]
    marks = [Line([], [], name="a run", style="", marker="o")]
    marks.append(Line([], [], name="median of the seeds", style="", marker="|", size=14, width=2))
    if timed:
        marks.append(Line([], [], name="ended before it reached the score", style="", marker=">"))
    until = equal_time(results)
    if until is not None:
        name = "its score when the fastest entrant finished"
        marks.append(Line([], [], name=name, style="", marker="o", filled=False, size=4))
    for result, sample in zip(results, samples, strict=True):
        place, colour = names.index(result.name), colours[result.name]
        for value, reached in zip(sample.values, sample.reached, strict=True):
            marks.append(Line([value / size], [place], colour, style="", marker="o" if reached else ">", alpha=0.8))
        if math.isfinite(sample.median):
            marks.append(Line([sample.median / size] * 2, [place - 0.3, place + 0.3], colour, width=2))
        if until is not None:
            then = [value for value in result.last_scores(until).values if math.isfinite(value)]
            marks.append(Line(then, [place + 0.25] * len(then), colour, style="", marker="o", filled=False, size=4))
    values = [value for sample in samples for value in sample.values]
    apart = timed and min(values) > 0 and max(values) > WIDE * min(values)
    return Panel(
        marks, label, "", title, "log" if apart else "linear",
        y_ticks={float(i): name for i, name in enumerate(names)}, y_limits=(len(names) - 0.5, -0.5),
        x_limits=(0 if timed and not apart else None, None),
    )  # fmt: skip


def _figures(
    place: Path, env_id: str, runs: Sequence[Named], results: Sequence[Result], colours: Colours
) -> list[Block]:
    """Learning curves over time and over steps, and each run's time to the score or last score; files begin `place`."""
    blocks = []
    groups = {name: [run for own, run in runs if own == name and run.complete] for name in colours}
    if any(run.evaluations for own in groups.values() for run in own):
        serial = all(run.cell.backend == "serial" for _, run in runs)
        panels = [learning_curves(groups, colours, "steps", title=env_id)]
        panels += [] if serial else [learning_curves(groups, colours, "minutes", title=env_id)]
        caption = "Score over steps and time: the median over seeds, and a band from the worst to the best."
        blocks.append(picture(draw([panels], 4.0, share_y="row"), place.with_name(f"{place.name}-curves"), caption))
    if results:
        names, height = [result.name for result in results], 0.45 * len(results) + 1.0
        timed = results[0].reference is not None
        panels = [_dots(results, colours, names)] + ([_dots(results, colours, names, steps=True)] if timed else [])
        figure = draw([panels], height, 10.0 if timed else 7.0, share_y="row")
        kind = "arrivals" if timed else "scores"
        caption = "Each dot is a run, each bar the median over seeds; arrows are runs that never reached the score."
        blocks.append(picture(figure, place.with_name(f"{place.name}-{kind}"), caption))
    return blocks
