"""One host's part of a run on several: the workers of the local backend, and the exchange with other hosts.

The transport is elsewhere: whoever runs the hosts passes in the wire. One thread supervises the workers, as in the
local backend, another exchanges with the shards. The driver of the run polls `look`, which reports what has happened
and passes on orders.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from traceback import format_exc
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.backends.handles import build_handles
from asyncrl.backends.local import evaluator_process, learner_process, worker_process
from asyncrl.backends.outcome import Outcome, Signals, failed
from asyncrl.backends.supervisor import Supervisor
from asyncrl.core.errors import NotFinite
from asyncrl.core.moments import merge
from asyncrl.parameters.shards import NEVER, Answer, Call, Exchanged, Exchanger, Report, Retired, slices
from asyncrl.runtime.clock import BUILDING, ENDED, GO_ON, LEAVE
from asyncrl.runtime.protocols import Counts, name_of
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.storage.records import RecordReader
from asyncrl.storage.run_folder import RunFolder

LONGEST_SECONDS = 1.0
"""Longest interval between two exchanges, even without updates."""
SHORTEST_SECONDS = 0.02
ANSWER_SECONDS = 10.0
"""A call without an answer is repeated after this time."""
PAUSE_SECONDS = 0.2
"""Pause before a failed call is repeated."""
ALONE_SECONDS = 120.0
"""A host gives up if no shard has answered for this long: its own theta is of no use by then."""
LAST_SECONDS = 5.0
"""Time for the last exchange, at the end."""
TEND_SECONDS = 0.1
INCARNATIONS = 1000
"""Distance between the random streams of a host's incarnations; no worker is replaced that often."""


class Wire(Protocol):
    """The transport of calls to shards."""

    def send(self, shard: int, call: Call) -> Any:
        """Make a call; returns its handle, for `receive`."""
        ...

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Answer | None]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it failed."""
        ...


@dataclass(frozen=True)
class Beginning:
    """What a host needs to know to take part, as plain data."""

    spec: RunSpec
    """The spec of the whole run."""
    host: int
    incarnation: int
    """Counts the processes that have had the host's number, from 1."""
    steps: int
    """T at which the run was resumed."""
    seconds: float
    """Seconds that the run has taken so far."""
    moments: tuple[NDArray[np.float64], ...]
    """Moments at which the run was resumed."""
    state: dict[str, NDArray[np.generic]]
    """The store's state besides theta."""


@dataclass(frozen=True)
class Seen:
    """What `Host.look` returns."""

    news: list[tuple[Any, ...]]
    """What has happened, in order: ("row", file, row), ("say", line), ("loss", event, worker, cause),
    ("file", name, content)."""
    told: int
    """Number of news since the host began, to be passed to the next look."""
    phases: list[int]
    silence: list[float]
    """Seconds since each worker last counted a step."""
    outcome: Outcome | None = None
    """Why this host cannot go on, or LEFT."""


LEFT = Outcome("finished", "", 0)
"""The host is done, and the shards have all of its updates."""


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


