"""The report of a speed-up study: what came of it, tables, figures, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from asyncrl.core.statistics import LEAST, Estimate
from asyncrl.plots.figures import BLACK, WIDTH, Bars, Line, Panel, colours_of, draw, method_name, shades
from asyncrl.storage.rows import add_up
from asyncrl.studies.documents import (
    Block,
    heading,
    how_measured,
    learning_curves,
    paragraph,
    picture,
    report_in,
    table,
    write_csv,
    write_pages,
    write_runs,
)
from asyncrl.studies.measure import Measurement, measure_all
from asyncrl.studies.speedup import KINDS, MEAN, Law, Point, fit_law, make_points, table_row
from asyncrl.studies.study import CLOCKED, Series, Study

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
MARKERS = {"": "o", "<=": "v", ">=": "^"}
"""Those of values and of bounds."""
NOTE = (
    "Speed-ups are ratios of medians over seeds against one worker, in the mean over environments; brackets show 95 % "
    f"bootstrap intervals, from {LEAST} seeds on. A run that never reached the reference score is censored: it counts "
    "as slower than all that did. The clock starts when all workers are ready, each worker computes in one thread, and "
    "the evaluator is not one of the workers. Time per step is that of a worker, relative to one alone; next to it is "
    "the phase that grew most, in milliseconds per step. Amdahl's law and the Universal Scalability Law (USL, with at "
    "least three numbers of workers besides 1) are fitted to the throughput of all points with a core for each worker. "
    "Points with a single seed are left out of fits and projections."
)


def name_of(series: Series) -> str:
    """The name of a series in tables and legends."""
    return method_name(series.algorithm) + (f", {series.variant}" if series.variant else "")


def who(backend: str) -> str:
    """What a backend's workers are called."""
    return "ranks" if backend == "collective" else "workers"


@dataclass(frozen=True)
class SpeedupResults:
    """Everything that the report shows."""

    measurements: Sequence[Measurement]
    points: Sequence[Point]
    price_per_core_hour: float = 0.0

    @property
    def series(self) -> list[Series]:
        """All curves, in the order of the plan."""
        return list(dict.fromkeys(run.cell.series for run in self.measurements))

    @property
    def env_ids(self) -> list[str]:
        """All environments, in the order of the plan."""
        return list(dict.fromkeys(run.cell.env_id for run in self.measurements))

    def curve(self, series: Series, env_id: str, backend: str) -> list[Point]:
        """The points of a series, by number of workers."""
        own = [p for p in self.points if (p.series, p.env_id, p.backend) == (series, env_id, backend)]
        return sorted(own, key=lambda point: point.workers)

    def estimates(self, series: Series, kind: str, backend: str) -> list[tuple[Point, Estimate]]:
        """The means over environments of a series with a known speed-up of that kind."""
        points = [point for point in self.curve(series, MEAN, backend) if kind in point.speedups]
        return [(point, point.speedups[kind]) for point in points if point.speedups[kind].bound != "?"]

    def counts(self, backend: str) -> list[int]:
        """The numbers of workers of a backend's finished runs."""
        return sorted({point.workers for point in self.points if point.backend == backend})

    @property
    def data_backend(self) -> str:
        """The backend for curves over steps: the one with the most different numbers of workers."""
        return max(("serial", *CLOCKED), key=lambda backend: len(self.counts(backend)))

    @property
    def clock_backend(self) -> str:
        """The backend for speeds: of those whose clock counts, the one with the most different numbers of workers."""
        return max(CLOCKED, key=lambda backend: len(self.counts(backend)))

    def look(self, series: Series) -> dict[str, Any]:
        """How to draw a series: its method sets the colour, its variant the line style."""
        algorithms = list(dict.fromkeys(other.algorithm for other in self.series))
        variants = list(dict.fromkeys(other.variant for other in self.series))
        colour = colours_of(algorithms)[algorithms.index(series.algorithm)]
        return {"colour": colour, "style": STYLES[variants.index(series.variant) % len(STYLES)]}

    def over_workers(self, marks: Sequence[Line], title: str, y_label: str, backend: str, **more: Any) -> Panel:
        """A panel over the number of workers."""
        ticks = {float(count): str(count) for count in self.counts(backend)}
        return Panel(marks, who(backend), y_label, title, "log2", x_ticks=ticks, **more)


