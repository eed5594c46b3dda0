"""A host's link with the shards, for algorithms whose workers learn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.backends.ray.member import ALONE_SECONDS, LAST_SECONDS, Member
from asyncrl.parameters.outbox import Outbox, Postman
from asyncrl.parameters.shards import Change, Exchanger, Pusher, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Watch
from asyncrl.runtime.link import ANSWER_SECONDS, NEVER, Answer, Link, Wire, receive

LONGEST_SECONDS = 1.0
"""Longest interval between two exchanges, even without updates."""
SHORTEST_SECONDS = 0.02
LOOK_SECONDS = 0.0005
"""Interval between looks for gradients, if hosts push every update: workers wait for the answer."""


@dataclass(frozen=True)
class Times:
    """When a host exchanges, how long it waits, and the clock by which it does."""

    # A plain default would be an attribute of the class, and the site would link to a page of Python's own module.
    now: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    unit: str = "seconds"
    shortest: float = SHORTEST_SECONDS
    longest: float = LONGEST_SECONDS
    answer: float = ANSWER_SECONDS
    alone: float = ALONE_SECONDS
    last: float = LAST_SECONDS


@dataclass
class Lane:
    """The exchange with one shard."""

    link: Link[Change]
    part: slice
    """Its part of theta."""
    exchanger: Exchanger
    since: float = -math.inf
    """When the newest call was made."""
    made: int = 0
    """Updates of this host at the newest call."""
    rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    """If hosts push every update: whose gradients the newest call brings."""


class ToShards:
    """The exchange with all shards."""

    def __init__(self, host: Member, wire: Wire, times: Times | None = None) -> None:
        """`times` are by another clock than this machine's if hosts are simulated."""
        self._host, self._times = host, times or Times()
        config, beginning, store = host.beginning.spec.config, host.beginning, host.handles.store
        assert isinstance(store, SharedStore)
        self._store, self._live = store, store.view().numpy()
        parts = slices(len(self._live), config.parameter_shards)
        self._postman = Postman(store, parts) if isinstance(store, Outbox) else None
        """If hosts push every update."""
        self._every = config.exchange_updates * config.workers
        """Updates of this host between two calls, if they send changes of theta."""
        self._look_seconds = SHORTEST_SECONDS / 2 if self._postman is None else LOOK_SECONDS
        side = Exchanger if self._postman is None else Pusher
        self.lanes: list[Lane] = []
        for shard, part in enumerate(parts):
            who = beginning.host, beginning.incarnation
            link: Link[Change] = Link(wire, shard, *who, now=self._times.now, seconds=self._times.answer)
            self.lanes.append(Lane(link, part, side(link, self._live[part])))
        self._record = Record(beginning.host, self._times.unit)
        self._row_seconds = config.record_interval_seconds
        self._last: list[int] | None = None
        """Numbers of the last calls, once the workers have ended."""
        self._ended = math.inf
        """When that was."""
        self._watch = Watch(self._times.alone, self._times.now)

    def run(self) -> None:
        """Exchange with the shards until the workers have ended and the shards have all updates.

        Raises TimeoutError if no shard answers, Retired if another has taken this host's place.
        """
        while self.step():
            if not any(lane.link.under_way for lane in self.lanes):
                time.sleep(self._look_seconds)
        self.write_row()

    def step(self) -> bool:
        """Make the calls that are due, and take what is answered. False once nothing is left to be exchanged."""
        host, lanes, times = self._host, self.lanes, self._times
        now, made = times.now(), self._store.counts(None).updates
        self._watch.look()
        if host.done.is_set() and self._last is None:
            self._ended = min(self._ended, now)
            if self._postman is None or self._postman.idle:  # else the next call and its report lack the last gradients
                self._last = [lane.link.calls for lane in lanes]
        # A call that was pending when the workers ended does not have their last updates.
        if self._last and all(lane.link.settled > last for lane, last in zip(lanes, self._last, strict=True)):
            return False
        if self._watch.silence(self._ended) > times.last:
            host.say("the last exchange was not answered")
            return False
        for shard, lane in enumerate(lanes):
            lane.link.repeat()
            if lane.link.has_credit and (self._last is not None or self._is_due(shard, made, now)):
                self._call(shard)
                lane.since, lane.made = now, made
        for link, answer, took in receive([lane.link for lane in lanes], SHORTEST_SECONDS):
            shard = next(shard for shard, lane in enumerate(lanes) if lane.link is link)
            self._take(shard, answer, took)
        if not host.joined.is_set() and all(lane.link.joined for lane in lanes):
            host.joined.set()
        if all(self._watch.silence(lane.link.heard) > times.alone for lane in lanes):
            raise TimeoutError(f"no shard has answered for {times.alone:.0f} {times.unit}")
        if self._record.seconds >= self._row_seconds:
            self.write_row()
        return True

    def _is_due(self, shard: int, made: int, now: float) -> bool:
        """Whether to call a shard that has answered."""
        lane, times = self.lanes[shard], self._times
        waited = now - lane.since
        if waited > times.longest or not lane.link.joined:
            return True
        if self._postman is not None:
            return len(self._postman.waiting(shard)) > 0
        return made - lane.made >= self._every and waited > times.shortest

    def _call(self, shard: int) -> None:
        """Send the change of theta, or all gradients that wait."""
        lane = self.lanes[shard]
        report = self._host.report() if shard == 0 else None
        if isinstance(lane.exchanger, Pusher) and self._postman is not None:
            lane.rows = self._postman.waiting(shard) if lane.link.joined else lane.rows
            gradients = self._postman.gradients(shard, lane.rows) if len(lane.rows) else None
            lane.exchanger.push(gradients, report)
        else:
            theta, counts = self._store.counted_copy(lane.part)
            lane.exchanger.call(counts.updates, report, theta.numpy())

    def _take(self, shard: int, answer: Answer, took: float) -> None:
        """Take over theta, then answer the workers, so that their next pulls have their own updates."""
        lane = self.lanes[shard]
        epoch = lane.link.epoch
        exchanged = lane.exchanger.accept(answer)
        if exchanged is None:
            return
        news, judged, lost = answer.news, exchanged.judged, exchanged.lost
        if isinstance(self._store, Outbox) and self._postman is not None:
            self._store.see(shard, news.updates)
            if len(judged.applied):
                self._postman.tell(shard, lane.rows, judged)
        self._record.note(judged.staleness[judged.applied].tolist(), lost, took)
        if lost or (epoch != answer.epoch and epoch != NEVER):
            back = f"shard {shard} is back at version {news.version} of epoch {answer.epoch}"
            self._host.say(f"{back}; {lost:,} updates of this host were lost")
        if news.others is not None:
            self._host.learn_of_others(news.others)

    def write_row(self) -> None:
        """Report a row on the exchanges since the last row."""
        split = None
        if self._postman is not None:
            split, self._postman.split = self._postman.split, 0
        self._host.tell_exchanges(self._record.take(split))


