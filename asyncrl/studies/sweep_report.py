"""The table and the figures of a sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asyncrl.studies.documents import code, paragraph, picture, table, write_csv, write_pages
from asyncrl.studies.figures import colours_of, legend_below, method_name, open_frame
from asyncrl.studies.search import Trial, importances
from asyncrl.studies.search_space import Axis

SHOWN = 5
"""Number of best runs printed on the terminal."""
LABEL: Mapping[str, Any] = {
    "textcoords": "offset points",
    "fontsize": 8,
    "bbox": {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
}
"""Text style of values at an axis."""
SCORED_FOR_LINES = 3
"""Parallel coordinates need at least so many runs with a score."""


def write_report(rows: Sequence[Trial], axes: Sequence[Axis], runs_dir: Path, command: str) -> Path:
    """Write RUNS_DIR/report/: report.md, report.html, table.csv and figures; returns the path of report.md."""
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    rows, varied = ranked(rows), varied_of(axes)
    cells = [_cells(row, varied) for row in rows]
    write_csv(folder / "table.csv", cells)
    states = Counter(row.run.state or "not made" for row in rows)
    fixed = ", ".join(f"{axis.field} {axis.values[0]}" for axis in axes if not axis.varies)
    blocks = [
        paragraph(
            f"{len(rows)} runs ({', '.join(f'{count} {state}' for state, count in states.items())}). "
            f"{f'In all of them: {fixed}. ' if fixed else ''}"
            "A score is the mean raw return of an evaluation; final: of the last one."
        ),
        code(command),
        picture(
            draw_sweep(rows, [with_values(axis, rows) for axis in varied]),
            folder / "scores",
            "Final score of each run. Crosses at the lower edge are runs without a score: they failed, were stopped or "
            "have not been made.",
        ),
    ]
    if varied and sum(row.best_score is not None for row in rows) >= SCORED_FOR_LINES:
        caption = "A line for each run, by its settings and its best score: yellow is best."
        blocks.append(picture(draw_parallel(rows, varied), folder / "parallel", caption))
    if shares := shares_of(rows, varied):
        caption = (
            "How much each setting determines whether a run is among the better ones (PED-ANOVA, Watanabe et al. "
            "2023, by Optuna). The shares add up to one; small ones need many runs to mean anything."
        )
        blocks.append(picture(draw_importances(shares), folder / "importance", caption))
    best = [i for i, row in enumerate(rows) if row in best_of(rows)]
    blocks.append(table(list(cells[0]), [list(cell.values()) for cell in cells], marked=best))
    return write_pages(folder, "Sweep", blocks)


def varied_of(axes: Sequence[Axis]) -> list[Axis]:
    """The settings in which the runs of an environment differ."""
    return [axis for axis in axes if axis.varies and axis.field != "env_id"]


def with_values(axis: Axis, rows: Sequence[Trial]) -> Axis:
    """The axis with the values that were tried, if it only has bounds."""
    if axis.bounds is None:
        return axis
    return replace(axis, values=tuple(dict.fromkeys(row.point[axis.field] for row in rows)))


def ranked(rows: Sequence[Trial]) -> list[Trial]:
    """Rows by environment, the best score first, those without a score last."""
    env_ids = list(dict.fromkeys(row.job.env_id for row in rows))

    def order(row: Trial) -> tuple[int, float]:
        return env_ids.index(row.job.env_id), math.inf if row.best_score is None else -row.best_score

    return sorted(rows, key=order)


def best_of(rows: Sequence[Trial]) -> list[Trial]:
    """The best run of each environment."""
    first: dict[str, Trial] = {}
    for row in ranked(rows):
        if row.best_score is not None:
            first.setdefault(row.job.env_id, row)
    return list(first.values())


def best_rows(rows: Sequence[Trial], axes: Sequence[Axis]) -> list[str]:
    """The best runs of each environment, as lines for the terminal."""
    varied = varied_of(axes)
    methods = len({row.job.algorithm for row in rows}) > 1
    lines = []
    for env_id in dict.fromkeys(row.job.env_id for row in rows):
        own = [row for row in ranked(rows) if row.job.env_id == env_id and row.best_score is not None]
        if own:
            lines.append(f"best of {len(own)} runs in {env_id}:")
        for row in own[:SHOWN]:
            settings = [f"{axis.field} {row.point.get(axis.field, '')}" for axis in varied]
            told = ", ".join([*([row.job.algorithm] if methods else []), *settings, f"seed {row.run.cell.seed}"])
            lines.append(f"  {row.best_score:>10.6g}  {told}")
    return lines


def shares_of(rows: Sequence[Trial], varied: Sequence[Axis]) -> dict[str, dict[str, float]]:
    """The importance of each setting, by method and environment, if there are enough runs."""
    groups: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for row in rows:
        if row.best_score is not None:
            groups.setdefault(f"{method_name(row.job.algorithm)}, {row.job.env_id}", []).append(
                (row.point, row.best_score)
            )
    found = {name: importances(own, varied) for name, own in groups.items()}
    return {name: shares for name, shares in found.items() if shares}


def draw_importances(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each setting, a panel for each method and environment."""
    most = max(len(own) for own in shares.values())
    figure = Figure(figsize=(6.0, 1.0 + 0.4 * most * len(shares)), layout="constrained")
    grid = figure.subplots(len(shares), 1, squeeze=False)[:, 0]
    for axes, (name, own) in zip(grid, shares.items(), strict=True):
        fields = sorted(own, key=lambda field: own[field])
        axes.barh([field.replace("_", " ") for field in fields], [own[field] for field in fields], color="C0")
        axes.set_xlim(0, 1)
        axes.set_title(name, fontsize=11)
        open_frame(axes)
    grid[-1].set_xlabel("importance")
    return figure