def write_report(study: Study, price_per_core_hour: float = 0.0) -> Path:
    """Read all runs of the study and write RUNS_DIR/report/; returns the path of report.md."""
    measurements = measure_all(study)
    results = SpeedupResults(measurements, make_points(measurements), price_per_core_hour)
    folder = report_in(study.runs_dir)
    write_csv(folder / "table.csv", [table_row(point, price_per_core_hour) for point in results.points])
    write_runs(folder, [(name_of(run.cell.series), run) for run in measurements])
    drawn = {name: (make(results), caption) for name, (make, caption) in FIGURES.items()}
    settings = [{"environment": env_id} | asdict(own) for env_id, own in study.environments.items()]
    references = [
        {"environment": env_id, "method": method_name(algorithm)} | asdict(reference)
        for (env_id, algorithm), reference in study.references.items()
    ]
    blocks = [
        table([summary(results, series) for series in results.series]),
        paragraph(NOTE),
        heading("Speed-ups"),
        *_tables(results),
        heading("Figures"),
        *(picture(figure, folder / name, caption) for name, (figure, caption) in drawn.items() if figure),
        *how_measured(measurements, study.commands),
        table([{title.replace("_", " "): cell for title, cell in row.items()} for row in settings]),
        heading("Reference scores", 3),
        table(references),
    ]
    return write_pages(folder, "Speed-up with more workers", blocks)


# ---------------------------------------------------------------------------------------------------------- tables


def summary(results: SpeedupResults, series: Series) -> dict[str, Any]:
    """What the largest number of workers needs and makes, and what keeps its throughput below the ideal."""
    data = [pair for pair in results.estimates(series, "data", results.data_backend) if pair[0].workers > 1]
    speed = results.estimates(series, "throughput", results.clock_backend)
    speed = [pair for pair in speed if not pair[0].is_crowded] or speed
    amdahl, usl = laws_of(results, series, "throughput")
    one, most = (speed[0][0], speed[-1][0]) if len(speed) > 1 else (None, None)
    slower, grown = times_per_step(one, most) if one and most else ("", "")
    return {
        "method": name_of(series),
        "data speed-up": _with_most(*data[-1]) if data else "",
        "data needed": verdict(data[-1][1]) if data else "unknown",
        "throughput speed-up": _with_most(*speed[-1]) if most else "",
        "time per step": slower,
        "grew most": grown,
        "serial fraction (Amdahl)": f"{amdahl.contention:.3f}" if amdahl else "",
        "contention (USL)": f"{usl.contention:.3f}" if usl else "",
        "coherence (USL)": f"{usl.coherence:.5f}" if usl else "",
    }


def _with_most(point: Point, estimate: Estimate) -> str:
    return f"{estimate} with {point.workers} {who(point.backend)} ({point.backend})"


def verdict(estimate: Estimate) -> str:
    """Whether many workers need less data than one, by the data speed-up and its interval."""
    if estimate.bound == "<=":
        return "more, if the score is reached at all" if estimate.value < 1 else "unknown: runs ended too early"
    if not estimate.has_interval:
        return "unknown: too few seeds"
    if estimate.low > 1:
        return "less: superlinear wherever throughput is linear"
    return "more: less than linear" if estimate.high < 1 else "no difference shown"


def times_per_step(one: Point, many: Point) -> tuple[str, str]:
    """How many times as long a worker's step takes among many, and the phase that grew most."""
    phases = dict.fromkeys(phase for run in [*one.runs, *many.runs] for phase in run.phases)
    times = {phase: (1000 * one.phase(phase), 1000 * many.phase(phase)) for phase in phases}
    alone, together = (sum(pair[i] for pair in times.values()) for i in (0, 1))
    if not alone:
        return "", ""
    grown = max(times, key=lambda phase: times[phase][1] - times[phase][0])
    return f"{together / alone:.2f}", "{} ({:.3f} to {:.3f})".format(grown, *times[grown])


