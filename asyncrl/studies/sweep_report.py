"""The table and the figures of a sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from asyncrl.studies.documents import code, paragraph, picture, table, write_csv, write_pages
from asyncrl.studies.figures import BLACK, Bars, Line, Panel, Scale, colours_of, draw, method_name, shades
from asyncrl.studies.search import Trial, importances
from asyncrl.studies.search_space import Axis, is_numeric

SCORED_FOR_LINES = 3
"""Parallel coordinates need at least so many runs with a score."""
CAPTIONS = {
    "scores": "Final score of each run. Crosses are runs without a score: they failed, were stopped or have not been "
    "made.",
    "parallel": "A line for each run, by its settings and its best score: yellow is best.",
    "importance": "How much each setting determines whether a run is among the better ones (PED-ANOVA, Watanabe et al. "
    "2023, by Optuna). The shares add up to one; small ones need many runs to mean anything.",
}


def write_report(rows: Sequence[Trial], axes: Sequence[Axis], runs_dir: Path, command: str) -> Path:
    """Write RUNS_DIR/report/: report.md, report.html, table.csv and figures; returns the path of report.md."""
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    rows, varied = ranked(rows), varied_of(axes)
    cells = cells_of(rows, axes)
    write_csv(folder / "table.csv", cells)
    states = Counter(row.run.state or "not made" for row in rows)
    fixed = ", ".join(f"{axis.field} {axis.values[0]}" for axis in axes if not axis.varies)
    tried = [with_values(axis, rows) for axis in varied]
    figures = {"scores": draw_scores(rows, tried)}
    if varied and sum(row.best_score is not None for row in rows) >= SCORED_FOR_LINES:
        figures["parallel"] = draw_parallel(rows, tried)
    if shares := shares_of(rows, varied):
        figures["importance"] = draw_importances(shares)
    best = {min(i for i, row in enumerate(rows) if row.job.env_id == env_id) for env_id in env_ids_of(rows)}
    blocks = [
        paragraph(
            f"{len(rows)} runs ({', '.join(f'{count} {state}' for state, count in states.items())}). "
            f"{f'In all of them: {fixed}. ' if fixed else ''}"
            "A score is the mean raw return of an evaluation; final: of the last one."
        ),
        code(command),
        *(picture(figure, folder / name, CAPTIONS[name]) for name, figure in figures.items()),
        table(cells, marked={i for i in best if rows[i].best_score is not None}),
    ]
    return write_pages(folder, "Sweep", blocks)


def varied_of(axes: Sequence[Axis]) -> list[Axis]:
    """The settings in which the runs of an environment differ."""
    return [axis for axis in axes if axis.varies and axis.field != "env_id"]


def with_values(axis: Axis, rows: Sequence[Trial]) -> Axis:
    """The axis with the values that were tried, if it only has bounds."""
    if axis.bounds is None:
        return axis
    return replace(axis, values=tuple(dict.fromkeys(row.point[axis.field] for row in rows)))


def env_ids_of(rows: Sequence[Trial]) -> list[str]:
    """The environments."""
    return list(dict.fromkeys(row.job.env_id for row in rows))


def ranked(rows: Sequence[Trial]) -> list[Trial]:
    """Rows by environment, the best score first, those without a score last."""
    env_ids = env_ids_of(rows)

    def order(row: Trial) -> tuple[int, float]:
        return env_ids.index(row.job.env_id), math.inf if row.best_score is None else -row.best_score

    return sorted(rows, key=order)


def cells_of(rows: Sequence[Trial], axes: Sequence[Axis]) -> list[dict[str, str]]:
    """The table, a row for each run."""
    return [
        {
            "method": row.job.algorithm,
            "environment": row.job.env_id,
            **{axis.field: row.point.get(axis.field, "") for axis in varied_of(axes)},
            "seed": str(row.run.cell.seed),
            "state": row.run.state or "not made",
            "steps": str(row.run.steps),
            "best": "" if row.best_score is None else f"{row.best_score:.6g}",
            "final": "" if row.final_score is None else f"{row.final_score:.6g}",
        }
        for row in rows
    ]


def shares_of(rows: Sequence[Trial], varied: Sequence[Axis]) -> dict[str, dict[str, float]]:
    """The importance of each setting, by method and environment, if there are enough runs."""
    groups: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for row in rows:
        if row.best_score is not None:
            name = f"{method_name(row.job.algorithm)}, {row.job.env_id}"
            groups.setdefault(name, []).append((row.point, row.best_score))
    found = {name: importances(own, varied) for name, own in groups.items()}
    return {name: shares for name, shares in found.items() if shares}


def draw_importances(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each setting, a panel for each method and environment."""
    grid = []
    for name, own in shares.items():
        fields = sorted(own, key=lambda field: own[field])
        ticks = {float(i): field.replace("_", " ") for i, field in enumerate(fields)}
        bars = Bars(list(ticks), [own[field] for field in fields], "C0", across=True)
        grid.append([Panel([bars], "importance", "", name, y_ticks=ticks, x_limits=(0, 1))])
    return draw(grid, 0.7 + 0.4 * max(map(len, shares.values())), 6.0)


