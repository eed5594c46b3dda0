"""The figures of a speed-up study, from measurements only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from asyncrl.plots.curves import unit_of
from asyncrl.studies.figures import COLOURS, colours_of, legend_below, method_name, open_frame
from asyncrl.studies.measure import Measurement
from asyncrl.studies.plan import References, Series
from asyncrl.studies.scaling_laws import Law, fit_amdahl, fit_usl
from asyncrl.studies.speedups import CLOCKED, MEAN, Point, cost

TABLE_2 = {
    "one_step_q": {1: 1.0, 2: 3.0, 4: 6.3, 8: 13.3, 16: 24.1},
    "one_step_sarsa": {1: 1.0, 2: 2.8, 4: 5.9, 8: 13.1, 16: 22.1},
    "n_step_q": {1: 1.0, 2: 2.7, 4: 5.9, 8: 10.7, 16: 17.2},
    "a3c": {1: 1.0, 2: 2.1, 4: 3.7, 8: 6.9, 16: 12.5},
}
"""Mnih et al. 2016 (arXiv 1602.01783v2), Table 2: how much faster n threads reached a fixed score than one, mean over
seven Atari games. It is a speed-up in time; each of the paper's threads had a core."""
STYLES = ("-", "--", ":")
"""Line styles of an ablation's variants, in turn."""
PLAIN_NUMBERS = FuncFormatter(lambda value, _: f"{value:g}")
WIDTH = 10.0
"""Width of every figure in inches."""


@dataclass(frozen=True)
class Data:
    """Everything the figures show."""

    measurements: Sequence[Measurement]
    points: Sequence[Point]
    references: References
    price_per_core_hour: float = 0.0

    @property
    def series(self) -> list[Series]:
        """All curves, in the order of the plan."""
        return list(dict.fromkeys(run.cell.series for run in self.measurements))

    @property
    def env_ids(self) -> list[str]:
        """All environments, in the order of the plan."""
        return list(dict.fromkeys(run.cell.env_id for run in self.measurements))

    def runs(self, backend: str) -> list[Measurement]:
        """The complete runs of a backend."""
        return [run for run in self.measurements if run.complete and run.cell.backend == backend]

    @property
    def curve_backend(self) -> str:
        """The backend for curves over steps: the one with the most different numbers of workers."""
        counts = {backend: {run.cell.workers for run in self.runs(backend)} for backend in ("serial", *CLOCKED)}
        return max(counts, key=lambda backend: len(counts[backend]))

    @property
    def clock_backend(self) -> str:
        """The backend for speeds: of those whose clock counts, the one with the most different numbers of workers."""
        return max(CLOCKED, key=lambda backend: len({run.cell.workers for run in self.runs(backend)}))

    def means(self, series: Series, backend: str) -> list[Point]:
        """The series' means over environments, by number of workers."""
        return [p for p in self.points if (p.series, p.env_id, p.backend) == (series, MEAN, backend)]


def who(backend: str) -> str:
    """What a backend's workers are called."""
    return "ranks" if backend == "collective" else "workers"


def name_of(series: Series) -> str:
    """The name of a series in legends."""
    return str(Series(method_name(series.algorithm), series.variant))


def _colour(series: Series, data: Data) -> str:
    algorithms = list(dict.fromkeys(other.algorithm for other in data.series))
    return colours_of(algorithms)[algorithms.index(series.algorithm)]


def _look(series: Series, data: Data) -> dict[str, Any]:
    """How to draw a series: its method sets the colour, its variant the line style."""
    variants = list(dict.fromkeys(other.variant for other in data.series))
    style = STYLES[variants.index(series.variant) % len(STYLES)]
    return {"color": _colour(series, data), "linestyle": style}


def all_figures(data: Data) -> dict[str, tuple[Figure, str]]:
    """All figures for which there are enough measurements, with their captions, by file name."""
    drawn: dict[str, tuple[Figure | None, str]] = {
        "speedup": (draw_speedups(data), CAPTIONS["speedup"]),
        "laws": (draw_laws(data), CAPTIONS["laws"]),
        "reach": (draw_reach(data), CAPTIONS["reach"]),
        "score-steps": (draw_scores(data, "steps"), CAPTIONS["score-steps"]),
        "score-time": (draw_scores(data, "minutes"), CAPTIONS["score-time"]),
        "best-median": (draw_best_and_median(data), CAPTIONS["best-median"]),
        "staleness": (draw_staleness(data), CAPTIONS["staleness"]),
        "time-split": (draw_time_split(data), CAPTIONS["time-split"]),
        "cost": (draw_cost(data), CAPTIONS["cost"]),
    }
    return {name: (figure, caption) for name, (figure, caption) in drawn.items() if figure is not None}


