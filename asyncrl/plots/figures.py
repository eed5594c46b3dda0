"""Figures, described by data: a grid of panels, each with lines, points and bars."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError

NAMES = {
    "a3c": "A3C", "one_step_q": "one-step Q", "one_step_sarsa": "one-step Sarsa", "n_step_q": "n-step Q",
    "reinforce": "REINFORCE", "a2c": "A2C", "ppo": "PPO", "impala": "IMPALA", "gorila": "Gorila", "apex": "Ape-X",
    "apex_dpg": "Ape-X DPG", "sac": "SAC",
}  # fmt: skip
COLOURS = dict(zip(NAMES, [*(f"C{i}" for i in range(10)), "goldenrod", "black"], strict=True))
"""The same in every figure of a study."""
WIDTH = 10.0
"""Width of a figure in inches."""
USUAL_LEGEND = 0.5
"""Height of a legend of two rows in inches."""
GREY, BLACK = "0.4", "0.2"
Curve = Sequence[tuple[float, float]]
"""Points of an axis, in order, and scores."""
Scale = Literal["linear", "log", "log2"]


def method_name(algorithm: str) -> str:
    """The name of a method in tables and legends."""
    return NAMES.get(algorithm, algorithm)


def colours_of(algorithms: Sequence[str]) -> list[str]:
    """A colour for each: the method's own, or colours in turn if one occurs twice or is not of this package."""
    if len(set(algorithms)) == len(algorithms) and COLOURS.keys() >= set(algorithms):
        return [COLOURS[algorithm] for algorithm in algorithms]
    return [f"C{i % 10}" for i in range(len(algorithms))]


def shades(count: int) -> list[Any]:
    """Colours from dark to light."""
    return list(matplotlib.colormaps["viridis"](np.linspace(0, 0.92, count)))


@dataclass(frozen=True)
class Line:
    """A line, or points if its `style` is "", with a band or error bars."""

    x: Sequence[float] | NDArray[np.float64]
    y: Sequence[float] | NDArray[np.float64]
    colour: Any = GREY
    name: str = ""
    """In the legend; "" for no entry."""
    style: str = "-"
    marker: str = ""
    filled: bool = True
    size: float = 5.0
    """Of the points."""
    width: float = 1.5
    alpha: float = 1.0
    band: tuple[Any, Any] | None = None
    """The lower and the upper edge of a band."""
    spans: NDArray[np.float64] | None = None
    """How far error bars reach below and above the points [2, n]."""


@dataclass(frozen=True)
class Bars:
    """Bars at `x`, from `floor` on; `across` means to the right instead of upwards."""

    x: Sequence[float] | NDArray[np.float64]
    lengths: Sequence[float] | NDArray[np.float64]
    colour: str
    name: str = ""
    floor: Sequence[float] | NDArray[np.float64] | float = 0.0
    across: bool = False
    width: float = 0.8


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    marks: Sequence[Line | Bars]
    x_label: str
    y_label: str = ""
    title: str = ""
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_ticks: Mapping[float, str] | None = None
    """The only ticks, with their labels."""
    y_ticks: Mapping[float, str] | None = None
    x_limits: tuple[float | None, float | None] = (None, None)
    y_limits: tuple[float | None, float | None] = (None, None)
    texts: Collection[tuple[float, float, str]] = ()
    """Texts to the right of points."""


def draw(
    grid: Sequence[Sequence[Panel]],
    height: float = 2.7,
    width: float = WIDTH,
    share_x: Literal["none", "all"] = "none",
    share_y: Literal["none", "row", "all"] = "none",
    legend_from: int = 2,
) -> Figure:
    """The figure of rows of panels, each `height` inches high.

    Below them is one legend of all names, if there are at least `legend_from`; the figure grows by its height.
    """
    columns = max(map(len, grid))
    figure = Figure(figsize=(width, height * len(grid) + 0.9), layout="constrained")
    axes_grid = figure.subplots(len(grid), columns, squeeze=False, sharex=share_x, sharey=share_y)
    entries: dict[str, Artist] = {}
    for row, axes_row in zip(grid, axes_grid, strict=True):
        for panel, axes in zip_longest(row, axes_row):
            if panel is None:
                axes.set_visible(False)
                continue
            for mark in panel.marks:
                _draw_mark(axes, mark)
            _finish(axes, panel)
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(name, handle)
    if len(entries) >= legend_from:
        _add_legend(figure, entries)
    return figure


