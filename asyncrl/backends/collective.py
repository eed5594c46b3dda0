"""Workers as ranks that run in step, on one machine or several, with torch.distributed and gloo.

Rank 0 is the command's own process: it works like the others, and also supervises the run. It starts the other ranks
itself, unless a launcher has (`backends/launch.py`).

Gradient methods reduce gradients (`parameters/replicas.py`); methods with a learner gather rollouts at rank 0 and
broadcast theta (`experience/gathered.py`).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import cast

from asyncrl.algorithm import GRADIENT, IN_STEP
from asyncrl.backends.group import (
    GRACE_SECONDS,
    JOIN_SECONDS,
    LOOK_SECONDS,
    POLL_SECONDS,
    SILENT_SECONDS,
    Board,
    Exchanges,
    Interrupted,
    RanksLost,
    await_hellos,
    board_of,
    disagreement,
    greet,
)
from asyncrl.backends.launch import LOOPBACK, Launch
from asyncrl.backends.local import await_last_evaluation, evaluator_process, learner_process, worker_process
from asyncrl.backends.outcome import Outcome, Signals, failed, finished, stopped
from asyncrl.backends.processes import end_all, end_of, remove_if_empty, start_child, start_context
from asyncrl.backends.ranks import Beginning, Seat, Step, connect, equalise, rank_process, take_turns
from asyncrl.backends.ranks import share as share
from asyncrl.backends.supervisor import Supervisor
from asyncrl.catalog import command_of
from asyncrl.config.groups import flag
from asyncrl.core.errors import UsageError
from asyncrl.runtime.accord import NOTHING, OVER
from asyncrl.runtime.clock import ENDED, LEAVE, RUNNING, Watch
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import name_of
from asyncrl.runtime.run import Run, build_learner, build_worker
from asyncrl.runtime.terminal import View
from asyncrl.storage.records import RecordWriter


@dataclass(frozen=True)
class Meeting:
    """Rank 0's view of ranks that a launcher has started."""

    launch: Launch
    board: Board

    def dissolve(self, code: int) -> None:
        """Tell the other ranks to leave with this exit code, and wait for them, since they need the board."""
        self.board.put("answer", code)
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