CAPTIONS = {
    "speedup": "Speed-up over the number of workers: mean over environments, bars are 95 % bootstrap intervals over "
    "seeds, shifted sideways to be seen. Open markers: more workers than cores. Triangles: only a bound, because "
    "runs were censored. Broad faint lines: the paper's Table 2, a speed-up in time with a core for each thread.",
    "laws": "The ideal line, Amdahl's law and the Universal Scalability Law, fitted to the points with a core for each "
    "worker. Open markers (more workers than cores) are not part of the fit.",
    "reach": "When each run first reached the reference score. A dot is a run, an arrow a run that ended without "
    "reaching it (censored, at its last step); the line joins the medians.",
    "score-steps": "Score over steps, by number of workers (the paper's Figure 3): median over seeds, band from the "
    "worst to the best seed, dotted line at the reference score.",
    "score-time": "Score over time, by number of workers (the paper's Figure 4): median over seeds, band from the "
    "worst to the best seed.",
    "best-median": "The best seed (solid; by the mean of its evaluations) and the median over seeds (dashed), with "
    "one worker and with the most.",
    "staleness": "How many updates by others a gradient had missed when it was pushed: share of updates, over all "
    "runs.",
    "time-split": "Where a worker's time goes: milliseconds per step that it makes, by phase, mean over environments.",
    "cost": "Money until the reference score, median over seeds; a core is paid for each worker, at most all cores of "
    "the machine.",
}


# ---------------------------------------------------------------------------------------------------- speed-ups


def draw_speedups(data: Data) -> Figure | None:
    """Speed-ups in throughput, data and time, a panel each, and the time promised with a core for each worker."""
    panels = _panels(data)
    if not panels:
        return None
    rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(WIDTH, 4.2 * rows + 0.7), layout="constrained")
    grid = figure.subplots(rows, min(2, len(panels)), squeeze=False).flat
    for axes in grid:
        axes.set_visible(False)
    for axes, draw in zip(figure.axes, panels, strict=False):
        axes.set_visible(True)
        draw(axes)
    legend_below(figure, [_handle(series, data) for series in data.series], [name_of(s) for s in data.series])
    return figure


def _panels(data: Data) -> list[Callable[[Axes], None]]:
    """The panels for which there are measurements."""

    def panel(kind: str, backend: str, title: str, factor: bool, paper: bool) -> list[Callable[[Axes], None]]:
        found = any(point.speedup(kind) and point.workers > 1 for point in data.points if point.backend == backend)
        return [lambda axes: _draw_speedup(axes, data, kind, backend, title, factor, paper)] if found else []

    best, clock = data.curve_backend, data.clock_backend
    return [
        *panel("throughput", clock, f"throughput: steps per second ({clock} backend)", False, False),
        *panel("data", best, f"data: steps to the reference score ({best} backend)", False, False),
        *panel("time", clock, f"time: seconds to the reference score ({clock} backend)", False, True),
        *panel("data", best, "projection: data speed-up x workers,\nas if throughput were ideal", True, True),
    ]


