"""Workers as ranks that run in step, on one machine or several, with torch.distributed and gloo.

Rank 0 is the command's own process: it works like the others, and also supervises the run. It starts the other ranks
itself, unless a launcher has (`backends/launch.py`). The transport is torch's: gloo for exchanges, and a key-value
store at rank 0 for all other messages between ranks.

Gradient methods reduce gradients (`parameters/replicas.py`); methods with a learner gather rollouts at rank 0 and
broadcast theta (`experience/gathered.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from traceback import format_exception
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from asyncrl.backends.handles import build_rank_handles
from asyncrl.backends.launch import Launch, interface_towards, own_address, tcp_address
from asyncrl.backends.local import await_last_evaluation, evaluator_process, learner_process, worker_process
from asyncrl.backends.outcome import Outcome, Signals, failed, finished, stopped
from asyncrl.backends.processes import end_all, how_it_died, remove_if_empty, start_child, start_context
from asyncrl.backends.supervisor import Supervisor
from asyncrl.core.errors import UsageError
from asyncrl.experience.gathered import Gathered, Kept
from asyncrl.parameters.replicas import Replicas
from asyncrl.runtime.accord import NOTHING, OVER
from asyncrl.runtime.clock import ENDED, LEAVE, RUNNING, Clock
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.normalize import GROWTH
from asyncrl.runtime.protocols import Counts, name_of
from asyncrl.runtime.run import Handles, Role, Run, RunSpec, build_learner, build_worker
from asyncrl.runtime.terminal import View
from asyncrl.storage.files import plain
from asyncrl.storage.records import RecordWriter
from asyncrl.storage.run_folder import versions

JOIN_SECONDS = 300.0
"""Time for all ranks to join, and again to build their environments."""
BEAT_SECONDS = 1.0
"""Interval between a rank's heartbeats."""
SILENT_SECONDS = 3.5
"""A rank without a heartbeat for this long is lost."""
GRACE_SECONDS = 10.0
"""Time for a rank to leave after the run, before it kills itself."""
LOOK_SECONDS = 0.5
"""Interval at which rank 0 checks on its evaluator and the rows of other ranks."""
PATIENCE_SECONDS = 5.0
"""Time for an exchange to complete after a signal, before this rank leaves without the others."""
POLL_SECONDS = 0.02


class RanksLost(Exception):
    """An exchange failed because ranks are gone, or too late."""


class Interrupted(Exception):
    """A signal came before the run had begun, or a second one, or one while an exchange waits for other ranks."""


class Board:
    """Messages between ranks besides the exchanges: keys and values in a store at rank 0, readable by all.

    A thread publishes once a second that this process is alive, and how many exchanges it has begun. It also ends the
    process if the run is over but the process does not notice, because it hangs in an environment or cannot reach rank
    0's host.
    """

    def __init__(self, host: str, port: int, rank: int, size: int, serve: bool = False) -> None:
        """`serve`: the store is here; port 0 picks a free one. Raises RanksLost if no store answers in JOIN_SECONDS."""
        self.rank, self.size = rank, size
        self.begun = 0
        """Exchanges this rank has begun."""
        self.stuck = False
        """Whether this rank has left while one of its threads still waits in an exchange."""
        self._store = _open_store(host, port, serve)
        self.host, self.port = host, int(self._store.port)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def store(self) -> Store:
        """The part of the store that gloo uses to connect."""
        return PrefixStore("gloo", self._store)

    def put(self, key: str, value: bytes | str) -> None:
        """Write a value that all ranks can read."""
        self._store.set(key, cast(str, value))  # typed as str, but it accepts bytes

    def get(self, key: str) -> bytes | None:
        """A value; None if there is none."""
        return self._store.get(key) if self._store.check([key]) else None

    def take(self, key: str) -> bytes | None:
        """Read a value and delete it; None if there is none."""
        value = self.get(key)
        if value is not None:
            self._store.delete_key(key)
        return value

    def each(self, key: str) -> dict[int, bytes]:
        """The values that ranks have written under `key/RANK`, by rank."""
        found = {rank: self.get(f"{key}/{rank}") for rank in range(self.size)}
        return {rank: value for rank, value in found.items() if value is not None}

    def beat(self, end: Callable[[int], None] = os._exit) -> None:
        """Start the heartbeat. `end` kills this process if it must."""
        beats = _open_store(self.host, self.port, serve=False)

        def live() -> None:
            count, over_since = 0, None
            while not self._closed.wait(BEAT_SECONDS):
                try:
                    count += 1
                    beats.set(f"beat/{self.rank}", f"{count} {self.begun}")
                    keys = ["over"] if self.rank else [f"left/{rank}" for rank in range(1, self.size)]
                    over = any(beats.check([key]) for key in keys)
                except RuntimeError:  # rank 0 or the connection to it is lost
                    over = True
                over_since = (over_since or time.monotonic()) if over else None
                if (
                    over_since is not None
                    and time.monotonic() - over_since > GRACE_SECONDS
                    and not self._closed.is_set()
                ):
                    print(f"asyncrl: rank {self.rank} hangs at the end of the run, and ends itself", file=sys.stderr)
                    end(1)

        self._thread = threading.Thread(target=live, daemon=True, name="beat")
        self._thread.start()

    def beats(self) -> dict[int, tuple[int, int]]:
        """The number of heartbeats of each rank, and of exchanges begun by the last one."""
        return {
            rank: cast(tuple[int, int], tuple(map(int, value.split()))) for rank, value in self.each("beat").items()
        }

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * BEAT_SECONDS)