def draw_parallel(rows: Sequence[Trial], varied: Sequence[Axis]) -> Figure:
    """Parallel coordinates: a vertical axis per setting, the best score at the right; a panel per environment."""
    env_ids = list(dict.fromkeys(row.job.env_id for row in rows))
    figure = Figure(figsize=(2.0 + 1.6 * (len(varied) + 1), 3.6 * len(env_ids)), layout="constrained")
    grid = figure.subplots(len(env_ids), 1, squeeze=False)[:, 0]
    for axes, env_id in zip(grid, env_ids, strict=True):
        own = [row for row in rows if row.job.env_id == env_id and row.best_score is not None]
        if own:
            _draw_lines(axes, own, [with_values(axis, rows) for axis in varied])
        axes.set_title(env_id, fontsize=11)
    return figure


def _draw_lines(axes: Axes, rows: Sequence[Trial], varied: Sequence[Axis]) -> None:
    scores = [row.best_score or 0.0 for row in rows]
    columns = [_heights(axis, [row.point[axis.field] for row in rows]) for axis in varied]
    columns.append(_between(scores))
    for i in sorted(range(len(rows)), key=lambda i: scores[i]):  # the best are drawn last
        axes.plot(
            range(len(columns)),
            [column[i] for column in columns],
            color=matplotlib.colormaps["viridis"](columns[-1][i]),
            alpha=0.8,
        )
    for x, axis in enumerate(varied):
        for value in _labels(axis):
            (height,) = _heights(axis, [value])
            axes.annotate(value, (x, height), xytext=(4, 0), va="center", **LABEL)
    for height, score in ((0.0, min(scores)), (1.0, max(scores))):
        axes.annotate(f"{score:.6g}", (len(varied), height), xytext=(4, 0), va="center", **LABEL)
    for x in range(len(columns)):
        axes.axvline(x, color="0.3", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(columns)), [*(axis.field.replace("_", "\n") for axis in varied), "best\nscore"])
    axes.set_xlim(-0.1, len(varied) + 0.5)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _labels(axis: Axis) -> list[str]:
    """The labels of an axis: all values of a list, or both ends of a range."""
    if axis.is_numeric and axis.drawn:
        return [min(axis.values, key=float), max(axis.values, key=float)]
    return list(axis.values)


def _heights(axis: Axis, values: Sequence[str]) -> list[float]:
    """Places of values from 0 to 1 along an axis; those of a list are equally spaced."""
    if not (axis.is_numeric and axis.drawn):
        order = sorted(axis.values, key=float) if axis.is_numeric else list(axis.values)
        return [order.index(value) / max(1, len(order) - 1) for value in values]
    scale = math.log if axis.drawn == "log-uniform" else float
    low, high = (scale(float(value)) for value in _labels(axis))
    return [(scale(float(value)) - low) / ((high - low) or 1.0) for value in values]


