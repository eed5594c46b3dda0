"""Rollouts from hosts to a learner elsewhere, on credit: the rules, as plain objects that know nothing of the wire.

A host has at most `credit` parcels on their way that the learner has not taken; the learner takes one only while it has
room. So a learner that is slow makes hosts wait, and their actors, and nothing piles up anywhere. A parcel may be lost,
repeated, late, or out of order: it is taken once, in the order of its host. A learner that dies takes with it what it
had taken; its successor, of a new epoch, is sent what it has not acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Load = TypeVar("Load")


@dataclass(frozen=True)
class Parcel(Generic[Load]):
    """Rollouts of a host on their way."""

    host: int
    incarnation: int
    epoch: int
    """Of the learner it is for."""
    number: int
    """Of this incarnation's parcels in this epoch, from 1."""
    load: Load


@dataclass(frozen=True)
class Taken:
    """What a learner says to a parcel."""

    epoch: int
    number: int
    """Of the host's newest parcel that was taken."""
    retired: bool = False


class Inlet(Generic[Load]):
    """The learner's side: a queue with room for so many parcels, first come, first served."""

    def __init__(self, hosts: int, room: int, epoch: int) -> None:
        """`epoch` is greater than that of any learner before."""
        self.epoch = epoch
        self._room = room
        self._queue: deque[Load] = deque()
        self._incarnations = [0] * hosts
        self._taken = [0] * hosts

    def __len__(self) -> int:
        return len(self._queue)

    def deliver(self, parcel: Parcel[Load]) -> Taken:
        """Take a parcel if it is the host's next one and there is room."""
        host = parcel.host
        if parcel.incarnation < self._incarnations[host]:
            return Taken(self.epoch, 0, retired=True)
        if parcel.incarnation > self._incarnations[host]:
            self._incarnations[host], self._taken[host] = parcel.incarnation, 0
        is_next = parcel.epoch == self.epoch and parcel.number == self._taken[host] + 1
        if is_next and len(self._queue) < self._room:
            self._queue.append(parcel.load)
            self._taken[host] += 1
        return Taken(self.epoch, self._taken[host])

    def take(self) -> Load | None:
        """The oldest; None if there is none."""
        return self._queue.popleft() if self._queue else None


class Forwarder(Generic[Load]):
    """A host's side."""

    def __init__(self, host: int, incarnation: int, credit: int = 2) -> None:
        self._host, self._incarnation, self._credit = host, incarnation, credit
        self._epoch = self._number = 0
        self.waiting: list[Parcel[Load]] = []
        """Sent and not acknowledged, in their order; to be sent again when an answer is long in coming."""

    @property
    def has_credit(self) -> bool:
        """Whether another parcel may be sent."""
        return len(self.waiting) < self._credit

    def send(self, load: Load) -> Parcel[Load]:
        """A new parcel; only with credit."""
        assert self.has_credit
        self._number += 1
        parcel = Parcel(self._host, self._incarnation, self._epoch, self._number, load)
        self.waiting.append(parcel)
        return parcel

    def accept(self, taken: Taken) -> bool:
        """Note what the learner has taken. Whether what waits has to be sent again, to a new learner.

        What an earlier learner said, or this one earlier, comes too late to matter.
        """
        if taken.retired or taken.epoch < self._epoch:
            return False
        if taken.epoch > self._epoch:
            self._epoch, self._number = taken.epoch, len(self.waiting)
            self.waiting = [
                replace(parcel, epoch=taken.epoch, number=number) for number, parcel in enumerate(self.waiting, start=1)
            ]
            return True
        self.waiting = [parcel for parcel in self.waiting if parcel.number > taken.number]
        return False
