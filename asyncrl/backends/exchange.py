"""A host's exchange of parameters with the shards, for algorithms whose workers learn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.backends.member import Member
from asyncrl.backends.reports import Wire
from asyncrl.parameters.outbox import Outbox, Postman
from asyncrl.parameters.shards import NEVER, Answer, Call, Caller, Exchanged, Exchanger, Pusher, Report, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Watch

LONGEST_SECONDS = 1.0
"""Longest interval between two exchanges, even without updates."""
SHORTEST_SECONDS = 0.02
LOOK_SECONDS = 0.0005
"""Interval between looks for gradients, if hosts push every update: workers wait for the answer."""
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

    # A plain default would be an attribute of the class, and the site would link to a page of Python's own module.
    now: Callable[[], float] = field(default_factory=lambda: time.monotonic)
    unit: str = "seconds"
    shortest: float = SHORTEST_SECONDS
    longest: float = LONGEST_SECONDS
    answer: float = ANSWER_SECONDS
    pause: float = PAUSE_SECONDS
    alone: float = ALONE_SECONDS
    last: float = LAST_SECONDS


CallerT = TypeVar("CallerT", bound=Caller)


@dataclass
class Lane(Generic[CallerT]):
    """The exchange with one shard."""

    exchanger: CallerT
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
    """Number of the newest call that left nothing behind: what it brought is in the shard."""

    def has_news(self, made: int, waited: float, times: Times) -> bool:
        """Whether to call now: `made` are the host's updates so far, `waited` the time since the last call."""
        raise NotImplementedError

    def ask(self, made: int, report: Report | None) -> Call:
        """A new call, or the pending one again."""
        raise NotImplementedError

    def accept(self, answer: Answer) -> Exchanged | None:
        """Take the answer to the pending call; None if it answers another one."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """Whether the next call and its report have all that the workers have made until now."""
        return True


@dataclass
class DifferenceLane(Lane[Exchanger]):
    """The host's workers change theta; after some updates the change is sent."""

    store: SharedStore = field(kw_only=True)
    part: slice = field(kw_only=True)
    updates: int = field(kw_only=True)
    """Updates between two calls."""

    def has_news(self, made: int, waited: float, times: Times) -> bool:
        """Whether the workers have made enough updates."""
        return made - self.made >= self.updates and waited > times.shortest

    def ask(self, made: int, report: Report | None) -> Call:
        """The change until now, and how many updates it is of."""
        if not self.exchanger.idle:
            return self.exchanger.call()
        theta, counts = self.store.counted_copy(self.part)
        return self.exchanger.call(counts.updates, report, theta.numpy())

    def accept(self, answer: Answer) -> Exchanged | None:
        """Add what others have changed."""
        return self.exchanger.accept(answer)


@dataclass
class GradientLane(Lane[Pusher]):
    """Every gradient is sent as it comes, together with those that have come during the last call."""

    outbox: Outbox = field(kw_only=True)
    postman: Postman = field(kw_only=True)
    shard: int = field(kw_only=True)
    rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    """Whose gradients are in the pending call."""

    def has_news(self, made: int, waited: float, times: Times) -> bool:
        """Whether there is a gradient."""
        return len(self.postman.waiting(self.shard)) > 0

    def ask(self, made: int, report: Report | None) -> Call:
        """All gradients that wait."""
        gradients = None
        if self.exchanger.idle and self.exchanger.joined:
            self.rows = self.postman.waiting(self.shard)
            gradients = self.postman.gradients(self.shard, self.rows) if len(self.rows) else None
        return self.exchanger.call(gradients, report)

    def accept(self, answer: Answer) -> Exchanged | None:
        """Take theta, then answer the workers, so that their next pulls have their own updates."""
        exchanged = self.exchanger.accept(answer)
        if exchanged is not None:
            self.outbox.see(self.shard, answer.updates)
            if exchanged.judged is not None:
                self.postman.tell(self.shard, self.rows, exchanged.judged)
        return exchanged

    @property
    def settled(self) -> bool:
        """Whether every gradient has been answered, and so is in the next report."""
        return self.postman.idle


