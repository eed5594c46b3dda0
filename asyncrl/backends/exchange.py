"""A host's exchange of parameters with the shards, for pages whose workers learn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncrl.backends.reports import Wire
from asyncrl.parameters.shards import NEVER, Exchanged, Exchanger, slices

if TYPE_CHECKING:
    from asyncrl.backends.host import Member

LONGEST_SECONDS = 1.0
"""Longest interval between two exchanges, even without updates."""
SHORTEST_SECONDS = 0.02
ANSWER_SECONDS = 10.0
"""A call without an answer is repeated after this time."""
PAUSE_SECONDS = 0.2
"""Pause before a failed call is repeated."""
ALONE_SECONDS = 120.0
"""A host gives up if nobody has answered for this long: its own theta is of no use by then.

A keeper of theta that does not answer is replaced earlier."""
LAST_SECONDS = 5.0
"""Time for the last exchange, at the end."""


@dataclass(frozen=True)
class Times:
    """When a host exchanges, how long it waits, and the clock by which it does."""

    now: Callable[[], float] = time.monotonic
    unit: str = "seconds"
    shortest: float = SHORTEST_SECONDS
    longest: float = LONGEST_SECONDS
    answer: float = ANSWER_SECONDS
    pause: float = PAUSE_SECONDS
    alone: float = ALONE_SECONDS
    last: float = LAST_SECONDS


@dataclass
class Lane:
    """The exchange with one shard."""

    exchanger: Exchanger
    heard: float
    """When the shard last answered."""
    call: Any = None
    """Handle of the pending call."""
    since: float = 0.0
    """When the newest call was made."""
    made: int = 0
    """Updates of this host at the newest call."""
    fails: bool = False
    brought: int = 0
    """Number of the newest call whose delta is in the shard."""


class Exchange:
    """The exchange with all shards."""

    def __init__(self, host: Member, wire: Wire, times: Times | None = None) -> None:
        """`times` are those of a simulated clock, if it is one."""
        self._host, self._wire, self._times = host, wire, times or Times()
        config, beginning, store = host.beginning.spec.config, host.beginning, host.handles.store
        self._due_updates, self._row_seconds = config.exchange_updates, config.record_interval_seconds
        self._record = Record(beginning.host, self._times.unit)
        theta = store.view()
        assert theta is not None
        parts = slices(theta.numel(), config.parameter_shards)
        exchangers = [Exchanger(beginning.host, beginning.incarnation, theta.numpy()[part]) for part in parts]
        self.lanes = [Lane(exchanger, self._times.now()) for exchanger in exchangers]
        self._last: list[int] | None = None
        """Numbers of the last calls, once the workers have ended."""
        self._deadline = math.inf

    def run(self) -> None:
        """Exchange with the shards until the workers have ended and the shards have all updates.

        Raises TimeoutError if no shard answers, Retired if another has taken this host's place.
        """
        while self.step():
            if all(lane.call is None for lane in self.lanes):
                time.sleep(SHORTEST_SECONDS / 4)
        self.write_row()

    def step(self) -> bool:
        """Make the calls that are due, and take what is answered. False once nothing is left to be exchanged."""
        host, lanes, times = self._host, self.lanes, self._times
        now, made = times.now(), host.handles.store.counts(None).updates
        if host.done.is_set() and self._last is None:
            self._deadline, self._last = now + times.last, [lane.exchanger.calls for lane in lanes]
        if self._last is not None:
            # A call that was pending when the workers ended does not have their last updates.
            if all(lane.brought > call for lane, call in zip(lanes, self._last, strict=True)):
                return False
            if now > self._deadline:
                host.say("the last exchange was not answered")
                return False
        for shard, lane in enumerate(lanes):
            if lane.call is None and self._is_due(lane, made, now, self._last is not None):
                report = host.report() if shard == 0 else None
                lane.call = self._wire.send(shard, lane.exchanger.call(made, report))
                lane.since, lane.made = now, made
            elif lane.call is not None and now - lane.since > times.answer:
                lane.call = None  # so it is repeated; if both arrive, the shard ignores the second
                lane.since = now
        self._receive(lanes)
        if not host.joined.is_set() and all(lane.exchanger.joined for lane in lanes):
            host.joined.set()
        if all(now - lane.heard > times.alone for lane in lanes):
            raise TimeoutError(f"no shard has answered for {times.alone:.0f} {times.unit}")
        if self._record.seconds >= self._row_seconds:
            self.write_row()
        return True

    def _is_due(self, lane: Lane, made: int, now: float, last: bool) -> bool:
        waited, times = now - lane.since, self._times
        if lane.fails:
            return waited > times.pause
        if not lane.exchanger.joined or not lane.exchanger.idle or last:
            return True
        return waited > times.longest or (made - lane.made >= self._due_updates and waited > times.shortest)

    def _receive(self, lanes: list[Lane]) -> None:
        calls = [lane.call for lane in lanes if lane.call is not None]
        for call, answer in self._wire.receive(calls, SHORTEST_SECONDS) if calls else ():
            lane = next(lane for lane in lanes if lane.call is call)
            lane.call, lane.fails = None, answer is None
            if answer is None:
                continue
            lane.heard = self._times.now()
            epoch = lane.exchanger.epoch
            exchanged = lane.exchanger.accept(answer)
            if exchanged is None:
                continue
            lane.brought = lane.exchanger.calls if exchanged.included else lane.brought
            self._record.note(exchanged, lane.heard - lane.since)
            if exchanged.lost or (epoch != answer.epoch and epoch != NEVER):
                shard = lanes.index(lane)
                lost = f"{exchanged.lost} exchanges of this host were lost"
                self._host.say(f"shard {shard} is back at version {answer.version} of epoch {answer.epoch}; {lost}")
            if exchanged.others is not None:
                self._host.learn_of_others(exchanged.others)

    def write_row(self) -> None:
        """Report a row on the exchanges since the last row."""
        self._host.tell_exchanges(self._record.take())


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

    def note(self, exchanged: Exchanged, duration: float) -> None:
        """Note one exchange with one shard, and how long it took."""
        self._durations.append(duration)
        if exchanged.staleness is not None:
            self._staleness.append(exchanged.staleness)
        self._lost += exchanged.lost

    def take(self) -> dict[str, Any] | None:
        """The next row; None if there was no exchange."""
        if not self._durations:
            return None
        row = {
            "host": self._host,
            "exchanges": len(self._durations),
            f"exchange_{self._unit}_mean": round(statistics.fmean(self._durations), 6),
            f"exchange_{self._unit}_max": round(max(self._durations), 6),
            "exchange_staleness_mean": statistics.fmean(self._staleness) if self._staleness else 0.0,
            "exchange_staleness_max": max(self._staleness, default=0),
            "exchanges_lost": self._lost,
        }
        self._clear()
        return row
