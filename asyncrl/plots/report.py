"""One page of HTML about runs, from their records only: it needs no other file and no network."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.core.output import duration
from asyncrl.core.statistics import LEAST, comparison, normalized
from asyncrl.plots.charts import Point, histogram, line_chart
from asyncrl.plots.curves import RunData
from asyncrl.plots.templates import Markup, Parts
from asyncrl.storage.files import read_facts
from asyncrl.storage.records import read_records
from asyncrl.storage.rows import add_up, made_last
from asyncrl.storage.run_folder import read_status

COLOURS = ("#2b7de0", "#e8770c", "#169b62", "#c13b8c", "#7c5cd6", "#a8870a", "#0a93a6", "#d5484f")
PHASES = {
    "environment": "#169b62", "act": "#2b7de0", "collect": "#7c5cd6", "loss": "#e8770c", "push": "#c13b8c",
    "pull": "#0a93a6", "take": "#a8870a", "put": "#d5484f", "wait": "#9aa0a8",
}  # fmt: skip
"""Where time goes; further phases are grey."""
OTHER_PHASE = "#c4c8ce"
EPISODES = 20
"""A worker's return is the mean of so many of its newest episodes."""
FAULTS = (
    "restarted", "gone", "lost", "unrecorded", "resumed", "host_lost", "host_gone", "shard_lost", "replay_host_lost",
)  # fmt: skip
"""The supervisor's events that are shown."""
LOST = ("updates_lost", "dropped_gradients", "stale_gradients", "outlier_gradients")
"""Counts of status.json that are shown among the faults."""
INSIDE = {
    "train/policy_gradient_loss": "Policy loss", "train/value_loss": "Value loss", "train/q_mean": "Mean action value",
    "train/entropy": "Entropy in nats", "train/explained_variance": "Explained variance",
    "train/gradient_norm": "Norm of the gradient", "train/approx_kl": "Approximate KL",
    "train/clip_fraction": "Share of clipped steps", "train/learning_rate": "Learning rate",
    "time/fps": "Steps per second",
}  # fmt: skip
Charts = dict[str, Markup]
"""Drawings by title; "" for those that show nothing."""


class ReportData(RunData):
    """All that the folder of a run says."""

    name = ""
    """What tells it from the others."""
    colour = ""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.status = read_status(self.folder.path)
        self.host = read_facts(self.folder.host_file)  # none of a run that was killed at its start
        supervisor = read_records(self.folder.supervisor_file)
        self.rows = [row for row in made_last(supervisor) if "event" not in row]
        files = {int(file.stem.removeprefix("worker-")): file for file in path.glob("worker-*.jsonl")}
        self.workers = {k: made_last(read_records(files[k])) for k in sorted(files)}  # with hosts, those of all of them
        self.worker_rows = list(itertools.chain(*self.workers.values()))
        learners = sorted(path.glob("learner*.jsonl"))
        self.learner_rows = [row for file in learners for row in made_last(read_records(file))]
        own = [{**row, "who": row["worker"]} for row in self.worker_rows if row.get("event") not in (None, "ready")]
        self.faults = [row for row in supervisor if row.get("event") in FAULTS] + own
        counts = [(name, self.status.get(name)) for name in LOST]
        missing = (self.status.get("unrecorded") or {}).items()
        self.losses = [*counts, *((f"{name} not recorded", count) for name, count in missing)]


def read_runs(paths: Sequence[Path]) -> list[ReportData]:
    """What the folders hold. Raises UsageError for one that is no run."""
    runs = [ReportData(path) for path in paths]
    for run, name, colour in zip(runs, _names(runs, [path.name for path in paths]), itertools.cycle(COLOURS)):
        run.name, run.colour = name, colour
    return runs


def _names(runs: Sequence[ReportData], folders: Sequence[str]) -> list[str]:
    """The least that tells the runs apart: method, environment, seed, or else the folder's name."""
    numbered = [f"{i + 1}: {folder}" for i, folder in enumerate(folders)]
    words = [(run.algorithm, run.env_id, f"seed {run.config['seed']}") for run in runs]
    names = [[", ".join(own[i] for i in shown) for own in words] for shown in ((0,), (0, 1), (0, 2), (0, 1, 2))]
    return next(own for own in [*names, list(folders), numbered] if len(set(own)) == len(own))


def make_page(runs: Sequence[ReportData], title: str = "") -> str:
    """The whole page."""
    environments = ", ".join(dict.fromkeys(run.env_id for run in runs))
    title = title or f"{', '.join(dict.fromkeys(run.algorithm for run in runs))} on {environments}"
    return str(PARTS.page(title, runs))  # no Markup: who has it may add what they like


def number(value: Any, form: str = ",.4g") -> str:
    """A number as the page shows it; "-" for None."""
    return "-" if value is None else format(value, form)


def counted(count: int, name: str) -> str:
    """So many of something."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def written(value: Any) -> str:
    """A setting, or a fact about a machine."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def curves(runs: Sequence[ReportData]) -> Charts:
    """Two charts for each environment: scores of different ones have nothing in common."""
    environments = list(dict.fromkeys(run.env_id for run in runs))
    charts = {}
    for environment in environments:
        own = [run for run in runs if run.env_id == environment]
        where = f" in {environment}" if len(environments) > 1 else ""
        minutes = max((row["seconds"] for run in own for row in run.rows), default=0) >= 180
        unit, size = ("minutes", 60.0) if minutes else ("seconds", 1.0)
        charts[f"Score{where} over steps"] = line_chart(_scores(own, "steps", 1.0), "agent steps, all workers")
        charts[f"Score{where} over time"] = line_chart(_scores(own, "seconds", size), unit)
    return charts