def _open_store(host: str, port: int, serve: bool) -> TCPStore:
    try:
        return TCPStore(
            host, port, None, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=JOIN_SECONDS)
        )
    except (RuntimeError, ValueError) as error:
        if serve:
            raise UsageError(f"cannot listen at {host}:{port}, where ranks should meet: {first_line(error)}") from None
        raise RanksLost(f"nobody answers at {host}:{port}, where ranks should meet") from None


def first_line(error: BaseException) -> str:
    """What happened in an error of gloo, which can be pages long, without the location in its source."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\.(cc|h):\d+\] ", "", line).split(". ")[0]


class Exchanges:
    """The collective operations of a group of ranks. If a rank does not take part in time, the run is lost."""

    def __init__(self, board: Board, seconds: float, signals: Signals) -> None:
        """Connects all ranks. Raises RanksLost, and UsageError in a program that uses torch.distributed itself."""
        if dist.is_initialized():
            raise UsageError("--backend collective needs torch.distributed for itself; this program already uses it")
        self._board = board
        self._signals = signals
        self._newest: Work | None = None
        wait = timedelta(seconds=seconds)
        with interface_towards(board.host):
            self._in_thread(lambda: dist.init_process_group("gloo", None, wait, board.size, board.rank, board.store))

    def reduce(self, vector: Tensor) -> Callable[[], None]:
        """Start to overwrite a vector with the sum of all ranks' vectors; returns a function that waits until done."""
        return self._begin(lambda: dist.all_reduce(vector, async_op=True))

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0."""
        self._begin(lambda: dist.broadcast(tensor, 0, async_op=True))()

    def share(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        tensors = [tensor.clone() for _ in range(self._board.size)]
        self._begin(lambda: dist.all_gather(tensors, tensor, async_op=True))()
        return tensors

    def gather(self, message: Tensor) -> tuple[list[Tensor], float]:
        """Send bytes of any length to rank 0, which gets the messages of all ranks; the others get an empty list.

        Also returns the seconds spent waiting for the other side to arrive.
        """
        messages, waited = [message], 0.0
        size = torch.tensor([message.numel()])

        def agree(exchange: Callable[..., object], rank: int) -> None:
            nonlocal waited
            began = time.perf_counter()
            exchange(size, rank)
            waited += time.perf_counter() - began

        def send() -> None:
            agree(dist.send, 0)
            dist.send(message, 0)

        def receive() -> None:
            for rank in range(1, self._board.size):
                agree(dist.recv, rank)
                messages.append(torch.empty(int(size), dtype=torch.uint8))
                dist.recv(messages[-1], rank)

        self._in_thread(send if self._board.rank else receive)
        return [] if self._board.rank else messages, waited

    def close(self) -> None:
        """Leave the group, unless an exchange still waits for another rank: it cannot be cancelled."""
        if self._newest is not None:
            with contextlib.suppress(RuntimeError):
                self._newest.wait(timedelta(seconds=LOOK_SECONDS))
            self._board.stuck = not self._newest.is_completed()
        if dist.is_initialized() and not self._board.stuck:
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _in_thread(self, exchange: Callable[[], object]) -> None:
        """Run an operation of gloo that can only block, in a thread."""
        self._begin(lambda: InThread(exchange))()

    def _begin(self, start: Callable[[], Work]) -> Callable[[], None]:
        if self._board.size == 1:  # alone: the inputs are the results
            return lambda: None
        self._board.begun += 1
        try:
            work = self._newest = start()
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None
        return lambda: self._await(work)

    def _await(self, work: Work) -> None:
        """Wait for an exchange. Raises RanksLost if it fails, Interrupted after a signal if it takes too long."""
        asked = None
        while not work.is_completed():
            with contextlib.suppress(RuntimeError):  # timed out, or failed: see below
                work.wait(timedelta(seconds=LOOK_SECONDS))
            if self._signals.first is not None and not work.is_completed():
                asked = asked or time.monotonic()
                if self._signals.urgent or time.monotonic() - asked > PATIENCE_SECONDS:
                    raise Interrupted
        try:
            work.wait()
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None


class Work(Protocol):
    """An exchange that has begun."""

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        ...

    def wait(self, timeout: timedelta = ...) -> object:
        """Wait for its end. Raises RuntimeError if it failed or the time is up."""
        ...


class InThread:
    """An exchange in a thread of its own, for operations that would be aborted by a wait with a time-out."""

    def __init__(self, exchange: Callable[[], object]) -> None:
        self._exchange = exchange
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._make, daemon=True, name="exchange")
        self._thread.start()

    def _make(self) -> None:
        try:
            self._exchange()
        except Exception as error:
            self._error = error

    def is_completed(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for its end, up to `timeout`. Raises what the exchange raised."""
        self._thread.join(None if timeout is None else timeout.total_seconds())
        if self._error is not None:
            raise self._error