def _tables(results: SpeedupResults) -> list[Block]:
    """A table for each kind and backend: rows are series and environments, columns numbers of workers."""
    blocks = []
    for kind, (_, told) in KINDS.items():
        for backend in (*CLOCKED, "serial"):
            points = [p for p in results.points if p.backend == backend and kind in p.speedups]
            if not any(point.workers > 1 for point in points):
                continue
            found = {(p.env_id, p.series, p.workers): _cell(p, kind) for p in points}
            counts = sorted({point.workers for point in points})
            rows = [
                {"method": name_of(series), "environment": env_id}
                | {str(count): found.get((env_id, series, count), "") for count in counts}
                for env_id in (*results.env_ids, *([MEAN] if len(results.env_ids) > 1 else []))
                for series in results.series
                if any((env_id, series, count) in found for count in counts)
            ]
            blocks += [heading(f"{kind.capitalize()}: {told} ({backend} backend)", 3), table(rows)]
            if any(point.is_crowded for point in points):
                blocks.append(paragraph(f"* more {who(backend)} than cores."))
    return blocks


def _cell(point: Point, kind: str) -> str:
    estimate = point.speedups[kind]
    lost = len(point.runs) - point.reached if kind != "throughput" else 0
    told = "1" if point.workers == 1 and not estimate.bound else str(estimate)
    return told + (" *" if point.is_crowded else "") + (f" ({lost} of {len(point.runs)} censored)" if lost else "")


def laws_of(results: SpeedupResults, series: Series, kind: str) -> tuple[Law | None, Law | None]:
    """Amdahl's and the Universal law fitted to a series' means, from the points with a core for each worker.

    Points of a single seed are left out: the law would be one of chance.
    """
    pairs = [
        (point.workers, estimate.value)
        for point, estimate in results.estimates(series, kind, results.clock_backend)
        if not estimate.bound and not point.is_crowded and point.seeds > 1
    ]
    beyond = sum(workers > 1 for workers, _ in pairs)
    # The second law would go through any two points.
    return fit_law(pairs, 1) if beyond >= 1 else None, fit_law(pairs, 2) if beyond >= 3 else None


# --------------------------------------------------------------------------------------------------------- figures


def draw_speedups(results: SpeedupResults) -> Figure | None:
    """Speed-ups in throughput, data and time, a panel each, and the time promised with a core for each worker."""
    clock, best = results.clock_backend, results.data_backend
    wanted = [
        ("throughput", clock, f"throughput: steps per second ({clock} backend)", False),
        ("data", best, f"data: steps to the reference score ({best} backend)", False),
        ("time", clock, f"time: seconds to the reference score ({clock} backend)", False),
        ("data", best, "projection: data speed-up x workers, as if throughput were ideal", True),
    ]
    panels = [
        _speedup_panel(results, kind, backend, title, projected)
        for kind, backend, title, projected in wanted
        if any(
            kind in point.speedups and point.workers > 1 and (not projected or point.seeds > 1)
            for point in results.points
            if point.backend == backend
        )
    ]
    rows = [panels[i : i + 2] for i in range(0, len(panels), 2)]
    return draw(rows, height=4.0, width=WIDTH if len(panels) > 1 else 8.0) if panels else None


def _speedup_panel(results: SpeedupResults, kind: str, backend: str, title: str, projected: bool) -> Panel:
    """One kind of speed-up of every series; `projected`: times the number of workers."""
    counts = results.counts(backend)
    marks = [Line(counts, [1 if kind == "data" and not projected else n for n in counts], BLACK, "ideal", width=1)]
    if kind == "time" or projected:
        for series in results.series:
            row = {n: speedup for n, speedup in TABLE_2.get(series.algorithm, {}).items() if n <= max(counts)}
            marks.append(Line(list(row), list(row.values()), results.look(series)["colour"], width=4, alpha=0.18))
        marks.append(Line([], [], name="paper's Table 2", width=4, alpha=0.3))
    for i, series in enumerate(results.series):
        shift = 1.03 ** (i - (len(results.series) - 1) / 2)
        x, y, spans, look = [], [], [], results.look(series)
        for point, estimate in results.estimates(series, kind, backend):
            scale = point.workers if projected else 1
            x.append(point.workers * shift)
            y.append(estimate.value * scale)
            spans.append([scale * span for span in estimate.spans])
            marker = MARKERS[estimate.bound]
            marks.append(Line(x[-1:], y[-1:], look["colour"], style="", marker=marker, filled=not point.is_crowded))
        marks.append(Line(x, y, name=name_of(series), spans=np.reshape(spans, (-1, 2)).T, **look))
    return results.over_workers(marks, title, "times one worker", backend, y_scale="log2")


