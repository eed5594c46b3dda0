"""A host's calls to its servers, until its workers have ended and the servers have all of their work."""

from __future__ import annotations

import math
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.backends.ray.member import LAST_SECONDS, Member
from asyncrl.runtime.clock import Watch
from asyncrl.runtime.link import ANSWER_SECONDS, Answer, Link, receive

ALONE_SECONDS = 120.0
"""A host gives up if nobody has answered for this long: its own theta is of no use by then.

A server that does not answer is replaced earlier."""
LONGEST_SECONDS, SHORTEST_SECONDS = 1.0, 0.02
"""Longest interval between two exchanges with a shard, even without updates, and the shortest."""


@dataclass(frozen=True)
class Times:
    """When a host exchanges with shards, how long it waits for servers, and the clock by which it does."""

    # A plain default would be an attribute of the class, and the site would link to a page of Python's own module.
    now: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    unit: str = "seconds"
    shortest: float = SHORTEST_SECONDS
    longest: float = LONGEST_SECONDS
    answer: float = ANSWER_SECONDS
    alone: float = ALONE_SECONDS
    last: float = LAST_SECONDS


class Figures:
    """A host's figures since its last row."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.durations: list[float] = []
        """Of calls."""
        self.staleness: list[int] = []
        """Of updates."""
        self.counts: Counter[str] = Counter()

    def of_durations(self, name: str) -> dict[str, float | None]:
        """Mean and maximum of the durations, for the columns of this name; None if there are none."""
        if not self.durations:
            return {f"{name}_mean": None, f"{name}_max": None}
        mean, most = statistics.fmean(self.durations), max(self.durations)
        return {f"{name}_mean": round(mean, 6), f"{name}_max": round(most, 6)}


class Exchange(ABC):
    """The exchange with all servers; what is sent and taken is left to those who know."""

    silent = ""
    """Begins the line that none of those who are waited for has answered."""

    def __init__(self, host: Member, links: Sequence[Link[Any]], awaited: Sequence[Link[Any]], times: Times) -> None:
        """Some of `links` are `awaited`: without an answer on any of these the host gives up."""
        self.host, self.links, self.times = host, links, times
        self._awaited = awaited
        self.figures = Figures()
        self._last: list[int] | None = None
        self._ended = math.inf
        """When the workers ended."""
        self._watch = Watch(times.alone, times.now)

    @property
    def is_ending(self) -> bool:
        """Whether the workers have ended, and only the last call on each link is left."""
        return self._last is not None

    def run(self) -> None:
        """Exchange until the workers have ended and the servers have all of their work.

        Raises TimeoutError if no server answers, Retired if another has taken this host's place.
        """
        while self.step():
            if not any(link.under_way for link in self.links):
                time.sleep(self.look_seconds)
        self.write_row()

    def step(self) -> bool:
        """Make the calls that are due, and take what is answered. False once nothing is left to be exchanged."""
        times, now = self.times, self.times.now()
        self._watch.look()
        if self.host.done.is_set() and self._last is None:
            self._ended = min(self._ended, now)
            if self.is_idle():  # else a further call and its report would lack the last of the work
                self._last = [link.calls for link in self.links]
        # A call that was pending when the workers ended does not have the last of their work.
        if self._last and all(link.settled > last for link, last in zip(self.links, self._last, strict=True)):
            return False
        if self._watch.silence(self._ended) > times.last:
            self.host.say("the last exchange was not answered")
            return False
        for number, link in enumerate(self.links):
            link.repeat()
            is_last = self._last is not None and link.calls == self._last[number]
            if link.has_credit and (is_last or self.is_due(link, now)):
                self.call(link, now)
        for link, answer, took in receive(self.links, self.wait_seconds):
            self.take(link, answer, took)
        if all(self._watch.silence(link.heard) > times.alone for link in self._awaited):
            raise TimeoutError(f"{self.silent} answered for {times.alone:.0f} {times.unit}")
        if time.monotonic() - self.figures.since >= self.host.beginning.spec.config.record_interval_seconds:
            self.write_row()
        return True

    def write_row(self) -> None:
        """Report a row of the figures since the last one, if there are any."""
        row, self.figures = self.row(self.figures), Figures()
        self.host.tell_exchanges(None if row is None else {"host": self.host.beginning.host, **row})

    look_seconds: float
    """Pause between looks at what workers have left, without a call under way."""
    wait_seconds: float
    """How long to wait for answers before that."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no call is to be made for what workers have left."""

    @abstractmethod
    def is_due(self, link: Link[Any], now: float) -> bool:
        """Whether to call a server that may be called."""

    @abstractmethod
    def call(self, link: Link[Any], now: float) -> None:
        """Make a call."""

    @abstractmethod
    def take(self, link: Link[Any], answer: Answer, took: float) -> None:
        """Take what is answered, which took so long."""

    @abstractmethod
    def row(self, figures: Figures) -> dict[str, Any] | None:
        """The columns of a row; None if nothing was exchanged."""