# ------------------------------------------------------------------------------------------------------------ meeting


@dataclass(frozen=True)
class Meeting:
    """Rank 0's view of ranks that a launcher has started."""

    launch: Launch
    board: Board

    def dissolve(self, code: int) -> None:
        """Tell the other ranks to leave with this exit code, and wait for them, since they need the board."""
        self.board.put("answer", pickle.dumps(code))
        come, deadline = self.board.each("hello").keys() - {0}, time.monotonic() + GRACE_SECONDS
        while not come <= self.board.each("ended").keys() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def convened(launch: Launch, words: Sequence[str]) -> Iterator[Meeting]:
    """Rank 0: wait for all ranks and compare their settings and versions. If the block raises, the ranks leave.

    Raises UsageError for ranks that do not join, or that have other settings or versions than this one.
    """
    board = board_of(launch)
    meeting = Meeting(launch, board)
    try:
        greet(board, words)
        hellos = await_hellos(board)
        for rank, hello in sorted(hellos.items()):
            if complaint := disagreement(rank, hello, hellos[0]):
                raise UsageError(complaint)
        yield meeting
        if board.get("answer") is None:  # no run was begun
            meeting.dissolve(0)
    except BaseException as error:
        with contextlib.suppress(RuntimeError):
            meeting.dissolve(2 if isinstance(error, UsageError) else 1)
        raise
    finally:
        board.close()


