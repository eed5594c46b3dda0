"""The report of a race: which entrants reached the score, when, after how many steps, and the learning curves."""

from __future__ import annotations

import csv
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asyncrl.plots.curves import Curve, draw_curves, read_curve, save_figure, unit_of
from asyncrl.storage.run_folder import safe_name
from asyncrl.studies.documents import Block, Code, Heading, Items, Picture, Table, Text, write_pages
from asyncrl.studies.figures import NAMES
from asyncrl.studies.measure import Measurement, hardware, measure
from asyncrl.studies.plan import Cell, Reference
from asyncrl.studies.races import Conditions, Entrant, RaceFile, Start
from asyncrl.studies.statistics import Sample, median


@dataclass(frozen=True)
class Lap:
    """One run of the race, from its records."""

    start: Start
    folder: Path
    run: Measurement
    at: tuple[float, int] | None
    """Minutes and steps at the snapshot whose evaluation first reached the score."""

    @property
    def minutes(self) -> float:
        """Minutes to the score, or of the whole run."""
        return self.at[0] if self.at else self.run.seconds / 60

    @property
    def steps(self) -> int:
        """Steps to the score, or of the whole run."""
        return self.at[1] if self.at else self.run.steps


@dataclass(frozen=True)
class Result:
    """All finished runs of an entrant in an environment."""

    entrant: Entrant
    laps: Sequence[Lap]

    @property
    def reached(self) -> int:
        """Number of runs that reached the score."""
        return sum(lap.at is not None for lap in self.laps)

    def sample(self, values: Sequence[float]) -> Sample:
        """The values `[runs]`, with censored ones marked."""
        return Sample(tuple(values), tuple(lap.at is not None for lap in self.laps))

    @property
    def minutes(self) -> Sample:
        """To the score."""
        return self.sample([lap.minutes for lap in self.laps])

    @property
    def steps(self) -> Sample:
        """To the score."""
        return self.sample([float(lap.steps) for lap in self.laps])

    @property
    def core_minutes(self) -> Sample:
        """Core-minutes to the score: minutes times the cores that the run could use."""
        return self.sample([lap.minutes * max(1, lap.run.cores) for lap in self.laps])


def write_report(file: RaceFile, runs_dir: Path, say: Callable[[str], None]) -> Path:
    """Read all runs of the race and write RUNS_DIR/report/; returns the path of report.md.

    `say` gets the table of each environment.
    """
    laps = [read_lap(file, start, runs_dir) for start in file.starts]
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    write_runs(folder / "runs.csv", laps)
    blocks: list[Block] = [Heading("Which way of running in parallel is best?", 1)]
    for env_id, conditions in file.environments.items():
        own = [lap for lap in laps if lap.start.env_id == env_id]
        results = rank(own)
        unit = time_unit(results)
        table = Table(titles(unit), [_row(result, unit) for result in results])
        say(_plain(env_id, conditions, table))
        blocks += [Heading(env_id), Text(_told(conditions, own)), table, Text(NOTE)]
        blocks += _figures(folder, env_id, conditions, own, results)
        blocks += [Table(run_titles(unit), [_run_row(lap, unit) for lap in own])]
    machines = Counter(hardware(lap.folder) for lap in laps if lap.run.complete)
    blocks += [Heading("How it was measured"), Items([f"{count} runs on {own}" for own, count in machines.items()])]
    blocks += [Code("\n".join(file.commands))]
    write_pages(folder, blocks)
    return folder / "report.md"


def read_lap(file: RaceFile, start: Start, runs_dir: Path) -> Lap:
    """Read a run's records; its measurement is empty if there are none."""
    folder = file.job(start).folder(runs_dir)
    conditions = file.environments[start.env_id]
    cell = Cell(
        start.entrant.algorithm, "", start.env_id, start.entrant.backend, max(1, conditions.workers), start.seed
    )
    run = measure(cell, folder)
    evaluation = None if conditions.score is None else run.reach(Reference(conditions.score, "the race's"))
    return Lap(start, folder, run, None if evaluation is None else (evaluation.seconds / 60, evaluation.steps))


