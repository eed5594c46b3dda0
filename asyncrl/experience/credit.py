"""Flow control of rollouts from hosts to a remote learner, by credit: the rules, independent of the transport.

A host has at most `credit` parcels in flight, and the learner takes one only while it has room. So a slow learner makes
hosts and their actors wait, and nothing piles up. A parcel may be lost, repeated, late, or out of order: the learner
takes it once, in the host's order. A learner that dies loses the parcels it has taken. Its successor begins a new
epoch, and hosts send it every parcel that was not acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Load = TypeVar("Load")


@dataclass(frozen=True)
class Numbered(Generic[Load]):
    """Rollouts in flight from a host."""

    host: int
    incarnation: int
    epoch: int
    """The epoch of the learner it is meant for."""
    number: int
    """Counts this incarnation's parcels in this epoch, from 1."""
    load: Load


@dataclass(frozen=True)
class Taken:
    """The learner's acknowledgement of a parcel."""

    epoch: int
    number: int
    """Number of the newest parcel taken from the host."""
    retired: bool = False
    """Whether a later incarnation has replaced this one."""


class Inlet(Generic[Load]):
    """The learner's side: a bounded queue of parcels, first come, first served."""

    def __init__(self, hosts: int, room: int, epoch: int) -> None:
        """`room` is the queue's capacity; `epoch` is greater than that of any earlier learner."""
        self.epoch = epoch
        self._room = room
        self._queue: deque[Load] = deque()
        self._incarnations = [0] * hosts
        self._taken = [0] * hosts

    def __len__(self) -> int:
        return len(self._queue)

    def deliver(self, parcel: Numbered[Load]) -> Taken:
        """Accept a parcel if it is the host's next one and there is room."""
        taken = self.acknowledge(parcel.host, parcel.incarnation)
        is_next = parcel.epoch == self.epoch and parcel.number == taken.number + 1
        if taken.retired or not is_next or len(self._queue) >= self._room:
            return taken
        self._queue.append(parcel.load)
        self._taken[parcel.host] += 1
        return self.acknowledge(parcel.host, parcel.incarnation)

    def acknowledge(self, host: int, incarnation: int) -> Taken:
        """What has been taken of this incarnation of a host so far; a later one retires it."""
        if incarnation < self._incarnations[host]:
            return Taken(self.epoch, 0, retired=True)
        if incarnation > self._incarnations[host]:
            self._incarnations[host], self._taken[host] = incarnation, 0
        return Taken(self.epoch, self._taken[host])

    def take(self) -> Load | None:
        """The oldest load in the queue; None if it is empty."""
        return self._queue.popleft() if self._queue else None


class Forwarder(Generic[Load]):
    """A host's side: numbers parcels, and keeps them until they are acknowledged."""

    def __init__(self, host: int, incarnation: int, credit: int = 2) -> None:
        self._host, self._incarnation, self._credit = host, incarnation, credit
        self.epoch = self._number = 0
        self.waiting: list[Numbered[Load]] = []
        """Sent but not acknowledged, oldest first; to be sent again if no answer comes for long."""

    @property
    def has_credit(self) -> bool:
        """Whether another parcel may be sent."""
        return len(self.waiting) < self._credit

    def send(self, load: Load) -> Numbered[Load]:
        """Make a new parcel. Requires credit."""
        assert self.has_credit
        self._number += 1
        parcel = Numbered(self._host, self._incarnation, self.epoch, self._number, load)
        self.waiting.append(parcel)
        return parcel

    def accept(self, taken: Taken) -> bool:
        """Process an acknowledgement. Returns whether all waiting parcels must be sent again, to a new learner.

        Outdated acknowledgements, of an earlier learner or of earlier parcels, change nothing.
        """
        if taken.retired or taken.epoch < self.epoch:
            return False
        if taken.epoch > self.epoch:
            self.epoch, self._number = taken.epoch, len(self.waiting)
            self.waiting = [
                replace(parcel, epoch=taken.epoch, number=number) for number, parcel in enumerate(self.waiting, start=1)
            ]
            return True
        self.waiting = [parcel for parcel in self.waiting if parcel.number > taken.number]
        return False
