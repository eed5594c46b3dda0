"""The figures of a race: a row per entrant, a dot per run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from asyncrl.core.aggregates import performance_profile
from asyncrl.core.statistics import Sample
from asyncrl.plots.curves import unit_of
from asyncrl.studies.figures import open_frame
from asyncrl.studies.race import LAST, MINUTE, Result, equal_time, time_unit

WIDE = 30
"""From this ratio of the largest value to the smallest on, an axis of arrivals is logarithmic."""
Colours = Mapping[str, str]
"""Those of the entrants in the curves, by name."""


def draw_arrivals(results: Sequence[Result], colours: Colours) -> Figure:
    """Time and steps to the score of every run, a row per entrant."""
    figure = Figure(figsize=(10, 0.45 * len(results) + 1.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = [result.name for result in results]
    _draw_times(left, results, colours, rows)
    unit, size = unit_of("steps", max(max(result.steps.values) for result in results))
    _draw_rows(right, results, colours, [result.steps for result in results], rows, size, from_zero=True)
    right.set_xlabel(f"steps to the score ({unit})")
    _explain(figure, results)
    return figure


def draw_scores(results: Sequence[Result], colours: Colours) -> Figure:
    """The last score of every run, a row per entrant; below it what the run had when the fastest entrant was done."""
    figure = Figure(figsize=(7, 0.45 * len(results) + 1.8), layout="constrained")
    axes = figure.subplots()
    _draw_last_scores(axes, results, colours, [result.name for result in results])
    axes.set_xlabel(f"score in {results[0].runs[0].cell.env_id}, mean of the last {LAST} evaluations")
    _explain(figure, results, rings=equal_time(results) is not None)
    return figure


def draw_overview(environments: Mapping[str, Sequence[Result]], colours: Colours, rows: Sequence[str]) -> Figure:
    """A panel per environment and a row per entrant: times to the score, or last scores if there is none to reach."""
    figure = Figure(figsize=(1.6 + 2.2 * len(environments), 0.4 * len(rows) + 1.8), layout="constrained")
    panels = figure.subplots(1, len(environments), sharey=True, squeeze=False)[0]
    for axes, (env_id, results) in zip(panels, environments.items(), strict=True):
        axes.set_title(env_id, fontsize="medium")
        if any(result.reference for result in results):
            _draw_times(axes, results, colours, rows)
        else:
            _draw_last_scores(axes, results, colours, rows)
            axes.set_xlabel("last score")
    everyone = [result for results in environments.values() for result in results]
    _explain(figure, everyone, rings=any(equal_time(results) is not None for results in environments.values()))
    return figure


def draw_profiles(merits: Mapping[str, Sequence[Sequence[float]]], colours: Colours) -> Figure:
    """Performance profiles: a step for each run of each environment (Dolan & More 2002, Agarwal et al. 2021)."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    most = max(1.0, *(merit for own in merits.values() for runs in own for merit in runs))
    thresholds = np.linspace(0.0, most, 501)
    for name, own in merits.items():
        # Each environment counts alike, however many runs it has.
        profile = np.mean([performance_profile(runs, thresholds) for runs in own], axis=0)
        axes.plot(thresholds, profile, color=colours[name], label=name)
    axes.set_xlabel("x: normalised score, or time of the soonest run to the score divided by the run's own")
    axes.set_ylabel("share of runs better than x")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    open_frame(axes)
    axes.legend(frameon=False)
    return figure


def _draw_times(axes: Axes, results: Sequence[Result], colours: Colours, rows: Sequence[str]) -> None:
    unit = time_unit(results)
    _draw_rows(axes, results, colours, [r.minutes for r in results], rows, 1 / MINUTE[unit], from_zero=True)
    axes.set_xlabel(f"{unit} to the score")


def _draw_last_scores(axes: Axes, results: Sequence[Result], colours: Colours, rows: Sequence[str]) -> None:
    """Last scores as dots, those at equal time as rings below."""
    _draw_rows(axes, results, colours, [result.last_scores() for result in results], rows)
    if minutes := equal_time(results):
        for result in results:
            values = [value for value in result.last_scores(minutes).values if math.isfinite(value)]
            place = rows.index(result.name) + 0.25
            axes.plot(values, [place] * len(values), "o", color=colours[result.name], markersize=4, fillstyle="none")


def _draw_rows(
    axes: Axes,
    results: Sequence[Result],
    colours: Colours,
    samples: Sequence[Sample],
    rows: Sequence[str],
    size: float = 1.0,
    from_zero: bool = False,
) -> None:
    """The runs of each entrant in its row, and their median if it is known; values in units of `size`.

    An axis `from_zero` is logarithmic instead if its values are far apart.
    """
    for result, sample in zip(results, samples, strict=True):
        place, colour = rows.index(result.name), colours[result.name]
        for value, reached in zip(sample.values, sample.reached, strict=True):
            axes.plot(value / size, place, "o" if reached else ">", color=colour, alpha=0.8)
        if math.isfinite(sample.median):
            axes.plot([sample.median / size] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    open_frame(axes)
    values = [value for sample in samples for value in sample.values]
    if from_zero and min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    elif from_zero:
        axes.set_xlim(left=0)
    axes.margins(x=0.05)


def _explain(figure: Figure, results: Sequence[Result], rings: bool = False) -> None:
    """A legend of the marks that the figure has."""

    def handle(told: str, marker: str, **look: object) -> Line2D:
        return Line2D([], [], color="0.4", linestyle="", marker=marker, label=told, **look)  # type: ignore[arg-type]

    handles = [handle("a run", "o"), handle("median of the seeds", "|", markersize=14, markeredgewidth=2)]
    if not all(all(result.minutes.reached) for result in results):
        handles.append(handle("ended before it reached the score", ">"))
    if rings:
        handles.append(handle("its score when the fastest entrant was done", "o", markersize=4, fillstyle="none"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