def rank(laps: Sequence[Lap]) -> list[Result]:
    """One result per entrant with a finished run: by median time, then those that never reached the score by score."""
    finished = [lap for lap in laps if lap.run.complete]
    entrants = dict.fromkeys(lap.start.entrant for lap in finished)
    results = [Result(entrant, [lap for lap in finished if lap.start.entrant == entrant]) for entrant in entrants]
    return sorted(results, key=lambda result: (result.minutes.median, -_best(result)))


def _best(result: Result) -> float:
    """The median over runs of the best evaluation."""
    scores = [score for lap in result.laps if (score := lap.run.best_score()) is not None]
    return Sample.complete(scores).median if scores else -math.inf


NOTE = (
    "Medians over seeds with 95 % bootstrap intervals; > if at least half of the runs ended before they reached the "
    "score. Time counts from the moment all workers were ready to the snapshot whose evaluation reached the score; "
    "core time is that times the cores a run could use. Best score: the median over seeds of each run's best "
    "evaluation."
)
MINUTE = {"minutes": 1.0, "seconds": 60.0}
"""A minute in each unit."""


def time_unit(results: Sequence[Result]) -> str:
    """Unit of time for the entrants of an environment: that of the latest known median."""
    medians = [median for result in results if math.isfinite(median := result.minutes.median)]
    return unit_of("minutes", 60 * max(medians, default=math.inf))[0]


def titles(unit: str) -> tuple[str, ...]:
    """Columns of the table of entrants."""
    return ("entrant", "reached", unit, "steps", f"core-{unit}", "steps per second", "best score")


def _row(result: Result, unit: str) -> list[str]:
    def told(minutes: float) -> str:
        return told_time(minutes, unit)

    rates = Sample.complete([lap.run.throughput for lap in result.laps])
    return [
        name_of(result.entrant),
        f"{result.reached} of {len(result.laps)}",
        _told_median(result, result.minutes, told),
        _told_median(result, result.steps, "{:,.0f}".format),
        _told_median(result, result.core_minutes, told),
        f"{rates.median:,.0f}",
        f"{_best(result):.4g}",
    ]


def told_time(minutes: float, unit: str) -> str:
    """Minutes in minutes or seconds, with one decimal; with two digits if it is less than one."""
    time = minutes * MINUTE[unit]
    return f"{time:.1f}" if time >= 1 else f"{time:.2g}"


def _told_median(result: Result, sample: Sample, form: Callable[[float], str]) -> str:
    """A median with its interval; only a bound if it is censored."""
    if not math.isfinite(sample.median):
        return f"> {form(sample.bound)}"
    estimate = median(sample, seed=zlib.crc32(str(result.entrant).encode()))
    return f"{form(estimate.value)} [{form(estimate.low)}, {form(estimate.high)}]"


def run_titles(unit: str) -> tuple[str, ...]:
    """Columns of the table of runs."""
    return ("entrant", "seed", "state", "steps", unit, "steps to the score", f"{unit} to it", "best score")


def _run_row(lap: Lap, unit: str) -> list[str]:
    best = lap.run.best_score()
    return [
        name_of(lap.start.entrant),
        str(lap.start.seed),
        lap.run.state or "not made",
        f"{lap.run.steps:,}",
        told_time(lap.run.seconds / 60, unit),
        f"{lap.at[1]:,}" if lap.at else "",
        told_time(lap.at[0], unit) if lap.at else "",
        "" if best is None else f"{best:.4g}",
    ]