def _draw_speedup(
    axes: Axes, data: Data, kind: str, backend: str, title: str, times_workers: bool, paper: bool
) -> None:
    """One kind of speed-up of every series."""
    counts = sorted({point.workers for point in data.points if point.backend == backend})
    ideal = [1.0] * len(counts) if kind == "data" and not times_workers else [float(count) for count in counts]
    axes.plot(counts, ideal, color="black", linewidth=1, alpha=0.6)
    told = "no gain" if ideal[-1] == 1 else "linear"
    axes.annotate(told, (counts[-1], ideal[-1]), (6, 0), textcoords="offset points", fontsize=8, va="center")
    if paper:
        _draw_paper(axes, data, max(counts))
    everyone = data.series
    for i, series in enumerate(everyone):
        shift = 1.03 ** (i - (len(everyone) - 1) / 2)
        pairs = [(p, e) for p in data.means(series, backend) if (e := p.speedup(kind)) and e.bound != "?"]
        if not pairs:
            continue
        scale = np.array([p.workers if times_workers else 1 for p, _ in pairs])
        x = np.array([p.workers for p, _ in pairs]) * shift
        y = np.array([e.value for _, e in pairs]) * scale
        colour = _colour(series, data)
        axes.plot(x, y, linewidth=1.6, **_look(series, data))
        spans = np.array([e.spans for _, e in pairs]).T * scale
        opens = [e.high == math.inf for _, e in pairs]  # arrows
        axes.errorbar(x, y, yerr=spans, lolims=opens, fmt="none", ecolor=colour, alpha=0.5, capsize=2, linewidth=1)
        for at, height, (point, estimate) in zip(x, y, pairs, strict=True):
            marker = {"": "o", "<=": "v", ">=": "^"}[estimate.bound]
            axes.plot(at, height, marker, color=colour, markerfacecolor="white" if point.crowded else colour)
    _workers_axis(axes, counts, label=who(backend))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
    axes.set_ylabel("times one worker")
    axes.set_title(title, fontsize=11)


def _draw_paper(axes: Axes, data: Data, most: int) -> None:
    """Table 2 of the paper, for the methods and the numbers of workers of the study."""
    for algorithm in dict.fromkeys(series.algorithm for series in data.series):
        row = {n: s for n, s in TABLE_2.get(algorithm, {}).items() if n <= most}
        if len(row) < 2:
            continue
        axes.plot(list(row), list(row.values()), color=COLOURS[algorithm], linewidth=4, alpha=0.18)
    axes.plot([], [], color="grey", linewidth=4, alpha=0.3, label="paper's Table 2")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def laws_of(data: Data, series: Series, kind: str) -> tuple[Law | None, Law | None]:
    """Amdahl's and the Universal law fitted to a series' means, from the points with a core for each worker."""
    pairs = [
        (point.workers, estimate.value)
        for point in data.means(series, data.clock_backend)
        if (estimate := point.speedup(kind)) and not estimate.bound and not point.crowded
    ]
    beyond = sum(workers > 1 for workers, _ in pairs)
    workers, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return (
        fit_amdahl(workers, values) if beyond >= 1 else None,
        fit_usl(workers, values) if beyond >= 3 else None,  # it would go through any two points
    )


def draw_laws(data: Data) -> Figure | None:
    """Measured throughput and time speed-ups with the laws through them."""
    kinds = [k for k in ("throughput", "time") if any(laws_of(data, series, k)[0] for series in data.series)]
    if not kinds:
        return None
    everyone = data.series
    figure = Figure(figsize=(WIDTH, 2.9 * len(kinds) + 0.6), layout="constrained")
    grid = figure.subplots(len(kinds), len(everyone), squeeze=False, sharex=True, sharey=True)
    for row, kind in zip(grid, kinds, strict=True):
        for axes, series in zip(row, everyone, strict=True):
            _draw_laws(axes, data, series, kind)
        row[0].set_ylabel(f"{kind} speed-up")
    for axes in grid[-1]:
        axes.set_xlabel(who(data.clock_backend))
    handles = [
        Line2D([], [], color="black", linewidth=1, alpha=0.6),
        Line2D([], [], color="C0", linestyle="--"),
        Line2D([], [], color="C3"),
        Line2D([], [], color="black", marker="o", linestyle="none"),
    ]
    legend_below(figure, handles, ["ideal", "Amdahl", "Universal Scalability Law", "measured"])
    return figure


def _draw_laws(axes: Axes, data: Data, series: Series, kind: str) -> None:
    points = [(p, e) for p in data.means(series, data.clock_backend) if (e := p.speedup(kind)) and e.bound != "?"]
    counts = sorted({point.workers for point in data.points if point.backend == data.clock_backend})
    n = np.geomspace(1, max(counts), 60)
    axes.plot(n, n, color="black", linewidth=1, alpha=0.6)
    amdahl, usl = laws_of(data, series, kind)
    told = []
    if amdahl:
        axes.plot(n, [amdahl.speedup(at) for at in n], "C0--", linewidth=1.4)
        told.append(f"serial {amdahl.contention:.2f}")
    if usl:
        axes.plot(n, [usl.speedup(at) for at in n], "C3", linewidth=1.4)
        told.append(f"contention {usl.contention:.2f}\ncoherence {usl.coherence:.4f}")
    for point, estimate in points:
        face = "white" if point.crowded else "black"
        axes.plot(point.workers, estimate.value, "o", color="black", markerfacecolor=face, markersize=5)
    axes.annotate("\n".join(told), (0.05, 0.95), xycoords="axes fraction", va="top", fontsize=8)
    _workers_axis(axes, counts, label="")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
    axes.set_title(name_of(series), fontsize=10)


