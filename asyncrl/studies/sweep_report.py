"""The table and the figure of a sweep."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asyncrl.plots.curves import save_figure
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.studies.axes import Axis
from asyncrl.studies.documents import Code, Heading, Picture, Table, Text, write_pages
from asyncrl.studies.figures import COLOURS, NAMES
from asyncrl.studies.jobs import run_state


@dataclass(frozen=True)
class Row:
    """One run of the sweep, as its records have it."""

    algorithm: str
    env_id: str
    settings: Mapping[str, str]
    seed: int
    state: str
    """As in status.json; "" if the run has not been made."""
    steps: int = 0
    best_score: float | None = None
    """Best evaluation."""
    final_score: float | None = None
    """Last evaluation, which is of the final parameters; None unless the run finished."""

    @classmethod
    def read(cls, algorithm: str, env_id: str, settings: Mapping[str, str], seed: int, folder: Path) -> Row:
        """Read the run in a folder, if there is one."""
        state = run_state(folder)
        if not state:
            return cls(algorithm, env_id, settings, seed, "")
        scores = [row["mean"] for row in read_records(folder / "evaluator.jsonl") if row.get("mean") is not None]
        status = read_json(folder / "status.json")
        return cls(
            algorithm, env_id, settings, seed, state, int(status.get("steps", 0)),
            max(scores, default=None), scores[-1] if scores and state == "finished" else None,
        )  # fmt: skip


def write_report(rows: Sequence[Row], axes: Sequence[Axis], runs_dir: Path, command: str) -> Path:
    """Write RUNS_DIR/report/: report.md, report.html, table.csv and the figure; returns the path of report.md."""
    folder = runs_dir / "report"
    folder.mkdir(exist_ok=True)
    varied = [axis for axis in axes if axis.varies and axis.field != "env_id"]
    titles = ["method", "environment", *(axis.field for axis in varied), "seed", "state", "steps", "best", "final"]
    cells = [_cells(row, varied) for row in rows]
    with open(folder / "table.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([titles, *cells])
    figure = draw_sweep(rows, varied)
    save_figure(figure, folder / "scores.svg")
    save_figure(figure, folder / "scores.png")
    states = Counter(row.state or "not made" for row in rows)
    fixed = ", ".join(f"{axis.field} {axis.values[0]}" for axis in axes if not axis.varies)
    write_pages(
        folder,
        [
            Heading("Sweep", 1),
            Text(
                f"{len(rows)} runs ({', '.join(f'{count} {state}' for state, count in states.items())}). "
                f"{f'In all of them: {fixed}. ' if fixed else ''}"
                "A score is the mean raw return of an evaluation; final: of the last one."
            ),
            Code(command),
            Picture(
                "scores.png",
                "Final score of each run. Crosses at the lower edge: runs without one, because they failed, were "
                "stopped or have not been made.",
            ),
            Table(titles, cells),
        ],
    )
    return folder / "report.md"


def _cells(row: Row, varied: Sequence[Axis]) -> list[str]:
    scores = ["" if score is None else f"{score:.6g}" for score in (row.best_score, row.final_score)]
    settings = [row.settings.get(axis.field, "") for axis in varied]
    return [row.algorithm, row.env_id, *settings, str(row.seed), row.state or "not made", str(row.steps), *scores]


def draw_sweep(rows: Sequence[Row], varied: Sequence[Axis]) -> Figure:
    """Final score over the axis with the most values, a panel per environment, a colour per method and other setting.

    An axis that was drawn log-uniformly, or spans more than a factor of 20, is logarithmic (the paper's Figure 2).
    """
    across = max(varied, key=lambda axis: (axis.is_numeric, len(axis.values)), default=None)
    env_ids = list(dict.fromkeys(row.env_id for row in rows))
    figure = Figure(figsize=(max(6.0, min(10.0, 5.0 * len(env_ids))), 4.4), layout="constrained")
    grid = figure.subplots(1, len(env_ids), squeeze=False)[0]
    groups = list(dict.fromkeys(_group(row, varied, across) for row in rows))
    for axes, env_id in zip(grid, env_ids, strict=True):
        for i, group in enumerate(groups):
            own = [row for row in rows if (row.env_id, _group(row, varied, across)) == (env_id, group)]
            plain = all(_group(row, varied, across) == _name(row) for row in rows)
            colour = COLOURS.get(own[0].algorithm, f"C{i}") if plain and own else f"C{i % 10}"
            _draw_points(axes, own, across, colour, group)
        _finish(axes, across, env_id)
    if len(groups) > 1:
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(groups)), frameon=False, fontsize=9)
    return figure


def _name(row: Row) -> str:
    return NAMES.get(row.algorithm, row.algorithm)


def _group(row: Row, varied: Sequence[Axis], across: Axis | None) -> str:
    """What tells the row's colour: its method, and its settings but for the one on the axis."""
    others = [f"{axis.field} {row.settings[axis.field]}" for axis in varied if axis is not across and not axis.drawn]
    return ", ".join([_name(row), *others])


def _draw_points(axes: Axes, rows: Sequence[Row], across: Axis | None, colour: str, label: str) -> None:
    """A dot per run; a cross at the lower edge for a run without a score."""
    places = [_place(row, across) for row in rows]
    scores = [row.final_score for row in rows]
    known = [(x, y) for x, y in zip(places, scores, strict=True) if y is not None]
    axes.plot(*(zip(*known, strict=True) if known else ([], [])), "o", color=colour, alpha=0.75, label=label)
    lost = [x for x, y in zip(places, scores, strict=True) if y is None]
    if lost:  # drawn with no places, it would make room for the corner of the figure
        axes.plot(lost, np.zeros(len(lost)), "x", color=colour, transform=axes.get_xaxis_transform(), clip_on=False)


def _place(row: Row, across: Axis | None) -> float:
    if across is None:
        return float(row.seed)
    value = row.settings[across.field]
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
    axes.spines[["top", "right"]].set_visible(False)