class Host:
    """The workers of one host, and its exchange with the shards."""

    def __init__(self, beginning: Beginning, wire: Wire) -> None:
        """Starts to work at once, in threads; workers wait until `look` says that the clock has started."""
        self._beginning, self._wire = beginning, wire
        spec = beginning.spec
        config = replace(spec.config, backend="local", hosts=1, address="", parameter_shards=1)
        self._scratch = Path(tempfile.mkdtemp(prefix="asyncrl-"))
        self._spec = replace(
            spec, config=config, folder=RunFolder(self._scratch), first_worker=beginning.host * config.workers
        )
        self._shards = spec.config.parameter_shards
        self._due_updates = spec.config.exchange_updates
        self._lock = threading.Lock()
        self._news: list[tuple[Any, ...]] = []
        self._told = 0
        """News before the first of `_news`."""
        self._readers = [RecordReader(self._spec.folder.worker_file(worker)) for worker in range(config.workers)]
        self._handles: Handles | None = None
        self._order = GO_ON
        self._started = False
        self._outcome: Outcome | None = None
        self._done = threading.Event()
        """Set when the workers have ended; only the last exchange is left."""
        self._record = Record(beginning.host)
        self._threads = [
            threading.Thread(target=self._guarded(work), daemon=True, name=name)
            for name, work in (("work", self._work), ("exchange", self._exchange))
        ]
        self._joined = threading.Event()
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------------------- called by the driver

    def look(self, told: int, start: bool, order: int) -> Seen:
        """News since number `told`, and the present state. `start`: the clock runs; `order`: GO_ON, FINISH or LEAVE."""
        self._started |= start
        self._order = max(self._order, order)
        outcome = self._outcome  # outcome and phases before rows, so that everything written by then is reported too
        clock = None if self._handles is None else self._handles.clock
        workers = range(self._spec.config.workers)
        phases = [BUILDING if clock is None else clock.phase(worker) for worker in workers]
        self._read_rows()
        with self._lock:
            self._news = self._news[max(0, told - self._told) :]
            self._told = max(self._told, told)
            news = list(self._news)
        silence = [0.0 if clock is None else clock.heartbeat_age(worker) for worker in workers]
        return Seen(news, self._told + len(news), phases, silence, outcome)

    def state(self) -> dict[str, NDArray[np.generic]] | None:
        """Copies of the store's state besides theta; None before there is a store."""
        if self._handles is None:
            return None
        return {name: tensor.numpy() for name, tensor in self._handles.store.state().items()}

    def close(self) -> None:
        """Wait for the threads, and remove this host's files."""
        self._order = LEAVE
        for thread in self._threads:
            thread.join(timeout=4 * LAST_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------------------- news

    def say(self, line: str) -> None:
        """Report a line to be shown."""
        self._tell("say", f"host {self._beginning.host}: {self._renumbered(line)}")

    def note_loss(self, event: str, worker: int, cause: str) -> None:
        """Report the loss of a worker, with the files it left behind."""
        for file in (self._spec.folder.traceback_file, self._spec.folder.stack_file, self._spec.folder.culprit_file):
            left = file(name_of(worker))
            with contextlib.suppress(OSError):
                self._tell("file", file(name_of(self._spec.among_all(worker))).name, left.read_bytes())
        self._tell("loss", event, self._spec.among_all(worker), self._renumbered(cause))

    def _renumbered(self, text: str) -> str:
        """A text with this host's workers numbered among those of all hosts."""
        return re.sub(r"worker-(\d+)", lambda found: name_of(self._spec.among_all(int(found[1]))), text)

    def _tell(self, *what: Any) -> None:
        with self._lock:
            self._news.append(what)

    def _read_rows(self) -> None:
        for worker, reader in enumerate(self._readers):
            everywhere = self._spec.among_all(worker)
            for row in reader.new():
                self._tell("row", self._spec.folder.worker_file(everywhere).name, row | {"worker": everywhere})

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """A thread's work; an exception ends this host."""

        def guarded() -> None:
            try:
                work()
            except Retired:
                self._end(failed("another has taken this host's place"))
            except NotFinite as error:
                self._end(failed(f"host {self._beginning.host}: {error}"))
            except Exception as error:
                self._end(failed(f"host {self._beginning.host} raised {type(error).__name__}: {error}", format_exc()))

        return guarded

    def _end(self, outcome: Outcome) -> None:
        self._outcome = self._outcome or outcome
        self._order = LEAVE
        self._joined.set()
        self._done.set()

    # ------------------------------------------------------------------------------------------------------- the work

    def _work(self) -> None:
        """Supervise the workers until they have ended, as the local backend does."""
        self._handles = handles = self._build()
        self._joined.wait()
        if self._outcome is not None:
            return
        run = Run(self._spec, handles)
        signals = Signals()
        supervisor = Supervisor(run, self, self, worker_process, evaluator_process, learner_process, workers_only=True)
        try:
            for slot in supervisor.workers:
                slot.incarnation = INCARNATIONS * (self._beginning.incarnation - 1)
                supervisor.fill(slot)
            while not supervisor.all_ended() and self._order != LEAVE:
                wait(supervisor.sentinels(), timeout=TEND_SECONDS)
                if (outcome := supervisor.tend()) is not None:
                    reason = f"{self._renumbered(outcome.reason)}, on host {self._beginning.host}"
                    self._end(failed(reason, outcome.traceback))
                    break
                if self._started and not handles.clock.started():
                    handles.clock.start()
                handles.clock.stop(self._order)
        finally:
            handles.clock.stop(LEAVE)
            supervisor.end(signals)
            for slot in supervisor.workers:
                handles.clock.enter(slot.worker, ENDED)
            self._done.set()

    def _build(self) -> Handles:
        beginning = self._beginning
        size = sum(int(torch.Size(shape).numel()) for _, shape in self._spec.layout)
        handles = build_handles(self._spec, torch.zeros(size))
        handles.clock.rebase(beginning.steps, beginning.seconds)
        handles.moments.lay_down(beginning.moments)
        state = {name: torch.from_numpy(np.array(array)) for name, array in beginning.state.items()}
        handles.store.restore(torch.zeros(size), state, Counts())
        return handles

    def _exchange(self) -> None:
        """Exchange with the shards until the workers have ended and the shards have all updates."""
        while self._handles is None:
            if self._outcome is not None:
                return
            time.sleep(0.01)
        handles = self._handles
        theta = handles.store.view()
        assert theta is not None
        parts = slices(theta.numel(), self._shards)
        beginning = self._beginning
        lanes = [Lane(Exchanger(beginning.host, beginning.incarnation, theta.numpy()[part])) for part in parts]
        last: list[int] | None = None
        """Numbers of the last calls, once the workers have ended."""
        deadline = float("inf")
        while True:
            now, made = time.monotonic(), handles.store.counts(None).updates
            if self._done.is_set() and last is None:
                deadline, last = now + LAST_SECONDS, [lane.exchanger.calls for lane in lanes]
            if last is not None:
                # A call that was pending when the workers ended does not have their last updates.
                if all(lane.brought > call for lane, call in zip(lanes, last, strict=True)):
                    break
                if now > deadline:
                    self.say("the last exchange was not answered")
                    break
            for shard, lane in enumerate(lanes):
                if lane.call is None and self._is_due(lane, made, now, last is not None):
                    report = self._report(handles) if shard == 0 else None
                    lane.call = self._wire.send(shard, lane.exchanger.call(made, report))
                    lane.since, lane.made = now, made
                elif lane.call is not None and now - lane.since > ANSWER_SECONDS:
                    lane.call = None  # so it is repeated; if both arrive, the shard ignores the second
                    lane.since = now
            self._receive(lanes, handles)
            if not self._joined.is_set() and all(lane.exchanger.joined for lane in lanes):
                self._joined.set()
            if all(now - lane.heard > ALONE_SECONDS for lane in lanes):
                raise TimeoutError(f"no shard has answered for {ALONE_SECONDS:.0f} seconds")
            self._write(now)
        self._write(None)
        self._end(LEFT)

    def _is_due(self, lane: Lane, made: int, now: float, last: bool) -> bool:
        waited = now - lane.since
        if lane.fails:
            return waited > PAUSE_SECONDS
        if not lane.exchanger.joined or not lane.exchanger.idle or last:
            return True
        return waited > LONGEST_SECONDS or (made - lane.made >= self._due_updates and waited > SHORTEST_SECONDS)

    def _receive(self, lanes: list[Lane], handles: Handles) -> None:
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
                self.say(f"shard {shard} is back at version {answer.version} of epoch {answer.epoch}; {lost}")
            if exchanged.others is not None:
                self._learn_of_others(handles, exchanged.others)

    def _report(self, handles: Handles) -> Report:
        """What the workers have counted. Called before theta is read, so that theta has all counted updates."""
        steps = handles.clock.worker_steps()
        tallies = [[count, *handles.store.counts(worker)] for worker, count in enumerate(steps)]
        return Report(np.array(tallies, np.int64), handles.moments.of_workers())

    def _learn_of_others(self, handles: Handles, others: Report) -> None:
        """Let this host's workers see T and the moments of the other hosts."""
        handles.clock.rebase(max(handles.clock.base_steps, self._beginning.steps + int(others.tallies[0])))
        rows = zip(self._beginning.moments, others.moments, strict=True)
        handles.moments.lay_down([merge(earlier, row) for earlier, row in rows])

    def _write(self, now: float | None) -> None:
        """Report a row on the exchanges since the last row, if it is time; None: it is."""
        interval = self._spec.config.record_interval_seconds
        if self._handles is not None and (now is None or now - self._record.since >= interval):
            clock = self._handles.clock
            row = self._record.take()
            if row is not None:
                place = {"steps": clock.steps, "seconds": round(clock.seconds, 3)}
                self._tell("row", self._spec.folder.exchange_file(self._beginning.host).name, place | row)


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
