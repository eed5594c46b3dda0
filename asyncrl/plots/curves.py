"""Learning curves: evaluation score over steps, frames or minutes."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from asyncrl.catalog import short
from asyncrl.core.errors import UsageError
from asyncrl.plots.figures import GREY, Line, Panel, draw, median_curve, unit_of
from asyncrl.storage.rows import evaluations_in
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.stored import read_stored

AXES = {
    "steps": ("steps", "agent steps, all workers"),
    "frames": ("frames", "emulator frames, all workers"),
    "minutes": ("seconds", "wall clock"),
}
"""Name on the command line: key in evaluator.jsonl, label."""
NOT_IN_LABELS = (
    "seed", "run_name", "runs_dir", "resume", "quiet", "track", "track_project", "max_seconds", "stop_at_score",
    "evaluation_interval_steps", "evaluation_episodes", "evaluation_cpu_share", "checkpoint_interval_steps",
    "checkpoints_kept", "record_interval_seconds", "on_worker_error", "on_env_error", "worker_restarts",
    "hang_seconds", "collective_timeout_seconds", "check_replicas", "init_method", "address",
)  # fmt: skip
"""Settings that no label mentions."""
HOSTS = ("push", "exchange_updates", "parameter_shards")
"""Settings without effect in a run without hosts."""


class RunData:
    """The settings of a run, and its evaluations with at least one whole episode."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a folder that is no run."""
        self.path, self.folder = path, RunFolder.open(path)
        stored = read_stored(self.folder.config_file)
        self.algorithm, self.config = short(stored.algorithm), stored.config
        self.env_id = str(self.config["env_id"])
        self.description = str(stored.environment.get("description", self.env_id))
        self.evaluations, self.best = evaluations_in(self.folder.evaluator_file)


def label_curves(runs: Sequence[RunData]) -> list[str]:
    """A label for each run from the settings in which they differ; runs that differ in their seed share it.

    If settings differ together, as the defaults of two methods do, only the first is in the label; the method's name
    always is. A setting that only some of the runs have is in their labels.
    """
    configs = [
        {"algorithm": run.algorithm}
        | {key: value for key, value in run.config.items() if run.config.get("backend") == "ray" or key not in HOSTS}
        for run in runs
    ]
    names = [key for key in dict.fromkeys(itertools.chain(*configs)) if key not in NOT_IN_LABELS]
    differing = [key for key in names if len({repr(own[key]) for own in configs if key in own}) > 1]
    if not differing:
        workers = configs[0]["workers"]
        return [f"{configs[0]['algorithm']}{f', {workers} workers' if workers else ''}"] * len(configs)
    for key in reversed(differing.copy()):
        fewer = [other for other in differing if other != key]
        if key != "algorithm" and _groups(configs, fewer) == _groups(configs, differing):
            differing = fewer
    return [", ".join(_in_label(key, own[key]) for key in differing if key in own) for own in configs]


def _groups(configs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[int]:
    """For each run the first one that has the same values of these settings."""
    values = [[repr(own.get(key)) for key in keys] for own in configs]
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
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise UsageError(f"{path} has no rows")
        if axis not in rows[0]:
            raise UsageError(f"{path}: the reference {rows[0]['label']} has no {axis}")
        size = 60 if axis == "minutes" else 1
        points = [(row["label"], float(row[axis]), float(row["score"])) for row in rows]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, KeyError, ValueError, TypeError, csv.Error):
        raise UsageError(
            f"{path} is not a file of reference curves: it needs the columns label, score, and steps, frames or "
            "minutes, with numbers in all but the first"
        ) from None
    return [
        Reference(label, [(x * size, score) for own, x, score in points if own == label and x <= until])
        for label in dict.fromkeys(own for own, _, _ in points)
    ]


def draw_curves(
    runs: Sequence[RunData], axis: str = "steps", title: str = "", references: Sequence[Reference] = ()
) -> Figure:
    """A figure of runs. Those that differ only in their seed share a colour: each a faint line, their median a strong
    one, and a band from the worst to the best as far as all of them go. References are dashed and grey."""
    names = label_curves(runs)
    key, text = AXES[axis]
    most = [row[key] for run in runs for row in run.evaluations]
    if axis != "minutes":
        most += [x for reference in references for x, _ in reference.points]
    unit, size = unit_of(axis, max(most))
    marks = []
    for i, name in enumerate(dict.fromkeys(names)):
        group = [run for run, label in zip(runs, names, strict=True) if label == name]
        seeds = [sorted((row[key] / size, row["mean"]) for row in run.evaluations) for run in group]
        colour = f"C{i % 10}"
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
        marks.append(Line(x, scores, GREY, reference.label, style, marker="o" if len(x) == 1 else ""))
    title = title or ", ".join(sorted({run.env_id for run in runs}))
    label = "evaluation score\n(mean raw return of whole episodes)"
    return draw([[Panel(marks, f"{text} ({unit})", label, title)]], 4.0, 8.0, legend_from=1)
