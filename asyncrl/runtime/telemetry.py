"""What a worker, an actor or a learner records about itself, and what the rows of several add up to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from asyncrl.core.errors import NotFinite
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Part
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.protocols import NOT_FINITE, OUTLIER, STALE, UNDER_WAY, Batch, Counts, Receipt, in_records
from asyncrl.storage.records import Rows

MOST_DROPPED = 10
"""The run ends after this many consecutive gradients that are not finite."""


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
    ) -> None:
        """`who` is a worker or LEARNER, which has no `collector`.

        `dump` saves the inputs of the last of many gradients that were not finite, and says where. Without a private
        copy a rollout began at an older theta than that of its gradient, so its age is recorded as well.
        `exchanging` returns how many seconds of the pushes or puts since the last call were exchanges with other ranks,
        by phase; the time in which a put had no room is in `wait`.
        """
        self._who = who
        self._clock = clock
        self._writer = writer
        self._interval = interval
        self._collector = collector
        self._private_copy = private_copy
        self._dump = dump
        self._exchanging = exchanging
        self._dropped_in_a_row = 0
        self._metrics: Metrics = dict
        self._learning_rate = 0.0
        self._mark = time.perf_counter()
        self._due = self._mark + interval
        self._clear()

    def _clear(self) -> None:
        self._seconds: dict[str, float] = {}
        self._updates = self._steps = self._batches = 0
        self._norms = 0.0
        self._dropped: Counter[str] = Counter()
        """By reason."""
        self._ages: dict[str, Counter[int]] = {name: Counter() for name in ("staleness", "pull_age", "rollout_age")}
        self._left: Counter[str] = Counter()
        """Rollouts that batches found waiting, missing or taken before."""
        self._facts: Counter[str] = Counter()
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
            self._ages["staleness"][receipt.staleness] += 1
            self._ages["pull_age"][receipt.staleness + pull_age] += 1
        else:
            self._dropped[receipt.reason] += 1
            if self._dropped_in_a_row == MOST_DROPPED:
                place = "" if self._dump is None or part is None else f"; {self._dump(part)}"
                last = ", ".join(f"{name} was {float(value):.4g}" for name, value in metrics().items())
                raise NotFinite(f"{MOST_DROPPED} gradients in a row were not finite; in the last {last}{place}")

    def handed_over(self, steps: int) -> None:
        """An actor has put a rollout; write a row if one is due."""
        self._steps += steps
        self._write_if_due()

    def batch(self, batch: Batch, version: int) -> None:
        """The learner has taken a batch, with theta of `version`."""
        self._batches += 1
        # An update that they were acted with may have been lost with an earlier learner.
        self._ages["rollout_age"].update(max(0, version - acted_with) for acted_with in batch.versions)
        self._left.update(rollouts_missing=batch.missing, rollouts_again=batch.again, waiting=batch.waiting)
        for name, value in batch.facts.items():
            self._facts[name] += value  # type: ignore[assignment]

    def _write_if_due(self) -> None:
        if self._mark >= self._due:
            self.write()

    def write(self) -> None:
        """Write a row now and begin the next, unless there is nothing to record."""
        episodes = [] if self._collector is None else self._collector.episodes
        if not (self._updates or self._dropped or self._steps or episodes):
            return
        row: dict[str, Any] = {
            "worker": in_records(self._who),
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
            **self._ages_as("staleness"),
            **({} if self._private_copy else self._ages_as("pull_age")),
            "metrics": {name: float(value) for name, value in self._metrics().items()},
        }

    def _took(self) -> dict[str, Any]:
        """What a learner's row says about batches."""
        took: dict[str, Any] = {"batches": self._batches}
        if self._facts:
            return took | {"replay": {name: total / self._batches for name, total in self._facts.items()}}
        waiting = self._left.pop("waiting") / self._batches
        return took | self._ages_as("rollout_age") | {"rollouts_waiting": waiting} | self._left

    def _ages_as(self, name: str) -> dict[str, Any]:
        """Mean, maximum and histogram of ages in updates, as entries of a row."""
        ages = self._ages[name]
        return {
            f"{name}_mean": sum(age * count for age, count in ages.items()) / max(1, ages.total()),
            f"{name}_max": max(ages, default=0),
            f"{name}_counts": {str(age): count for age, count in sorted(ages.items())},
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


Pairs: TypeAlias = Sequence[tuple[float, float]]
"""Values from several rows, each with the row's weight."""


def mean(pairs: Pairs) -> float:
    """The mean by weight; 0 without any."""
    return float(sum(value * weight for value, weight in pairs) / max(1, sum(weight for _, weight in pairs)))


def largest(pairs: Pairs) -> float:
    """The largest value."""
    return max(value for value, _ in pairs)


def total(pairs: Pairs) -> float:
    """The sum of the values."""
    return sum(value for value, _ in pairs)


SUMS: dict[str, dict[str, Callable[[Pairs], float]]] = {
    "updates": {
        "async/staleness_mean": mean,
        "async/staleness_max": largest,
        "async/pull_age_mean": mean,
        "train/learning_rate": lambda pairs: pairs[-1][0],  # the newest
        "train/gradient_norm": mean,
    },
    "batches": {
        "learner/rollout_age_mean": mean,
        "learner/rollout_age_max": largest,
        "learner/rollouts_waiting": mean,
        "learner/rollouts_missing": total,
        "learner/rollouts_again": total,
    },
    "exchanges": {
        "hosts/exchange_staleness_mean": mean,
        "hosts/exchange_staleness_max": largest,
        "hosts/exchange_seconds_mean": mean,
        "hosts/exchange_turns_mean": mean,
        "hosts/updates_lost": total,
    },
    "calls": {
        "hosts/rollouts": total,
        "hosts/rollouts_lost": total,
        "hosts/call_seconds_mean": mean,
    },
}
"""By the entry of a row that is its weight: the tags that are made from such rows, and how; an entry's name is what
follows the slash."""


def summed_up(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What rows of several processes add up to, by tag. Values that were not finite, null in the rows, are left out."""
    rows, scalars = list(rows), dict[str, float]()
    for weight, tags in SUMS.items():
        values = _values([row for row in rows if weight in row], weight)
        scalars |= {tag: sums(values[name]) for tag, sums in tags.items() if (name := tag.partition("/")[2]) in values}
    # A metric is of the newest update alone, so each row counts alike.
    metrics = _values([row["metrics"] for row in rows if "metrics" in row])
    replay = _values([row["replay"] | {"batches": row["batches"]} for row in rows if "replay" in row], "batches")
    scalars |= {f"train/{name}": mean(pairs) for name, pairs in metrics.items()}
    return scalars | {f"learner/{name}": mean(pairs) for name, pairs in replay.items() if name != "batches"}


def time_shares(rows: Iterable[Mapping[str, Any]], tag: str) -> dict[str, float]:
    """Where the time of `rows` went, as shares that add up to 1, by phase."""
    sums = {phase: total(pairs) for phase, pairs in _values(row["time"] for row in rows).items()}
    whole = sum(sums.values())
    return {f"{tag}_{phase}": seconds / whole for phase, seconds in sums.items()} if whole > 0 else {}


def _values(rows: Iterable[Mapping[str, Any]], weight: str = "") -> dict[str, list[tuple[float, float]]]:
    """The values of rows by name, with the rows' weights."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                found.setdefault(name, []).append((value, row.get(weight, 1)))
    return found
