"""One host's part of a run on several: the workers of the local backend, and the exchange with other hosts.

The transport is elsewhere: whoever runs the hosts passes in the wire. One thread supervises the workers, as in the
local backend, another exchanges with the shards. The driver of the run polls `look`, which reports what has happened
and passes on orders.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from traceback import format_exc
from typing import Any

from asyncrl.backends.outcome import Outcome, Signals, failed
from asyncrl.backends.ray.member import LAST_SECONDS, Beginning, Member, build
from asyncrl.backends.ray.reports import LEFT, Journal, Seen, Statistics
from asyncrl.backends.ray.to_learner import ToLearner
from asyncrl.backends.ray.to_shards import ToShards
from asyncrl.backends.supervisor import Slot, Supervisor
from asyncrl.core.errors import NotFinite
from asyncrl.experience.batches import Batches
from asyncrl.runtime.clock import BUILDING, ENDED, GO_ON, LEAVE
from asyncrl.runtime.hosts import on_one_host
from asyncrl.runtime.link import Retired, Wire
from asyncrl.runtime.protocols import in_records, name_of
from asyncrl.runtime.run import Handles, Run
from asyncrl.runtime.threads import enforce_one_thread
from asyncrl.storage.records import RecordReader
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.temporary import temporary_folder

TEND_SECONDS = 0.1
INCARNATIONS = 1000
"""Distance between the random streams of a host's incarnations; no worker is replaced that often."""


class Workers(Supervisor):
    """Supervises a host's workers and learners, and notes with which rollout each worker's process begins."""

    def __init__(self, run: Run, host: Host) -> None:
        learners = run.handles.clock.learners if host.learns else ()
        super().__init__(run, host.note_loss, host.say, [*learners, *range(run.spec.config.workers)])
        self._rings = run.handles.experience.rings if isinstance(run.handles.experience, Batches) else []
        self._firsts = host.firsts

    def fill(self, slot: Slot) -> None:
        """Start a process in an empty place."""
        if self._rings and slot.number >= 0:
            self._firsts[slot.number].add(self._rings[slot.number].written)
        super().fill(slot)


class Host(Member):
    """The workers of one host, its learners if it has any, and its exchange with the shards or the learner."""

    def __init__(self, beginning: Beginning, wire: Wire) -> None:
        """Starts to work at once, in threads; workers wait until `look` says that the clock has started."""
        super().__init__(beginning)
        enforce_one_thread()
        self._wire = wire
        spec = beginning.spec
        one = on_one_host(spec)
        config = one.config
        self._scratch = Path(temporary_folder())
        self._spec = replace(
            one,
            folder=RunFolder(self._scratch),
            first_worker=beginning.host * config.workers,
            first_learner=beginning.host * len(self.learners),
        )
        self._journal = Journal()
        self._statistics = Statistics()
        everyone = [*range(config.workers), *self.learners]
        self._readers = {who: RecordReader(self._spec.folder.records_file(name_of(who))) for who in everyone}
        self._handles: Handles | None = None
        self._order = GO_ON
        self._started = False
        self._outcome: Outcome | None = None
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True, name=name)
            for name, work in (("work", self._work), ("exchange", self._exchange))
        ]
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
        news, told = self._journal.since(told)
        silence = [0.0 if clock is None else clock.heartbeat_age(worker) for worker in workers]
        if self._handles is None:
            return Seen(news, told, phases, silence, outcome)
        store = self._handles.store
        statistics = self._statistics.of(store, ended=outcome is not None) if self.learns else None
        return Seen(news, told, phases, silence, outcome, store.updates, statistics=statistics)

    def close(self) -> None:
        """Wait for the threads, and remove this host's files."""
        self._order = LEAVE
        for thread in self._threads:
            thread.join(timeout=4 * LAST_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------------------- news

    def say(self, line: str) -> None:
        """Report a line to be shown."""
        self._journal.tell("say", f"host {self.beginning.host}: {self._renumbered(line)}")

    def note_loss(self, event: str, worker: int, cause: str) -> None:
        """Report the loss of a worker, with the files it left behind."""
        for file in (self._spec.folder.traceback_file, self._spec.folder.stack_file, self._spec.folder.culprit_file):
            left = file(name_of(worker))
            with contextlib.suppress(OSError):
                self._journal.tell("file", file(name_of(self._spec.among_all(worker))).name, left.read_bytes())
        self._journal.tell("loss", event, self._spec.among_all(worker), self._renumbered(cause))

    def _renumbered(self, text: str) -> str:
        """A text with this host's workers and learners numbered among those of all hosts."""
        names = {name_of(who): name_of(self._spec.among_all(who)) for who in self._readers}
        return re.sub(r"worker-\d+|learner-\d+|^learner\b", lambda found: names.get(found[0], found[0]), text)

    def _read_rows(self) -> None:
        for who, reader in self._readers.items():
            everywhere = self._spec.among_all(who)
            file, name = self._spec.folder.records_file(name_of(everywhere)).name, in_records(everywhere)
            for row in reader.new():
                self._journal.tell("row", file, row | {"worker": name})

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread's work; an exception ends this host."""
        try:
            work()
        except Retired:
            self._end(failed("another process has taken this host's place"))
        except NotFinite as error:
            self._end(failed(f"host {self.beginning.host}: {error}"))
        except BaseException as error:  # of user code, SystemExit too: it would end the thread in silence
            self._end(failed(f"host {self.beginning.host} raised {type(error).__name__}: {error}", format_exc()))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = self._outcome or outcome
        self._order = LEAVE
        self.joined.set()
        self.done.set()

    # ------------------------------------------------------------------------------------------------------- the work

    def _work(self) -> None:
        """Supervise the workers until they have ended, as the local backend does."""
        self._handles = handles = build(self.beginning, self._spec)
        self.joined.wait()
        if self._outcome is not None:
            return
        run = Run(self._spec, handles)
        signals = Signals()
        supervisor = Workers(run, self)
        try:
            for slot in supervisor.slots:
                slot.incarnation = INCARNATIONS * (self.beginning.incarnation - 1)
                supervisor.fill(slot)
            while not supervisor.all_ended() and self._order != LEAVE:
                wait(supervisor.sentinels(), timeout=TEND_SECONDS)
                if (outcome := supervisor.tend()) is not None:
                    reason = f"{self._renumbered(outcome.reason)}, on host {self.beginning.host}"
                    self._end(failed(reason, outcome.traceback))
                    break
                if self._started and not handles.clock.started():
                    handles.clock.start()
                handles.clock.stop(self._order)
        finally:
            handles.clock.stop(LEAVE)
            supervisor.end(signals)
            for slot in supervisor.workers:
                handles.clock.enter(slot.number, ENDED)
            self.done.set()

    def _exchange(self) -> None:
        """Exchange with the shards or the learner until the workers have ended and all of their work is there."""
        while self._handles is None:
            if self._outcome is not None:
                return
            time.sleep(0.01)
        (ToShards if self.learns else ToLearner)(self, self._wire).run()
        self._end(LEFT)

    @property
    def handles(self) -> Handles:
        """What this host's processes share, once it is built."""
        assert self._handles is not None
        return self._handles

    def tell_exchanges(self, row: dict[str, Any] | None) -> None:
        """Report a row on exchanges; None: there were none."""
        if row is not None:
            self._journal.tell("row", self._spec.folder.exchange_file(self.beginning.host).name, self.at(row))
