"""Supervises the processes of a run: replaces those that die, kills those that hang, counts losses.

The parameters are in shared memory and outlive any worker, so a loss costs one rollout. What a replacement cannot fix
ends the run instead: an exception would be raised again, a full disk stays full.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Protocol

from asyncrl.backends.outcome import Outcome, Signals, failed
from asyncrl.backends.processes import (
    KILLS,
    LEAVE_SECONDS,
    dump_stack,
    end,
    end_all,
    end_of,
    remove_if_empty,
    start,
    start_context,
)
from asyncrl.core.errors import UsageError
from asyncrl.runtime.clock import BUILDING, DISK_FAILS, DISK_FULL, ENDED, NOT_FINITE, RAISED, RUNNING, UNKNOWN, Watch
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, Counts, name_of
from asyncrl.runtime.run import Run
from asyncrl.runtime.snapshots import flat_parameters
from asyncrl.storage import checkpoints

BACK_OFF_SECONDS = (1.0, 2.0, 4.0)
"""Pause before a replacement, after the first, second and any further loss within the budget's time."""
BUDGET_SECONDS = 600.0
"""The time in which `--worker-restarts` are counted."""
READY_SECONDS = 300.0
"""Time for a process to build its environments."""
PASSING_ERRORS = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR}
"""Errors of the system that may be over at the next attempt."""


class Restarts:
    """The losses in one place: of a worker, a learner, the evaluator or a host. Too many, and nobody follows."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        """Their times, by the monotonic clock, within the budget's time."""

    def lose(self, budget: int, watch: Watch) -> float | None:
        """Note a loss. Returns the pause before a successor; None if there were more than `budget`."""
        recent = [moment for moment in self.losses if watch.silence(moment) < BUDGET_SECONDS]
        self.losses = [*recent, time.monotonic()]
        if len(self.losses) > budget:
            return None
        return BACK_OFF_SECONDS[min(len(self.losses), len(BACK_OFF_SECONDS)) - 1]


@dataclass
class Slot:
    """The place of a worker, a learner or the evaluator, and its current process."""

    worker: int
    process: BaseProcess | None = None
    incarnation: int = 0
    """Number of earlier processes in this place; each has its own random streams."""
    restarts: Restarts = field(default_factory=Restarts)
    due: float | None = 0.0
    """When to start a process; None: never."""

    @property
    def name(self) -> str:
        """Of the process and of its files."""
        return name_of(self.worker)


class Losses(Protocol):
    """Who is told of losses: a `Monitor`."""

    def note_loss(self, event: str, worker: int, cause: str) -> None:
        """One of those that were at work is "restarted", "gone" for good, or "lost" at the end of the run."""
        ...


class Voice(Protocol):
    """Where lines go that people read: a `View`."""

    def say(self, line: str) -> None:
        """Show one line."""
        ...