def board_of(launch: Launch) -> Board:
    """The board of a launched group, at rank 0; the others find it through the launcher's address."""
    key = f"asyncrl/{launch.attempt}/board"
    serve = launch.rank == 0
    if not (launch.agent or launch.address.startswith("file://")):
        host, port = tcp_address(launch.address)
        return Board(host, port, launch.rank, launch.size, serve)
    # The launcher's own store, or a file, only tells where the board is.
    wait = timedelta(seconds=JOIN_SECONDS)
    if launch.agent:
        host, port = tcp_address(launch.address)
        common: Store = TCPStore(host, port, None, False, wait)
    else:
        host = socket.gethostbyname(socket.gethostname())
        common = FileStore(launch.address.removeprefix("file://"), launch.size)
        common.set_timeout(wait)
    if serve:
        board = Board(own_address(host), 0, 0, launch.size, serve=True)
        common.set(key, f"{board.host} {board.port}")
        return board
    try:
        place, number = common.get(key).decode().split()
    except RuntimeError:
        raise RanksLost(f"rank 0 did not come within {JOIN_SECONDS:.0f} s") from None
    return Board(place, int(number), launch.rank, launch.size)


def greet(board: Board, words: Sequence[str]) -> None:
    """Publish who this rank is, and how it was started."""
    hello = {"host": socket.gethostname(), "pid": os.getpid(), "words": list(words), "versions": versions()}
    board.put(f"hello/{board.rank}", json.dumps(hello))


def await_hellos(board: Board, goes_on: Callable[[], None] = lambda: None) -> dict[int, dict[str, Any]]:
    """The greetings of all ranks. Calls `goes_on`, which may raise, meanwhile. Raises UsageError for a late rank."""
    deadline = time.monotonic() + JOIN_SECONDS
    while len(found := board.each("hello")) < board.size:
        goes_on()
        if time.monotonic() > deadline:
            missing = ", ".join(str(rank) for rank in range(board.size) if rank not in found)
            raise UsageError(f"after {JOIN_SECONDS:.0f} s rank {missing} of {board.size} has not joined")
        time.sleep(POLL_SECONDS)
    return {rank: json.loads(value) for rank, value in found.items()}


def disagreement(rank: int, hello: Mapping[str, Any], first: Mapping[str, Any]) -> str | None:
    """How a rank's settings or versions differ from rank 0's, in one line; None if they do not."""
    who = f"rank {rank} on {hello['host']}"
    for package, version in first["versions"].items():
        if hello["versions"].get(package) != version:
            return f"{who} has {package} {hello['versions'].get(package)}, rank 0 has {version}"
    if hello["words"] != first["words"]:
        here, there = first["words"], hello["words"]
        place = next(
            (i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there))
        )
        shown = [" ".join(words[max(0, place - 1) : place + 2]) or "nothing" for words in (there, here)]
        return f"{who} has other settings than rank 0: {shown[0]!r} instead of {shown[1]!r}"
    return None


# ------------------------------------------------------------------------------------------------------------- rank 0


Places = Mapping[int, tuple[str, int]]
"""Host and process of each rank."""


@dataclass(frozen=True)
class Beginning:
    """What rank 0 tells the others, besides tensors."""

    spec: RunSpec
    steps: int
    seconds: float
    counts: Counts
    places: Places


@dataclass(frozen=True)
class Seat:
    """What the process of a rank receives that rank 0 starts itself."""

    spec: RunSpec
    port: int


def run(run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Meeting | None = None) -> Outcome:
    """Rank 0's part: work, and supervise the run. Without a `meeting` it starts the other ranks itself.

    None of those is left when it returns; ranks of a launcher are told to leave.
    """
    spec, size = run.spec, run.spec.config.workers
    board = meeting.board if meeting else Board("127.0.0.1", 0, 0, size, serve=True)
    supervisor = Supervisor(
        run, monitor, view, worker_process, evaluator_process, learner_process, workers=False, learners=False
    )  # fmt: skip
    leader = Leader(run, monitor, view, signals, board, supervisor)
    try:
        board.beat()
        if meeting is None:
            leader.start_ranks()
        supervisor.fill(supervisor.evaluator)
        return leader.lead()
    except RanksLost as error:
        return leader.explain(error)
    except Interrupted:
        return stopped(cast(int, signals.first))
    finally:
        with contextlib.suppress(RuntimeError):
            board.put("over", "0" if run.handles.accord and run.handles.accord.decided else "1")
        leader.collect_last()
        run.handles.clock.stop(LEAVE)
        supervisor.end(signals)
        end_all(list(leader.ranks.values()), signals)
        leader.disconnect()
        for rank in leader.ranks:
            remove_if_empty(spec.folder.stack_file(name_of(rank)))
        board.close()


