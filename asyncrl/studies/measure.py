"""What one run of a study achieved, from its records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from asyncrl.core.statistics import Sample
from asyncrl.storage.files import read_facts
from asyncrl.storage.records import read_records
from asyncrl.storage.rows import add_up, evaluations_in, made_last
from asyncrl.storage.run_folder import read_status
from asyncrl.studies.study import Cell, Reference, Study

LAST = 3
"""Evaluations at the end of a run whose mean is its last score."""


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
    reference: Reference | None = None
    """The score that it is timed to."""
    cores: int = 0
    """Cores that the run could use; 0 if unknown."""
    steps: int = 0
    """T when the workers ended."""
    seconds: float = 0.0
    """The clock at that time: since all workers were ready, without the last evaluation."""
    evaluations: tuple[Evaluation, ...] = ()
    best: float | None = None
    """The best evaluation, also if the run was resumed from an earlier step, since its checkpoint is kept."""
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
        scores = [mean.score for mean in self.means(evaluations)]
        return max([*scores, self.best] if self.best is not None and evaluations == 1 else scores, default=None)

    def last_score(self, evaluations: int = 1, seconds: float = float("inf")) -> float | None:
        """The mean of the last `evaluations` evaluations up to that time, or of those that there are."""
        scores = [each.score for each in self.evaluations if each.seconds <= seconds][-evaluations:]
        return fmean(scores) if scores else None

    @cached_property
    def reach(self) -> Evaluation | None:
        """The evaluation at which the reference score was first reached; None if never: the run is censored."""
        if self.reference is None:
            return None
        means = self.means(self.reference.evaluations)
        return next((mean for mean in means if mean.score >= self.reference.score), None)


def measure(cell: Cell, folder: Path, reference: Reference | None = None) -> Measurement:
    """Read the run of a cell; the measurement is empty if there is no run, or it has no records."""
    status = read_status(folder)
    state = str(status.get("state", ""))
    if not state:
        return Measurement(cell, "", reference)
    host = read_facts(folder / "host.json")
    evaluations, best = evaluations_in(folder / "evaluator.jsonl")
    workers, learners = (
        [row for file in sorted(folder.glob(f"{kind}*.jsonl")) for row in made_last(read_records(file))]
        for kind in ("worker-", "learner")
    )
    rows = [row for row in workers if "worker_steps" in row]
    own_steps = sum(row["worker_steps"] for row in rows)
    phases = add_up(row.get("time", {}) for row in workers)  # a bundled learner's rows are among its worker's
    lags = add_up(row.get("staleness_counts", {}) for row in workers + learners)
    return Measurement(
        cell,
        state,
        reference,
        cores=int(host.get("cores_usable") or 0),
        steps=max((row["steps"] for row in rows), default=int(status.get("steps", 0))),
        seconds=max((row["seconds"] for row in rows), default=0.0),
        evaluations=tuple(Evaluation(row["steps"], row.get("seconds", 0.0), row["mean"]) for row in evaluations),
        best=best,
        phases={phase: seconds / own_steps for phase, seconds in phases.items()} if own_steps else {},
        staleness={int(lag): count for lag, count in sorted(lags.items(), key=lambda item: int(item[0]))},
        restarts=sum(status.get("worker_restarts", [])),
        evaluator_share=float(evaluations[-1].get("cpu_share", 0.0)) if evaluations else 0.0,
        machine=_machine(host),
    )


def measure_all(study: Study) -> list[Measurement]:
    """Read all runs of a study."""
    return [measure(cell, study.folder(cell), study.reference(cell)) for cell in study.cells]


@dataclass(frozen=True)
class Group:
    """Finished runs of one setting, at least one.

    Their times are those to the score, or of whole runs if there is no score to reach.
    """

    runs: Sequence[Measurement]

    @property
    def reference(self) -> Reference | None:
        """The score that they are timed to."""
        return self.runs[0].reference

    @property
    def steps(self) -> Sample:
        """Steps to the score."""
        return self._ends(lambda end: float(end.steps))

    @property
    def seconds(self) -> Sample:
        """Seconds to the score."""
        return self._ends(lambda end: end.seconds)

    @property
    def throughput(self) -> Sample:
        """Steps per second."""
        return Sample.complete([run.throughput for run in self.runs])

    @property
    def reached(self) -> int:
        """Number of runs that reached the score."""
        return sum(run.reach is not None for run in self.runs)

    def _ends(self, of: Callable[[Measurement | Evaluation], float]) -> Sample:
        """What `of` says of each run when it reached the score; of the whole run if it never did: it is censored."""
        ends = [run.reach if run.reference else run for run in self.runs]
        values = tuple(of(end or run) for end, run in zip(ends, self.runs, strict=True))
        return Sample(values, tuple(end is not None for end in ends))


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
