"""Learning curves: evaluation score over steps, frames or minutes."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asyncrl.catalog import short
from asyncrl.core.errors import UsageError
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.stored import read_stored

AXES = {
    "steps": ("steps", "agent steps, all workers"),
    "frames": ("frames", "emulator frames, all workers"),
    "minutes": ("seconds", "wall clock"),
}
"""Name on the command line: key in evaluator.jsonl, label."""
NOT_IN_LABELS = (
    "seed", "run_name", "runs_dir", "resume", "quiet", "max_seconds", "stop_at_score", "evaluation_interval_steps",
    "evaluation_episodes", "evaluation_cpu_share", "checkpoint_interval_steps",
    "checkpoints_kept", "record_interval_seconds",
)  # fmt: skip
"""Settings that no label mentions."""
HOST_SETTINGS = ("push", "exchange_updates", "parameter_shards")
"""Settings without effect in a run without hosts."""


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run."""

    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def env_id(self) -> str:
        """The environment's id."""
        return str(self.config["env_id"])


def read_curve(path: Path) -> Curve:
    """The curve of the run in folder `path`, without points if it has no evaluations yet.

    Raises UsageError if it is not the folder of a run.
    """
    stored = read_stored(RunFolder.open(path).config_file)
    rows = [row for row in read_records(path / "evaluator.jsonl") if row.get("mean") is not None]
    config = {"algorithm": short(stored.algorithm), **stored.config}
    if config.get("backend") != "ray":
        config = {key: value for key, value in config.items() if key not in HOST_SETTINGS}
    return Curve(path, config, rows)


def label_curves(curves: Sequence[Curve]) -> list[str]:
    """A label for each curve from the settings in which the curves differ; curves that differ in their seed share it.

    If settings differ together, as the defaults of two methods do, only the first is in the label; the method's name
    always is. A setting that only some of the curves have is in their labels.
    """
    names = [key for key in dict.fromkeys(key for curve in curves for key in curve.config) if key not in NOT_IN_LABELS]
    differing = [key for key in names if len({repr(c.config[key]) for c in curves if key in c.config}) > 1]
    if not differing:
        workers = curves[0].config["workers"]
        return [f"{curves[0].config['algorithm']}{f', {workers} workers' if workers else ''}"] * len(curves)
    for key in reversed(differing.copy()):
        fewer = [other for other in differing if other != key]
        if key != "algorithm" and _groups(curves, fewer) == _groups(curves, differing):
            differing = fewer
    return [
        ", ".join(_in_label(key, curve.config[key]) for key in differing if key in curve.config) for curve in curves
    ]


def _groups(curves: Sequence[Curve], keys: Sequence[str]) -> list[int]:
    """For each curve the first one that has the same values of these settings."""
    values = [[repr(curve.config.get(key)) for key in keys] for curve in curves]
    return [values.index(own) for own in values]


def _in_label(key: str, value: Any) -> str:
    """A setting as labels have it; the values of method and environment stand without a name."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if key in ("algorithm", "env_id") else f"{key} {text}"


@dataclass(frozen=True)
class Reference:
    """Somebody else's curve, to compare with."""

    label: str
    points: list[tuple[float, float]]
    """Place on the horizontal axis, in steps, frames or seconds, and score."""


def read_references(path: Path, axis: str = "steps", until: float = math.inf) -> list[Reference]:
    """The curves of a CSV file with the columns label, score and `axis`, as far as `until` on that axis.

    Raises UsageError for a file that cannot be read or has no such columns.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise UsageError(f"{path} has no rows")
        if axis not in rows[0]:
            raise UsageError(f"{path}: the reference {rows[0]['label']} has no {axis}")
        size = 60 if axis == "minutes" else 1
        points = [(row["label"], float(row[axis]), float(row["score"])) for row in rows]
    except (OSError, UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error):
        raise UsageError(
            f"{path} is no file of reference curves: it needs the columns label, score, and steps, frames or minutes, "
            "with numbers in all but the first"
        ) from None
    return [
        Reference(label, [(x * size, score) for own, x, score in points if own == label and x <= until])
        for label in dict.fromkeys(own for own, _, _ in points)
    ]


MOST_INSIDE = 6
"""Entries of a legend that is inside the axes; a longer one would hide curves."""


def draw_curves(
    curves: Sequence[Curve],
    axis: str = "steps",
    title: str = "",
    references: Sequence[Reference] = (),
    colours: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """A figure of runs. Those that differ only in their seed share a colour: each a faint line, their median a strong
    one, and a band from the worst to the best as far as all of them go. References are dashed and grey. `colours` has
    those of some labels; the others get theirs in turn.
    """
    figure, axes = plt.subplots(figsize=(8, 4.8), layout="constrained")
    names = label_curves(curves)
    key, text = AXES[axis]
    most = [row[key] for curve in curves for row in curve.rows]
    if axis != "minutes":
        most += [x for reference in references for x, _ in reference.points]
    unit, size = unit_of(axis, max(most))
    for i, name in enumerate(dict.fromkeys(names)):
        group = [curve for curve, label in zip(curves, names, strict=True) if label == name]
        points = [sorted((row[key] / size, row["mean"]) for row in curve.rows) for curve in group]
        _draw_seeds(axes, points, colours.get(name, f"C{i % 10}"), name)
    for reference, style in zip(references, itertools.cycle(("--", ":", "-."))):
        x, scores = [x / size for x, _ in reference.points], [score for _, score in reference.points]
        axes.plot(x, scores, style, color="0.35", linewidth=1.5, label=reference.label, zorder=1)
    axes.set_xlabel(f"{text} ({unit})")
    axes.set_ylabel("evaluation score\n(mean raw return of whole episodes)")
    axes.set_title(title or ", ".join(sorted({curve.env_id for curve in curves})))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) <= MOST_INSIDE:
        axes.legend(frameon=False)
    else:
        figure.set_size_inches(10, 4.8)
        figure.legend(frameon=False, loc="outside right upper")
    return figure


def _draw_seeds(axes: Axes, seeds: Sequence[Sequence[tuple[float, float]]], colour: str, name: str) -> None:
    """The curves of one setting: a line with its points for one seed; lines, median and band for several."""
    if len(seeds) == 1:
        axes.plot(*zip(*seeds[0], strict=True), color=colour, label=name, marker="o", markersize=3, linewidth=1.5)
        return
    for points in seeds:
        marker = "." if len(points) == 1 else None  # a line of one point is invisible
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, linewidth=0.8, alpha=0.45)
    begin, end = max(points[0][0] for points in seeds), min(points[-1][0] for points in seeds)
    grid = sorted({x for points in seeds for x, _ in points if begin <= x <= end})
    scores = np.array([np.interp(grid, [x for x, _ in points], [y for _, y in points]) for points in seeds])
    axes.fill_between(grid, scores.min(0), scores.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, np.median(scores, 0), color=colour, linewidth=2.2, label=f"{name} ({len(seeds)} seeds)")


def unit_of(axis: str, most: float) -> tuple[str, float]:
    """The unit to write on an axis that reaches `most`, and how much of the recorded quantity it is."""
    if axis == "minutes":
        return ("minutes", 60.0) if most >= 120 else ("seconds", 1.0)
    return ("millions", 1e6) if most >= 1e6 else ("thousands", 1e3)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix. Raises UsageError if that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}") from None
    finally:
        plt.close(figure)
