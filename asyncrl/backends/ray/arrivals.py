"""Where rollouts from hosts arrive: at a learner, or at a replay host.

A host keeps a rollout in its own ring until this side is done with it: the learner has learnt from it, or its steps are
in the replay memory. So between an actor and the learner there are never more rollouts than on one machine, however
slow the learner is: actors wait, and nothing piles up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.experience import blocks
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import FIRST, RolloutShape, block_of, header_of
from asyncrl.experience.replay import Replay
from asyncrl.parameters.shards import Report
from asyncrl.runtime.link import Answer, Call, Callee
from asyncrl.runtime.protocols import LEARNER, Batch, Counts

CREDIT = 2
"""Calls of one host that wait. One is under way while the other waits for news."""


@dataclass(frozen=True)
class Rollouts:
    """What a host's call to the learner, or to its replay host, brings, and what it asks for."""

    rollouts: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    """Workers of the host, and a rollout of each as a message: see `asyncrl.experience.blocks`."""
    news: int = 0
    """`Delivery.news` of the newest answer."""
    version: int = 0
    """Updates in the host's theta."""
    theta: bool = True
    """Whether the host wants a newer theta."""
    seconds: float = 0.0
    """How long to wait for news before answering."""
    report: Report | None = None


@dataclass(frozen=True)
class Delivery:
    """The answer; a replay host has no theta."""

    news: int = 0
    """Counts what has happened to this host's rollouts, and the learner's batches."""
    done: list[int] = field(default_factory=list)
    """How many rollouts of each worker of this incarnation the taker is done with, in this epoch."""
    waited: float = 0.0
    """Seconds for which the answer waited for news."""
    counts: Counts = field(default_factory=Counts)
    """What became of the updates of the whole run."""
    theta: NDArray[np.float32] | None = None
    """`[P]` with all of these updates; None if the host has it already or does not want it."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, with tallies `[K]`, if it has reported."""


class Arrivals:
    """Takes rollouts from hosts, and puts them where the learner takes them from: its rings, or a replay memory.

    For the threads that receive calls and one learner.
    """

    def __init__(
        self, experience: Batches | Replay, shape: RolloutShape, hosts: int, workers: int, callee: Callee
    ) -> None:
        """`workers` is their number per host; `callee` has the epoch, greater than that of any earlier learner."""
        self.experience, self._shape, self._workers, self.callee = experience, shape, workers, callee
        self._queues: list[deque[tuple[int, Tensor]]] = [deque() for _ in range(hosts * workers)]
        """For each worker of all hosts the messages that found no room yet, with their incarnations."""
        self._next = 0
        """The worker whose turn it is to put."""
        self._put = [0] * (hosts * workers)
        """Rollouts of each that have been put."""
        self._began = [(0, 0)] * (hosts * workers)
        """For each the incarnation whose rollouts are being put, and how many were put before."""
        self.lock = threading.Lock()
        """Held while anything here changes."""
        self._changes = [threading.Condition(self.lock) for _ in range(hosts)]
        self.stored = threading.Condition(self.lock)
        """Notified when steps were stored in the memory."""
        self._news = [0] * hosts

    def hear(self, call: Call[Rollouts]) -> tuple[Answer, bool]:
        """Take a call's rollouts, and wait until there is news for its host, or a later call of it.

        Returns the answer, with a `Delivery`, and whether no later call of the host has arrived meanwhile. Answers are
        numbered in the order of what they say.
        """
        host, load, began = call.host, call.load, time.monotonic()
        change, taken = self._changes[host], self.callee.taken
        with self.lock:
            if self.callee.admit(call):
                for own, message in load.rollouts:
                    self._queues[host * self._workers + own].append((call.incarnation, torch.from_numpy(message)))
                self._put_all()
                change.notify_all()
            change.wait_for(lambda: self._news[host] != load.news or taken[host] != call.number, timeout=load.seconds)
            newest = int(taken[host]) == call.number and not self.callee.is_retired(call)
            delivery = Delivery(self._news[host], self.done(host, call.incarnation), time.monotonic() - began)
            return self.callee.answer(call, delivery), newest

    def done(self, host: int, incarnation: int) -> list[int]:
        """How many rollouts of this incarnation's workers the learner is done with."""
        first = host * self._workers
        return [self._done(worker, incarnation) for worker in range(first, first + self._workers)]

    def _done(self, worker: int, incarnation: int) -> int:
        now, before = self._began[worker]
        done = self._put[worker] if isinstance(self.experience, Replay) else self.experience.rings[worker].freed
        return max(0, done - before) if now == incarnation else 0

    def _put_all(self) -> None:
        """Put what has arrived, as far as there is room: one rollout of each worker in turn.

        A replay memory has room for anybody or nobody: the first that finds none is the first to get some.
        """
        idle = 0
        while idle < len(self._queues):
            worker, waits = self._next, bool(self._queues[self._next])
            if waits and self.experience.has_room(worker):
                self._put_one(worker)
                idle = 0
            elif waits and isinstance(self.experience, Replay):
                break
            else:
                idle += 1
            self._next = (worker + 1) % len(self._queues)

    def _put_one(self, worker: int) -> None:
        incarnation, message = self._queues[worker].popleft()
        if self._began[worker][0] != incarnation:
            self._began[worker] = incarnation, self._put[worker]
        self._put[worker] += 1
        block, first = block_of(self._shape, message), header_of(message)[-1] == FIRST
        if isinstance(self.experience, Replay):
            if first:
                self.experience.steps.begin(worker)
            self.experience.steps.add(worker, blocks.read_raw(block))
            self._notify(worker // self._workers)
            self.stored.notify_all()
        else:
            ring = self.experience.rings[worker]
            blocks.copy(block, ring.begin())
            ring.publish()

    def _notify(self, host: int) -> None:
        self._news[host] += 1
        self._changes[host].notify_all()

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The learner's next batch; None if it is not ready."""
        return self.experience.take(learner)

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with its batch: hosts may free its rollouts."""
        with self.lock:
            self.experience.release(learner)
            if not isinstance(self.experience, Replay):
                for host in range(len(self._news)):
                    self._notify(host)
            self._put_all()

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """The learner's newest errors, for a memory that samples by priority."""
        self.experience.feedback(keys, errors, learner)
