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

from matplotlib.figure import Figure

from asyncrl.catalog import short
from asyncrl.core.errors import UsageError
from asyncrl.plots.figures import GREY, Line, Panel, draw, median_curve, unit_of
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
    names = label_curves(curves)
    key, text = AXES[axis]
    most = [row[key] for curve in curves for row in curve.rows]
    if axis != "minutes":
        most += [x for reference in references for x, _ in reference.points]
    unit, size = unit_of(axis, max(most))
    marks = []
    for i, name in enumerate(dict.fromkeys(names)):
        group = [curve for curve, label in zip(curves, names, strict=True) if label == name]
        seeds = [sorted((row[key] / size, row["mean"]) for row in curve.rows) for curve in group]
        colour = colours.get(name, f"C{i % 10}")
        several = len(seeds) > 1
        for seed in seeds:
            x, scores = [x for x, _ in seed], [score for _, score in seed]
            if several:
                marker = "." if len(seed) == 1 else ""  # a line of one point is invisible
                marks.append(Line(x, scores, colour, marker=marker, width=0.8, alpha=0.45))
            else:
                marks.append(Line(x, scores, colour, name, marker="o", size=3))
        if several:
            marks.append(median_curve(seeds, colour, f"{name} ({len(seeds)} seeds)", whole=False))
    for reference, style in zip(references, itertools.cycle(("--", ":", "-."))):
        x, scores = [x / size for x, _ in reference.points], [score for _, score in reference.points]
        marks.append(Line(x, scores, GREY, reference.label, style))
    title = title or ", ".join(sorted({curve.env_id for curve in curves}))
    label = "evaluation score\n(mean raw return of whole episodes)"
    return draw([[Panel(marks, f"{text} ({unit})", label, title)]], 4.0, 8.0, legend_from=1)
