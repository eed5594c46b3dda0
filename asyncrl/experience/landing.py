"""Where rollouts from several hosts arrive, as the experience of one learner.

A host keeps a rollout in its own ring until the learner is done with it. So between an actor and the learner there are
never more rollouts than on one machine, however slow the learner is: actors wait, and nothing piles up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import RolloutShape
from asyncrl.experience.credit import Inlet, Parcel, Taken
from asyncrl.experience.messages import block_of
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt

CREDIT = 2
"""Parcels of one host in flight."""


@dataclass(frozen=True)
class Cargo:
    """What a parcel carries."""

    host: int
    incarnation: int
    rollouts: list[tuple[int, NDArray[np.uint8]]]
    """Workers of the host, and a rollout of each as a message: see `asyncrl.experience.messages`."""


class Landing:
    """Takes parcels from hosts and lays their rollouts into the rings of the learner's `Batches`.

    For the threads that receive parcels and one learner.
    """

    def __init__(self, batches: Batches, shape: RolloutShape, hosts: int, workers: int, epoch: int) -> None:
        """`workers` is their number per host; `epoch` is greater than that of any earlier learner."""
        self._batches, self._shape, self._workers = batches, shape, workers
        self._inlet: Inlet[Cargo] = Inlet(hosts, CREDIT * hosts, epoch)
        self._unloading: deque[tuple[int, int, NDArray[np.uint8]]] = deque()
        """What is left of a parcel: incarnation, number of the worker among those of all hosts, message."""
        self._began = [(0, 0)] * (hosts * workers)
        """For each worker the incarnation whose rollouts are being laid, and how many were laid before."""
        self.changed = threading.Condition()
        """Held while anything below changes, notified after a batch."""
        self.batches = 0
        """Batches that the learner is done with."""

    def deliver(self, parcel: Parcel[Cargo]) -> Taken:
        """Take a parcel if there is room."""
        with self.changed:
            taken = self._inlet.deliver(parcel)
            self._unload()
            return taken

    def acknowledge(self, host: int, incarnation: int) -> Taken:
        """What has been taken of this incarnation of a host so far."""
        return self._inlet.acknowledge(host, incarnation)

    def done(self, host: int, incarnation: int) -> list[int]:
        """How many rollouts of this incarnation's workers the learner is done with."""
        first = host * self._workers
        return [self._done(worker, incarnation) for worker in range(first, first + self._workers)]

    def _done(self, worker: int, incarnation: int) -> int:
        laying, before = self._began[worker]
        return max(0, self._batches.rings[worker].freed - before) if laying == incarnation else 0

    def _unload(self) -> None:
        """Lay what has arrived into the rings, as far as there is room."""
        while self._unloading or len(self._inlet):
            if not self._unloading:
                cargo = self._inlet.take()
                assert cargo is not None
                first = cargo.host * self._workers
                self._unloading.extend((cargo.incarnation, first + own, message) for own, message in cargo.rollouts)
                continue
            incarnation, worker, message = self._unloading[0]
            ring = self._batches.rings[worker]
            if not ring.free():
                return
            self._unloading.popleft()
            if self._began[worker][0] != incarnation:
                self._began[worker] = incarnation, ring.written
            blocks.copy(block_of(self._shape, torch.from_numpy(message)), ring.begin())
            ring.publish()

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The learner's next batch; None if it is not ready."""
        return self._batches.take(learner)

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with its batch: hosts may free its rollouts."""
        with self.changed:
            self._batches.release(learner)
            self._unload()
            self.batches += 1
            self.changed.notify_all()

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Does nothing: each rollout is taken once."""

    def has_room(self, actor: int) -> bool:
        """False: no actor is here."""
        return False

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Not for actors, which are on hosts."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Empty: rollouts on their way are not saved."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing: `state` is empty."""