def _add_legend(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """With as many columns as fit, up to five; each figure has room for `USUAL_LEGEND`."""
    handles, names = list(entries.values()), list(entries)
    for abreast in range(min(5, len(names)) if max(map(len, names)) < 25 else 3, 0, -1):
        legend = figure.legend(handles, names, loc="outside lower center", ncols=abreast, frameon=False, fontsize=9)
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or abreast == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + max(0.0, box.height / figure.dpi - USUAL_LEGEND))


def _draw_mark(axes: Axes, mark: Line | Bars) -> None:
    if isinstance(mark, Bars):
        bars = axes.barh if mark.across else axes.bar
        bars(mark.x, mark.lengths, mark.width, mark.floor, color=mark.colour, label=mark.name)
        return
    axes.plot(
        mark.x, mark.y, linestyle=mark.style or "none", color=mark.colour, label=mark.name, linewidth=mark.width,
        marker=mark.marker, markersize=mark.size, markeredgewidth=max(1.0, mark.width if mark.marker == "|" else 1.0),
        markerfacecolor=mark.colour if mark.filled else "white", alpha=mark.alpha,
    )  # fmt: skip
    if mark.band:
        axes.fill_between(mark.x, *mark.band, color=mark.colour, alpha=0.13, linewidth=0)
    if mark.spans is not None:
        axes.errorbar(mark.x, mark.y, mark.spans, fmt="none", ecolor=mark.colour, alpha=0.5, capsize=2, elinewidth=1)


def _finish(axes: Axes, panel: Panel) -> None:
    """Scales, ticks, labels and title."""
    axes.margins(x=0.06)
    for axis, scale, ticks, limits in (
        ("x", panel.x_scale, panel.x_ticks, panel.x_limits),
        ("y", panel.y_scale, panel.y_ticks, panel.y_limits),
    ):
        own = getattr(axes, f"{axis}axis")
        if scale != "linear":
            getattr(axes, f"set_{axis}scale")("log", base=2 if scale == "log2" else 10)
            own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            own.set_minor_formatter(NullFormatter())
        if ticks is not None:
            own.set_major_locator(FixedLocator(list(ticks)))
            own.set_ticks(list(ticks), list(ticks.values()))
        getattr(axes, f"set_{axis}lim")(*limits)
    low, high = axes.dataLim.intervaly
    is_alone = len(axes.get_shared_y_axes().get_siblings(axes)) == 1
    if low == high and is_alone and panel.y_scale == "linear" and panel.y_limits == (None, None):
        # All are equal: matplotlib would magnify nothing, with an axis from 0.19 to 0.21. This one has 0 on it.
        axes.set_ylim(low - (abs(low) or 1.0), high + (abs(high) or 1.0))
    for x, y, text in panel.texts:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
        axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.tick_params(which="both", labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def align(curves: Sequence[Curve], whole: bool = True) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Scores [curves, points] at all points of the axis [points] that curves have, linear between a curve's own.

    They start where all curves have begun. `whole`: they end with the last curve, and one that ends before, for example
    because its run stopped at the reference score, keeps its last score; otherwise they end with the first.
    """
    begin, end = max(curve[0][0] for curve in curves), (max if whole else min)(curve[-1][0] for curve in curves)
    x = np.array(sorted({x for curve in curves for x, _ in curve if begin <= x <= end}), np.float64)
    points = [np.array(curve, np.float64) for curve in curves]
    return x, np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in points])


def median_curve(curves: Sequence[Curve], colour: Any, name: str, whole: bool = True) -> Line:
    """The median of curves, and a band from the lowest to the highest."""
    x, scores = align(curves, whole)
    marker = "." if len(x) == 1 else ""  # a line of one point is invisible
    band = scores.min(axis=0), scores.max(axis=0)
    return Line(x, np.median(scores, axis=0), colour, name, marker=marker, width=2, band=band)


def unit_of(axis: str, most: float) -> tuple[str, float]:
    """The unit to write on an axis that reaches `most`, and how much of the recorded quantity it is."""
    if axis == "minutes":
        return ("minutes", 60.0) if most >= 120 else ("seconds", 1.0)
    return ("millions", 1e6) if most >= 1e6 else ("thousands", 1e3)


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure in the format of the suffix, PNG without one; returns its path. Raises UsageError."""
    if path.name in ("", ".."):
        raise UsageError(f"cannot write {path}: name a file")
    path = path if path.suffix else path.with_suffix(".png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from None
    return path