def write_runs(path: Path, laps: Sequence[Lap]) -> None:
    """Write runs.csv: a row per planned run, also those that never reached the score, failed or are missing."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("environment", "backend", *(title.replace(" ", "_") for title in run_titles("seconds"))))
        for lap in laps:
            cells = [cell.replace(",", "") for cell in _run_row(lap, "seconds")]
            writer.writerow((lap.start.env_id, lap.start.entrant.backend, *cells))


def name_of(entrant: Entrant) -> str:
    """The name of an entrant in tables and legends."""
    name = NAMES.get(entrant.algorithm, entrant.algorithm)
    return f"{name}, {entrant.backend}" if entrant.named else name


def _told(conditions: Conditions, laps: Sequence[Lap]) -> str:
    finished = sum(lap.run.complete for lap in laps)
    limits = [f"{conditions.max_minutes:g} minutes"] if conditions.max_minutes else []
    limits += [f"{conditions.max_steps:,} steps"] if conditions.max_steps else []
    most = f"; a run had at most {' and '.join(limits)}" if limits else ""
    aim = "No score to reach" if conditions.score is None else f"The score to reach is {conditions.score:g}"
    return (
        f"{aim}, in the mean of {conditions.evaluation_episodes} whole episodes. "
        f"{finished} of {len(laps)} runs finished{most}."
    )


def _plain(env_id: str, conditions: Conditions, table: Table) -> str:
    """The table for the terminal."""
    lines = [table.titles, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.titles))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    aim = "" if conditions.score is None else f" to {conditions.score:g}"
    return "\n".join([f"{env_id}{aim}", *rows])


def _figures(
    folder: Path, env_id: str, conditions: Conditions, laps: Sequence[Lap], results: Sequence[Result]
) -> list[Block]:
    """Learning curves over minutes and over steps, and when each run reached the score."""
    place = safe_name(env_id)
    pictures: list[Block] = []
    curves = [curve for lap in laps if lap.run.state and (curve := _curve(lap)).rows]
    serial = all(lap.start.entrant.backend == "serial" for lap in laps)
    for axis in ("minutes", "steps"):
        if curves and not (axis == "minutes" and serial):
            figure = draw_curves(curves, axis, env_id)
            if conditions.score is not None:
                figure.axes[0].axhline(conditions.score, color="0.5", linewidth=1, linestyle=":")
            save_figure(figure, folder / f"{place}-{axis}.png")
            pictures.append(
                Picture(
                    f"{place}-{axis}.png",
                    f"Score over {'time' if axis == 'minutes' else axis}: a faint line per seed, a strong one for the "
                    "median. Runs end at the score.",
                )
            )
    if conditions.score is not None and results:
        order = list(dict.fromkeys(lap.start.entrant for lap in laps if lap.run.state))
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


WIDE = 30
"""From this ratio of the largest value to the smallest on, an axis of arrivals is logarithmic."""


def draw_arrivals(results: Sequence[Result], order: Sequence[Entrant]) -> Figure:
    """Time and steps to the score of every run, a row per entrant, in the colours of the curves (`order`)."""
    figure = Figure(figsize=(10, 0.45 * len(results) + 1.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    colours = [f"C{order.index(result.entrant) % 10}" for result in results]
    most = max(max(result.steps.values) for result in results)
    unit, size = unit_of("steps", most)
    time = time_unit(results)
    _draw_arrivals(left, [result.minutes for result in results], 1 / MINUTE[time], colours)
    _draw_arrivals(right, [result.steps for result in results], size, colours)
    left.set_yticks(range(len(results)), [name_of(result.entrant) for result in results])
    left.invert_yaxis()
    left.set_xlabel(f"{time} to the score")
    right.set_xlabel(f"steps to the score ({unit})")
    marks = {"o": "a run", "|": "median of the seeds", ">": "ended before it reached the score"}
    if all(result.reached == len(result.laps) for result in results):
        del marks[">"]
    handles = [Line2D([], [], color="0.4", linestyle="", marker=mark, label=told) for mark, told in marks.items()]
    handles[1].set(markersize=14, markeredgewidth=2)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _draw_arrivals(axes: Axes, samples: Sequence[Sample], size: float, colours: Sequence[str]) -> None:
    for place, (sample, colour) in enumerate(zip(samples, colours, strict=True)):
        for value, reached in zip(sample.values, sample.reached, strict=True):
            axes.plot(value / size, place, "o" if reached else ">", color=colour, alpha=0.8)
        if math.isfinite(sample.median):
            axes.plot([sample.median / size] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
    values = [value for sample in samples for value in sample.values]
    if min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.margins(x=0.05)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
