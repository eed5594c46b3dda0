"""A replica of the parameters on every rank, kept equal by Allreduce of gradients: synchronous A3C and the Q family.

Each rank acts in its own environments. A push waits for all ranks; then each applies the mean gradient to its replica,
by the same rule. So N ranks of one environment do what one worker with N environments does. With overlap, a push waits
for the exchange that the previous push began. The transport is elsewhere: whoever runs the ranks passes in `reduce`.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asyncrl.core.flat import clip_by_norm
from asyncrl.core.updates import Descent
from asyncrl.parameters.shared import COLUMN_OF, EARLIER_UPDATES, UPDATES, SharedStore
from asyncrl.runtime.agreement import Agreement
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, UNDER_WAY, Counts, Receipt, Update
from asyncrl.runtime.protocols import NOT_FINITE as IS_NOT_FINITE

STEPS, NOT_FINITE, WISH, SECONDS, HIGH, LOW = range(6)
"""What each rank reports after the gradient: its steps; whether its gradient must be dropped; its wish; the seconds of
its previous exchange; the two halves of a checksum of its replica."""
HALF = 1 << 16

Reduce = Callable[[Tensor], Callable[[], None]]
"""Starts to overwrite a vector with the sum of all ranks' vectors, bit for bit the same on each rank. Returns a
function that waits until it is done."""


class ReplicasDiffer(RuntimeError):
    """The ranks' parameters are no longer the same."""


class Replicas(SharedStore):
    """One rank's replica, in memory that an evaluator on the same host can share.

    A single Allreduce of one flat vector carries everything that an update depends on: gradients, steps, wishes. So all
    ranks see the same T, use the same learning rate, refresh theta^- together and leave after the same update. If one
    rank's gradient is not finite, all ranks drop the update.
    """

    def __init__(
        self,
        initial: Tensor,
        descent: Descent,
        ranks: int,
        rank: int,
        clock: Clock,
        agreement: Agreement,
        check_interval: int = 0,
        learners: bool = False,
        overlap: bool = False,
    ) -> None:
        """`initial` is theta `[P]`; the ranks compare their replicas every `check_interval` updates, 0: never.

        `learners`: each rank has its own learner, whose gradients are reduced like those of actor-learners. `overlap`:
        gradients are reduced while the next rollout is made, so each is one update old.
        """
        super().__init__(initial, descent, ranks, clock)
        self._rank = rank
        self._agreement = agreement
        self._check_interval = check_interval
        self._vector = torch.zeros(initial.numel() + ranks * (LOW + 1))
        self._sums = self._vector[: initial.numel()]
        self._told = self._vector[initial.numel() :].view(ranks, LOW + 1)
        self._learners = learners
        self._steps = [0] * ranks
        self._told_steps = 0
        """Steps of this rank that the others know of; an actor's put counts them here before a learner's push."""
        self._seconds = 0.0
        self._overlap = overlap
        self._under_way: tuple[Update, Callable[[], None]] | None = None
        """The update whose gradient is being reduced, and the function that waits for it."""
        self._reduce: Reduce | None = None

    def __getstate__(self) -> dict[str, Any]:
        private = dict.fromkeys(("_vector", "_sums", "_told", "_under_way", "_reduce"))
        return super().__getstate__() | private  # another process only reads the replica

    def connect(self, reduce: Reduce) -> None:
        """Set the transport that sums vectors over all ranks."""
        self._reduce = reduce

    def counts(self, worker: int | None = None) -> Counts:
        """What became of updates since the run began or was resumed: every rank took part in all of them."""
        return super().counts(worker if worker in (None, LEARNER) else self._rank)

    def push(self, update: Update) -> Receipt:
        """theta <- theta - eta update(mean of all ranks' gradients), on every rank; T grows by the steps of all.

        Waits for all ranks, except for updates of a single learner, which sends theta to the others itself. With
        overlap the update is completed by the next push, unless the run is over, which all ranks learn at the same
        push. Raises ReplicasDiffer, and whatever `reduce` raises.
        """
        if update.worker == LEARNER and not self._learners:
            return super().push(update)
        earlier = None if self._under_way is None else self._complete()
        self._begin(update)
        if not self._overlap or self._clock.finished():
            return replace(self._complete(), earlier=earlier)
        return earlier or Receipt(False, UNDER_WAY)

    def _begin(self, update: Update) -> None:
        """Start to reduce this rank's gradient with the others'."""
        assert self._reduce is not None
        put = self._clock.worker_steps()[self._rank] - self._told_steps if self._learners else 0
        finite = math.isfinite(clip_by_norm(update.gradient, 0.0))
        self._told.zero_()
        check = self._checksum() if self._check_interval and self.updates % self._check_interval == 0 else 0
        self._told[self._rank] = torch.tensor(
            [update.steps + put, not finite, self._agreement.wish, self._seconds, check // HALF, check % HALF]
        )
        self._told_steps += put
        self._sums.copy_(update.gradient) if finite else self._sums.zero_()
        began = time.perf_counter()
        wait = self._reduce(self._vector)
        self._seconds = time.perf_counter() - began
        self._under_way = update, wait

    def _complete(self) -> Receipt:
        """Wait for the update that is under way, and apply it."""
        assert self._under_way is not None
        update, wait = self._under_way
        began = time.perf_counter()
        wait()
        self._seconds += time.perf_counter() - began
        self._under_way = None
        told = self._told.tolist()
        self._compare([(row[HIGH], row[LOW]) for row in told])
        self._agreement.book([row[SECONDS] for row in told], self._rank)
        self._agreement.settle([int(row[WISH]) for row in told], self._clock)
        self._steps = [int(row[STEPS]) for row in told]
        if self._learners:
            self._steps[self._rank] = 0  # counted already
            self._count_all()
        self._sums.div_(math.nan if any(row[NOT_FINITE] for row in told) else len(told))
        return super().push(replace(update, gradient=self._sums))

    def adopt(self, updates: int, dropped: int) -> None:
        """Take over the counts of a learner on another rank, after its theta."""
        own, column = self._counts[self._rank], COLUMN_OF[IS_NOT_FINITE]
        own[UPDATES] = updates - int(self._counts[-1, UPDATES])
        own[column] = dropped - int(self._counts[-1, column])
        own[EARLIER_UPDATES] = 0

    def _count(self, update: Update) -> None:
        """T <- T + the steps of all ranks."""
        if update.worker != LEARNER:
            self._count_all()

    def _count_all(self) -> None:
        for rank, steps in enumerate(self._steps):
            self._clock.count(rank, steps)

    def _checksum(self) -> int:
        """Checksum of theta and the statistics."""
        return zlib.crc32(self.statistics.numpy().data, zlib.crc32(self.theta.numpy().data))

    def _compare(self, checksums: list[tuple[float, float]]) -> None:
        others = [rank for rank, own in enumerate(checksums) if own != checksums[0]]
        if others:
            raise ReplicasDiffer(
                f"after {self.updates} updates the parameters of rank {', '.join(map(str, others))} differ from those "
                "of rank 0: do all hosts have the same kind of processor and the same libraries?"
            )
