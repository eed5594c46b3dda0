"""Workers as ranks that run in step, on one machine or several, with torch.distributed and gloo.

Rank 0 is the command's own process: it works like the others, and also supervises the run. It starts the other ranks
itself, unless a launcher has (`launch.py`).

Gradient methods reduce gradients (`parameters/replicas.py`); methods with a learner gather rollouts at rank 0 and
broadcast theta (`experience/gathered.py`).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import cast

from asyncrl.algorithm import GRADIENT, IN_STEP
from asyncrl.backends.collective.board import JOIN_SECONDS, POLL_SECONDS, Board, RanksLost, board_of, disagreement
from asyncrl.backends.collective.exchanges import LOOK_SECONDS, Exchanges, Interrupted
from asyncrl.backends.collective.launch import LOOPBACK, Launch
from asyncrl.backends.collective.ranks import beginning_of, connect, rank_process, updates
from asyncrl.backends.collective.ranks import share as share
from asyncrl.backends.local import await_last_evaluation
from asyncrl.backends.outcome import Outcome, Signals, failed, finished, stopped
from asyncrl.backends.processes import Child, end_all, start_context
from asyncrl.backends.supervisor import Supervisor
from asyncrl.catalog import command_of
from asyncrl.config.groups import flag
from asyncrl.core.errors import UsageError
from asyncrl.runtime.agreement import NOTHING, OVER
from asyncrl.runtime.clock import ENDED, LEAVE, RUNNING, polling
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR, name_of
from asyncrl.runtime.roles import build_learner, build_worker
from asyncrl.runtime.run import Run
from asyncrl.storage.records import RecordWriter

SILENT_SECONDS = 3.5
"""A rank without a heartbeat for this long is lost."""


@contextlib.contextmanager
def convened(launch: Launch, words: Sequence[str]) -> Iterator[Board]:
    """Rank 0: wait for all ranks and compare their settings and versions. If the block raises, the ranks leave.

    Raises UsageError for ranks that do not join, or that have other settings or versions than this one.
    """
    board, code = board_of(launch), 1
    try:
        board.greet(words)
        hellos = board.await_hellos()
        for rank, hello in hellos.items():
            if complaint := disagreement(rank, hello, hellos[0]):
                raise UsageError(complaint)
        yield board
        code = 0
    except UsageError:
        code = 2
        raise
    finally:
        with contextlib.suppress(RuntimeError):
            if code or board.get("answer") is None:  # no run was begun, or it ended without a word
                board.put("answer", code)
                board.await_ended()
        board.close()


def run(run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Board | None = None) -> Outcome:
    """Rank 0's part: work, and supervise the run. Without a `meeting` of launched ranks it starts the others itself.

    None of those is left when it returns; ranks of a launcher are told to leave.
    """
    leader = Leader(run, monitor, view, signals, meeting)
    try:
        return leader.lead()
    except RanksLost as error:
        return leader.explain(error)
    except Interrupted:
        return stopped(cast(int, signals.first))
    finally:
        leader.close()


class Leader:
    """Rank 0 of a run."""

    def __init__(self, run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Board | None) -> None:
        self._run, self._monitor, self._view, self._signals = run, monitor, view, signals
        self._secret = secrets.token_bytes(32)
        self._board = meeting or Board(LOOPBACK, 0, 0, run.spec.config.workers, self._secret, serve=True)
        self._launched = meeting is not None
        self._supervisor = Supervisor(run, monitor.note_loss, view.say, [EVALUATOR])
        self._ranks: dict[int, BaseProcess] = {}
        """The processes of other ranks that were started here."""
        self._hosts: dict[int, str] = {}
        self._writers: dict[int, RecordWriter] = {}
        self._read: Counter[int] = Counter()
        """Rows of each rank that were read."""
        self._exchanges: Exchanges | None = None
        self._looked_at = 0.0

    def lead(self) -> Outcome:
        """Set up all ranks, work, and let the evaluator finish. Raises RanksLost."""
        run, board = self._run, self._board
        board.beat(patience=run.spec.config.collective_timeout_seconds)
        if not self._launched:
            self._start_ranks()
        self._supervisor.fill(self._supervisor.slots[0])
        hellos = board.await_hellos(self._see_that_all_live)
        self._hosts = {rank: hello["host"] for rank, hello in hellos.items()}
        board.put("answer", beginning_of(run))
        self._exchanges = Exchanges(board, run.spec.config.collective_timeout_seconds, self._signals)
        connect(run.handles, self._exchanges, 0, run.handles.store.counts(), run.handles.store.lost)
        with contextlib.ExitStack() as stack:
            folder, others = run.spec.folder, range(1, board.size)
            self._writers = {rank: RecordWriter(folder.records_file(name_of(rank))) for rank in others}
            roles = [stack.enter_context(contextlib.closing(build_worker(run, 0)))]
            if run.handles.experience is not None:
                roles.append(stack.enter_context(contextlib.closing(build_learner(run))))
            if (outcome := self._await_ready()) is not None:
                return outcome
            self._begin()
            for _ in updates(run, roles, self._exchanges, self._signals):
                if self._signals.urgent:
                    raise Interrupted
                if (outcome := self._look()) is not None:
                    return outcome
        return self._end()

    def explain(self, error: RanksLost) -> Outcome:
        """Which rank is lost, and why: it said so itself, its process has ended, or its heartbeat has stopped."""
        self._board.notice()
        self._view.say("ranks are lost; looking for the cause")
        before = self._board.beats()
        for _ in polling(SILENT_SECONDS, POLL_SECONDS):
            if (outcome := self._reported_loss()) is not None:
                return outcome
        now, others = self._board.beats(), range(1, self._board.size)
        if silent := [rank for rank in others if now.get(rank) == before.get(rank)]:
            return failed(f"{self._names(silent)} stopped responding ({error})")
        if late := [rank for rank in others if now[rank][1] < self._board.begun]:
            seconds = self._run.spec.config.collective_timeout_seconds
            return failed(f"{self._names(late)} did not join an exchange within {seconds:g} seconds")
        return failed(f"an exchange between ranks failed: {error}")

    def close(self) -> None:
        """End the run: tell the others, write their last rows, and end all processes that were started here."""
        run = self._run
        self._board.notice()
        with contextlib.suppress(RuntimeError):
            self._board.put("over", True)
        with contextlib.suppress(RuntimeError):
            self._collect()
        for rank, writer in self._writers.items():
            writer.close()
            run.handles.clock.note_unwritten(rank, writer.missing)
        run.handles.clock.stop(LEAVE)
        self._supervisor.end(self._signals)
        end_all(list(self._ranks.values()), self._signals, run.spec.folder)
        if self._exchanges is not None:  # now no exchange waits for those that were started here
            self._exchanges.close()
        self._board.close()

    def _start_ranks(self) -> None:
        """Start the other ranks on this machine."""
        self._board.greet([])
        context = start_context(self._run.spec.algorithm)
        for rank in range(1, self._board.size):
            self._ranks[rank] = Child.of(self._run, rank).start(
                context, rank_process, self._run.spec, self._board.port, self._secret, rank
            )
            self._hosts[rank] = socket.gethostname()

    def _reported_loss(self) -> Outcome | None:
        """The exception that a rank has reported, or the exit of one that was started here; None if all is well."""
        folder = self._run.spec.folder
        for rank, (cause, traceback) in sorted(self._board.each("cause").items()):
            folder.write_traceback(name_of(rank), traceback)
            return failed(f"{self._names([rank])} raised {cause}", traceback)
        left = self._board.each("left")
        for rank, process in self._ranks.items():
            if process.exitcode is not None and rank not in left:
                ended = Child.of(self._run, rank).end_of(process)
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
        for _ in polling(JOIN_SECONDS, POLL_SECONDS):
            if not (missing := set(range(1, self._board.size)) - self._board.each("ready").keys()):
                return self._supervisor.tend()
            self._see_that_all_live()
        return failed(f"waited {JOIN_SECONDS:.0f} seconds in vain for {self._names(sorted(missing))}")

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
        agreement = self._run.handles.agreement
        assert agreement is not None
        if agreement.wish == NOTHING and monitor.verdict() is not None:
            agreement.wish = OVER
        return None

    def _end(self) -> Outcome:
        """All ranks have left after the same update: write their last rows, and wait for the last evaluation."""
        clock, agreement = self._run.handles.clock, self._run.handles.agreement
        assert agreement is not None
        self._board.await_ended()
        self._collect()
        for worker in [*range(self._board.size), *clock.learners]:
            clock.enter(worker, ENDED)
        if agreement.decided > 0:
            return stopped(agreement.decided)
        outcome = finished(self._monitor.verdict() or "total_steps reached")
        return await_last_evaluation(outcome, self._supervisor, self._monitor, self._view, self._signals)

    def _collect(self) -> None:
        """Write the rows that other ranks have sent to their files."""
        for rank, writer in self._writers.items():
            while (row := self._board.take(f"rows/{rank}/{self._read[rank]}")) is not None:
                self._read[rank] += 1
                writer.write(row)


def refuse(plan: Plan) -> None:
    """Raise UsageError for methods and settings that ranks in step do not support."""
    config, kind, command = plan.config, plan.method.experience, command_of(plan.algorithm)
    if kind not in (GRADIENT, IN_STEP):
        raise UsageError(
            f"{command} does not wait for its actors, and the ranks of --backend collective wait for each other: "
            "use --backend local or serial"
        )
    if config.reduce == "gradients" and kind == GRADIENT:
        raise UsageError(f"--reduce is for methods with a learner; {command} always reduces gradients")
    for name in ("max_staleness", "max_loss_deviations"):
        if getattr(config, name, 0):
            raise UsageError(f"{flag(name)} is not for --backend collective: all ranks apply each update together")