class Supervisor:
    """Workers and evaluator of a run. `tend` is called often; it starts and replaces processes, or gives up."""

    def __init__(
        self,
        run: Run,
        monitor: Losses,
        view: Voice,
        work: Callable[[Run, int], None],
        evaluate: Callable[[Run, int], None],
        learn: Callable[[Run, int], None],
        workers: bool = True,
        learners: bool = True,
        evaluator: bool = True,
    ) -> None:
        """Supervises workers, learners and the evaluator, or only some of them if the others are elsewhere."""
        self._run = run
        self._monitor = monitor
        self._view = view
        self._targets = {EVALUATOR: evaluate} | dict.fromkeys(run.handles.clock.learners, learn)
        self._work = work
        self._context = start_context(run.spec.algorithm)
        self.workers = [Slot(worker) for worker in range(run.spec.config.workers if workers else 0)]
        self.learners = [Slot(learner) for learner in (run.handles.clock.learners if learners else ())]
        self.evaluator = Slot(EVALUATOR, due=0.0 if evaluator else None)
        tolerated = (LEAVE_SECONDS, run.spec.config.hang_seconds or LEAVE_SECONDS)
        self._watch = Watch(min(tolerated))
        self._gone: dict[int, str] = {}
        """Of each worker and of a learner that is gone for good, what was the last of it."""

    @property
    def slots(self) -> list[Slot]:
        """All places."""
        return [*self.learners, *self.workers, self.evaluator]

    def sentinels(self) -> list[int]:
        """What becomes ready when one of those at work ends."""
        return [slot.process.sentinel for slot in self.slots if slot.process and slot.process.exitcode is None]

    def all_ended(self) -> bool:
        """Whether no worker or learner is at work, or will be."""
        return all(slot.process is None and slot.due is None for slot in (*self.learners, *self.workers))

    def evaluator_ended(self) -> bool:
        """Whether the evaluator has done its last evaluation, or is lost for good."""
        return self.evaluator.process is None and self.evaluator.due is None

    def fill(self, slot: Slot) -> None:
        """Start a process in an empty place. Raises UsageError if the run cannot begin since that is sure to fail."""
        self._run.handles.clock.enter(slot.worker, BUILDING)
        slot.due = None
        try:
            target = self._targets.get(slot.worker, self._work)
            slot.process = start(self._context, target, self._run, slot.worker, slot.incarnation)
        except (OSError, EOFError) as error:
            what = f"could not be started ({type(error).__name__}: {error})"
            # A fork server that dies while it is asked, or too many processes or files, may be over a second later.
            passes = isinstance(error, EOFError | ConnectionError) or error.errno in PASSING_ERRORS
            if not passes and not self._run.handles.clock.started():
                raise UsageError(f"{slot.name} {what}") from error
            self._lose(slot, what)

    def tend(self) -> Outcome | None:
        """Look after every place once; an Outcome if the run cannot go on."""
        self._watch.look()
        KILLS.look()
        for slot in self.slots:
            if slot.due is None:
                continue
            if slot is not self.evaluator and self._run.handles.clock.finished():
                self._vacate(slot)  # there is nothing left to do
            elif time.monotonic() >= slot.due:
                self.fill(slot)
        ended = [slot for slot in self.slots if slot.process is not None and slot.process.exitcode is not None]
        # An exception explains more than a kill while the run was already breaking up.
        for slot in sorted(ended, key=lambda slot: self._run.handles.clock.cause(slot.worker) != RAISED):
            if (outcome := self._take_leave(slot)) is not None:
                return outcome
        for slot in self.slots:
            if slot.process is None or (trouble := self._trouble_with(slot)) is None:
                continue
            if (outcome := self._end_hanging(slot, trouble)) is not None:
                return outcome
        if self.learners and all(slot.worker in self._gone for slot in self.learners):
            last = self.learners[-1].worker
            return failed(f"the learner is gone for good: it {self._gone[last]}")
        gone = {worker: cause for worker, cause in self._gone.items() if worker >= 0}
        if 2 * len(gone) > len(self.workers):
            worker, cause = list(gone.items())[-1]
            return failed(f"{len(gone)} of {len(self.workers)} workers are gone for good: {name_of(worker)} {cause}")
        return None

    def end(self, signals: Signals) -> None:
        """Ask all processes to exit, kill those that do not, and wait for all."""
        end_all([slot.process for slot in self.slots if slot.process is not None], signals)
        self._mend()
        for slot in self.slots:
            remove_if_empty(self._run.spec.folder.stack_file(slot.name))

    def _take_leave(self, slot: Slot) -> Outcome | None:
        """Handle the end of a process."""
        process = slot.process
        assert process is not None
        clock, spec = self._run.handles.clock, self._run.spec
        if process.exitcode == 0 and clock.phase(slot.worker) == ENDED:
            self._vacate(slot)
            return None
        ended = end_of(process, clock, slot.worker, spec.folder)
        stops = slot is not self.evaluator and spec.config.on_worker_error == "stop"
        if ended.kind in (DISK_FULL, DISK_FAILS, NOT_FINITE) or (ended.kind == RAISED and stops):
            return failed(f"{slot.name} {ended.cause}", ended.traceback if ended.kind == RAISED else None)
        remove_if_empty(spec.folder.stack_file(slot.name))
        self._lose(slot, ended.cause)
        return None

    def _trouble_with(self, slot: Slot) -> str | None:
        """Why a living process must be killed; None if it need not."""
        clock, config = self._run.handles.clock, self._run.spec.config
        phase, silent = clock.phase(slot.worker), self._watch.silence(clock.heartbeat(slot.worker))
        if phase == BUILDING and silent > READY_SECONDS:
            return f"was not ready after {READY_SECONDS:.0f} seconds"
        if phase == RUNNING and config.hang_seconds and silent > config.hang_seconds:
            return f"made no progress for {config.hang_seconds:g} seconds"
        leaves = phase == ENDED or clock.cause(slot.worker) != UNKNOWN
        if leaves and silent > LEAVE_SECONDS:
            return "did not leave at its end"
        return None

    def _end_hanging(self, slot: Slot, trouble: str) -> Outcome | None:
        """Save the stack of a process that hangs, and kill it; an Outcome if it has told what ends the run."""
        assert slot.process is not None
        file = self._run.spec.folder.stack_file(slot.name)
        if dump_stack(slot.process, file):
            trouble += f", its stack is in {file.name}"
        clock = self._run.handles.clock
        end(slot.process)
        remove_if_empty(file)
        if clock.cause(slot.worker) != UNKNOWN:
            return self._take_leave(slot)
        if clock.phase(slot.worker) == ENDED:
            self._vacate(slot)
        else:
            self._lose(slot, trouble)
        return None

    def _vacate(self, slot: Slot) -> None:
        """This place stays empty."""
        if slot.process is not None:
            end(slot.process)
            slot.process.close()
        slot.process, slot.due = None, None
        self._run.handles.clock.enter(slot.worker, ENDED)

    def _lose(self, slot: Slot, cause: str) -> None:
        """Note a loss: a successor starts after a pause, unless there were too many."""
        self._vacate(slot)
        if slot in self.learners:
            cause += self._mend()
        slot.incarnation += 1
        budget = self._run.spec.config.worker_restarts
        pause = slot.restarts.lose(budget, self._watch)
        if slot is not self.evaluator and self._run.handles.clock.finished():
            self._tell(slot, cause, "lost", "at the end of the run, nobody follows")
        elif pause is None:
            self._tell(slot, cause, "gone", f"{budget} restarts in {BUDGET_SECONDS / 60:.0f} minutes are its limit")
            if slot is not self.evaluator:
                self._gone[slot.worker] = cause
        else:
            slot.due = time.monotonic() + pause
            # Not ENDED: those who wait for all workers to end must also wait for the successor.
            self._run.handles.clock.enter(slot.worker, BUILDING)
            self._tell(slot, cause, "restarted", f"a successor starts in {pause:g} s")

    def _mend(self) -> str:
        """If the learner died during an update, restore the newest checkpoint and say so.

        Counts stay, and so do moments of observations, which no learner writes. What theta falls back by is lost.
        """
        store, spec = self._run.handles.store, self._run.spec
        if not (len(self.learners) == 1 and store.torn):  # with several it is Hogwild, which any may die in
            return ""
        try:
            checkpoint, _ = checkpoints.load_newest(spec.folder.checkpoints)
        except checkpoints.BadCheckpoint:
            return " within an update, and there is no checkpoint to go back to"
        store.lose(store.updates - checkpoint.updates)
        of_others = (count - own for count, own in zip(store.counts(), store.counts(LEARNER), strict=True))
        store.restore(flat_parameters(checkpoint, spec.layout), checkpoint.tensors, Counts(*of_others))
        return f" within an update; the parameters are those of step {checkpoint.steps} again"

    def _tell(self, slot: Slot, cause: str, event: str, consequence: str) -> None:
        self._monitor.note_loss(event, slot.worker, cause)
        self._view.say(f"{slot.name} {cause}; {consequence}")