def run(run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Meeting | None = None) -> Outcome:
    """Rank 0's part: work, and supervise the run. Without a `meeting` it starts the other ranks itself.

    None of those is left when it returns; ranks of a launcher are told to leave.
    """
    spec, size = run.spec, run.spec.config.workers
    secret = secrets.token_bytes(32)
    board = meeting.board if meeting else Board(LOOPBACK, 0, 0, size, secret, serve=True)
    supervisor = Supervisor(
        run, monitor, view, worker_process, evaluator_process, learner_process, workers=False, learners=False
    )  # fmt: skip
    leader = Leader(run, monitor, view, signals, board, supervisor)
    try:
        board.beat()
        if meeting is None:
            leader.start_ranks(secret)
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

    def start_ranks(self, secret: bytes) -> None:
        """Start the other ranks on this machine."""
        context = start_context(self._run.spec.algorithm)
        for rank in range(1, self._board.size):
            seat = Seat(self._run.spec, self._board.port, secret)
            self.ranks[rank] = start_child(context, rank_process, seat, rank, self._run.handles.clock)
            self._hosts[rank] = socket.gethostname()

    def lead(self) -> Outcome:
        """Set up all ranks, work, and let the evaluator finish. Raises RanksLost."""
        run, board = self._run, self._board
        if board.get("hello/0") is None:
            greet(board, [])
        hellos = await_hellos(board, self._see_that_all_live)
        self._hosts = {rank: hello["host"] for rank, hello in hellos.items()}
        places = {rank: (hello["host"], hello["pid"]) for rank, hello in hellos.items()}
        beginning = Beginning.of(run, places)
        board.put("answer", beginning.to_plain())
        self._exchanges = Exchanges(board, run.spec.config.collective_timeout_seconds, self._signals)
        equalise(run.handles, self._exchanges, board.rank, beginning.counts)
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
        before, watch, began = self._board.beats(), Watch(SILENT_SECONDS), time.monotonic()
        left: dict[int, str] = {}
        while watch.silence(began) < SILENT_SECONDS:
            if (outcome := self._reported_loss()) is not None:
                return outcome
            if len(left) < len(left := left | self._board.each("left")):
                began = time.monotonic()  # one that has just left gets as long to confirm that it hears this rank
            time.sleep(POLL_SECONDS)
        now, heard = self._board.beats(), self._board.each("heard")
        others = [rank for rank in range(1, self._board.size) if rank not in left]
        silent = [rank for rank in others if now.get(rank) == before.get(rank)]
        deaf = [rank for rank in left if rank not in heard]
        seconds = self._run.spec.config.collective_timeout_seconds
        if silent:
            return failed(f"{self._names(silent)} gave no sign of life any more ({error})")
        if deaf:
            why = "the link is cut in one direction, or rank 0 was stopped"
            return failed(f"{self._names(deaf)} heard nothing of rank 0 any more: {why} ({error})")
        late = [rank for rank in others if now[rank][1] < self._board.begun]
        if late:
            return failed(f"{self._names(late)} did not come within {seconds:g} seconds: it hangs")
        return failed(f"an exchange between ranks failed: {error}")

    def collect_last(self) -> None:
        """Write the last rows of other ranks."""
        with contextlib.suppress(RuntimeError):
            self._collect()
        for rank, writer in self._writers.items():
            writer.close()
            self._run.handles.clock.note_unwritten(rank, writer.missing)

    def disconnect(self) -> None:
        """Leave the group. Called when the ranks started here are gone, so that no exchange waits for them."""
        if self._exchanges is not None:
            self._exchanges.close()

    def _reported_loss(self) -> Outcome | None:
        """The exception that a rank has reported, or the exit of one that was started here; None if all is well."""
        for rank, value in sorted(self._board.each("cause").items()):
            cause, traceback = value
            if traceback:
                with contextlib.suppress(OSError):
                    self._run.spec.folder.traceback_file(name_of(rank)).write_text(traceback)
            return failed(f"{self._names([rank])} raised {cause}" if traceback else cause, traceback)
        left = self._board.each("left")
        for rank, process in self.ranks.items():
            if process.exitcode is not None and rank not in left:
                ended = end_of(process, self._run.handles.clock, rank, self._run.spec.folder)
                return failed(f"{self._names([rank])} {ended.cause}", ended.traceback)
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
        self._board.put("ready/0", True)
        watch, began = Watch(JOIN_SECONDS), time.monotonic()
        while len(ready := self._board.each("ready")) < self._board.size:
            self._see_that_all_live()
            if watch.silence(began) > JOIN_SECONDS:
                missing = [rank for rank in range(self._board.size) if rank not in ready]
                return failed(f"{self._names(missing)} was not ready after {JOIN_SECONDS:.0f} seconds")
            time.sleep(POLL_SECONDS)
        return self._supervisor.tend()

    def _begin(self) -> None:
        clock, board = self._run.handles.clock, self._board
        for worker in [*range(board.size), *clock.learners]:
            clock.enter(worker, RUNNING)
        clock.start()
        board.put("go", True)
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
        watch, began = Watch(GRACE_SECONDS), time.monotonic()
        while len(self._board.each("ended")) < self._board.size - 1 and watch.silence(began) < GRACE_SECONDS:
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
                writer.write(row)


def refuse(plan: Plan) -> None:
    """Raise UsageError for methods and settings that ranks in step do not support."""
    config, kind, command = plan.config, plan.method.experience, command_of(plan.algorithm)
    if kind not in (GRADIENT, IN_STEP):
        raise UsageError(
            f"{command} does not wait for its actors, and the ranks of --backend collective wait for each other: it "
            "runs with --backend local and serial"
        )
    if config.reduce == "gradients" and kind == GRADIENT:
        raise UsageError(f"--reduce says where a learner learns; {command} reduces gradients in any case")
    for name in ("max_staleness", "max_loss_deviations"):
        if getattr(config, name, 0):
            raise UsageError(f"{flag(name)} is not for --backend collective: all ranks make each update together")
