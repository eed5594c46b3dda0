"""Calls between machines: the rules, and when a call is repeated, whatever carries it.

A host calls shards, the learner, or a replay memory, and the learner calls memories. What is called is a *server*. A
call or its answer may be lost, repeated, late, or out of order, and either side may die at any moment. Still:

- A caller has at most `credit` calls that wait. It repeats each until an answer says that it was taken.
- The server takes each call once, in the caller's order, and keeps what became of the newest one, its *receipt*. So an
  answer that was lost is given again.
- A server that has died begins empty, until somebody fills it with the newest known copy of its state, or with less.
  That is a new *epoch*. It takes only calls for its own epoch. The caller sends what waits again, for the new epoch;
  what was taken and is lost is not sent again, and a late call cannot bring it back.
- Whoever takes a caller's place is its next *incarnation*. Calls of earlier ones no longer count.
- Answers are numbered. One that is older than another that was heard changes nothing.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.runtime.threads import enforce_one_thread

NEVER = 0
"""Before a server's first epoch. Epochs count how often it was filled."""
State = dict[str, NDArray[np.generic]]
"""The state of a server, as arrays by name."""
ANSWER_SECONDS = 10.0
"""A call without an answer is repeated after this time."""
PAUSE_SECONDS = 0.2
"""Pause before calls to a server that is gone, or waits to be filled, are repeated."""
AGAIN_SECONDS = 0.02
"""Pause before a call that was not taken, since an earlier one was lost, is repeated."""

LoadT = TypeVar("LoadT")


class Empty(Exception):
    """A server that has nothing yet was called: it waits to be filled."""


class Retired(Exception):
    """A caller has been replaced: its calls no longer count."""


@dataclass(frozen=True)
class Call(Generic[LoadT]):
    """A numbered call."""

    host: int
    incarnation: int
    """Counts the processes that have had the host's number, from 1."""
    epoch: int
    """The epoch in which it may be taken."""
    number: int
    """Counts this incarnation's calls, from 1; a repeated call keeps its number."""
    oldest: int
    """Number of the oldest call that waits: earlier ones are settled, even if the server has lost them."""
    load: LoadT


@dataclass(frozen=True)
class Answer:
    """A server's answer."""

    epoch: int
    order: int
    """Counts the server's answers in this epoch."""
    taken: int
    """Number of the newest call that was taken."""
    retired: bool
    """Whether a later incarnation has replaced this one."""
    receipt: Any
    """What became of the newest call that was taken."""
    news: Any
    """The server's present state."""


class Callee:
    """The server's side: which calls it has taken. Not for concurrent calls."""

    def __init__(self, hosts: int, epoch: int = NEVER) -> None:
        self.epoch = epoch
        self.incarnations = np.zeros(hosts, np.int64)
        self.taken = np.zeros(hosts, np.int64)
        self.receipts: list[Any] = [None] * hosts
        self._order = 0

    def admit(self, call: Call[Any]) -> bool:
        """Whether the call is to be taken: it counts as taken from now on, and its receipt is to be left."""
        host = call.host
        if call.incarnation > self.incarnations[host]:
            self.incarnations[host], self.taken[host], self.receipts[host] = call.incarnation, 0, None
        if self.is_retired(call) or call.epoch != self.epoch:
            return False
        self.taken[host] = max(self.taken[host], call.oldest - 1)
        if call.number != self.taken[host] + 1:
            return False
        self.taken[host], self.receipts[host] = call.number, None
        return True

    def is_retired(self, call: Call[Any]) -> bool:
        """Whether a later incarnation has called."""
        return bool(call.incarnation < self.incarnations[call.host])

    def answer(self, call: Call[Any], news: Any = None) -> Answer:
        """The answer to a call, whether it was taken or not."""
        self._order += 1
        host, retired = call.host, self.is_retired(call)
        receipt, news = (None, None) if retired else (self.receipts[host], news)
        return Answer(self.epoch, self._order, int(self.taken[host]), retired, receipt, news)


class Server:
    """What is called. It begins empty, in the process that Ray has started; calls may come from several threads."""

    def __init__(self) -> None:
        enforce_one_thread()
        self._life = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.empty = True
        """Whether it waits to be filled."""

    def who(self) -> tuple[str, str]:
        """What distinguishes this process from earlier ones, and the name of its machine."""
        return self._life, socket.gethostname()

    def begin(self, life: str, epoch: int, state: State) -> bool:
        """Fill an empty server; `epoch` is greater than any of earlier ones.

        Returns whether it was filled now: a call for an earlier `life`, or a repeated one, changes nothing.
        """
        with self.lock:
            if not self.empty or life != self._life:
                return False
            self.fill(epoch, state)
            self.empty = False
            return True

    def fill(self, epoch: int, state: State) -> None:
        """Take over a state."""
        raise NotImplementedError