def draw_reach(data: Data) -> Figure | None:
    """Every run's steps to the reference score, censored ones as arrows."""
    backend = data.curve_backend
    env_ids = [env for env in data.env_ids if any(key[0] == env for key in data.references)]
    if not env_ids:
        return None
    figure = Figure(figsize=(WIDTH, 3.6 * len(env_ids) + 0.6), layout="constrained")
    everyone = data.series
    for axes, env_id in zip(figure.subplots(len(env_ids), 1, squeeze=False).flat, env_ids, strict=True):
        counts = sorted({run.cell.workers for run in data.runs(backend) if run.cell.env_id == env_id})
        for i, series in enumerate(everyone):
            _draw_reach(axes, data, series, env_id, backend, 1.09 ** (i - (len(everyone) - 1) / 2))
        _workers_axis(axes, counts or [1])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN_NUMBERS)
        low, high = axes.get_ylim()
        if high < 10 * low:  # matplotlib's own ticks leave 100 to 200 empty
            axes.yaxis.set_minor_locator(LogLocator(subs=(1.2, 1.4, 1.6, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), numticks=20))
        axes.yaxis.set_minor_formatter(PLAIN_NUMBERS)
        axes.tick_params(axis="y", which="both", labelsize=8)
        references = [ref for (env, _), ref in data.references.items() if env == env_id]
        scores = sorted(ref.score for ref in references)
        told = " to ".join(f"{score:g}" for score in dict.fromkeys((scores[0], scores[-1])))
        in_mean = max(references, key=lambda ref: ref.evaluations).in_mean
        axes.set_title(f"{env_id}, reference score {told}{in_mean}", fontsize=11)
        axes.set_ylabel("thousand steps to the reference score")
    arrow = Line2D([], [], color="grey", marker="^", linestyle="none")
    handles = [*(_handle(series, data) for series in everyone), arrow]
    legend_below(figure, handles, [*(name_of(series) for series in everyone), "censored"])
    return figure


def _draw_reach(axes: Axes, data: Data, series: Series, env_id: str, backend: str, shift: float) -> None:
    colour = _colour(series, data)
    points = [p for p in data.points if (p.series, p.env_id, p.backend) == (series, env_id, backend) and p.steps]
    points.sort(key=lambda point: point.workers)
    for point in points:
        assert point.steps is not None
        for value, reached in zip(point.steps.values, point.steps.reached, strict=True):
            marker = "o" if reached else "^"
            axes.plot(point.workers * shift, value / 1e3, marker, color=colour, markersize=4, alpha=0.6)
    medians = [(p.workers * shift, p.steps.bound / 1e3) for p in points if p.steps]
    if medians:
        axes.plot(*zip(*medians, strict=True), linewidth=1.4, **_look(series, data))


# ----------------------------------------------------------------------------------------------- learning curves


def draw_scores(data: Data, axis: str) -> Figure | None:
    """Score over steps or minutes, a line per number of workers; rows are environments, columns methods."""
    runs = data.runs(data.clock_backend if axis == "minutes" else data.curve_backend)
    counts = sorted({run.cell.workers for run in runs})
    if not runs or not any(run.evaluations for run in runs):
        return None
    colours = dict(zip(counts, matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(counts))), strict=True))
    figure, grid = _grid(data)
    for axes, env_id, series in grid:
        own = [run for run in runs if (run.cell.env_id, run.cell.series) == (env_id, series)]
        most = max((_axis_value(run, axis)[-1] for run in own if run.evaluations), default=1.0)
        unit, size = unit_of(axis, most) if axis == "minutes" else ("thousand steps", 1e3)
        for count in counts:
            group = [run for run in own if run.cell.workers == count and run.evaluations]
            _draw_band(axes, group, axis, size, colours[count])
        reference = data.references.get((env_id, series.algorithm))
        if reference:
            axes.axhline(reference.score, color="black", linestyle=":", linewidth=1)
        axes.set_xlabel(unit)
    handles = [Line2D([], [], color=colours[count], linewidth=2) for count in counts]
    legend_below(figure, handles, [f"{count} worker{'s' if count > 1 else ''}" for count in counts])
    return figure


