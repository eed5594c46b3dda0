"""Small charts as SVG text, drawn with the colours of the page they stand in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from asyncrl.plots.templates import Markup, Parts

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 12, 40
MOST_POINTS, MOST_ROBUST_POINTS = 240, 80
"""Of a line: neighbours of longer ones are averaged, in a robust chart until its noise no longer hides its course."""

SIZE = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM}
PARTS = Parts("plots/chart.svg")
Point = tuple[float, float]
Label = tuple[float, str]
"""A place along an axis, and its text."""


@dataclass(frozen=True)
class Line:
    """A curve of one run."""

    points: Sequence[Point]
    colour: str
    name: str = ""
    faint: bool = False
    """Thin and without marks: what is only there for comparison."""
    marks: bool = False
    """A dot for each point, which says its values."""


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many points: each the mean of its neighbours."""
    if len(points) <= most:
        return list(points)
    edges = [len(points) * i // most for i in range(most + 1)]
    parts = [points[a:b] for a, b in pairwise(edges)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`: steps are 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number for an axis: 1.2M, 300k, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, robust: bool = False) -> Markup:
    """Curves over a common axis; "" if none has a point.

    A `robust` one leaves its axis to the middle 90 of 100 points: what the first update did would flatten all others.
    """
    most = MOST_ROBUST_POINTS if robust else MOST_POINTS
    shown = [Line(thinned(line.points, most), line.colour, line.name, line.faint, line.marks) for line in lines]
    points = [point for line in shown for point in line.points]
    if not points:
        return Markup("")
    x_low, x_high = _range([x for x, _ in points])
    heights = sorted(y for _, y in points)
    left_out = len(heights) // 20 if robust else 0
    y_low, y_high = _range(heights[left_out : len(heights) - left_out])
    room = 0.05 * (y_high - y_low)
    y_low, y_high = y_low - room, y_high + room
    x_low = min(x_low, 0.0) if x_low < 0.2 * x_high else x_low

    def at(point: Point) -> tuple[float, float]:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        share = min(1.0, max(0.0, (point[1] - y_low) / (y_high - y_low)))
        y = HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    rows = [(at((x_low, value))[1], short(value)) for value in ticks(y_low, y_high)]
    columns = [(at((value, y_low))[0], short(value)) for value in ticks(x_low, x_high, 4)]
    drawn = []
    for line in shown:
        marked = line.points if line.marks else ()
        marks = [(*at(point), f"{line.name}: {point[1]:.4g} at {short(point[0])}") for point in marked]
        drawn.append(PARTS.line("faint" if line.faint else "line", line.colour, map(at, line.points), marks))
    return _framed(x_label, y_label, rows, columns, drawn)


def histogram(groups: Sequence[tuple[str, str, dict[int, int]]], x_label: str) -> Markup:
    """How often each whole number came, as shares, for several (name, colour, counts) beside each other; "" for none.

    Numbers that make up the last hundredth are put together at the right end.
    """
    groups = [group for group in groups if sum(group[2].values())]
    if not groups:
        return Markup("")
    end = max(_quantile(counts, 0.99) for _, _, counts in groups)
    per_bar = max(1, math.ceil((end + 1) / 24))
    bars = end // per_bar + 1
    shares = []
    for _, _, counts in groups:
        row, total = [0.0] * bars, sum(counts.values())
        for value, count in counts.items():
            row[min(bars - 1, value // per_bar)] += count / total
        shares.append(row)
    top = max(map(max, shares))
    each = (WIDTH - LEFT - RIGHT) / bars
    width = 0.86 * each / len(groups)
    height = HEIGHT - TOP - BOTTOM
    lines = [(round(HEIGHT - BOTTOM - share / top * height, 1), f"{100 * share:.3g} %") for share in ticks(0.0, top, 4)]
    columns, drawn = [], []
    labelled = max(1, math.ceil(bars / 8))
    for i in range(bars):
        if i % labelled == 0:
            text = str(i * per_bar) + ("+" if i == bars - 1 and end < max(max(g[2]) for g in groups) else "")
            columns.append((round(LEFT + (i + 0.5) * each, 1), text))
        for k, (name, colour, _) in enumerate(groups):
            long = shares[k][i] / top * height
            x, y = round(LEFT + i * each + 0.07 * each + k * width, 1), round(HEIGHT - BOTTOM - long, 1)
            span = str(i * per_bar) if per_bar == 1 else f"{i * per_bar} to {(i + 1) * per_bar - 1}"
            drawn.append(PARTS.bar(x, y, width, long, colour, f"{name}: {100 * shares[k][i]:.3g} % at {span}"))
    return _framed(x_label, "share", lines, columns, drawn)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low > 1e-12 * max(1.0, abs(high)):
        return low, high
    room = 0.5 * abs(high) or 0.5
    return low - room, high + room


def _quantile(counts: dict[int, int], share: float) -> int:
    """The least number that `share` of all do not exceed."""
    left = share * sum(counts.values())
    for value in sorted(counts):
        left -= counts[value]
        if left <= 1e-9:
            return value
    return max(counts)


def _framed(
    x_label: str, y_label: str, rows: Sequence[Label], columns: Sequence[Label], drawn: Sequence[Markup]
) -> Markup:
    """What is drawn, on its axes; `rows` and `columns` have the labels of these."""
    return PARTS.frame(SIZE, x_label, y_label, rows, columns, Markup("").join(drawn))