class Leader:
    """Rank 0 of a run."""

    def __init__(
        self, run: Run, monitor: Monitor, view: View, signals: Signals, board: Board, supervisor: Supervisor
    ) -> None:
        self._run, self._monitor, self._view, self._signals = run, monitor, view, signals
        self._board, self._supervisor = board, supervisor
        self.ranks: dict[int, BaseProcess] = {}
        """The processes of other ranks that were started here."""
        self._hosts: dict[int, str] = {}
        self._writers: dict[int, RecordWriter] = {}
        self._read: dict[int, int] = {}
        self._exchanges: Exchanges | None = None
        self._looked_at = 0.0

    def start_ranks(self) -> None:
        """Start the other ranks on this machine."""
        context = start_context(self._run.spec.page)
        for rank in range(1, self._board.size):
            seat = Seat(self._run.spec, self._board.port)
            self.ranks[rank] = start_child(context, rank_process, seat, rank)
            self._hosts[rank] = socket.gethostname()

    def lead(self) -> Outcome:
        """Set up all ranks, work, and let the evaluator finish. Raises RanksLost."""
        run, board, clock, store = self._run, self._board, self._run.handles.clock, self._run.handles.store
        if board.get("hello/0") is None:
            greet(board, [])
        hellos = await_hellos(board, self._see_that_all_live)
        self._hosts = {rank: hello["host"] for rank, hello in hellos.items()}
        places = {rank: (hello["host"], hello["pid"]) for rank, hello in hellos.items()}
        beginning = Beginning(run.spec, clock.steps, clock.seconds, store.counts(), places)
        board.put("answer", pickle.dumps(beginning))
        self._exchanges = Exchanges(board, run.spec.config.collective_timeout_seconds, self._signals)
        equalise(run.handles, self._exchanges, board.rank, beginning)
        connect(run.handles, self._exchanges)
        with contextlib.ExitStack() as stack:
            self._writers = {rank: RecordWriter(run.spec.folder.worker_file(rank)) for rank in range(1, board.size)}
            roles = [stack.enter_context(contextlib.closing(build_worker(run, 0)))]
            if run.handles.experience is not None:
                roles.append(stack.enter_context(contextlib.closing(build_learner(run))))
            if (outcome := self._await_ready()) is not None:
                return outcome
            self._begin()
            step = Step(run, self._exchanges, self._signals)
            for _ in take_turns(roles):
                step.after_update()
                if self._signals.urgent:
                    raise Interrupted
                if (outcome := self._look()) is not None:
                    return outcome
        return self._end()

    def explain(self, error: RanksLost) -> Outcome:
        """Which rank is lost, and why: it said so itself, its process has ended, or its heartbeat has stopped."""
        self._view.say("ranks are lost; looking for the cause")
        before, deadline = self._board.beats(), time.monotonic() + SILENT_SECONDS
        while time.monotonic() < deadline:
            if (outcome := self._reported_loss()) is not None:
                return outcome
            time.sleep(POLL_SECONDS)
        now, left = self._board.beats(), self._board.each("left")
        others = [rank for rank in range(1, self._board.size) if rank not in left]
        silent = [rank for rank in others if now.get(rank) == before.get(rank)]
        seconds = self._run.spec.config.collective_timeout_seconds
        if silent:
            return failed(f"{self._names(silent)} gave no sign of life any more ({error})")
        late = [rank for rank in others if now[rank][1] < self._board.begun]
        if late:
            return failed(f"{self._names(late)} did not come within {seconds:g} seconds: it hangs")
        return failed(f"an exchange between ranks failed: {error}")

    def collect_last(self) -> None:
        """Write the last rows of other ranks."""
        with contextlib.suppress(RuntimeError):
            self._collect()
        for writer in self._writers.values():
            writer.close()

    def disconnect(self) -> None:
        """Leave the group. Called when the ranks started here are gone, so that no exchange waits for them."""
        if self._exchanges is not None:
            self._exchanges.close()

    def _reported_loss(self) -> Outcome | None:
        """The exception that a rank has reported, or the exit of one that was started here; None if all is well."""
        for rank, value in sorted(self._board.each("cause").items()):
            cause, traceback = json.loads(value)
            if traceback:
                with contextlib.suppress(OSError):
                    self._run.spec.folder.traceback_file(name_of(rank)).write_text(traceback)
            return failed(f"{self._names([rank])} raised {cause}" if traceback else cause, traceback)
        left = self._board.each("left")
        for rank, process in self.ranks.items():
            if process.exitcode is not None and rank not in left:
                return failed(f"{self._names([rank])} {how_it_died(process)}")
        return None

    def _names(self, ranks: Sequence[int]) -> str:
        return " and ".join(f"rank {rank} on {self._hosts.get(rank, 'an unknown host')}" for rank in ranks)

    def _see_that_all_live(self) -> None:
        """Raise RanksLost if a rank is known to be lost, before an exchange would; Interrupted after a signal."""
        if self._signals.first is not None:
            raise Interrupted
        if self._reported_loss() is not None:
            raise RanksLost("a rank is gone")

    def _await_ready(self) -> Outcome | None:
        """Wait until every rank is ready; an Outcome if the run ended before it began."""
        self._board.put("ready/0", "")
        deadline = time.monotonic() + JOIN_SECONDS
        while len(ready := self._board.each("ready")) < self._board.size:
            self._see_that_all_live()
            if time.monotonic() > deadline:
                missing = [rank for rank in range(self._board.size) if rank not in ready]
                return failed(f"{self._names(missing)} was not ready after {JOIN_SECONDS:.0f} seconds")
            time.sleep(POLL_SECONDS)
        return self._supervisor.tend()

    def _begin(self) -> None:
        clock, board = self._run.handles.clock, self._board
        for worker in [*range(board.size), *clock.learners]:
            clock.enter(worker, RUNNING)
        clock.start()
        board.put("go", "")
        self._collect()
        hosts = len(set(self._hosts.values()))
        self._view.say(f"all {board.size} ranks are ready" + (f", on {hosts} hosts" if hosts > 1 else ""))
        for line in self._monitor.begin():
            self._view.say(line)

    def _look(self) -> Outcome | None:
        """What a supervisor does, called between two updates."""
        monitor, now = self._monitor, time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._collect()
            monitor.look_at_evaluations()
            if (outcome := self._supervisor.tend()) is not None:
                return outcome
        if monitor.look():
            self._view.show(monitor.summary)
        accord = self._run.handles.accord
        assert accord is not None
        if accord.wish == NOTHING and monitor.verdict() is not None:
            accord.wish = OVER
        return None

    def _end(self) -> Outcome:
        """All ranks have left after the same update: write their last rows, and wait for the last evaluation."""
        clock, accord = self._run.handles.clock, self._run.handles.accord
        assert accord is not None
        deadline = time.monotonic() + GRACE_SECONDS
        while len(self._board.each("ended")) < self._board.size - 1 and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self._collect()
        for worker in [*range(self._board.size), *clock.learners]:
            clock.enter(worker, ENDED)
        if accord.decided > 0:
            return stopped(accord.decided)
        outcome = finished(self._monitor.verdict() or "total_steps reached")
        return await_last_evaluation(self._supervisor, self._monitor, self._view, self._signals) or outcome

    def _collect(self) -> None:
        """Write the rows that other ranks have sent to their files."""
        for rank, writer in self._writers.items():
            while (row := self._board.take(f"rows/{rank}/{self._read.get(rank, 0)}")) is not None:
                self._read[rank] = self._read.get(rank, 0) + 1
                writer.write(json.loads(row))