def draw_parallel(rows: Sequence[Trial], varied: Sequence[Axis]) -> Figure:
    """Parallel coordinates: a vertical axis per setting, the best score at the right; a panel per environment."""
    colours = shades(256)
    grid = []
    for env_id in env_ids_of(rows):
        own = [row for row in reversed(rows) if row.job.env_id == env_id and row.best_score is not None]
        scores = Axis("best_score", tuple(f"{row.best_score:.6g}" for row in own), "uniform")
        axes = [*varied, scores]
        marks = [Line([x, x], [0, 1], BLACK, width=0.8) for x in range(len(axes))]
        for row, score in zip(own, scores.values, strict=True):  # the best are drawn last
            heights = [height_of(axis, row.point.get(axis.field, score)) for axis in axes]
            marks.append(Line(range(len(axes)), heights, colours[int(255 * heights[-1])], alpha=0.8))
        texts = [(x, height_of(axis, value), value) for x, axis in enumerate(axes) for value in labels_of(axis)]
        ticks = {float(x): axis.field.replace("_", "\n") for x, axis in enumerate(axes)}
        limits = (-0.1, len(varied) + 0.5)
        grid.append([Panel(marks, "", "", env_id, x_ticks=ticks, y_ticks={}, x_limits=limits, texts=texts)])
    return draw(grid, 3.6, 2.0 + 1.6 * (len(varied) + 1))


def labels_of(axis: Axis) -> list[str]:
    """The labels of an axis: all values of a list, or both ends of a range."""
    if axis.drawn and axis.values:
        return sorted({min(axis.values, key=float), max(axis.values, key=float)}, key=float)
    return sorted(axis.values, key=float) if is_numeric(axis.values) else list(axis.values)


def height_of(axis: Axis, value: str) -> float:
    """The place of a value from 0 to 1 along an axis; those of a list are equally spaced."""
    if not axis.drawn:
        order = labels_of(axis)
        return order.index(value) / max(1, len(order) - 1)
    scale = math.log if axis.drawn == "log-uniform" else float
    places = [scale(float(each)) for each in axis.values]
    return (scale(float(value)) - min(places)) / ((max(places) - min(places)) or 1.0)


def draw_scores(rows: Sequence[Trial], varied: Sequence[Axis]) -> Figure:
    """Final score over the axis with the most values, a panel per environment, a colour per method and other setting.

    An axis that was drawn log-uniformly, or spans more than a factor of 20, is logarithmic (the paper's Figure 2).
    """
    across = max(varied, key=lambda axis: (is_numeric(axis.values), len(axis.values)), default=None)

    def group_of(row: Trial) -> str:
        others = [f"{axis.field} {row.point[axis.field]}" for axis in varied if axis is not across and not axis.drawn]
        return ", ".join([method_name(row.job.algorithm), *others])

    groups = {group_of(row): row.job.algorithm for row in rows}
    colours = dict(zip(groups, colours_of(list(groups.values())), strict=True))
    panels = []
    for env_id in env_ids_of(rows):
        own = [row for row in rows if row.job.env_id == env_id]
        lowest = min((row.final_score for row in own if row.final_score is not None), default=0.0)
        marks = []
        for name, colour in colours.items():
            mine = [row for row in own if group_of(row) == name]
            known = [row for row in mine if row.final_score is not None]
            scores = [row.final_score or 0.0 for row in known]
            marks.append(Line([place_of(row, across) for row in known], scores, colour, name, "", "o", alpha=0.75))
            lost = [place_of(row, across) for row in mine if row.final_score is None]
            marks.append(Line(lost, [lowest] * len(lost), colour, "", "", "x"))
        panels.append(_score_panel(marks, across, env_id))
    return draw([panels], 3.8, max(6.0, min(10.0, 5.0 * len(panels))))


def place_of(row: Trial, across: Axis | None) -> float:
    """Where a run is on the horizontal axis: its value, the number of its value in a list of words, or its seed."""
    if across is None:
        return float(row.run.cell.seed)
    value = row.point[across.field]
    return float(value) if is_numeric(across.values) else float(across.values.index(value))


def _score_panel(marks: Sequence[Line], across: Axis | None, env_id: str) -> Panel:
    label, ticks = "seed", None
    scale: Scale = "linear"
    if across is not None:
        label = across.field.replace("_", " ")
        values = [float(value) for value in across.values] if is_numeric(across.values) else []
        if not values:
            ticks = {float(i): value for i, value in enumerate(across.values)}
        elif across.drawn == "log-uniform" or (min(values) > 0 and max(values) / min(values) > 20):
            scale = "log"
    return Panel(marks, label, "final score (raw return)", env_id, scale, x_ticks=ticks)