class Caller(Generic[LoadT]):
    """The host's side: numbers calls, and keeps them until they are taken."""

    def __init__(self, host: int, incarnation: int, credit: int = 1) -> None:
        self._host, self._incarnation, self._credit = host, incarnation, credit
        self.epoch = NEVER
        self._order = 0
        self.calls = 0
        """Calls so far."""
        self.waiting: list[Call[LoadT]] = []
        """Those that were not taken yet, as far as is known, oldest first."""

    @property
    def joined(self) -> bool:
        """Whether the server has ever answered."""
        return self.epoch != NEVER

    @property
    def has_credit(self) -> bool:
        """Whether another call may be made."""
        return len(self.waiting) < self._credit

    @property
    def settled(self) -> int:
        """Number of the newest call before which none waits."""
        return self.calls - len(self.waiting)

    def call(self, load: LoadT) -> Call[LoadT]:
        """A new call. Requires credit."""
        assert self.has_credit
        oldest, self.calls = self.settled + 1, self.calls + 1
        self.waiting.append(Call(self._host, self._incarnation, self.epoch, self.calls, oldest, load))
        return self.waiting[-1]

    def accept(self, answer: Answer) -> list[Call[LoadT]] | None:
        """The calls that are settled by an answer; None if it is outdated. Raises Retired."""
        if (answer.epoch, answer.order) <= (self.epoch, self._order):
            return None
        if answer.retired:
            raise Retired
        self.epoch, self._order = answer.epoch, answer.order
        settled = [call for call in self.waiting if call.number <= answer.taken]
        left = self.waiting[len(settled) :]
        self.waiting = [replace(call, epoch=self.epoch, oldest=left[0].number) for call in left]
        return settled


class Wire(Protocol):
    """What carries calls."""

    def send(self, server: int, call: Call[Any]) -> Any:
        """Make a call; returns its handle, for `receive`."""

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Answer | None]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it failed."""


class Link(Caller[LoadT]):
    """A caller with its connection to one server."""

    def __init__(
        self,
        wire: Wire,
        server: int,
        host: int,
        incarnation: int,
        credit: int = 1,
        now: Callable[[], float] = time.monotonic,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`server` is its number on the wire; `seconds`, by the clock `now`, is how long an answer may take."""
        super().__init__(host, incarnation, credit)
        self.wire, self.now = wire, now
        self._server, self._seconds = server, seconds
        self.heard = now()
        """When the server last answered."""
        self.again = 0
        """How often calls were repeated."""
        self.under_way: dict[Any, tuple[int, float]] = {}
        """Numbers of calls whose answers are awaited, and when they were made, by their handles."""
        self._due = 0.0

    def call(self, load: LoadT) -> Call[LoadT]:
        """Make a new call. Requires credit."""
        call = super().call(load)
        self._send(call)
        return call

    def repeat(self) -> None:
        """Make those calls again that wait and are not under way, if it is time."""
        awaited = {number for number, _ in self.under_way.values()}
        lost = [call for call in self.waiting if call.number not in awaited]
        if lost and self.now() >= self._due:
            self.again += len(lost)
            for call in lost:
                self._send(call)

    def accept(self, answer: Answer) -> list[Call[LoadT]] | None:
        """The same; what was not taken though it was meant for this epoch is repeated a little later."""
        before, settled = self.epoch, super().accept(answer)
        if self.epoch == before:
            self._due = max(self._due, self.now() + AGAIN_SECONDS)
        return settled

    def hear(self, handle: Any, answer: Answer | None) -> float:
        """A call has ended. Returns how long it took."""
        now, (_, made) = self.now(), self.under_way.pop(handle)
        if answer is None:
            self._due = now + PAUSE_SECONDS
        else:
            self.heard = now
        return now - made

    def give_up(self) -> None:
        """Await no answer that is overdue: its call is repeated; if both arrive, one is ignored."""
        late = self.now() - self._seconds
        self.under_way = {handle: own for handle, own in self.under_way.items() if own[1] >= late}

    def _send(self, call: Call[LoadT]) -> None:
        self.under_way[self.wire.send(self._server, call)] = call.number, self.now()


def receive(links: Sequence[Link[Any]], seconds: float) -> list[tuple[Link[Any], Answer, float]]:
    """Wait up to `seconds` for answers on links of one wire; returns them, and how long each has taken."""
    links_of = {handle: link for link in links for handle in link.under_way}
    answered = []
    for handle, answer in links[0].wire.receive(list(links_of), seconds) if links_of else ():
        took = links_of[handle].hear(handle, answer)
        if answer is not None:
            answered.append((links_of[handle], answer, took))
    for link in links:
        link.give_up()
    return answered