def _between(scores: Sequence[float]) -> list[float]:
    low, high = min(scores), max(scores)
    return [(score - low) / ((high - low) or 1.0) for score in scores]


def _cells(row: Trial, varied: Sequence[Axis]) -> dict[str, str]:
    scores = {"best": row.best_score, "final": row.final_score}
    return {
        "method": row.job.algorithm,
        "environment": row.job.env_id,
        **{axis.field: row.point.get(axis.field, "") for axis in varied},
        "seed": str(row.run.cell.seed),
        "state": row.run.state or "not made",
        "steps": str(row.run.steps),
        **{name: "" if score is None else f"{score:.6g}" for name, score in scores.items()},
    }


def draw_sweep(rows: Sequence[Trial], varied: Sequence[Axis]) -> Figure:
    """Final score over the axis with the most values, a panel per environment, a colour per method and other setting.

    An axis that was drawn log-uniformly, or spans more than a factor of 20, is logarithmic (the paper's Figure 2).
    """
    across = max(varied, key=lambda axis: (axis.is_numeric, len(axis.values)), default=None)
    env_ids = list(dict.fromkeys(row.job.env_id for row in rows))
    figure = Figure(figsize=(max(6.0, min(10.0, 5.0 * len(env_ids))), 4.4), layout="constrained")
    grid = figure.subplots(1, len(env_ids), squeeze=False)[0]
    groups = {_group(row, varied, across): row.job.algorithm for row in rows}
    colours = dict(zip(groups, colours_of(list(groups.values())), strict=True))
    for axes, env_id in zip(grid, env_ids, strict=True):
        for group in groups:
            own = [row for row in rows if (row.job.env_id, _group(row, varied, across)) == (env_id, group)]
            _draw_points(axes, own, across, colours[group], group)
        _finish(axes, across, env_id)
    if len(groups) > 1:
        handles, labels = grid[0].get_legend_handles_labels()
        legend_below(figure, handles, labels)
    return figure


def _group(row: Trial, varied: Sequence[Axis], across: Axis | None) -> str:
    """The row's group, which sets its colour: its method and all settings except the one on the axis."""
    others = [f"{axis.field} {row.point[axis.field]}" for axis in varied if axis is not across and not axis.drawn]
    return ", ".join([method_name(row.job.algorithm), *others])


def _draw_points(axes: Axes, rows: Sequence[Trial], across: Axis | None, colour: str, label: str) -> None:
    """A dot per run; a cross at the lower edge for a run without a score."""
    places = [_place(row, across) for row in rows]
    scores = [row.final_score for row in rows]
    known = [(x, y) for x, y in zip(places, scores, strict=True) if y is not None]
    axes.plot(*(zip(*known, strict=True) if known else ([], [])), "o", color=colour, alpha=0.75, label=label)
    lost = [x for x, y in zip(places, scores, strict=True) if y is None]
    if lost:  # an empty plot would extend the axes
        axes.plot(lost, np.zeros(len(lost)), "x", color=colour, transform=axes.get_xaxis_transform(), clip_on=False)


def _place(row: Trial, across: Axis | None) -> float:
    if across is None:
        return float(row.run.cell.seed)
    value = row.point[across.field]
    return float(value) if across.is_numeric else float(across.values.index(value))


def _finish(axes: Axes, across: Axis | None, env_id: str) -> None:
    """Scales, labels and title."""
    if across is not None and across.is_numeric:
        values = [float(value) for value in across.values]
        if across.drawn == "log-uniform" or (min(values) > 0 and max(values) / min(values) > 20):
            axes.set_xscale("log")
    elif across is not None:
        axes.set_xticks(range(len(across.values)), across.values)
        axes.margins(x=0.2)
    axes.set_xlabel(across.field.replace("_", " ") if across else "seed")
    axes.set_ylabel("final score (raw return)")
    axes.set_title(env_id, fontsize=11)
    axes.grid(alpha=0.3)
    open_frame(axes)
