"""One page of HTML about runs, from their records only: it needs no other file and no network."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.core.aggregates import normalized, optimality_gap, probability_of_improvement
from asyncrl.core.statistics import LEAST, over_games
from asyncrl.pages import short as page_name
from asyncrl.plots.charts import Line, Point, histogram, line_chart
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
    page: str
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


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """What the folders hold. Raises UsageError for one that is no run."""
    read = [_read(path) for path in paths]
    names = _names([run.config | {"page": run.page} for run in read], [Path(path).name for path in paths])
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
        "", "", page_name(stored.page), config, stored.environment, read_status(folder.path),
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
    for keys in (("page",), ("page", "env_id"), ("page", "seed"), ("page", "env_id", "seed")):
        names = [", ".join(f"seed {c[key]}" if key == "seed" else str(c[key]) for key in keys) for c in configs]
        if len(set(names)) == len(names):
            return names
    return list(folders) if len(set(folders)) == len(folders) else [f"{i + 1}: {n}" for i, n in enumerate(folders)]


def make_page(runs: Sequence[RunData], title: str = "") -> str:
    """The whole page."""
    environments = ", ".join(dict.fromkeys(str(run.config["env_id"]) for run in runs))
    title = title or f"{', '.join(dict.fromkeys(run.page for run in runs))} on {environments}"
    sections = [
        PARTS.section("", _cards(runs[0]) if len(runs) == 1 else _overview(runs)),
        PARTS.section("Learning", PARTS.legend(runs) + _curves(runs)),
        PARTS.section("Run against run", _comparison(runs)),
        PARTS.section("Evaluations", _each(runs, _evaluations)),
        PARTS.section("Workers", _each(runs, _workers)),
        PARTS.section("Staleness of training data", PARTS.legend(runs) + _ages(runs)),
        PARTS.section("Where the time went", _each(runs, _times)),
        PARTS.section("Inside the update", PARTS.legend(runs) + _inside(runs)),
        PARTS.section("Faults", _each(runs, _faults)),
        PARTS.section("Settings", _settings(runs)),
        PARTS.section("Machine", _machines(runs)),
    ]
    return str(PARTS.page(title, sections, _counted(len(runs), "run")))  # no Markup: who has it may add what they like


def _name(run: RunData) -> Markup:
    return PARTS.swatch(run.colour) + run.name


def _each(runs: Sequence[RunData], part: Callable[[RunData], Markup]) -> Markup:
    """A part for each run that has something to say in it; of several beside each other, below their names."""
    said = [(run, part(run)) for run in runs]
    return said[0][1] if len(runs) == 1 else PARTS.beside([(run, text) for run, text in said if text])


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


def _best(run: RunData) -> float | None:
    return max((row["mean"] for row in run.evaluations), default=None)


def _cards(run: RunData) -> str:
    """The figures one looks for first, of a single run."""
    status, last = run.status, run.evaluations[-1]["mean"] if run.evaluations else None
    cards = [
        ("best evaluation", _number(_best(run), ".4g")),
        ("last evaluation", _number(last, ".4g")),
        ("steps", f"{status.get('steps', 0):,}"),
        ("time", _duration(status.get("seconds"))),
        ("steps per second", _number(_speed(run), ",.0f")),
        ("updates", f"{status.get('updates', 0):,}"),
        ("workers", str(run.config["workers"])),
        ("seed", str(run.config["seed"])),
    ]
    return PARTS.cards(cards, _ended(run), _description(run))


def _ended(run: RunData) -> str:
    state, reason = run.status.get("state", "no status"), run.status.get("reason", "")
    return f"{state}: {reason}" if reason else str(state)


def _description(run: RunData) -> str:
    return str(run.environment.get("description", run.config["env_id"]))


def _speed(run: RunData) -> float | None:
    steps, seconds = run.status.get("steps"), run.status.get("seconds")
    return steps / seconds if steps and seconds else None


def _overview(runs: Sequence[RunData]) -> str:
    head = ["run", "method", "environment", "ended", "workers", "seed", "steps", "time", "steps/s", "updates"]
    rows = [
        [
            _name(run), run.page, str(run.config["env_id"]), PARTS.words(_ended(run)),
            str(run.config["workers"]), str(run.config["seed"]), f"{run.status.get('steps', 0):,}",
            _duration(run.status.get("seconds")), _number(_speed(run), ",.0f"), f"{run.status.get('updates', 0):,}",
            _number(_best(run)), _number(run.evaluations[-1]["mean"] if run.evaluations else None),
        ]
        for run in runs
    ]  # fmt: skip
    told = map(PARTS.note, dict.fromkeys(map(_description, runs)))
    return PARTS.table([*head, "best", "last"], rows, texts=4) + Markup("").join(told)


def _curves(runs: Sequence[RunData]) -> Markup:
    """Two charts for each environment: scores of different ones have nothing in common."""
    environments = list(dict.fromkeys(str(run.config["env_id"]) for run in runs))
    charts = Markup("")
    for environment in environments:
        own = [run for run in runs if run.config["env_id"] == environment]
        where = f" in {environment}" if len(environments) > 1 else ""
        minutes = max((row["seconds"] for run in own for row in run.rows), default=0) >= 180
        unit, size = ("minutes", 60.0) if minutes else ("seconds", 1.0)
        steps = line_chart(_scores(own, "steps", 1.0), "agent steps, all workers")
        charts += PARTS.chart(f"Score{where} over steps", steps)
        charts += PARTS.chart(f"Score{where} over time", line_chart(_scores(own, "seconds", size), unit))
    note = "Strong: mean raw return of an evaluation. Faint: of the newest 100 training episodes, exploration included."
    return PARTS.charts(charts) + PARTS.note(note) if charts else charts


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


def _comparison(runs: Sequence[RunData]) -> Markup:
    """Methods over all environments and seeds (Agarwal et al. 2021); nothing unless all have runs in each of them."""
    scores = _last_scores(runs)
    methods = list(dict.fromkeys(run.page for run in runs))
    environments = list(dict.fromkeys(str(run.config["env_id"]) for run in runs))
    if len(methods) < 2 or any((method, env_id) not in scores for method in methods for env_id in environments):
        return Markup("")
    worth: dict[str, list[list[float]]] = {method: [] for method in methods}
    for env_id in environments:
        together = [score for method in methods for score in scores[method, env_id]]
        for method in methods:
            worth[method].append(normalized(scores[method, env_id], min(together), max(together)))
    rows = []
    for method, own in worth.items():
        every = [score for found in own for score in found]
        chances = ["" if other == method else str(probability_of_improvement(own, worth[other])) for other in methods]
        rows.append([method, str(len(every)), str(over_games(own)), f"{optimality_gap(every):.2f}", *chances])
    head = ["method", "runs", "interquartile mean", "optimality gap", *(f"better than {other}" for other in methods)]
    return PARTS.table(head, rows) + PARTS.note(
        "Each run's score is the mean of its last three evaluations, with the lowest run of an environment as 0 and "
        "the highest as 1; the gap is how far runs fall short of 1. The last columns say how likely a run of the "
        f"method scores more than a run of the other, over environments. 95 % intervals from {LEAST} runs on."
    )


def _last_scores(runs: Sequence[RunData]) -> dict[tuple[str, str], list[float]]:
    """The mean of the last three evaluations of each run, by method and environment."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.evaluations:
            last = statistics.fmean(row["mean"] for row in run.evaluations[-3:])
            scores.setdefault((run.page, str(run.config["env_id"])), []).append(last)
    return scores