class Exchange:
    """The exchange with all shards."""

    def __init__(self, host: Member, wire: Wire, times: Times | None = None) -> None:
        """`times` are by another clock than this machine's if hosts are simulated."""
        self._host, self._wire, self._times = host, wire, times or Times()
        config, beginning, store = host.beginning.spec.config, host.beginning, host.handles.store
        assert isinstance(store, SharedStore)
        self._row_seconds = config.record_interval_seconds
        self._record = Record(beginning.host, self._times.unit)
        theta = store.view()
        parts = slices(theta.numel(), config.parameter_shards)
        who, live, now = (beginning.host, beginning.incarnation), theta.numpy(), self._times.now()
        self.lanes: Sequence[Lane[Any]]
        if isinstance(store, Outbox):
            self._look_seconds = LOOK_SECONDS
            postman = self._record.postman = Postman(store, parts)
            self.lanes = [
                GradientLane(Pusher(*who, live[part]), now, outbox=store, postman=postman, shard=shard)
                for shard, part in enumerate(parts)
            ]
        else:
            self._look_seconds = SHORTEST_SECONDS / 2
            every = config.exchange_updates * config.workers
            self.lanes = [
                DifferenceLane(Exchanger(*who, live[part]), now, store=store, part=part, updates=every)
                for part in parts
            ]
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
            if all(lane.call is None for lane in self.lanes):
                time.sleep(self._look_seconds)
        self.write_row()

    def step(self) -> bool:
        """Make the calls that are due, and take what is answered. False once nothing is left to be exchanged."""
        host, lanes, times = self._host, self.lanes, self._times
        now, made = times.now(), host.handles.store.counts(None).updates
        self._watch.look()
        if host.done.is_set() and self._last is None:
            self._ended = min(self._ended, now)
            self._last = [lane.exchanger.calls for lane in lanes] if all(lane.settled for lane in lanes) else None
        # A call that was pending when the workers ended does not have their last updates.
        if self._last and all(lane.brought > call for lane, call in zip(lanes, self._last, strict=True)):
            return False
        if self._watch.silence(self._ended) > times.last:
            host.say("the last exchange was not answered")
            return False
        for shard, lane in enumerate(lanes):
            if lane.call is None and self._is_due(lane, made, now, self._last is not None):
                report = host.report() if shard == 0 else None
                lane.call = self._wire.send(shard, lane.ask(made, report))
                lane.since, lane.made = now, made
            elif lane.call is not None and now - lane.since > times.answer:
                lane.call = None  # so it is repeated; if both arrive, the shard ignores the second
                lane.since = now
        self._receive(lanes)
        if not host.joined.is_set() and all(lane.exchanger.joined for lane in lanes):
            host.joined.set()
        if all(self._watch.silence(lane.heard) > times.alone for lane in lanes):
            raise TimeoutError(f"no shard has answered for {times.alone:.0f} {times.unit}")
        if self._record.seconds >= self._row_seconds:
            self.write_row()
        return True

    def _is_due(self, lane: Lane[Any], made: int, now: float, last: bool) -> bool:
        waited, times = now - lane.since, self._times
        if lane.fails:
            return waited > times.pause
        if not lane.exchanger.joined or not lane.exchanger.idle or last:
            return True
        return waited > times.longest or lane.has_news(made, waited, times)

    def _receive(self, lanes: Sequence[Lane[Any]]) -> None:
        calls = [lane.call for lane in lanes if lane.call is not None]
        for call, answer in self._wire.receive(calls, SHORTEST_SECONDS) if calls else ():
            lane = next(lane for lane in lanes if lane.call is call)
            lane.call, lane.fails = None, answer is None
            if answer is None:
                continue
            lane.heard = self._times.now()
            epoch = lane.exchanger.epoch
            exchanged = lane.accept(answer)
            if exchanged is None:
                continue
            lane.brought = lane.exchanger.calls if exchanged.included else lane.brought
            self._record.note(exchanged, lane.heard - lane.since)
            if exchanged.lost or (epoch != answer.epoch and epoch != NEVER):
                shard = next(number for number, other in enumerate(lanes) if other is lane)
                lost = f"{exchanged.lost:,} updates of this host were lost"
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
        self.postman: Postman | None = None
        """If hosts push every update."""
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
        self._staleness.extend(exchanged.staleness)
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
            "updates_lost": self._lost,
        }
        if self.postman is not None:
            row |= {"gradients": len(self._staleness), "gradients_split": self.postman.split}
            self.postman.split = 0
        self._clear()
        return row
