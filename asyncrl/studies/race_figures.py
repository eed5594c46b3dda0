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
from asyncrl.studies.figures import colours_of
from asyncrl.studies.race_results import LAST, MINUTE, Result, equal_time, name_of, time_unit
from asyncrl.studies.races import Entrant

WIDE = 30
"""From this ratio of the largest value to the smallest on, an axis of arrivals is logarithmic."""


def draw_arrivals(results: Sequence[Result], order: Sequence[Entrant]) -> Figure:
    """Time and steps to the score of every run, a row per entrant, in the colours of the curves (`order`)."""
    figure = Figure(figsize=(10, 0.45 * len(results) + 1.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    unit, size = unit_of("steps", max(max(result.steps.values) for result in results))
    time = time_unit(results)
    for axes, samples, each, quantity in (
        (left, [result.minutes for result in results], 1 / MINUTE[time], f"{time} to the score"),
        (right, [result.steps for result in results], size, f"steps to the score ({unit})"),
    ):
        _draw_rows(axes, results, order, samples, [result.entrant for result in results], each)
        _choose_scale(axes, [value for sample in samples for value in sample.values])
        axes.set_xlabel(quantity)
    _explain(figure, all(result.reached == len(result.laps) for result in results))
    return figure


def draw_scores(results: Sequence[Result], order: Sequence[Entrant], env_id: str) -> Figure:
    """The last score of every run, a row per entrant, in the colours of the curves (`order`).

    Beside it what the run had when the fastest entrant was done.
    """
    figure = Figure(figsize=(7, 0.45 * len(results) + 1.8), layout="constrained")
    axes = figure.subplots()
    rings = _draw_last_scores(axes, results, order, [result.entrant for result in results])
    axes.set_xlabel(f"score in {env_id}, mean of the last {LAST} evaluations")
    _explain(figure, complete=True, rings=rings)
    return figure


def draw_overview(
    environments: Mapping[str, Sequence[Result]], order: Sequence[Entrant], rows: Sequence[Entrant]
) -> Figure:
    """A panel per environment and a row per entrant: times to the score, or last scores if there is none to reach.

    Rows are as `rows` has them, colours are those of the curves (`order`).
    """
    figure = Figure(figsize=(1.6 + 2.2 * len(environments), 0.4 * len(rows) + 1.8), layout="constrained")
    panels = figure.subplots(1, len(environments), sharey=True, squeeze=False)[0]
    rings = False
    for axes, (env_id, results) in zip(panels, environments.items(), strict=True):
        axes.set_title(env_id, fontsize="medium")
        if any(lap.score is not None for result in results for lap in result.laps):
            samples, unit = [result.minutes for result in results], time_unit(results)
            _draw_rows(axes, results, order, samples, rows, 1 / MINUTE[unit])
            _choose_scale(axes, [value * MINUTE[unit] for sample in samples for value in sample.values])
            axes.set_xlabel(f"{unit} to the score")
        else:
            rings |= _draw_last_scores(axes, results, order, rows)
            axes.set_xlabel("last score")
    runs = [lap for results in environments.values() for result in results for lap in result.laps]
    _explain(figure, all(lap.score is None or lap.at is not None for lap in runs), rings)
    return figure


def draw_profiles(merits: Mapping[Entrant, Sequence[Sequence[float]]], order: Sequence[Entrant]) -> Figure:
    """Performance profiles: a step for each run of each environment (Dolan & More 2002, Agarwal et al. 2021)."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    most = max(1.0, *(merit for own in merits.values() for runs in own for merit in runs))
    thresholds = np.linspace(0.0, most, 501)
    colours = colours_of([entrant.algorithm for entrant in order])
    for entrant, own in merits.items():
        # Each environment counts alike, however many runs it has.
        profile = np.mean([performance_profile(runs, thresholds) for runs in own], axis=0)
        axes.plot(thresholds, profile, color=colours[order.index(entrant)], label=name_of(entrant))
    axes.set_xlabel("x: normalised score, or time of the soonest run to the score divided by the run's own")
    axes.set_ylabel("share of runs better than x")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _draw_last_scores(axes: Axes, results: Sequence[Result], order: Sequence[Entrant], rows: Sequence[Entrant]) -> bool:
    """Last scores as dots, those at equal time as rings below; returns whether there are rings."""
    _draw_rows(axes, results, order, [result.last_scores for result in results], rows)
    minutes = equal_time(results)
    for result in results if minutes else ():
        values = [value for value in result.scores_at(minutes or 0.0).values if math.isfinite(value)]
        place = rows.index(result.entrant) + 0.25
        axes.plot(values, [place] * len(values), "o", color=_colour(order, result), markersize=4, fillstyle="none")
    axes.margins(x=0.05)
    return minutes is not None


def _colour(order: Sequence[Entrant], result: Result) -> str:
    return colours_of([entrant.algorithm for entrant in order])[order.index(result.entrant)]


def _draw_rows(
    axes: Axes,
    results: Sequence[Result],
    order: Sequence[Entrant],
    samples: Sequence[Sample],
    rows: Sequence[Entrant],
    size: float = 1.0,
) -> None:
    """The runs of each entrant in its row, and their median if it is known; values in units of `size`."""
    for result, sample in zip(results, samples, strict=True):
        place = rows.index(result.entrant)
        colour = _colour(order, result)
        for value, reached in zip(sample.values, sample.reached, strict=True):
            axes.plot(value / size, place, "o" if reached else ">", color=colour, alpha=0.8)
        if math.isfinite(sample.median):
            axes.plot([sample.median / size] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
    axes.set_yticks(range(len(rows)), [name_of(entrant) for entrant in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _choose_scale(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic for values that are far apart, else from 0 on."""
    if min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.margins(x=0.05)


def _explain(figure: Figure, complete: bool, rings: bool = False) -> None:
    """A legend of the marks; without that of a run that ended too early if all runs are `complete`."""
    marks = {"o": "a run", "|": "median of the seeds"}
    if not complete:
        marks[">"] = "ended before it reached the score"
    handles = [Line2D([], [], color="0.4", linestyle="", marker=mark, label=told) for mark, told in marks.items()]
    handles[1].set(markersize=14, markeredgewidth=2)
    if rings:
        told = "its score when the fastest entrant was done"
        handles.append(
            Line2D([], [], color="0.4", linestyle="", marker="o", markersize=4, fillstyle="none", label=told)
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
