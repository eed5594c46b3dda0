"""One page of HTML about runs, from their records only: it needs no other file and no network."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.catalog import short as algorithm_name
from asyncrl.core.statistics import LEAST, normalized, optimality_gap, over_games, probability_of_improvement
from asyncrl.plots.charts import Line, histogram, line_chart
from asyncrl.plots.templates import Markup, Parts
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.status import read_status
from asyncrl.storage.stored import read_stored

COLOURS = ("#2b7de0", "#e8770c", "#169b62", "#c13b8c", "#7c5cd6", "#a8870a", "#0a93a6", "#d5484f")
PHASES = {
    "environment": "#169b62", "act": "#2b7de0", "collect": "#7c5cd6", "loss": "#e8770c", "push": "#c13b8c",
    "pull": "#0a93a6", "take": "#a8870a", "put": "#d5484f", "wait": "#9aa0a8",
}  # fmt: skip
"""Where time goes; further phases are grey."""
OTHER_PHASE = "#c4c8ce"
PARTS = Parts("plots/report.html")
NO_BREAK = "\N{NO-BREAK SPACE}"
EPISODES = 20
"""A worker's return is the mean of so many of its newest episodes."""
OWN = ("seed", "run_name", "runs_dir", "resume", "quiet", "preset")
"""Settings that are no difference between methods."""


@dataclass(frozen=True)
class RunData:
    """All that a page says of one run."""

    name: str
    """What tells it from the others."""
    colour: str
    algorithm: str
    config: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    host: dict[str, Any]
    evaluations: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    """Of supervisor.jsonl, without events."""
    events: list[dict[str, Any]]
    workers: dict[int, list[dict[str, Any]]]
    learners: list[dict[str, Any]]

    @property
    def description(self) -> str:
        """Its environment, in words."""
        return str(self.environment.get("description", self.config["env_id"]))

    @property
    def env_id(self) -> str:
        """The environment's id."""
        return str(self.config["env_id"])

    @property
    def best(self) -> float | None:
        """Mean return of the best evaluation."""
        return max((row["mean"] for row in self.evaluations), default=None)


class Table(NamedTuple):
    """A table: text and numbers, already formatted."""

    head: list[Any]
    rows: list[list[Any]]
    texts: int = 1
    """So many columns at the left are text, the others are numbers."""


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """What the folders hold. Raises UsageError for one that is no run."""
    read = [_read(path) for path in paths]
    names = _names([run.config | {"algorithm": run.algorithm} for run in read], [Path(path).name for path in paths])
    return [
        RunData(**vars(run) | {"name": name, "colour": COLOURS[i % len(COLOURS)]})
        for i, (run, name) in enumerate(zip(read, names, strict=True))
    ]


def _read(path: Path) -> RunData:
    folder = RunFolder.open(path)
    stored = read_stored(folder.config_file)
    config = stored.config
    supervisor = read_records(folder.supervisor_file)
    workers = {k: read_records(folder.worker_file(k)) for k in range(config["workers"])}
    learners = [row for file in sorted(folder.path.glob("learner*.jsonl")) for row in read_records(file)]
    evaluations = [row for row in read_records(folder.evaluator_file) if row.get("mean") is not None]
    return RunData(
        "", "", algorithm_name(stored.algorithm), config, stored.environment, read_status(folder.path),
        _json(folder.host_file), evaluations,
        [row for row in supervisor if "event" not in row], [row for row in supervisor if "event" in row],
        workers, learners,
    )  # fmt: skip


def _json(file: Path) -> dict[str, Any]:
    """What a file holds; nothing if it cannot be read, as of a run that was killed at its start."""
    try:
        return dict(read_json(file))
    except (OSError, ValueError, TypeError):
        return {}