def _evaluations(run: RunData) -> Markup:
    if not run.evaluations:
        return PARTS.paragraph("none yet")
    head = ["steps", "time", "mean", "median", "sd", "least", "most", "episodes", "length"]
    best = _best(run)
    rows = [
        [
            f"{row['steps']:,}", _duration(row["seconds"]),
            PARTS.best(f"{row['mean']:.4g}") if row["mean"] == best else f"{row['mean']:.4g}",
            _number(row.get("median")), _number(row.get("std"), ".3g"), f"{min(row['returns']):.4g}",
            f"{max(row['returns']):.4g}", str(len(row["returns"])), f"{statistics.fmean(row['lengths']):,.0f}",
        ]
        for row in run.evaluations
    ]  # fmt: skip
    said = [_counted(len(rows), "evaluation"), *dict.fromkeys(str(row.get("policy", "")) for row in run.evaluations)]
    if cut := sum(row.get("cut", 0) for row in run.evaluations):
        said.append(f"{_counted(cut, 'episode')} cut")
    return PARTS.details(", ".join(said), PARTS.table(head, rows, 0), len(rows) <= 12)


def _workers(run: RunData) -> Markup:
    ready = {row["worker"]: row["exploration"] for own in run.workers.values() for row in own if "exploration" in row}
    all_scores = [score for own in run.workers.values() for row in own for score, _ in row.get("episodes", ())]
    low, high = min(all_scores, default=0.0), max(all_scores, default=0.0)
    rows = []
    for worker, own in run.workers.items():
        steps, episodes, mean = _recent(own)
        words = ", ".join(f"{name} {value:.3g}" for name, value in ready.get(worker, {}).items())
        told = words.replace("_", " ").replace(" ", NO_BREAK)
        rows.append([str(worker), told, _bar(mean, low, high), _number(mean), f"{episodes:,}", f"{steps:,}"])
    table = PARTS.table(["worker", "exploration", "", "return", "episodes", "steps"], rows, 3)
    note = f"Return: mean of its newest {EPISODES} training episodes; the bars go from the run's worst one to its best."
    opened = len(rows) <= 16
    return PARTS.details(_counted(len(rows), "worker"), table + PARTS.note(note), opened)


