"""Where rollouts from several hosts arrive, as the experience of one learner.

A host keeps a rollout in its own ring until the learner is done with it: has learnt from it, or has put its steps into
the replay memory. So between an actor and the learner there are never more rollouts than on one machine, however slow
the learner is: actors wait, and nothing piles up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import Block, RolloutShape
from asyncrl.experience.credit import Inlet, Numbered, Taken
from asyncrl.experience.messages import FIRST, block_of, header_of
from asyncrl.experience.replay import Replay
from asyncrl.runtime.protocols import LEARNER, Batch

CREDIT = 2
"""Parcels of one host in flight."""


@dataclass(frozen=True)
class Cargo:
    """What a parcel carries."""

    host: int
    incarnation: int
    rollouts: list[tuple[int, NDArray[np.uint8]]]
    """Workers of the host, and a rollout of each as a message: see `asyncrl.experience.messages`."""


class Shelf(Protocol):
    """Where rollouts are laid for the learner."""

    def has_room(self, worker: int) -> bool:
        """Whether there is room for another rollout of this worker."""
        ...

    def lay(self, worker: int, block: Block, first: bool) -> None:
        """Copy a worker's rollout; `first`: it is the first of its process."""
        ...

    def laid(self, worker: int) -> int:
        """Rollouts of this worker that have been laid."""
        ...

    def done(self, worker: int) -> int:
        """How many of them the learner is done with."""
        ...


class InRings:
    """The rings of a learner's batches."""

    def __init__(self, batches: Batches) -> None:
        self._rings = batches.rings

    def has_room(self, worker: int) -> bool:
        """Whether the worker's ring has room."""
        return self._rings[worker].free() > 0

    def lay(self, worker: int, block: Block, first: bool) -> None:
        """Copy a worker's rollout into its ring."""
        blocks.copy(block, self._rings[worker].begin())
        self._rings[worker].publish()

    def laid(self, worker: int) -> int:
        """Rollouts that have been laid into the worker's ring."""
        return self._rings[worker].written

    def done(self, worker: int) -> int:
        """How many of them the learner has released."""
        return self._rings[worker].freed


class InMemory:
    """The learner's replay memory, as the replay ratio allows."""

    def __init__(self, memory: Replay) -> None:
        self._memory = memory
        self._laid = [0] * memory.plan.actors

    def has_room(self, worker: int) -> bool:
        """Whether the learner has kept up with the replay ratio."""
        return self._memory.has_room(worker)

    def lay(self, worker: int, block: Block, first: bool) -> None:
        """Store a rollout's steps."""
        if first:
            self._memory.steps.begin(worker)
        self._memory.steps.add(worker, blocks.read_raw(block))
        self._laid[worker] += 1

    def laid(self, worker: int) -> int:
        """Rollouts of this worker that have been stored."""
        return self._laid[worker]

    def done(self, worker: int) -> int:
        """The same: the rollout itself is not needed any more."""
        return self._laid[worker]


class WithoutActors:
    """What an experience lacks if its actors are on hosts: it is for a learner alone, and saves nothing."""

    def has_room(self, actor: int) -> bool:
        """False: no actor is here."""
        return False

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Not for actors, which are on hosts."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Empty: nothing is saved."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing: `state` is empty."""


class Landing(WithoutActors):
    """Takes parcels from hosts and lays their rollouts where the learner takes them from.

    For the threads that receive parcels and one learner.
    """

    def __init__(self, experience: Batches | Replay, shape: RolloutShape, hosts: int, workers: int, epoch: int) -> None:
        """`workers` is their number per host; `epoch` is greater than that of any earlier learner."""
        self.experience, self._shape, self._workers = experience, shape, workers
        self._shelf: Shelf = InRings(experience) if isinstance(experience, Batches) else InMemory(experience)
        self._inlet: Inlet[Cargo] = Inlet(hosts, CREDIT * hosts, epoch)
        self._unloading: deque[tuple[int, int, NDArray[np.uint8]]] = deque()
        """What is left of a parcel: incarnation, number of the worker among those of all hosts, message."""
        self._began = [(0, 0)] * (hosts * workers)
        """For each worker the incarnation whose rollouts are being laid, and how many were laid before."""
        self.changed = threading.Condition()
        """Held while anything here changes, notified when the learner is done with rollouts."""
        self.news = 0
        """Counts these notifications."""

    def deliver(self, parcel: Numbered[Cargo]) -> Taken:
        """Take a parcel if there is room."""
        with self.changed:
            taken = self._inlet.deliver(parcel)
            self._unload()
            return taken

    def acknowledge(self, host: int, incarnation: int) -> Taken:
        """What has been taken of this incarnation of a host so far."""
        return self._inlet.acknowledge(host, incarnation)

    def hear(self, host: int, incarnation: int, news: int, seconds: float) -> tuple[Taken, int, list[int]]:
        """Wait up to `seconds` until `self.news` is not `news` any more.

        Returns `acknowledge`, `self.news` and `done` for this incarnation of a host.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.news != news, timeout=seconds)
            return self.acknowledge(host, incarnation), self.news, self.done(host, incarnation)

    def done(self, host: int, incarnation: int) -> list[int]:
        """How many rollouts of this incarnation's workers the learner is done with."""
        first = host * self._workers
        return [self._done(worker, incarnation) for worker in range(first, first + self._workers)]

    def _done(self, worker: int, incarnation: int) -> int:
        laying, before = self._began[worker]
        return max(0, self._shelf.done(worker) - before) if laying == incarnation else 0

    def _unload(self) -> None:
        """Lay what has arrived, as far as there is room."""
        while self._unloading or len(self._inlet):
            if not self._unloading:
                cargo = self._inlet.take()
                assert cargo is not None
                first = cargo.host * self._workers
                self._unloading.extend((cargo.incarnation, first + own, message) for own, message in cargo.rollouts)
                continue
            incarnation, worker, message = self._unloading[0]
            if not self._shelf.has_room(worker):
                return
            self._unloading.popleft()
            if self._began[worker][0] != incarnation:
                self._began[worker] = incarnation, self._shelf.laid(worker)
            rollout = torch.from_numpy(message)
            self._shelf.lay(worker, block_of(self._shape, rollout), header_of(rollout)[-1] == FIRST)
            if isinstance(self._shelf, InMemory):
                self._notify()

    def _notify(self) -> None:
        self.news += 1
        self.changed.notify_all()

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The learner's next batch; None if it is not ready."""
        return self.experience.take(learner)

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with its batch: hosts may free its rollouts."""
        with self.changed:
            self.experience.release(learner)
            if isinstance(self._shelf, InRings):
                self._notify()
            self._unload()

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """The learner's newest errors, for a memory that samples by priority."""
        self.experience.feedback(keys, errors, learner)