def _names(configs: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """The least that tells the runs apart: method, environment, seed, or else the folder's name."""
    for keys in (("algorithm",), ("algorithm", "env_id"), ("algorithm", "seed"), ("algorithm", "env_id", "seed")):
        names = [", ".join(f"seed {c[key]}" if key == "seed" else str(c[key]) for key in keys) for c in configs]
        if len(set(names)) == len(names):
            return names
    return list(folders) if len(set(folders)) == len(folders) else [f"{i + 1}: {n}" for i, n in enumerate(folders)]


def make_page(runs: Sequence[RunData], title: str = "") -> str:
    """The whole page."""
    environments = ", ".join(dict.fromkeys(run.env_id for run in runs))
    title = title or f"{', '.join(dict.fromkeys(run.algorithm for run in runs))} on {environments}"
    content = {
        "overview": _overview, "curves": _curves, "comparison": _comparison, "least": LEAST, "counted": _counted,
        "evaluations": _evaluations, "evaluations_in_words": _evaluations_in_words, "workers": _workers,
        "episodes": EPISODES, "ages": _ages, "times": _times, "inside": _inside, "losses": _losses, "faults": _faults,
        "settings": _settings, "machines": _machines,
    }  # fmt: skip
    return str(PARTS.page(title, runs, content))  # no Markup: who has it may add what they like


def _number(value: Any, form: str = ",.4g") -> str:
    return "-" if value is None else format(value, form)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _overview(runs: Sequence[RunData]) -> Table:
    head = ["run", "method", "environment", "ended", "workers", "seed", "steps", "time", "steps/s", "updates"]
    rows = []
    for run in runs:
        status = run.status
        state, reason = status.get("state", "no status"), status.get("reason")
        steps, seconds = status.get("steps", 0), status.get("seconds")
        rows.append([
            PARTS.name(run), run.algorithm, run.env_id, f"{state}: {reason}" if reason else state,
            run.config["workers"], run.config["seed"], f"{steps:,}", _duration(seconds),
            _number(steps / seconds if steps and seconds else None, ",.0f"), f"{status.get('updates', 0):,}",
            _number(run.best), _number(run.evaluations[-1]["mean"] if run.evaluations else None),
        ])  # fmt: skip
    return Table([*head, "best", "last"], rows, texts=4)


Charts = list[tuple[str, Markup]]
"""Titles and drawings."""


def _shown(charts: Charts) -> Charts:
    """The charts that show anything."""
    return [(title, drawing) for title, drawing in charts if drawing]


def _curves(runs: Sequence[RunData]) -> Charts:
    """Two charts for each environment: scores of different ones have nothing in common."""
    environments = list(dict.fromkeys(run.env_id for run in runs))
    charts = []
    for environment in environments:
        own = [run for run in runs if run.env_id == environment]
        where = f" in {environment}" if len(environments) > 1 else ""
        minutes = max((row["seconds"] for run in own for row in run.rows), default=0) >= 180
        unit, size = ("minutes", 60.0) if minutes else ("seconds", 1.0)
        steps = line_chart(_scores(own, "steps", 1.0), "agent steps, all workers")
        charts.append((f"Score{where} over steps", steps))
        charts.append((f"Score{where} over time", line_chart(_scores(own, "seconds", size), unit)))
    return _shown(charts)


def _scores(runs: Sequence[RunData], key: str, size: float) -> list[Line]:
    """Scores in training below those of evaluations."""
    drawn = []
    for run in runs:
        rows = [row for row in run.rows if row.get("rollout/ep_rew_mean") is not None]
        drawn.append(Line([(row[key] / size, row["rollout/ep_rew_mean"]) for row in rows], run.colour, faint=True))
    for run in runs:
        points = sorted((row[key] / size, row["mean"]) for row in run.evaluations)
        drawn.append(Line(points, run.colour, marks=True))
    return drawn


def _comparison(runs: Sequence[RunData]) -> Table | None:
    """Methods over all environments and seeds (Agarwal et al. 2021); None unless all have runs in each of them."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.evaluations:
            last = statistics.fmean(row["mean"] for row in run.evaluations[-3:])
            scores.setdefault((run.algorithm, run.env_id), []).append(last)
    methods = list(dict.fromkeys(run.algorithm for run in runs))
    environments = list(dict.fromkeys(run.env_id for run in runs))
    if len(methods) < 2 or any((method, env_id) not in scores for method in methods for env_id in environments):
        return None
    relative: dict[str, list[list[float]]] = {method: [] for method in methods}
    for env_id in environments:
        together = [score for method in methods for score in scores[method, env_id]]
        for method in methods:
            relative[method].append(normalized(scores[method, env_id], min(together), max(together)))
    rows = []
    for method, own in relative.items():
        every = [score for found in own for score in found]
        chances = [
            "" if other == method else str(probability_of_improvement(own, relative[other])) for other in methods
        ]
        rows.append([method, len(every), over_games(own), f"{optimality_gap(every):.2f}", *chances])
    head = ["method", "runs", "interquartile mean", "optimality gap", *(f"better than {other}" for other in methods)]
    return Table(head, rows)


def _evaluations(run: RunData) -> Table:
    head = ["steps", "time", "mean", "median", "sd", "least", "most", "episodes", "length"]
    rows = [
        [
            f"{row['steps']:,}", _duration(row["seconds"]),
            f"{row['mean']:.4g}{' ★' if row['mean'] == run.best else ''}",
            _number(row.get("median")), _number(row.get("std"), ".3g"), f"{min(row['returns']):.4g}",
            f"{max(row['returns']):.4g}", len(row["returns"]), f"{statistics.fmean(row['lengths']):,.0f}",
        ]
        for row in run.evaluations
    ]  # fmt: skip
    return Table(head, rows, texts=0)


def _evaluations_in_words(run: RunData) -> str:
    policies = dict.fromkeys(str(row.get("policy", "")) for row in run.evaluations)
    cut = sum(row.get("cut", 0) for row in run.evaluations)
    return ", ".join(
        [_counted(len(run.evaluations), "evaluation"), *policies, *([f"{_counted(cut, 'episode')} cut"] if cut else [])]
    )


def _workers(run: RunData) -> Table:
    ready = {row["worker"]: row["exploration"] for own in run.workers.values() for row in own if "exploration" in row}
    returns = {
        worker: [score for row in own for score, _ in row.get("episodes", ())] for worker, own in run.workers.items()
    }
    low = min(itertools.chain(*returns.values()), default=0.0)
    high = max(itertools.chain(*returns.values()), default=0.0)
    rows = []
    for worker, own in run.workers.items():
        mean = statistics.fmean(returns[worker][-EPISODES:]) if returns[worker] else None
        words = ", ".join(f"{name} {value:.3g}" for name, value in ready.get(worker, {}).items())
        bar = ""
        if mean is not None and high > low:
            bar = PARTS.bar(f"{max(1.0, 100 * (mean - low) / (high - low)):.1f}")
        steps = sum(row.get("worker_steps", 0) for row in own)
        exploration = words.replace("_", " ").replace(" ", NO_BREAK)
        rows.append([worker, exploration, bar, _number(mean), f"{len(returns[worker]):,}", f"{steps:,}"])
    return Table(["worker", "exploration", "", "return", "episodes", "steps"], rows, 3)


def _ages(runs: Sequence[RunData]) -> Charts:
    def counts(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, int]:
        total: Counter[int] = Counter()
        for row in rows:
            total.update({int(age): count for age, count in row.get(key, {}).items()})
        return dict(total)

    gradient = [(run.colour, counts(itertools.chain(*run.workers.values()), "staleness_counts")) for run in runs]
    rollout = [(run.colour, counts(run.learners, "rollout_age_counts")) for run in runs]
    unit = "updates by others in between"
    return _shown([
        ("Staleness of workers' gradients", histogram(gradient, unit)),
        ("Age of rollouts when the learner took them", histogram(rollout, unit)),
        ("Age of samples from the replay memory, in steps", _course(runs, "learner/sample_age")),
        ("Updates per step", _course(runs, "learner/replay_ratio")),
    ])  # fmt: skip


def _course(runs: Sequence[RunData], key: str, robust: bool = False) -> Markup:
    """A chart of a number in the supervisor's records over steps."""
    lines = [
        Line([(row["steps"], row[key]) for row in run.rows if row.get(key) is not None], run.colour) for run in runs
    ]
    return line_chart(lines, "agent steps", robust)


def _times(run: RunData) -> list[tuple[str, list[tuple[str, str, float]]]]:
    """For workers and learners: name, colour and percentage of each phase of their time."""
    own = [row for rows in run.workers.values() for row in rows]
    learners = "learner" if len({row.get("worker") for row in run.learners}) < 2 else "learners"
    found = []
    for who, rows in (
        ("workers", [row for row in own if "worker_steps" in row]),
        (learners, run.learners + [row for row in own if "worker_steps" not in row]),
    ):
        sums: Counter[str] = Counter()
        for row in rows:
            sums.update(row.get("time", {}))
        if (total := sum(sums.values())) > 0:
            phases = sorted(sums.items(), key=lambda phase: -phase[1])
            shares = [(name, PHASES.get(name, OTHER_PHASE), 100 * seconds / total) for name, seconds in phases]
            found.append((who, shares))
    return found


INSIDE: dict[str, str] = {
    "train/policy_gradient_loss": "Policy loss", "train/value_loss": "Value loss", "train/q_mean": "Mean action value",
    "train/entropy": "Entropy in nats", "train/explained_variance": "Explained variance",
    "train/gradient_norm": "Norm of the gradient", "train/approx_kl": "Approximate KL",
    "train/clip_fraction": "Share of clipped steps", "train/learning_rate": "Learning rate",
    "time/fps": "Steps per second",
}  # fmt: skip


def _inside(runs: Sequence[RunData]) -> Charts:
    return _shown([(title, _course(runs, key, robust=True)) for key, title in INSIDE.items()])


def _losses(run: RunData) -> str:
    """Numbers of lost and dropped things, in words."""
    kinds = ("updates_lost", "dropped_gradients", "stale_gradients", "outlier_gradients")
    counts = {key: run.status.get(key) for key in kinds}
    counts |= {f"{name} in no record": count for name, count in (run.status.get("unrecorded") or {}).items()}
    return "; ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def _faults(run: RunData) -> Table:
    events = [event for event in run.events if event["event"] in ("restarted", "gone", "lost", "unrecorded", "resumed")]
    events += [
        {"event": row["event"], "who": row["worker"], "steps": row.get("steps")}
        for own in run.workers.values() for row in own if row.get("event") not in (None, "ready")
    ]  # fmt: skip
    rows = [
        [
            event["event"], event.get("who", ""), event.get("cause", ""), _number(event.get("steps"), ",d"),
            _duration(event.get("seconds")),
        ]
        for event in events
    ]  # fmt: skip
    return Table(["event", "who", "cause", "at step", "time"], rows, 3)


def _settings(runs: Sequence[RunData]) -> tuple[Table, Table]:
    """Those that differ, and those that do not."""
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
    rows = [[key, *(_value(run.config.get(key)) for run in runs)] for key in differing]
    equal = [[key, _value(runs[0].config[key])] for key in keys if key not in differing]
    head = ["setting", *map(PARTS.name, runs)]
    return Table(head, rows, len(head)), Table(["setting", "value"], equal, 2)


def _machines(runs: Sequence[RunData]) -> Table:
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.host) if key != "packages"]
    equal = all(run.host == runs[0].host for run in runs)
    shown = runs[:1] if equal else runs
    head = ["", *("all runs" if equal and len(runs) > 1 else PARTS.name(run) for run in shown)]
    rows = [[key.replace("_", " "), *(_value(run.host.get(key)) for run in shown)] for key in keys]
    return Table(head, rows, len(head))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)
