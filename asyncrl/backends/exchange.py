"""A host's exchange of parameters with the shards, for pages whose workers learn."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncrl.backends.reports import Wire
from asyncrl.parameters.shards import NEVER, Exchanged, Exchanger, slices

if TYPE_CHECKING:
    from asyncrl.backends.host import Host

LONGEST_SECONDS = 1.0
"""Longest interval between two exchanges, even without updates."""
SHORTEST_SECONDS = 0.02
ANSWER_SECONDS = 10.0
"""A call without an answer is repeated after this time."""
PAUSE_SECONDS = 0.2
"""Pause before a failed call is repeated."""
ALONE_SECONDS = 120.0
"""A host gives up if nobody has answered for this long: its own theta is of no use by then."""
LAST_SECONDS = 5.0
"""Time for the last exchange, at the end."""


@dataclass
class Lane:
    """The exchange with one shard."""

    exchanger: Exchanger
    call: Any = None
    """Handle of the pending call."""
    since: float = 0.0
    """When the newest call was made."""
    made: int = 0
    """Updates of this host at the newest call."""
    heard: float = field(default_factory=time.monotonic)
    """When the shard last answered."""
    fails: bool = False
    brought: int = 0
    """Number of the newest call whose delta is in the shard."""


class Exchange:
    """The exchange with all shards."""

    def __init__(self, host: Host, wire: Wire) -> None:
        self._host, self._wire = host, wire
        self._handles, self._spec = host.handles, host.beginning.spec
        self._due_updates = self._spec.config.exchange_updates
        self._record = Record(host.beginning.host)

    def run(self) -> None:
        """Exchange with the shards until the workers have ended and the shards have all updates.

        Raises TimeoutError if no shard answers, Retired if another has taken this host's place.
        """
        handles, host = self._handles, self._host
        theta = handles.store.view()
        assert theta is not None
        parts = slices(theta.numel(), self._spec.config.parameter_shards)
        beginning = host.beginning
        lanes = [Lane(Exchanger(beginning.host, beginning.incarnation, theta.numpy()[part])) for part in parts]
        last: list[int] | None = None
        """Numbers of the last calls, once the workers have ended."""
        deadline = float("inf")
        while True:
            now, made = time.monotonic(), handles.store.counts(None).updates
            if host.done.is_set() and last is None:
                deadline, last = now + LAST_SECONDS, [lane.exchanger.calls for lane in lanes]
            if last is not None:
                # A call that was pending when the workers ended does not have their last updates.
                if all(lane.brought > call for lane, call in zip(lanes, last, strict=True)):
                    break
                if now > deadline:
                    self._host.say("the last exchange was not answered")
                    break
            for shard, lane in enumerate(lanes):
                if lane.call is None and self._is_due(lane, made, now, last is not None):
                    report = host.report() if shard == 0 else None
                    lane.call = self._wire.send(shard, lane.exchanger.call(made, report))
                    lane.since, lane.made = now, made
                elif lane.call is not None and now - lane.since > ANSWER_SECONDS:
                    lane.call = None  # so it is repeated; if both arrive, the shard ignores the second
                    lane.since = now
            self._receive(lanes)
            if not host.joined.is_set() and all(lane.exchanger.joined for lane in lanes):
                host.joined.set()
            if all(now - lane.heard > ALONE_SECONDS for lane in lanes):
                raise TimeoutError(f"no shard has answered for {ALONE_SECONDS:.0f} seconds")
            self._write(now)
        self._write(None)

    def _is_due(self, lane: Lane, made: int, now: float, last: bool) -> bool:
        waited = now - lane.since
        if lane.fails:
            return waited > PAUSE_SECONDS
        if not lane.exchanger.joined or not lane.exchanger.idle or last:
            return True
        return waited > LONGEST_SECONDS or (made - lane.made >= self._due_updates and waited > SHORTEST_SECONDS)

    def _receive(self, lanes: list[Lane]) -> None:
        calls = [lane.call for lane in lanes if lane.call is not None]
        if not calls:
            time.sleep(SHORTEST_SECONDS / 4)
            return
        for call, answer in self._wire.receive(calls, SHORTEST_SECONDS):
            lane = next(lane for lane in lanes if lane.call is call)
            lane.call, lane.fails = None, answer is None
            if answer is None:
                continue
            lane.heard = time.monotonic()
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

    def _write(self, now: float | None) -> None:
        """Report a row on the exchanges since the last row, if it is time; None: it is."""
        if now is None or now - self._record.since >= self._spec.config.record_interval_seconds:
            self._host.tell_exchanges(self._record.take())


class Record:
    """Figures of a host's exchanges since its last row."""

    def __init__(self, host: int) -> None:
        self._host = host
        self._clear()

    def _clear(self) -> None:
        self.since = time.monotonic()
        self._seconds: list[float] = []
        self._staleness: list[int] = []
        self._lost = 0

    def note(self, exchanged: Exchanged, seconds: float) -> None:
        """Note one exchange with one shard, and its seconds."""
        self._seconds.append(seconds)
        if exchanged.staleness is not None:
            self._staleness.append(exchanged.staleness)
        self._lost += exchanged.lost

    def take(self) -> dict[str, Any] | None:
        """The next row; None if there was no exchange."""
        if not self._seconds:
            return None
        row = {
            "host": self._host,
            "exchanges": len(self._seconds),
            "exchange_seconds_mean": round(statistics.fmean(self._seconds), 6),
            "exchange_seconds_max": round(max(self._seconds), 6),
            "exchange_staleness_mean": statistics.fmean(self._staleness) if self._staleness else 0.0,
            "exchange_staleness_max": max(self._staleness, default=0),
            "exchanges_lost": self._lost,
        }
        self._clear()
        return row
