"""What the driver of a run on several machines learns from hosts and from the learner."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asyncrl.backends.outcome import Outcome
from asyncrl.runtime.link import State
from asyncrl.runtime.protocols import Counts, Store

KINDS = 1 + len(Counts._fields)
"""Number of counts per worker in a `Ledger`: steps, and what became of its updates."""
Say = Callable[[str], None]
"""Shows a line."""
Tell = Callable[..., None]
"""Tells the supervisor something."""
STATISTICS_SECONDS = 10.0
"""Interval between copies of the optimiser's statistics."""
LEFT = Outcome("finished", "", 0)
"""A host is done, and its shards or learner have all of its work; or the learner is done."""


@dataclass(frozen=True)
class Seen:
    """What `look` returns."""

    news: list[tuple[Any, ...]]
    """What has happened, in order: ("row", file, row), ("say", line), ("loss", event, worker, cause),
    ("file", name, content)."""
    told: int
    """Number of news since the beginning, to be passed to the next look."""
    phases: list[int]
    silence: list[float]
    """Seconds since each worker last counted a step, or the learner was filled or made an update."""
    outcome: Outcome | None = None
    """Why it cannot go on, or LEFT."""
    version: int = 0
    """Updates in the host's copy of the learner's theta."""
    state: State = field(default_factory=dict)
    """The learner's."""
    statistics: State | None = None
    """The store's state besides theta, from time to time and at the end."""


class Journal:
    """News that are kept until they have been told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news: list[tuple[Any, ...]] = []
        self._told = 0
        """News before the first of `_news`."""

    def tell(self, *what: Any) -> None:
        """Add a piece of news."""
        with self._lock:
            self._news.append(what)

    def since(self, told: int) -> tuple[list[tuple[Any, ...]], int]:
        """News since number `told`, and their number since the beginning. Earlier ones are forgotten.

        A `told` that is larger than that is of an earlier process.
        """
        with self._lock:
            told = told if told <= self._told + len(self._news) else 0
            self._news = self._news[max(0, told - self._told) :]
            self._told = max(self._told, told)
            return list(self._news), self._told + len(self._news)


class Statistics:
    """Copies the optimiser's statistics now and then, for checkpoints and for those that start later."""

    def __init__(self) -> None:
        self._copied = 0.0

    def of(self, store: Store, ended: bool) -> State | None:
        """The store's state besides theta, if it is time or the work has ended."""
        now = time.monotonic()
        if not ended and now - self._copied < STATISTICS_SECONDS:
            return None
        self._copied = now
        return {name: tensor.numpy() for name, tensor in store.state().items()}
