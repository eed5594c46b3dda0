"""Supervises the processes of a run: replaces those that die, kills those that hang, counts losses.

The parameters are in shared memory and outlive any worker, so a loss costs one rollout. What a replacement cannot fix
ends the run instead: an exception would be raised again, a full disk stays full.

Hosts are supervised elsewhere, by the same rules: how often somebody is replaced, after which pause, and who hangs.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess

from asyncrl.backends.outcome import Outcome, Signals, failed
from asyncrl.backends.processes import KILLS, LEAVE_SECONDS, Child, end, end_all, role_process, start_context
from asyncrl.core.errors import UsageError
from asyncrl.runtime.clock import BUILDING, DISK_FAILS, DISK_FULL, ENDED, NOT_FINITE, RAISED, RUNNING, UNKNOWN, Watch
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, Counts
from asyncrl.runtime.run import Run
from asyncrl.storage import checkpoints

BACK_OFF_SECONDS = (1.0, 2.0, 4.0)
"""Pause before a replacement, after the first, second and any further loss within the budget's time."""
BUDGET_SECONDS = 600.0
"""The time in which `--worker-restarts` are counted."""
READY_SECONDS = 300.0
"""Time to begin: for a process to build its environments, for a host to answer for the first time."""
NEVER = math.inf
PASSING_ERRORS = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR}
"""Errors of the system that may be over at the next attempt."""
TROUBLES = {
    BUILDING: "was not ready after {:.0f} seconds",
    RUNNING: "made no progress for {:g} seconds",
    ENDED: "did not exit at the end of the run",
}
"""What is wrong with a process that was silent for too long, by phase."""


def tolerated(phase: int, hang_seconds: float) -> float:
    """Seconds for which one in this phase may give no sign of life; 0 `hang_seconds`: for ever while it works."""
    return {BUILDING: READY_SECONDS, RUNNING: hang_seconds or NEVER, ENDED: LEAVE_SECONDS}.get(phase, NEVER)


@dataclass(eq=False)
class Restartable:
    """The place of a worker, a learner, the evaluator or a host, in which one follows another after a loss."""

    number: int
    incarnation: int = 0
    """Number of earlier ones in this place; each has its own random streams."""
    due: float = 0.0
    """When the place may be filled; NEVER: it is filled, or stays empty."""
    gone: bool = False
    """Whether it stays empty after too many losses."""
    cause: str = ""
    """Of the last loss."""
    losses: list[float] = field(default_factory=list)
    """Their times, by the monotonic clock, within the budget's time."""

    def lose(self, cause: str, budget: int, watch: Watch) -> float | None:
        """Note a loss. Returns the pause before a successor; None if there were more than `budget`: nobody follows."""
        recent = [moment for moment in self.losses if watch.silence(moment) < BUDGET_SECONDS]
        self.losses, self.cause = [*recent, time.monotonic()], cause
        self.gone = len(self.losses) > budget
        pause = NEVER if self.gone else BACK_OFF_SECONDS[min(len(self.losses), len(BACK_OFF_SECONDS)) - 1]
        self.due = time.monotonic() + pause
        return None if self.gone else pause


@dataclass(eq=False, kw_only=True)
class Slot(Restartable):
    """The place of a worker, a learner or the evaluator, and its current process."""

    child: Child
    process: BaseProcess | None = None

    @property
    def ended(self) -> bool:
        """Whether nobody is here, or will be."""
        return self.process is None and self.due == NEVER