# --------------------------------------------------------------------------------------------------------- every rank


def take_turns(roles: Sequence[Role]) -> Iterator[None]:
    """Run the roles of a rank in turn until all have ended; yields after each round."""
    running = list(roles)
    while running:
        running = [role for role in running if next(role.loop, ENDED) is not ENDED]
        if running:
            yield


def connect(handles: Handles, exchanges: Exchanges) -> None:
    """Connect the store, and the experience if there is one, to the transport."""
    cast(Replicas, handles.store).connect(exchanges.reduce)
    if isinstance(handles.experience, Gathered):
        handles.experience.connect(exchanges.gather, exchanges.broadcast)


def equalise(handles: Handles, exchanges: Exchanges, rank: int, beginning: Beginning) -> None:
    """Copy rank 0's initial state to every rank: parameters, statistics, target, moments."""
    store, moments = handles.store, handles.moments
    theta, state, seen = store.snapshot(), store.state(), moments.state()
    for tensor in (theta, *(state[name] for name in sorted(state)), *(seen[name] for name in sorted(seen))):
        exchanges.broadcast(tensor)
    if rank != 0:
        store.restore(theta, state, beginning.counts)
        moments.restore(seen)


class Step:
    """What a rank does after each update, at the same T as all other ranks."""

    def __init__(self, run: Run, exchanges: Exchanges, signals: Signals) -> None:
        config = run.spec.config
        self._moments = run.handles.moments
        self._normalizes = config.normalize_observations or config.normalize_returns
        self._clock, self._accord = run.handles.clock, run.handles.accord
        self._exchanges, self._signals = exchanges, signals
        self._published = -1

    def after_update(self) -> None:
        """Pass a signal on to the next exchange; share moments if T has grown enough since the last time."""
        if self._signals.first is not None and self._accord is not None:
            self._accord.wish = self._signals.first
        steps = self._clock.steps
        if self._normalizes and steps >= GROWTH * self._published:
            assert self._moments.gathered is not None
            self._moments.publish(self._exchanges.share(self._moments.gathered))
            self._published = steps


