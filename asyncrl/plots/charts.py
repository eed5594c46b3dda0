"""Small charts for a page of HTML: SVG by matplotlib, in the colours of the page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import EngFormatter

from asyncrl.plots.figures import Bars, Line, Panel, draw

MOST_POINTS, MOST_ROBUST_POINTS = 240, 80
"""Of a line: neighbours of longer ones are averaged, in a robust chart until its noise no longer hides its course."""
MOST_BARS = 24
TEXT, GRID = "#667080", "#e1e5ea"
STYLE: Any = {
    "svg.fonttype": "none", "text.color": TEXT, "axes.labelcolor": TEXT, "axes.edgecolor": TEXT, "xtick.color": TEXT,
    "ytick.color": TEXT, "grid.color": GRID, "axes.axisbelow": True, "axes.formatter.limits": (-4, 6),
}  # fmt: skip
Point = tuple[float, float]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: each the mean of its neighbours."""
    if len(points) <= most:
        return list(points)
    parts = np.array_split(np.array(points, np.float64), most)
    return [(float(x), float(y)) for x, y in (part.mean(0) for part in parts)]


def line_chart(lines: Sequence[tuple[Sequence[Point], dict[str, Any]]], x_label: str, robust: bool = False) -> Markup:
    """Curves over a common axis, each of points and the look of their `Line`; "" if none has a point.

    A `robust` one leaves its axis to the middle 90 of 100 points: the first updates' values would flatten all others.
    """
    most = MOST_ROBUST_POINTS if robust else MOST_POINTS
    drawn = [(np.array(thinned(points, most)).T, look) for points, look in lines if points]
    if not drawn:
        return Markup("")
    marks = [Line(x, y, **({"marker": "o"} if len(x) == 1 else {}) | look) for (x, y), look in drawn]
    heights = np.concatenate([y for (_, y), _ in drawn])
    if not robust or len(heights) <= 20:
        return _as_svg(Panel(marks, x_label))
    low, high = np.quantile(heights, (0.05, 0.95))
    room = 0.1 * (high - low) or 0.5 * abs(high) or 0.5
    return _as_svg(Panel(marks, x_label, y_limits=(low - room, high + room)))


def histogram(groups: Sequence[tuple[str, dict[int, int]]], x_label: str) -> Markup:
    """How often each whole number came, in percent, for several (colour, counts) side by side; "" for none.

    The last bar takes the largest hundredth of the numbers.
    """
    groups = [(colour, counts) for colour, counts in groups if sum(counts.values())]
    if not groups:
        return Markup("")
    ends = [
        np.quantile(list(counts), 0.99, weights=list(counts.values()), method="inverted_cdf") for _, counts in groups
    ]
    width = math.ceil((max(ends) + 1) / MOST_BARS)
    last, own = int(max(ends)) // width, 0.8 * width / len(groups)
    marks = []
    for i, (colour, counts) in enumerate(groups):
        shares = np.zeros(last + 1)
        for number, count in counts.items():
            shares[min(number // width, last)] += 100 * count / sum(counts.values())
        # In the middle of the numbers that a bar counts, and beside those of the other groups.
        x = np.arange(last + 1) * width + (width - 1) / 2 + own * (i - (len(groups) - 1) / 2)
        marks.append(Bars(x, shares, colour, width=own))
    return _as_svg(Panel(marks, x_label, "%"))


def _as_svg(panel: Panel) -> Markup:
    """The panel as an element of HTML whose text and lines have the page's colours, which may be dark."""
    large, file = EngFormatter(sep=""), io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = draw([[panel]], 1.8, 4.6)
        figure.axes[0].xaxis.set_major_formatter(lambda x, _: large(x) if abs(x) >= 1000 else f"{x:g}")
        plain = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=plain)
    drawing = file.getvalue()[file.getvalue().index("<svg") :]
    drawing = re.sub(r' (width|height)="[\d.]+pt"', "", drawing, count=2)
    return Markup(drawing.replace(TEXT, "var(--dim)").replace(GRID, "var(--line)"))