def _recent(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, float | None]:
    """Steps and episodes of a worker, and the mean return of its newest episodes."""
    scores = [score for row in rows for score, _ in row.get("episodes", ())]
    steps = sum(row.get("worker_steps", 0) for row in rows)
    return steps, len(scores), statistics.fmean(scores[-EPISODES:]) if scores else None


def _bar(value: float | None, low: float, high: float) -> str:
    """A bar as long as a value is above `low`, in a cell that ends at `high`."""
    if value is None or high == low:
        return ""
    return PARTS.bar(f"{max(1.0, 100 * (value - low) / (high - low)):.1f}")


def _ages(runs: Sequence[RunData]) -> Markup:
    def counts(rows: Iterable[Mapping[str, Any]], key: str) -> dict[int, int]:
        total: Counter[int] = Counter()
        for row in rows:
            total.update({int(age): count for age, count in row.get(key, {}).items()})
        return dict(total)

    everyone = {run.name: [row for own in run.workers.values() for row in own] for run in runs}
    gradient = [(run.colour, counts(everyone[run.name], "staleness_counts")) for run in runs]
    rollout = [(run.colour, counts(run.learners, "rollout_age_counts")) for run in runs]
    samples = [Line(_series(run, "learner/sample_age"), run.colour) for run in runs]
    ratio = [Line(_series(run, "learner/replay_ratio"), run.colour) for run in runs]
    unit = "updates by others in between"
    charts = PARTS.chart("Staleness of workers' gradients", histogram(gradient, unit))
    charts += PARTS.chart("Age of rollouts when the learner took them", histogram(rollout, unit))
    charts += PARTS.chart("Age of what was drawn from the memory, in steps", line_chart(samples, "agent steps"))
    charts += PARTS.chart("Updates per step", line_chart(ratio, "agent steps"))
    return PARTS.charts(charts)


def _series(run: RunData, key: str) -> list[Point]:
    return [(row["steps"], row[key]) for row in run.rows if row.get(key) is not None]


def _times(run: RunData) -> Markup:
    own = [row for rows in run.workers.values() for row in rows]
    bars = [_split("workers", [row for row in own if "worker_steps" in row])]
    learning = run.learners + [row for row in own if "worker_steps" not in row]
    bars.append(_split("learner" if len({row.get("worker") for row in run.learners}) < 2 else "learners", learning))
    return Markup("").join(bars)