def _axis_value(run: Measurement, axis: str) -> list[float]:
    return [at.seconds if axis == "minutes" else float(at.steps) for at in run.evaluations]


def _draw_band(axes: Axes, group: Sequence[Measurement], axis: str, size: float, colour: object) -> None:
    """The median over seeds and a band from the worst to the best, up to the last common place."""
    if not group:
        return
    x, scores = align(_curves(group, axis), 60)
    axes.plot(x / size, np.median(scores, axis=0), color=colour, linewidth=1.4)
    axes.fill_between(x / size, scores.min(axis=0), scores.max(axis=0), color=colour, alpha=0.12, linewidth=0)


def align(
    curves: Sequence[Sequence[tuple[float, float]]], places: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores [curves, places] at common places of the axis [places], linear between a curve's own points (x, score).

    The places start where all curves have begun. A curve that ends before the others, for example because its run
    stopped at the reference score, keeps its last score.
    """
    x = np.linspace(max(curve[0][0] for curve in curves), max(curve[-1][0] for curve in curves), places)
    points = [np.array(curve, np.float64) for curve in curves]
    return x, np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in points])


def _curves(group: Sequence[Measurement], axis: str) -> list[list[tuple[float, float]]]:
    """The learning curves of runs over steps or seconds."""
    return [list(zip(_axis_value(run, axis), [at.score for at in run.evaluations], strict=True)) for run in group]


def draw_best_and_median(data: Data) -> Figure | None:
    """The best seed and the median, with the fewest and the most workers."""
    runs = [run for run in data.runs(data.curve_backend) if run.evaluations]
    counts = sorted({run.cell.workers for run in runs})
    if not runs:
        return None
    shown = dict.fromkeys((counts[0], counts[-1]))
    colours = dict(zip(shown, ("C0", "C3"), strict=False))
    figure, grid = _grid(data)
    for axes, env_id, series in grid:
        for count in shown:
            group = [r for r in runs if (r.cell.env_id, r.cell.series, r.cell.workers) == (env_id, series, count)]
            if not group:
                continue
            x, scores = align(_curves(group, "steps"), 60)
            axes.plot(x / 1e3, scores[scores.mean(axis=1).argmax()], color=colours[count], linewidth=1.2)
            axes.plot(x / 1e3, np.median(scores, axis=0), color=colours[count], linestyle="--", linewidth=1.2)
        axes.set_xlabel("thousand steps")
    kinds = [(count, dashed) for count in shown for dashed in (False, True)]
    handles = [Line2D([], [], color=colours[count], linestyle="--" if dashed else "-") for count, dashed in kinds]
    labels = [f"{count} worker{'s'[: count > 1]}, {'median' if dashed else 'best seed'}" for count, dashed in kinds]
    legend_below(figure, handles, labels)
    return figure


def _grid(data: Data) -> tuple[Figure, list[tuple[Axes, str, Series]]]:
    """Axes for every environment (row) and series (column), with titles."""
    env_ids, everyone = data.env_ids, data.series
    figure = Figure(figsize=(WIDTH, 2.5 * len(env_ids) + 0.7), layout="constrained")
    grid = figure.subplots(len(env_ids), len(everyone), squeeze=False, sharey="row")
    cells = []
    for i, env_id in enumerate(env_ids):
        for k, series in enumerate(everyone):
            axes = grid[i][k]
            if i == 0:
                axes.set_title(name_of(series).replace(", ", "\n"), fontsize=10)
            if k == 0:
                axes.set_ylabel(f"{env_id}\nscore (raw return)", fontsize=9)
            axes.tick_params(labelsize=8)
            open_frame(axes)
            cells.append((axes, env_id, series))
    return figure, cells


# ------------------------------------------------------------------------------------------- what workers do


def draw_staleness(data: Data) -> Figure | None:
    """Histograms of staleness: rows are series, columns numbers of workers."""
    runs = [run for run in data.runs(data.curve_backend) if run.staleness and run.cell.workers > 1]
    counts = sorted({run.cell.workers for run in runs})
    if not runs:
        return None
    everyone = data.series
    figure = Figure(figsize=(WIDTH, 1.7 * len(everyone) + 0.5), layout="constrained")
    grid = figure.subplots(len(everyone), len(counts), squeeze=False)
    for i, series in enumerate(everyone):
        for k, count in enumerate(counts):
            axes = grid[i][k]
            _draw_histogram(axes, [r for r in runs if (r.cell.series, r.cell.workers) == (series, count)], 3 * count)
            if i == 0:
                axes.set_title(f"{count} workers", fontsize=10)
            if k == 0:
                axes.set_ylabel(f"{name_of(series)}\nshare of updates".replace(", ", "\n"), fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("staleness (updates by others)", fontsize=8)
    return figure


def _draw_histogram(axes: Axes, runs: Iterable[Measurement], most: int) -> None:
    """Shares of updates by staleness; the last bar includes everything above `most`."""
    shares = np.zeros(most + 1)
    for run in runs:
        for lag, count in run.staleness.items():
            shares[min(lag, most)] += count
    axes.bar(np.arange(most + 1), shares / max(1.0, shares.sum()), width=0.9, color="C0")
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.7, most + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.tick_params(labelsize=8)
    open_frame(axes)


def draw_time_split(data: Data) -> Figure | None:
    """Milliseconds per step of a worker, by phase and number of workers."""
    runs = [run for run in data.runs(data.clock_backend) if run.phases]
    counts = sorted({run.cell.workers for run in runs})
    if not runs:
        return None
    everyone = data.series
    every = dict.fromkeys(phase for run in runs for phase in run.phases)
    phases = [phase for phase in every if any(run.phases.get(phase, 0) > 0 for run in runs)]
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    grid = figure.subplots(1, len(everyone), squeeze=False, sharey=True)[0]
    for axes, series in zip(grid, everyone, strict=True):
        floor = np.zeros(len(counts))
        for i, phase in enumerate(phases):
            height = np.array([1000 * phase_mean(runs, series, count, phase) for count in counts])
            axes.bar([str(count) for count in counts], height, bottom=floor, color=f"C{i}", label=phase)
            floor += height
        axes.set_title(name_of(series).replace(", ", "\n"), fontsize=10)
        axes.set_xlabel(who(data.clock_backend))
        open_frame(axes)
    grid[0].set_ylabel("milliseconds of a worker per step")
    legend_below(figure, *grid[0].get_legend_handles_labels())
    return figure


def phase_mean(runs: Sequence[Measurement], series: Series, workers: int, phase: str) -> float:
    """Seconds per step that workers spent in a phase, mean over runs."""
    own = [run.phases.get(phase, 0.0) for run in runs if (run.cell.series, run.cell.workers) == (series, workers)]
    return float(np.mean(own)) if own else 0.0


def draw_cost(data: Data) -> Figure | None:
    """Money until the reference score over workers, a panel per environment."""
    price = data.price_per_core_hour
    if not price:
        return None
    points = [(p, money) for p in data.points if p.env_id != MEAN and (money := cost(p, price)) is not None]
    env_ids = [env_id for env_id in data.env_ids if any(point.env_id == env_id for point, _ in points)]
    if not env_ids:
        return None
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    for axes, env_id in zip(figure.subplots(1, len(env_ids), squeeze=False).flat, env_ids, strict=True):
        own = [(point, money) for point, money in points if point.env_id == env_id]
        for series in data.series:
            line = sorted((point.workers, money) for point, money in own if point.series == series)
            if line:
                axes.plot(*zip(*line, strict=True), marker="o", **_look(series, data))
        _workers_axis(axes, sorted({point.workers for point, _ in own}))
        axes.set_ylim(bottom=0)
        axes.set_title(env_id, fontsize=11)
        axes.set_ylabel(f"money to the reference score\n(at {price:g} per core and hour)")
    legend_below(figure, [_handle(series, data) for series in data.series], [name_of(s) for s in data.series])
    return figure


# ------------------------------------------------------------------------------------------------------- common


def _workers_axis(axes: Axes, counts: Sequence[int], label: str = "workers") -> None:
    """Workers in powers of two, with their numbers."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(counts), [str(count) for count in counts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    open_frame(axes)


def _handle(series: Series, data: Data) -> Line2D:
    return Line2D([], [], marker="o", **_look(series, data))