class Mailbox:
    """A record writer that sends rows to rank 0, which has the run's folder."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Send one row."""
        self._board.put(f"rows/{self._board.rank}/{self._sent}", json.dumps(plain(row), allow_nan=False))
        self._sent += 1

    def close(self) -> None:
        """Nothing is held."""


class NoWriter:
    """A record writer that discards its rows."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Discard one row."""

    def close(self) -> None:
        """Does nothing."""


def rank_process(seat: Seat, rank: int) -> None:
    """The process of a rank that rank 0 has started. It ignores signals: rank 0 decides when to stop."""
    try:
        board = Board("127.0.0.1", seat.port, rank, seat.spec.config.workers)
        greet(board, [])
        code = attend(board, Signals())
    except (RanksLost, RuntimeError):  # rank 0 was lost while this rank started
        code = 1
    if code:
        os._exit(code)


def attend_launched(launch: Launch, words: Sequence[str]) -> int:
    """Run a rank other than 0 that a launcher has started; returns the exit code."""
    try:
        board = board_of(launch)
        greet(board, words)
        with Signals().caught() as signals:
            code = attend(board, signals)
    except (RanksLost, RuntimeError, UsageError) as error:
        print(f"asyncrl: rank {launch.rank} on {socket.gethostname()}: {first_line(error)}", file=sys.stderr)
        code = 1
    leave(code, stuck=code not in (0, 2))  # gloo's threads may wait for a rank that is gone
    return code