def draw_laws(results: SpeedupResults) -> Figure | None:
    """Measured throughput and time speed-ups with the laws through them: rows are kinds, columns series."""
    kinds = [k for k in ("throughput", "time") if any(laws_of(results, series, k)[0] for series in results.series)]
    grid = [[_law_panel(results, series, kind) for series in results.series] for kind in kinds]
    return draw(grid, share_x="all", share_y="all") if grid else None


def _law_panel(results: SpeedupResults, series: Series, kind: str) -> Panel:
    backend = results.clock_backend
    n = np.geomspace(1, max(results.counts(backend)), 60)
    marks, title = [Line(n, n, BLACK, "ideal", width=1)], name_of(series)
    amdahl, usl = laws_of(results, series, kind)
    if amdahl:
        marks.append(Line(n, amdahl.speedup(n), "C0", "Amdahl", "--"))
        title += f"\nserial {amdahl.contention:.2f}"
    if usl:
        marks.append(Line(n, usl.speedup(n), "C3", "Universal Scalability Law"))
        title += f"\ncontention {usl.contention:.2f}, coherence {usl.coherence:.4f}"
    for point, estimate in results.estimates(series, kind, backend):
        marks.append(Line([point.workers], [estimate.value], BLACK, "measured", "", "o", not point.is_crowded))
    return results.over_workers(marks, title, f"{kind} speed-up", backend, y_scale="log2")


def draw_reach(results: SpeedupResults) -> Figure | None:
    """Every run's steps to the reference score, censored ones as arrows, and their medians; a panel per environment."""
    backend, grid = results.data_backend, list[list[Panel]]()
    for env_id in results.env_ids:
        marks = [Line([], [], name="censored", style="", marker="^", size=4)]
        for i, series in enumerate(results.series):
            points = [point for point in results.curve(series, env_id, backend) if "data" in point.samples]
            shift, look = 1.09 ** (i - (len(results.series) - 1) / 2), results.look(series)
            x = [point.workers * shift for point in points]
            marks.append(Line(x, [p.samples["data"].bound / 1e3 for p in points], name=name_of(series), **look))
            for at, point in zip(x, points, strict=True):
                sample = point.samples["data"]
                for value, reached in zip(sample.values, sample.reached, strict=True):
                    marker = "o" if reached else "^"
                    marks.append(Line([at], [value / 1e3], look["colour"], "", "", marker, size=4, alpha=0.6))
        runs = [run for run in results.measurements if run.cell.env_id == env_id]
        if scores := sorted({run.reference.score for run in runs if run.reference}):
            title = f"{env_id}, reference score {' to '.join(dict.fromkeys(f'{s:g}' for s in (scores[0], scores[-1])))}"
            grid.append([results.over_workers(marks, title, "thousand steps to the score", backend, y_scale="log")])
    return draw(grid, height=3.5) if grid else None


def draw_scores(results: SpeedupResults, axis: Literal["minutes", "steps"]) -> Figure | None:
    """Learning curves by number of workers: rows are environments, columns series."""
    backend = results.clock_backend if axis == "minutes" else results.data_backend
    counts = results.counts(backend)
    if not any(run.evaluations for point in results.points if point.backend == backend for run in point.runs):
        return None
    names = {count: f"{count} {who(backend)[: None if count > 1 else -1]}" for count in counts}
    colours = dict(zip(names.values(), shades(len(counts)), strict=True))
    grid = list[list[Panel]]()
    for env_id in results.env_ids:
        row = list[Panel]()
        for series in results.series:
            points = results.curve(series, env_id, backend)
            groups = {names[point.workers]: point.runs for point in points}
            label = "" if row else f"{env_id}\nscore (raw return)"
            row.append(learning_curves(groups, colours, axis, label, "" if grid else name_of(series)))
        grid.append(row)
    return draw(grid, share_y="row")