def _split(who: str, rows: Iterable[Mapping[str, Any]]) -> str:
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row.get("time", {}))
    total = sum(sums.values())
    if total <= 0:
        return ""
    phases = sorted(sums.items(), key=lambda phase: -phase[1])
    shares = [(name, PHASES.get(name, OTHER_PHASE), 100 * seconds / total) for name, seconds in phases]
    return PARTS.split(who, shares)


INSIDE: dict[str, str] = {
    "train/policy_gradient_loss": "Policy loss", "train/value_loss": "Value loss", "train/q_mean": "Mean action value",
    "train/entropy": "Entropy in nats", "train/explained_variance": "Explained variance",
    "train/gradient_norm": "Norm of the gradient", "train/approx_kl": "Approximate KL",
    "train/clip_fraction": "Share of clipped steps", "train/learning_rate": "Learning rate",
    "time/fps": "Steps per second",
}  # fmt: skip


def _inside(runs: Sequence[RunData]) -> Markup:
    charts = Markup("")
    for key, title in INSIDE.items():
        lines = [Line(_series(run, key), run.colour) for run in runs]
        charts += PARTS.chart(title, line_chart(lines, "agent steps", robust=True))
    return PARTS.charts(charts, small=True)


def _faults(run: RunData) -> Markup:
    told = [event for event in run.events if event["event"] in ("restarted", "gone", "lost", "unrecorded", "resumed")]
    worker_says = [
        {"event": row["event"], "who": row["worker"], "steps": row.get("steps")}
        for own in run.workers.values() for row in own if row.get("event") not in (None, "ready")
    ]  # fmt: skip
    kinds = ("updates_lost", "dropped_gradients", "stale_gradients", "outlier_gradients")
    dropped = {key.replace("_", " "): run.status[key] for key in kinds if run.status.get(key)}
    words = [f"{count:,} {name}" for name, count in dropped.items()]
    lost = {name: count for name, count in (run.status.get("unrecorded") or {}).items() if count}
    words += [f"{count:,} {name.replace('_', ' ')} in no record" for name, count in lost.items()]
    rows = [
        [
            str(event["event"]), str(event.get("who", "")), str(event.get("cause", "")),
            _number(event.get("steps"), ",d"), _duration(event.get("seconds")),
        ]
        for event in [*told, *worker_says]
    ]  # fmt: skip
    text = PARTS.paragraph("; ".join(words)) if words else Markup("")
    text += PARTS.table(["event", "who", "cause", "at step", "time"], rows, 3) if rows else ""
    if traceback := run.status.get("traceback"):
        text += PARTS.traceback(traceback)
    return text or PARTS.paragraph("none: nobody was lost and no gradient dropped")


def _settings(runs: Sequence[RunData]) -> Markup:
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs}) > 1]
    equal = [key for key in keys if key not in differing]
    text = Markup("")
    if differing:
        rows = [[PARTS.code(key), *(_value(run.config.get(key)) for run in runs)] for key in differing]
        text += PARTS.heading("What differs") + PARTS.table(["setting", *map(_name, runs)], rows, 1 + len(runs))
    same = PARTS.table(["setting", "value"], [[PARTS.code(key), _value(runs[0].config[key])] for key in equal], 2)
    title = "all settings" if len(runs) == 1 else f"{len(equal)} settings that all runs have in common"
    return text + PARTS.details(title, same, opened=False)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _machines(runs: Sequence[RunData]) -> str:
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.host) if key != "packages"]
    if not keys:
        return ""
    equal = all(run.host == runs[0].host for run in runs)
    shown = runs[:1] if equal else runs
    head = ["", *("all runs" if equal and len(runs) > 1 else _name(run) for run in shown)]
    rows = [[key.replace("_", " "), *(_fact(run.host.get(key)) for run in shown)] for key in keys]
    return PARTS.table(head, rows, len(head))


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None) or "-"
    return _value(value)
