"""Small charts for a page of HTML: SVG by matplotlib, in the colours of the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

MOST_POINTS, MOST_ROBUST_POINTS = 240, 80
"""Of a line: neighbours of longer ones are averaged, in a robust chart until its noise no longer hides its course."""
MOST_BARS = 24
TEXT, GRID = "#667080", "#e1e5ea"
STYLE: Any = {
    "svg.fonttype": "none", "font.size": 8, "text.color": TEXT, "axes.labelcolor": TEXT, "axes.edgecolor": TEXT,
    "xtick.color": TEXT, "ytick.color": TEXT, "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "ytick.major.size": 0, "axes.formatter.limits": (-4, 6),
}  # fmt: skip
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A curve of one run."""

    points: Sequence[Point]
    colour: str
    faint: bool = False
    """Thin: what is only there for comparison."""
    marks: bool = False
    """A dot for each point."""


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: each the mean of its neighbours."""
    if len(points) <= most:
        return list(points)
    parts = np.array_split(np.array(points, np.float64), most)
    return [(float(x), float(y)) for x, y in (part.mean(0) for part in parts)]


def line_chart(lines: Sequence[Line], x_label: str, robust: bool = False) -> Markup:
    """Curves over a common axis; "" if none has a point.

    A `robust` one leaves its axis to the middle 90 of 100 points: the first updates' values would flatten all others.
    """
    most = MOST_ROBUST_POINTS if robust else MOST_POINTS
    drawn = [(line, np.array(thinned(line.points, most))) for line in lines if line.points]
    if not drawn:
        return Markup("")
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(x_label)
        for line, points in drawn:
            width, alpha = (1.0, 0.4) if line.faint else (1.6, 1.0)
            marker = "o" if line.marks or len(points) == 1 else None
            axes.plot(*points.T, color=line.colour, marker=marker, markersize=3, linewidth=width, alpha=alpha)
        heights = np.concatenate([points[:, 1] for _, points in drawn])
        if robust and len(heights) > 20:
            low, high = np.quantile(heights, (0.05, 0.95))
            room = 0.1 * (high - low) or 0.5 * abs(high) or 0.5
            axes.set_ylim(low - room, high + room)
        return _as_svg(figure)


def histogram(groups: Sequence[tuple[str, dict[int, int]]], x_label: str) -> Markup:
    """How often each whole number came, as shares, for several (colour, counts) side by side; "" for none.

    The last bar takes the largest hundredth of the numbers.
    """
    groups = [(colour, counts) for colour, counts in groups if sum(counts.values())]
    if not groups:
        return Markup("")
    values = [np.array(list(counts)) for _, counts in groups]
    weights = [np.array(list(counts.values())) for _, counts in groups]
    cuts = zip(values, weights, strict=True)
    end = int(max(np.quantile(own, 0.99, weights=often, method="inverted_cdf") for own, often in cuts))
    width = math.ceil((end + 1) / MOST_BARS)
    edges = [i * width - 0.5 for i in range(end // width + 2)]
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(x_label)
        axes.hist(
            [own.clip(max=end) for own in values], edges,
            weights=[often / often.sum() for often in weights], color=[colour for colour, _ in groups],
        )  # fmt: skip
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        return _as_svg(figure)


def _axes(x_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 2.7))
    figure.subplots_adjust(left=0.13, right=0.97, top=0.94, bottom=0.17)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, loc="right")
    large = EngFormatter(sep="")
    axes.xaxis.set_major_formatter(lambda value, _: large(value) if abs(value) >= 1000 else f"{value:g}")
    return figure, axes


def _as_svg(figure: Figure) -> Markup:
    """The figure as an element of HTML whose text and lines have the page's colours, which may be dark."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawing = file.getvalue()[file.getvalue().index("<svg") :]
    drawing = re.sub(r' (width|height)="[\d.]+pt"', "", drawing, count=2)
    return Markup(drawing.replace(TEXT, "var(--dim)").replace(GRID, "var(--line)"))