class Record:
    """Figures of a host's exchanges since its last row."""

    def __init__(self, host: int, unit: str) -> None:
        """`unit` is that of the exchanges' durations."""
        self._host, self._unit = host, unit
        self._clear()

    def _clear(self) -> None:
        self._since = time.monotonic()
        self._durations: list[float] = []
        self._staleness: list[int] = []
        self._lost = 0

    @property
    def seconds(self) -> float:
        """Seconds since the last row."""
        return time.monotonic() - self._since

    def note(self, staleness: list[int], lost: int, duration: float) -> None:
        """Note one exchange with one shard, and how long it took."""
        self._durations.append(duration)
        self._staleness += staleness
        self._lost += lost

    def take(self, split: int | None) -> dict[str, Any] | None:
        """The next row; None if there was no exchange. `split`: gradients that some shards have applied."""
        if not self._durations:
            return None
        row = {
            "host": self._host,
            "exchanges": len(self._durations),
            f"exchange_{self._unit}_mean": round(statistics.fmean(self._durations), 6),
            f"exchange_{self._unit}_max": round(max(self._durations), 6),
            "exchange_staleness_mean": statistics.fmean(self._staleness) if self._staleness else 0.0,
            "exchange_staleness_max": max(self._staleness, default=0),
            "updates_lost": self._lost,
        }
        if split is not None:
            row |= {"gradients": len(self._staleness), "gradients_split": split}
        self._clear()
        return row