class Supervisor:
    """Processes of a run. `tend` is called often; it starts and replaces processes, or gives up."""

    def __init__(
        self, run: Run, note_loss: Callable[[str, int, str], None], say: Callable[[str], None], who: Iterable[int]
    ) -> None:
        """Supervises those workers and learners, and the evaluator if it is among them.

        `note_loss` is told what has happened ("restarted", "gone" for good, or "lost" at the end of the run), to whom,
        and why; `say` shows a line to people.
        """
        self._run, self._note_loss, self._say = run, note_loss, say
        self._context = start_context(run.spec.algorithm)
        self.slots = [Slot(one, child=Child.of(run, one)) for one in who]
        """All places."""
        self.workers = [slot for slot in self.slots if slot.number >= 0]
        self.learners = [slot for slot in self.slots if slot.number <= LEARNER]
        self._watch = Watch(min(LEAVE_SECONDS, run.spec.config.hang_seconds or LEAVE_SECONDS))

    def sentinels(self) -> list[int]:
        """What becomes ready when one of those at work ends."""
        return [slot.process.sentinel for slot in self.slots if slot.process and slot.process.exitcode is None]

    def all_ended(self) -> bool:
        """Whether no worker or learner is at work, or will be."""
        return all(slot.ended for slot in self.slots if slot.number != EVALUATOR)

    def evaluator_ended(self) -> bool:
        """Whether the evaluator has done its last evaluation, or is lost for good."""
        return all(slot.ended for slot in self.slots if slot.number == EVALUATOR)

    def fill(self, slot: Slot) -> None:
        """Start a process in an empty place. Raises UsageError if the run cannot begin since that is sure to fail."""
        clock = self._run.handles.clock
        clock.enter(slot.number, BUILDING)
        slot.due = NEVER
        run = replace(self._run, spec=replace(self._run.spec, incarnation=slot.incarnation))
        try:
            slot.process = slot.child.start(self._context, role_process, run, slot.number)
        except (OSError, EOFError) as error:
            what = f"could not be started ({type(error).__name__}: {error})"
            # A fork server that dies while it is asked, or too many processes or files, may be over a second later.
            passes = isinstance(error, EOFError | ConnectionError) or error.errno in PASSING_ERRORS
            if not passes and not clock.started():
                raise UsageError(f"{slot.child.name} {what}") from error
            self._lose(slot, what)

    def tend(self) -> Outcome | None:
        """Look after every place once; an Outcome if the run cannot go on."""
        self._watch.look()
        KILLS.look()
        for slot in self.slots:
            if slot.due == NEVER:
                continue
            if self._over(slot):
                self._close(slot)  # there is nothing left to do
            elif time.monotonic() >= slot.due:
                self.fill(slot)
        ended = [slot for slot in self.slots if slot.process is not None and slot.process.exitcode is not None]
        # An exception explains more than a kill while the run was already breaking up.
        for slot in sorted(ended, key=lambda slot: self._run.handles.clock.cause(slot.number) != RAISED):
            if (outcome := self._note_end(slot)) is not None:
                return outcome
        for slot in self.slots:
            if slot.incarnation and self._run.handles.clock.phase(slot.number) == BUILDING and self._over(slot):
                self._close(slot)  # a successor that comes too late
            if slot.process is None or (trouble := self._trouble_with(slot)) is None:
                continue
            if (outcome := self._end_hanging(slot, slot.process, trouble)) is not None:
                return outcome
        return self._too_many_gone()

    def end(self, signals: Signals) -> None:
        """Ask all processes to exit, kill those that do not, and wait for all."""
        processes = [slot.process for slot in self.slots if slot.process is not None]
        end_all(processes, signals, self._run.spec.folder)
        self._restore_if_torn()

    def _over(self, slot: Slot) -> bool:
        """Whether nobody needs to follow here, because the run is at its end. The evaluator has its last one to do."""
        return slot.number != EVALUATOR and self._run.handles.clock.finished()

    def _too_many_gone(self) -> Outcome | None:
        if self.learners and all(slot.gone for slot in self.learners):
            return failed(f"the learner failed too often: it {self.learners[-1].cause}")
        gone = sorted((slot for slot in self.workers if slot.gone), key=lambda slot: slot.losses[-1])
        if 2 * len(gone) > len(self.workers):
            last = f"{gone[-1].child.name} {gone[-1].cause}"
            return failed(f"{len(gone)} of {len(self.workers)} workers failed too often: {last}")
        return None

    def _note_end(self, slot: Slot) -> Outcome | None:
        """Handle the end of a process."""
        assert slot.process is not None
        clock, spec = self._run.handles.clock, self._run.spec
        ended = slot.child.end_of(slot.process)
        # The evaluator's environments may crash when they are closed, after its last evaluation.
        is_done = slot.process.exitcode == 0 or (slot.number == EVALUATOR and ended.kind == UNKNOWN)
        if is_done and clock.phase(slot.number) == ENDED:
            self._close(slot)
            return None
        stops = slot.number != EVALUATOR and spec.config.on_worker_error == "stop"
        if ended.kind in (DISK_FULL, DISK_FAILS, NOT_FINITE) or (ended.kind == RAISED and stops):
            return failed(f"{slot.child.name} {ended.cause}", ended.traceback if ended.kind == RAISED else None)
        self._lose(slot, ended.cause)
        return None

    def _trouble_with(self, slot: Slot) -> str | None:
        """Why a living process must be killed; None if it need not."""
        clock = self._run.handles.clock
        phase = ENDED if clock.cause(slot.number) != UNKNOWN else clock.phase(slot.number)
        limit = tolerated(phase, self._run.spec.config.hang_seconds)
        return TROUBLES[phase].format(limit) if self._watch.silence(clock.heartbeat(slot.number)) > limit else None

    def _end_hanging(self, slot: Slot, process: BaseProcess, trouble: str) -> Outcome | None:
        """Save the stack of a process that hangs, and kill it; an Outcome if it has told what ends the run."""
        if (file := slot.child.stack_of(process)) is not None:
            trouble += f", its stack is in {file}"
        end(process)
        clock = self._run.handles.clock
        if clock.cause(slot.number) != UNKNOWN:
            return self._note_end(slot)
        if clock.phase(slot.number) == ENDED:
            self._close(slot)
        else:
            self._lose(slot, trouble)
        return None

    def _close(self, slot: Slot) -> None:
        """This place stays empty."""
        if slot.process is not None:
            end(slot.process)
            slot.process.close()
        slot.process, slot.due = None, NEVER
        self._run.handles.clock.enter(slot.number, ENDED)

    def _lose(self, slot: Slot, cause: str) -> None:
        """Note a loss: a successor starts after a pause, unless there were too many."""
        if slot in self.learners:  # before others see that it has ended, and evaluate theta
            cause += self._restore_if_torn()
        self._close(slot)
        slot.incarnation += 1
        budget = self._run.spec.config.worker_restarts
        if self._over(slot):
            event, consequence = "lost", "the run is ending, so it is not replaced"
        elif (pause := slot.lose(cause, budget, self._watch)) is None:
            event, consequence = "gone", f"its limit is {budget} restarts within {BUDGET_SECONDS / 60:.0f} minutes"
        else:
            event, consequence = "restarted", f"a replacement starts in {pause:g} s"
            # Not ENDED: those who wait for all workers to end must also wait for the successor.
            self._run.handles.clock.enter(slot.number, BUILDING)
        self._note_loss(event, slot.number, cause)
        self._say(f"{slot.child.name} {cause}; {consequence}")

    def _restore_if_torn(self) -> str:
        """If the learner died during an update, restore the newest checkpoint and say so.

        Counts stay, and so do moments of observations, which no learner writes. What theta falls back by is lost.
        """
        store, spec = self._run.handles.store, self._run.spec
        if not store.torn:
            return ""
        from asyncrl.backends.restoring import flat_parameters

        try:
            checkpoint, _ = checkpoints.load_newest(spec.folder.checkpoints, set_aside=True)
        except checkpoints.BadCheckpoint:
            return " during an update, and there is no checkpoint to restore"
        store.lose(store.updates - checkpoint.updates)
        of_others = (count - own for count, own in zip(store.counts(), store.counts(LEARNER), strict=True))
        store.restore(flat_parameters(checkpoint, spec.layout), checkpoint.tensors, Counts(*of_others))
        return f" during an update; the parameters of step {checkpoint.steps} are restored"
