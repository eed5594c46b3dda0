"""Callbacks: objects of the calling program that follow a run, record numbers of their own, save, and stop the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asyncrl.api.training import Ended
from asyncrl.backends.outcome import Signals
from asyncrl.core.errors import UsageError, one_line
from asyncrl.runtime.monitor import NOBODY, Listener, Monitor
from asyncrl.runtime.monitor import Summary as Progress
from asyncrl.storage import checkpoints

if TYPE_CHECKING:
    from asyncrl.runtime.evaluator import Evaluation


@dataclass(frozen=True)
class Episode:
    """A training episode that has ended."""

    worker: int
    """Number of the worker that played it."""
    score: float
    """Its raw return."""
    length: int
    """Its steps."""


class Callback:
    """Follows a run. Derive from it, override what you need, and pass objects to `train(callback=...)`.

    All methods are called in the process that called `train`, one after the other. If one returns False, the run stops
    cleanly, as after `run.stop()`. If one raises, the run stops cleanly and the exception propagates.
    """

    def on_begin(self, run: Running) -> Any:
        """All workers are running."""

    def on_progress(self, run: Running) -> Any:
        """There is new progress: every two seconds, and at the end."""

    def on_episode(self, run: Running, episode: Episode) -> Any:
        """A training episode has ended. Called when its worker's next row of records is read, seconds later."""

    def on_evaluation(self, run: Running, evaluation: Evaluation) -> Any:
        """The policy has been evaluated."""

    def on_end(self, run: Running) -> Any:
        """The run has ended, for whatever reason. Called once if `on_begin` was called."""


class Running:
    """A run as its callbacks see it."""

    def __init__(self, monitor: Monitor, signals: Signals) -> None:
        self._monitor, self._signals = monitor, signals
        self.path: Path = monitor.run.spec.folder.path
        """The run's folder."""
        self.progress: Progress = replace(monitor.summary)
        """The state of the run, at most two seconds old."""
        self.state = "running"
        """running; in `on_end` finished, stopped or failed."""
        self.reason = ""
        """In `on_end`: why the run ended."""

    @property
    def steps(self) -> int:
        """Steps of all workers together, now."""
        return self._monitor.run.handles.clock.steps

    def stop(self, reason: str = "") -> None:
        """Stop the run cleanly, with a last checkpoint; `reason` is recorded as the reason why it ended."""
        self._signals.ask(reason)

    def record(self, name: str, value: float) -> None:
        """Record a number at the current step: in TensorBoard, in trackers, and as an event in supervisor.jsonl.

        Raises UsageError once the run has ended.
        """
        if self.state != "running":
            raise UsageError(f"{name} cannot be recorded: the run has ended, and its records are closed")
        self._monitor.record({name: float(value)})

    def save(self) -> Path | None:
        """Save a checkpoint now, and return its folder. Later ones replace it: copy it to keep it.

        In the middle of a learner's update nothing is saved and None is returned. Raises NotSaved if the disk is full.
        """
        folder = self._monitor.run.spec.folder.checkpoints
        return checkpoints.find(folder)[-1] if self._monitor.save_checkpoint() else None


class _Functions(Callback):
    """The functions `on_evaluation` and `on_progress` of `train`."""

    def __init__(
        self, evaluated: Callable[[Evaluation], Any] | None, progressed: Callable[[Progress], Any] | None
    ) -> None:
        if progressed is not None:
            self.on_progress = lambda run: progressed(run.progress)  # type: ignore[method-assign]
        if evaluated is not None:
            self.on_evaluation = lambda run, evaluation: evaluated(evaluation)  # type: ignore[method-assign]


class Calls:
    """Calls a program's callbacks during its run. If one returns False or raises, the run stops in order."""

    def __init__(
        self,
        signals: Signals,
        callback: Callback | Sequence[Callback] | None,
        on_evaluation: Callable[[Evaluation], Any] | None = None,
        on_progress: Callable[[Progress], Any] | None = None,
        first: Listener = NOBODY,
    ) -> None:
        """`first` hears everything before the callbacks do. Raises UsageError for what is no callback."""
        for name, function in (("on_evaluation", on_evaluation), ("on_progress", on_progress)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} takes a function, got {function!r}")
        self._signals, self._first = signals, first
        self._callbacks = [*_listed(callback), _Functions(on_evaluation, on_progress)]
        self._running: Running | None = None
        self._raised: BaseException | None = None
        self.listener = Listener(self._begun, self._evaluated, self._looked, self._played)
        """For the run's monitor."""

    def end(self, ended: Ended) -> None:
        """The run has ended: call `on_end` of all, and raise what one of them has raised first."""
        raised, self._raised = self._raised, None
        if self._running is not None:
            self._running.state, self._running.reason = ended.outcome.state, ended.outcome.reason
            for callback in self._callbacks:
                self._call(callback, "on_end")
                raised, self._raised = raised or self._raised, None
        if raised is not None:
            raise raised

    def _begun(self, monitor: Monitor) -> None:
        self._first.begun(monitor)
        self._running = Running(monitor, self._signals)
        self._call_all("on_begin")

    def _evaluated(self, evaluation: Evaluation) -> None:
        self._first.evaluated(evaluation)
        self._call_all("on_evaluation", evaluation)

    def _looked(self, progress: Progress) -> None:
        self._first.looked(progress)
        if self._running is not None:
            self._running.progress = progress
        self._call_all("on_progress")

    def _played(self, worker: int, score: float, length: int) -> None:
        self._first.played(worker, score, length)
        self._call_all("on_episode", Episode(worker, score, length))

    def _call_all(self, method: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            self._call(callback, method, *arguments)

    def _call(self, callback: Callback, method: str, *arguments: Any) -> None:
        """Call a method, unless the run has not begun or a callback has raised."""
        run = self._running
        if run is None or self._raised is not None:
            return
        name = method if isinstance(callback, _Functions) else f"{type(callback).__name__}.{method}"
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # it may turn gradients off to play
                result = getattr(callback, method)(run, *arguments)
            if isinstance(result, bool | np.bool_) and not result:
                run.stop(f"{name} returned False")
        except BaseException as error:
            error.add_note(f"raised by the callback {name} at step {run.steps:,}; the run is in {run.path}")
            self._raised = error
            run.stop(f"{name} raised {one_line(error)}")


def _listed(callback: Callback | Sequence[Callback] | None) -> list[Callback]:
    callbacks = [] if callback is None else list(callback) if isinstance(callback, list | tuple) else [callback]
    for one in callbacks:
        if not isinstance(one, Callback):
            kind, cls = ("the class", one) if isinstance(one, type) else ("a", type(one))
            raise UsageError(f"callback takes objects derived from asyncrl.Callback, got {kind} {cls.__name__}")
    return callbacks  # type: ignore[return-value]
