"""What a worker writes down about itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from asyncrl.core.errors import NotFinite
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.progress import Progress
from asyncrl.runtime.protocols import Push
from asyncrl.storage.records import RecordWriter

if TYPE_CHECKING:
    from asyncrl.runtime.worker import Turn

MOST_DROPPED = 10
"""So many gradients in a row that are not finite end the run."""


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


class WorkerReport:
    """Sums over updates, written as one row every `interval` seconds to the worker's own file.

    Rows are rare and metrics are worked out only for a row, so that keeping records costs the training nothing
    worth measuring.
    """

    def __init__(
        self,
        worker: int,
        collector: Collector,
        progress: Progress,
        writer: RecordWriter,
        interval: float,
        private_copy: bool = True,
        dump: Callable[[Rollout], str] | None = None,
    ) -> None:
        """`dump` keeps the rollout of the last of many gradients that were not finite, and says where.

        Without a private copy the rollout began at an older theta than the gradient is of: its age is recorded as well.
        """
        self._worker = worker
        self._collector = collector
        self._progress = progress
        self._writer = writer
        self._interval = interval
        self._private_copy = private_copy
        self._dump = dump
        self._dropped_in_a_row = 0
        self._mark = time.perf_counter()
        self._due = self._mark + interval
        self._clear()

    def _clear(self) -> None:
        self._seconds = dict.fromkeys(("pull", "rollout", "loss", "wait", "push"), 0.0)
        self._updates = self._dropped = self._steps = 0
        self._norms = 0.0
        self._staleness: Counter[int] = Counter()
        self._pull_ages: Counter[int] = Counter()
        self._collector.episodes.clear()
        self._collector.environment_seconds = self._collector.acting_seconds = 0.0

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under `phase`."""
        now = time.perf_counter()
        self._seconds[phase] += now - self._mark
        self._mark = now

    def update(self, push: Push, turn: Turn, metrics: Metrics, learning_rate: float) -> None:
        """One update was made; write a row if one is due.

        Raises NotFinite when MOST_DROPPED gradients in a row were not finite: nothing is learnt any more.
        """
        self._steps += turn.steps
        if push.applied:
            self._dropped_in_a_row = 0
            self._updates += 1
            self._norms += push.norm
            self._staleness[push.staleness] += 1
            self._pull_ages[push.staleness + turn.version - turn.pulled] += 1
        else:
            self._dropped += 1
            self._dropped_in_a_row += 1
            if self._dropped_in_a_row == MOST_DROPPED:
                place = "" if self._dump is None or turn.rollout is None else f"; {self._dump(turn.rollout)}"
                raise NotFinite(
                    f"{MOST_DROPPED} gradients in a row were not finite; in the last {told(metrics())}{place}"
                )
        if self._mark >= self._due:
            self.write(metrics, learning_rate)

    def write(self, metrics: Metrics, learning_rate: float) -> None:
        """Write a row now and begin the next."""
        if not self._updates and not self._dropped and not self._collector.episodes:
            return
        seconds = self._seconds
        collector = self._collector
        pushes = max(1, self._updates)
        self._writer.write(
            {
                "worker": self._worker,
                "steps": self._progress.steps,
                "seconds": round(self._progress.seconds, 3),
                "worker_steps": self._steps,
                "updates": self._updates,
                "dropped_gradients": self._dropped,
                "episodes": [[episode.score, episode.length] for episode in collector.episodes],
                "learning_rate": learning_rate,
                "gradient_norm": self._norms / pushes,
                **ages_as("staleness", self._staleness),
                **({} if self._private_copy else ages_as("pull_age", self._pull_ages)),
                "metrics": {name: float(value) for name, value in metrics().items()},
                "time": {
                    "environment": round(collector.environment_seconds, 6),
                    "act": round(collector.acting_seconds, 6),
                    "collect": round(seconds["rollout"] - collector.environment_seconds - collector.acting_seconds, 6),
                    "loss": round(seconds["loss"], 6),
                    "pull": round(seconds["pull"], 6),
                    "push": round(seconds["push"], 6),
                    "wait": round(seconds["wait"], 6),
                },
            }
        )
        self._clear()
        self._due = time.perf_counter() + self._interval

    def close(self, metrics: Metrics, learning_rate: float) -> None:
        """Write what is left and close the file."""
        try:
            self.write(metrics, learning_rate)
        finally:
            self._writer.close()
