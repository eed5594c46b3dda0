"""What a worker, an actor or a learner records about itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from asyncrl.core.errors import NotFinite
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Part
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.protocols import NOT_FINITE, OUTLIER, STALE, UNDER_WAY, Batch, Counts, Receipt, name_of
from asyncrl.storage.records import Rows

MOST_DROPPED = 10
"""The run ends after this many consecutive gradients that are not finite."""


def told(metrics: Mapping[str, Tensor]) -> str:
    """Metrics in words."""
    return ", ".join(f"{name} was {float(value):.4g}" for name, value in metrics.items())


def ages_as(name: str, ages: Counter[int]) -> dict[str, Any]:
    """Mean, maximum and histogram of ages in updates, as entries of a row."""
    return {
        f"{name}_mean": sum(age * count for age, count in ages.items()) / max(1, ages.total()),
        f"{name}_max": max(ages, default=0),
        f"{name}_counts": {str(age): count for age, count in sorted(ages.items())},
    }


class Telemetry:
    """Sums over updates, written as one row every `interval` seconds to the process's own file.

    Rows are rare, and metrics are computed only for a row, so records cost next to no time.
    """

    def __init__(
        self,
        who: int,
        clock: Clock,
        writer: Rows,
        interval: float,
        collector: Collector | None = None,
        private_copy: bool = True,
        dump: Callable[[Part], str] | None = None,
        exchanging: Callable[[], dict[str, float]] | None = None,
        shared: bool = False,
    ) -> None:
        """`who` is a worker or LEARNER, which has no `collector`.

        `dump` saves the inputs of the last of many gradients that were not finite, and says where. Without a private
        copy a rollout began at an older theta than that of its gradient, so its age is recorded as well.
        `exchanging` returns how many seconds of the pushes or puts since the last call were exchanges with other ranks,
        by phase; the time in which a put had no room is in `wait`.
        `shared` is a writer that an actor and a learner of one process share: they do not close it.
        """
        self._who = who
        self._clock = clock
        self._writer = writer
        self._interval = interval
        self._collector = collector
        self._private_copy = private_copy
        self._dump = dump
        self._exchanging = exchanging
        self._shared = shared
        self._dropped_in_a_row = 0
        self._metrics: Metrics = dict
        self._learning_rate = 0.0
        self._mark = time.perf_counter()
        self._due = self._mark + interval
        self._clear()

    def _clear(self) -> None:
        self._seconds: dict[str, float] = {}
        self._updates = self._steps = 0
        self._dropped: Counter[str] = Counter()
        """By reason."""
        self._norms = 0.0
        self._staleness: Counter[int] = Counter()
        self._pull_ages: Counter[int] = Counter()
        self._rollout_ages: Counter[int] = Counter()
        self._batches = self._waiting = self._missing = self._again = 0
        self._facts: dict[str, float] = {}
        if self._collector is not None:
            self._collector.episodes.clear()
            self._collector.environment_seconds = self._collector.acting_seconds = 0.0

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under `phase`."""
        now = time.perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._mark
        self._mark = now

    def update(
        self, receipt: Receipt, steps: int, metrics: Metrics, part: Part | None = None, pull_age: int = 0
    ) -> None:
        """One update was made from `part`; write a row if one is due. `pull_age` is its rollout's additional age.

        Raises NotFinite after MOST_DROPPED consecutive gradients that were not finite: nothing is learnt any more.
        Those dropped as stale or as outliers do not count.
        """
        self._steps += steps
        self._metrics = metrics
        for one in (receipt.earlier, receipt):
            if one is not None and one.reason != UNDER_WAY:
                self._note(one, metrics, part, pull_age)
        self._write_if_due()

    def _note(self, receipt: Receipt, metrics: Metrics, part: Part | None, pull_age: int) -> None:
        """What became of one update."""
        self._learning_rate = receipt.learning_rate
        self._dropped_in_a_row = self._dropped_in_a_row + 1 if receipt.reason == NOT_FINITE else 0
        if receipt.applied:
            self._updates += 1
            self._norms += receipt.norm
            self._staleness[receipt.staleness] += 1
            self._pull_ages[receipt.staleness + pull_age] += 1
        else:
            self._dropped[receipt.reason] += 1
            if self._dropped_in_a_row == MOST_DROPPED:
                place = "" if self._dump is None or part is None else f"; {self._dump(part)}"
                raise NotFinite(
                    f"{MOST_DROPPED} gradients in a row were not finite; in the last {told(metrics())}{place}"
                )

    def handed_over(self, steps: int) -> None:
        """An actor has put a rollout; write a row if one is due."""
        self._steps += steps
        self._write_if_due()

    def batch(self, batch: Batch, version: int) -> None:
        """The learner has taken a batch, with theta of `version`."""
        self._batches += 1
        self._rollout_ages.update(version - acted_with for acted_with in batch.versions)
        self._waiting += batch.waiting
        self._missing += batch.missing
        self._again += batch.again
        for name, value in batch.facts.items():
            self._facts[name] = self._facts.get(name, 0.0) + value

    def _write_if_due(self) -> None:
        if self._mark >= self._due:
            self.write()

    def write(self) -> None:
        """Write a row now and begin the next, unless there is nothing to record."""
        episodes = [] if self._collector is None else self._collector.episodes
        if not (self._updates or self._dropped or self._steps or episodes):
            return
        row: dict[str, Any] = {
            "worker": self._who if self._who >= 0 else name_of(self._who),
            "steps": self._clock.steps,
            "seconds": round(self._clock.seconds, 3),
        }
        if self._collector is not None:
            row["worker_steps"] = self._steps
            row["episodes"] = [[episode.score, episode.length] for episode in episodes]
        if self._updates or self._dropped:
            row |= self._learnt()
        if self._batches:
            row |= self._took()
        self._writer.write(row | {"time": self._time()})
        self._clear()
        self._due = time.perf_counter() + self._interval

    def _learnt(self) -> dict[str, Any]:
        """What a row says about updates."""
        return {
            **Counts(self._updates, *(self._dropped[reason] for reason in (NOT_FINITE, STALE, OUTLIER)))._asdict(),
            "learning_rate": self._learning_rate,
            "gradient_norm": self._norms / max(1, self._updates),
            **ages_as("staleness", self._staleness),
            **({} if self._private_copy else ages_as("pull_age", self._pull_ages)),
            "metrics": {name: float(value) for name, value in self._metrics().items()},
        }

    def _took(self) -> dict[str, Any]:
        """What a learner's row says about batches."""
        if self._facts:
            return {
                "batches": self._batches,
                "replay": {name: total / self._batches for name, total in self._facts.items()},
            }
        return {
            "batches": self._batches,
            **ages_as("rollout_age", self._rollout_ages),
            "rollouts_waiting": self._waiting / self._batches,
            "rollouts_missing": self._missing,
            "rollouts_again": self._again,
        }

    def _time(self) -> dict[str, float]:
        """Seconds by phase; those of rollouts are split into environments, policy and collector."""
        seconds = dict(self._seconds)
        parts = {}
        if self._collector is not None:
            environment, act = self._collector.environment_seconds, self._collector.acting_seconds
            collect = seconds.pop("rollout", 0.0) - environment - act
            parts = {"environment": environment, "act": act, "collect": collect}
        if self._exchanging is not None and (exchanging := self._exchanging()):
            total = sum(exchanging.values())
            for phase in ("push", "put", "wait"):
                within = min(total, seconds.get(phase, 0.0))
                if within:
                    seconds[phase] -= within
                    total -= within
            for phase, spent in exchanging.items():
                seconds[phase] = seconds.get(phase, 0.0) + spent
        return {phase: round(spent, 6) for phase, spent in (parts | seconds).items()}

    def close(self) -> None:
        """Write what is left, and close the file unless it is shared."""
        try:
            self.write()
        finally:
            if not self._shared:
                self._writer.close()
                self._clock.note_unwritten(self._who, self._writer.missing)