def _scores(runs: Sequence[ReportData], key: str, size: float) -> list[tuple[list[Point], dict[str, Any]]]:
    """Scores in training below those of evaluations."""
    training = [_points(run.rows, key, "rollout/ep_rew_mean", size) for run in runs]
    evaluations = [sorted(_points(run.evaluations, key, "mean", size)) for run in runs]
    looks: tuple[dict[str, Any], ...] = {"width": 1.0, "alpha": 0.4}, {"marker": "o", "size": 3.0}
    return [
        (points, {"colour": run.colour, **look})
        for curves, look in zip((training, evaluations), looks, strict=True)
        for run, points in zip(runs, curves, strict=True)
    ]


def _points(rows: Iterable[Mapping[str, Any]], x: str, y: str, size: float = 1.0) -> list[Point]:
    return [(row[x] / size, row[y]) for row in rows if row.get(y) is not None]


def course(runs: Sequence[ReportData], key: str, robust: bool = False) -> Markup:
    """A chart of a number in the supervisor's records over steps."""
    lines = [(_points(run.rows, "steps", key), {"colour": run.colour}) for run in runs]
    return line_chart(lines, "agent steps", robust)


def inside(runs: Sequence[ReportData]) -> Charts:
    """What the updates say of themselves."""
    return {title: course(runs, key, robust=True) for key, title in INSIDE.items()}


def ages(runs: Sequence[ReportData]) -> Charts:
    """How old gradients, rollouts or samples were."""

    def counts(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, int]:
        return {int(age): count for age, count in add_up(row.get(key, {}) for row in rows).items()}

    gradient = [(run.colour, counts(run.worker_rows, "staleness_counts")) for run in runs]
    rollout = [(run.colour, counts(run.learner_rows, "rollout_age_counts")) for run in runs]
    unit = "updates by others in between"
    return {
        "Staleness of workers' gradients": histogram(gradient, unit),
        "Age of rollouts when the learner took them": histogram(rollout, unit),
        "Age of samples from the replay memory, in steps": course(runs, "learner/sample_age"),
        "Updates per step": course(runs, "learner/replay_ratio"),
    }


def compared(runs: Sequence[ReportData]) -> list[dict[str, str]]:
    """Rows that compare methods over all environments and seeds, if there are several and all have runs in each."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.evaluations:
            last = statistics.fmean(row["mean"] for row in run.evaluations[-3:])
            scores.setdefault((run.algorithm, run.env_id), []).append(last)
    methods = list(dict.fromkeys(run.algorithm for run in runs))
    environments = list(dict.fromkeys(run.env_id for run in runs))
    if len(methods) < 2 or any((method, env_id) not in scores for method in methods for env_id in environments):
        return []
    relative: dict[str, list[list[float]]] = {method: [] for method in methods}
    for env_id in environments:
        together = [score for method in methods for score in scores[method, env_id]]
        for method in methods:
            relative[method].append(normalized(scores[method, env_id], min(together), max(together)))
    return comparison(relative)


def workers(run: ReportData) -> list[dict[str, Any]]:
    """What each worker did; `bar` is its return in percent of the way from the run's lowest to its highest one."""
    returns = {k: [score for row in own for score, _ in row.get("episodes", ())] for k, own in run.workers.items()}
    low, high = (end(itertools.chain(*returns.values()), default=0.0) for end in (min, max))
    rows = []
    for worker, own in run.workers.items():
        exploration: dict[str, float] = next((row["exploration"] for row in own[::-1] if "exploration" in row), {})
        mean = statistics.fmean(returns[worker][-EPISODES:]) if returns[worker] else None
        rows.append({
            "worker": worker,
            "exploration": ", ".join(f"{name} {value:.3g}" for name, value in exploration.items()),
            "bar": None if mean is None or high <= low else max(1.0, 100 * (mean - low) / (high - low)),
            "mean": mean,
            "episodes": len(returns[worker]),
            "steps": sum(row.get("worker_steps", 0) for row in own),
        })  # fmt: skip
    return rows


def times(run: ReportData) -> dict[str, list[tuple[str, str, float]]]:
    """For workers and learners: name, colour and percentage of each phase of their time."""
    learners = "learner" if len({row.get("worker") for row in run.learner_rows}) < 2 else "learners"
    rows: dict[str, list[dict[str, Any]]] = {"workers": [], learners: list(run.learner_rows)}
    for row in run.worker_rows:
        rows["workers" if "worker_steps" in row else learners].append(row)
    found = {}
    for who, own in rows.items():
        sums = add_up(row.get("time", {}) for row in own)
        total = sums.total()
        if total > 0:
            phases = sums.most_common()
            found[who] = [(name, PHASES.get(name, OTHER_PHASE), 100 * seconds / total) for name, seconds in phases]
    return found


def told_apart(mappings: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The keys under which mappings have different values, and the other keys."""
    keys = list(dict.fromkeys(itertools.chain(*mappings)))
    differing = [key for key in keys if len({repr(one.get(key)) for one in mappings}) > 1]
    return differing, [key for key in keys if key not in differing]


PARTS = Parts(
    "plots/report.html", least=LEAST, last_episodes=EPISODES, duration=duration, number=number, counted=counted,
    written=written, told_apart=told_apart, curves=curves, compared=compared, workers=workers, ages=ages,
    times=times, inside=inside,
)  # fmt: skip