def draw_staleness(results: SpeedupResults) -> Figure | None:
    """Shares of updates by staleness: rows are series, columns numbers of workers."""
    grid = list[list[Panel]]()
    for series in results.series:
        row = list[Panel]()
        for point in results.curve(series, MEAN, results.data_backend):
            if point.workers == 1:
                continue
            most = 3 * point.workers
            shares = np.zeros(most + 1)
            for lag, updates in add_up(run.staleness for run in point.runs).items():
                shares[min(lag, most)] += updates
            bars = Bars(range(most + 1), shares / max(1.0, shares.sum()), "C0")
            label = "" if row else f"{name_of(series)}\nshare of updates"
            row.append(Panel([bars], "staleness", label, f"{point.workers} workers", y_limits=(0, 1)))
        grid.append(row)
    return draw(grid, height=1.9, share_y="all") if any(grid) else None


def draw_time_split(results: SpeedupResults) -> Figure | None:
    """Milliseconds per step of a worker, by phase and number of workers; a panel per series."""
    backend, row = results.clock_backend, list[Panel]()
    phases = dict.fromkeys(phase for run in results.measurements for phase, seconds in run.phases.items() if seconds)
    for series in results.series:
        points = results.curve(series, MEAN, backend)
        bars, floor = [], np.zeros(len(points))
        for i, phase in enumerate(phases):
            heights = np.array([1000 * point.phase(phase) for point in points])
            bars.append(Bars(range(len(points)), heights, f"C{i}", phase, floor))
            floor = floor + heights
        ticks = {float(i): str(point.workers) for i, point in enumerate(points)}
        label = "" if row else "milliseconds per step of a worker"
        row.append(Panel(bars, who(backend), label, name_of(series), x_ticks=ticks))
    return draw([row], height=3.0, share_y="all") if phases and results.counts(backend) else None


def draw_cost(results: SpeedupResults) -> Figure | None:
    """Money until the reference score over workers, a panel per environment."""
    price, backend, row = results.price_per_core_hour, results.clock_backend, []
    for env_id in results.env_ids if price else ():
        marks = []
        for series in results.series:
            known = [p for p in results.curve(series, env_id, backend) if p.cost(price) is not None]
            x, y = [point.workers for point in known], [point.cost(price) or 0.0 for point in known]
            marks.append(Line(x, y, name=name_of(series), marker="o", **results.look(series)))
        if any(len(mark.x) for mark in marks):
            label = f"cost of the reference score\n(at {price:g} per core-hour)"
            row.append(results.over_workers(marks, env_id, label, backend, y_limits=(0, None)))
    return draw([row], height=3.0) if row else None


FIGURES: dict[str, tuple[Callable[[SpeedupResults], Figure | None], str]] = {
    "speedup": (
        draw_speedups,
        "Speed-up over the number of workers: mean over environments, bars are 95 % bootstrap intervals over seeds, "
        "shifted sideways to be seen. Open markers: more workers than cores. Triangles: only a bound, because runs "
        "were censored. Broad faint lines: the paper's Table 2, a speed-up in time with a core for each thread.",
    ),
    "laws": (
        draw_laws,
        "The ideal line, Amdahl's law and the Universal Scalability Law, fitted to the points with a core for each "
        "worker. Open markers (more workers than cores) are not part of the fit.",
    ),
    "reach": (
        draw_reach,
        "When each run first reached the reference score. A dot is a run, an arrow a run that ended without reaching "
        "it (censored, at its last step); the line joins the medians.",
    ),
    "score-steps": (
        lambda results: draw_scores(results, "steps"),
        "Score over steps, by number of workers (the paper's Figure 3): median over seeds, band from the worst to the "
        "best seed, dotted line at the reference score.",
    ),
    "score-time": (
        lambda results: draw_scores(results, "minutes"),
        "Score over time, by number of workers (the paper's Figure 4): median and band over seeds.",
    ),
    "staleness": (
        draw_staleness,
        "Staleness: the number of updates by other workers between the computation of a gradient and its push, as "
        "shares of all updates over all runs. The last bar includes all larger values.",
    ),
    "time-split": (
        draw_time_split,
        "Where a worker's time goes: milliseconds per step, by phase, averaged over environments.",
    ),
    "cost": (
        draw_cost,
        "Cost of reaching the reference score, median over seeds: one core per worker is paid for, at most all cores "
        "of the machine.",
    ),
}
"""All figures and their captions, by file name; a figure without enough measurements is left out."""
