"""The speed of one run, from its records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from asyncrl.core.statistics import Sample
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import read_status
from asyncrl.studies.plan import Cell, Reference, StudyFile


@dataclass(frozen=True)
class Evaluation:
    """One point of a learning curve: the clock and T at the snapshot, and its mean raw return."""

    steps: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Measurement:
    """One run of the study."""

    cell: Cell
    state: str
    """As in status.json; "" if the run has not been made."""
    cores: int = 0
    """Cores that the run could use; 0 if unknown."""
    steps: int = 0
    """T when the workers ended."""
    seconds: float = 0.0
    """The clock at that time: since all workers were ready, without the last evaluation."""
    evaluations: tuple[Evaluation, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    """Where a worker's time went: seconds per step of its own, by phase."""
    staleness: Mapping[int, int] = field(default_factory=dict)
    """Number of updates, by staleness."""
    restarts: int = 0
    """Workers that died or hung and were replaced."""
    evaluator_share: float = 0.0
    """The evaluator's share of the run's CPU time."""
    machine: str = "unknown"
    """The machine in one line."""

    @property
    def complete(self) -> bool:
        """Whether the run finished, so that it counts."""
        return self.state == "finished"

    @property
    def throughput(self) -> float:
        """Steps per second of all workers."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0

    def means(self, evaluations: int = 1) -> list[Evaluation]:
        """The curve of means over the last `evaluations` evaluations."""
        return [
            replace(last, score=fmean(each.score for each in self.evaluations[i + 1 - evaluations : i + 1]))
            for i, last in enumerate(self.evaluations)
            if i + 1 >= evaluations
        ]

    def best_score(self, evaluations: int = 1) -> float | None:
        """The best mean of `evaluations` consecutive evaluations."""
        return max((mean.score for mean in self.means(evaluations)), default=None)

    def last_score(self, evaluations: int) -> float | None:
        """The mean of the last `evaluations` evaluations, or of those that there are."""
        scores = [each.score for each in self.evaluations[-evaluations:]]
        return fmean(scores) if scores else None

    def reach(self, reference: Reference) -> Evaluation | None:
        """The evaluation at which the reference score was first reached; None if never: the run is censored."""
        means = self.means(reference.evaluations)
        return next((mean for mean in means if mean.score >= reference.score), None)


def measure(cell: Cell, folder: Path) -> Measurement:
    """Read the run of a cell; the measurement is empty if there is no run, or it has no records."""
    status = read_status(folder)
    state = str(status.get("state", ""))
    if not state:
        return Measurement(cell, "")
    try:
        host = read_json(folder / "host.json")
    except (OSError, ValueError):
        host = {}
    evaluations = [row for row in read_records(folder / "evaluator.jsonl") if row.get("mean") is not None]
    workers, learners = (
        [row for file in sorted(folder.glob(f"{kind}*.jsonl")) for row in read_records(file) if "time" in row]
        for kind in ("worker-", "learner")
    )
    rows = [row for row in workers if "worker_steps" in row]
    return Measurement(
        cell,
        state,
        cores=int(host.get("cores_usable") or 0),
        steps=max((row["steps"] for row in rows), default=int(status.get("steps", 0))),
        seconds=max((row["seconds"] for row in rows), default=0.0),
        evaluations=tuple(Evaluation(row["steps"], row.get("seconds", 0.0), row["mean"]) for row in evaluations),
        phases=seconds_per_step(workers),
        staleness=add_staleness(row.get("staleness_counts", {}) for row in workers + learners),
        restarts=sum(status.get("worker_restarts", [])),
        evaluator_share=float(evaluations[-1].get("cpu_share", 0.0)) if evaluations else 0.0,
        machine=_machine(host),
    )


def measure_all(file: StudyFile, runs_dir: Path) -> list[Measurement]:
    """Read all runs of a study."""
    return [measure(cell, file.job(cell).folder(runs_dir)) for cell in file.cells]


def times_to(
    reference: Reference | None, runs: Sequence[Measurement], of: Callable[[Measurement | Evaluation], float]
) -> Sample:
    """What `of` says of each run when it reached the score; of the whole run if it never did, which is censored.

    Without a score no run is censored.
    """
    reached = [run.reach(reference) if reference else run for run in runs]
    values = tuple(of(at or run) for at, run in zip(reached, runs, strict=True))
    return Sample(values, tuple(at is not None for at in reached))


def machines(runs: Sequence[Measurement]) -> list[str]:
    """The machines of the complete runs, each with its number of runs."""
    counts = Counter(run.machine for run in runs if run.complete)
    return [f"{machine} ({count} runs)" for machine, count in counts.items()]


def seconds_per_step(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The time that workers spent per step of their own, by phase; a bundled learner's is its worker's."""
    sums: Counter[str] = Counter()
    for row in rows:
        sums.update(row["time"])
    steps = sum(row.get("worker_steps", 0) for row in rows)
    return {phase: seconds / steps for phase, seconds in sums.items()} if steps else {}


def add_staleness(histograms: Any) -> dict[int, int]:
    """The sum of histograms, whose keys JSON has turned into strings."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update({int(lag): count for lag, count in histogram.items()})
    return dict(sorted(total.items()))


def _machine(facts: Mapping[str, Any]) -> str:
    """A machine in one line, from host.json."""
    if not facts:
        return "unknown"
    versions = facts.get("versions", {})
    return (
        f"{facts.get('cpu') or 'unknown processor'}, {facts.get('torch_kernels') or 'unknown'} kernels, "
        f"{facts.get('cores_logical')} logical cores, "
        f"{facts.get('memory_gib')} GiB; {facts.get('platform')}; Python {versions.get('python')}, "
        f"torch {versions.get('torch')}, asyncrl {versions.get('asyncrl')}; threads per process "
        f"{json.dumps(facts.get('threads', {}).get('OMP_NUM_THREADS'))}"
    )