def leave(code: int, stuck: bool) -> None:
    """Exit at once if this process is stuck in an exchange; a normal exit would wait for it."""
    if stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def attend(board: Board, signals: Signals) -> int:
    """Run a rank other than 0 when rank 0 says so; returns the exit code. Rank 0 reports its exceptions."""
    board.beat()
    exchanges: Exchanges | None = None
    places: Places = {}
    try:
        word = pickle.loads(wait_for(board, "answer"))
        if isinstance(word, int):
            board.put(f"ended/{board.rank}", "")
            return word
        beginning: Beginning = word
        spec, places = beginning.spec, beginning.places
        exchanges = Exchanges(board, spec.config.collective_timeout_seconds, signals)
        size = sum(int(torch.Size(shape).numel()) for _, shape in spec.layout)
        handles = build_rank_handles(spec, torch.zeros(size), board.rank, beginning.steps, beginning.seconds)
        equalise(handles, exchanges, board.rank, beginning)
        connect(handles, exchanges)
        return _work(Run(spec, handles), board, exchanges, signals)
    except (RanksLost, dist.DistError) as error:
        last_resort = threading.Timer(2 * GRACE_SECONDS, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        _leave(board, error, places)
        return 1
    except Interrupted:
        with contextlib.suppress(RuntimeError):
            board.put(f"left/{board.rank}", "a signal")
        return 128 + cast(int, signals.first)
    except Exception as error:
        text = "".join(format_exception(error))
        with contextlib.suppress(RuntimeError):
            board.put(f"cause/{board.rank}", json.dumps([f"{type(error).__name__}: {error}", text]))
        return 1
    finally:
        board.close()
        if exchanges is not None:
            exchanges.close()


def _work(run: Run, board: Board, exchanges: Exchanges, signals: Signals) -> int:
    """Act and push until all ranks leave; returns the exit code."""
    clock, accord = run.handles.clock, run.handles.accord
    assert accord is not None

    def mailbox(_: Path) -> Mailbox:
        return Mailbox(board)

    with contextlib.ExitStack() as stack:
        roles = [stack.enter_context(contextlib.closing(build_worker(run, board.rank, make_writer=mailbox)))]
        if isinstance(run.handles.experience, Kept):  # its learner's rows would only repeat rank 0's
            learner = build_learner(run, make_writer=lambda _: NoWriter())
            roles.append(stack.enter_context(contextlib.closing(learner)))
        board.put(f"ready/{board.rank}", "")
        wait_for(board, "go")
        _begin_clock(clock, board.size)
        step = Step(run, exchanges, signals)
        for _ in take_turns(roles):
            step.after_update()
    board.put(f"ended/{board.rank}", "")
    return 128 + accord.decided if accord.decided > 0 else 0


def _begin_clock(clock: Clock, size: int) -> None:
    for worker in range(size):
        clock.enter(worker, RUNNING)
    clock.start()


def wait_for(board: Board, key: str) -> bytes:
    """Wait for a message of rank 0. Raises RanksLost if the run is over before it comes."""
    while (value := board.get(key)) is None:
        if board.get("over") is not None:
            raise RanksLost("the run is over")
        time.sleep(POLL_SECONDS)
    return value


def _leave(board: Board, error: Exception, places: Places) -> None:
    """Report that an exchange failed through no fault of this rank; if it is rank 0 that is lost, say so here."""
    speaks = speaks_for_rank_0(board.rank, places)  # asked now, since the others will leave too
    report = InThread(lambda: _report(board, error))  # the board may be behind a broken link, and never answer
    try:
        report.wait(timedelta(seconds=GRACE_SECONDS))
        if report.is_completed():
            return
        trouble = "does not answer: it hangs, or cannot be reached"
    except RuntimeError:
        trouble = "is gone, and the run with it"
    if speaks:
        host = places[0][0] if places else board.host
        print(f"asyncrl: rank 0 on {host} {trouble} ({first_line(error)})", file=sys.stderr, flush=True)
        time.sleep(SILENT_SECONDS)  # ranks that notice it later see that this one lives, and has said so


def _report(board: Board, error: Exception) -> None:
    """Tell rank 0, and return once it has come as far as this rank, or ends the run. Raises RuntimeError if it is gone.

    A rank 0 that hangs in an environment still has its heartbeat, but begins no exchange.
    """
    board.put(f"left/{board.rank}", first_line(error))
    before = board.beats().get(0)
    while board.get("over") is None:
        beat = board.beats().get(0)
        if beat is not None and beat != before and beat[1] >= board.begun:
            return
        time.sleep(POLL_SECONDS)


def speaks_for_rank_0(rank: int, places: Places) -> bool:
    """Whether this rank says that rank 0 is lost: the lowest of its host that lives.

    Hosts cannot ask each other without rank 0, so this is for its host and the next one only.
    """
    if not places:  # rank 0 has not told yet
        return rank == 1
    hosts = list(dict.fromkeys(host for _, (host, _) in sorted(places.items())))
    here = places[rank][0]
    return here in hosts[:2] and not any(lives(places[r][1]) for r in range(1, rank) if places[r][0] == here)


def lives(pid: int) -> bool:
    """Whether a process of this host runs, and is neither stopped nor dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "TtZX"
    except OSError:
        return False
