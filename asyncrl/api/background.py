"""A run that goes on in the background of the program that began it."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType, TracebackType
from typing import Any, cast

from asyncrl.api.runs import Run, random_numbers_kept, run_in, run_of
from asyncrl.api.settings import Asked, File, asked_for
from asyncrl.api.training import carry_out, has_nothing_to_do
from asyncrl.backends.outcome import Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Summary
from asyncrl.runtime.threads import one_thread


def training(
    page: str | ModuleType | None = None,
    *,
    config: RunConfig | File | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Training:
    """Begin to train in the background, and return when the workers are at work.

    To iterate over what it returns gives each evaluation when it has been made, until the run has ended; its `run` is
    then what `train` would have returned. The arguments and errors are those of `train`. RunFailed is raised where the
    run is waited for.

        with asyncrl.training("ppo", env_id="CartPole-v1") as training:
            for evaluation in training:
                if evaluation["mean"] > 400:
                    break
        print(training.run.best_score)
    """
    return Training(asked_for(page, config, quiet, settings), speaks=not quiet)


class Training(Iterator[Evaluation]):
    """A run that is going on; to iterate over it gives its evaluations as they are made, until it has ended.

    It is kept by a thread of this process, which no signal reaches: `stop`, the end of a `with` block, Ctrl-C while it
    is waited for, and the end of the program end the run in order; so does letting go of this object, as `break` does
    in `for evaluation in asyncrl.training(...)`. Meanwhile the variables that numerical libraries read say one thread.
    """

    def __init__(self, asked: Asked, speaks: bool) -> None:
        """Begin it, and return when its workers are at work. Raises UsageError, and RunFailed if it broke before."""
        self._thread = _Thread(asked, speaks)
        with random_numbers_kept():  # a run draws none of torch's own numbers once it is at work
            self._thread.start()
            with self._stopping_on_interrupt():
                self._thread.at_work.wait()
        if self._thread.over:
            self._thread.result()

    @property
    def progress(self) -> Summary:
        """How it is now, as of at most two seconds ago."""
        return self._thread.progress

    @property
    def run(self) -> Run:
        """The run, once it has ended; waits for that. Raises RunFailed if it broke."""
        with self._stopping_on_interrupt():
            return self._thread.result()

    def stop(self) -> Run:
        """End it in order, with a last checkpoint, and return the run. Raises RunFailed if it broke."""
        self._thread.end()
        return self.run

    def __iter__(self) -> Training:
        return self

    def __next__(self) -> Evaluation:
        with self._stopping_on_interrupt():
            evaluation = self._thread.evaluations.get()
        if evaluation is None:
            self._thread.evaluations.put(None)  # for whoever asks again
            self._thread.result()
            raise StopIteration
        return evaluation

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.end()
        if error is None:
            self._thread.result()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self._thread.end()

    @contextlib.contextmanager
    def _stopping_on_interrupt(self) -> Iterator[None]:
        """Let a Ctrl-C that comes while the program waits end the run as well."""
        try:
            yield
        except KeyboardInterrupt:
            self._thread.end()
            raise


class _Thread(threading.Thread):
    """Keeps the run, and hears of it."""

    def __init__(self, asked: Asked, speaks: bool) -> None:
        # A daemon: at its end Python waits for other threads before it would let us stop the run.
        super().__init__(daemon=True, name="asyncrl-training")
        self.at_work = threading.Event()
        """The workers have begun, or never will."""
        self.evaluations: SimpleQueue[Evaluation | None] = SimpleQueue()
        """None behind the last."""
        self.progress = Summary()
        self._run: Run | None = None
        self._raised: BaseException | None = None
        self._asked, self._speaks = asked, speaks
        self._signals = Signals()
        self.over = False
        atexit.register(self.end)

    def run(self) -> None:
        """From settings to the last status."""
        try:
            with one_thread():
                settled = self._asked.settled()
                if has_nothing_to_do(settled, self._asked.resume):
                    self._run = run_in(Path(settled.config.resume))
                else:
                    self._run = run_of(carry_out(settled, self._signals, self._speaks, self))
        except BaseException as error:
            self._raised = error
        finally:
            self.over = True
            self.evaluations.put(None)
            self.at_work.set()
            atexit.unregister(self.end)

    def end(self) -> None:
        """End the run in order, and wait for that."""
        self._signals.ask()
        self.join()

    def result(self) -> Run:
        """What came of it, once it has ended. Raises what it raised."""
        self.join()
        if self._raised is not None:
            raise self._raised
        return cast(Run, self._run)

    def begun(self) -> None:
        """The workers are at work."""
        self.at_work.set()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Keep it for the program."""
        self.evaluations.put(evaluation)

    def looked(self, summary: Summary) -> None:
        """Keep a copy that stays as it is."""
        self.progress = replace(summary)
