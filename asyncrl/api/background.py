"""A run in the background of the program that started it."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal

from asyncrl.algorithm import Algorithm
from asyncrl.api.callbacks import Callback, Calls
from asyncrl.api.request import File, Request, refuse_launcher, request_for
from asyncrl.api.runs import Run, random_numbers_kept, run_of
from asyncrl.api.training import carry_out
from asyncrl.backends.outcome import Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Listener, Summary
from asyncrl.runtime.threads import one_thread


def training(
    algorithm: str | type[Algorithm] | None = None,
    *,
    config: RunConfig | File | None = None,
    quiet: bool = True,
    trust: bool = False,
    callback: Callback | Sequence[Callback] | None = None,
    **settings: Any,
) -> Training:
    """Start to train in the background, and return when the workers are running.

    Iterate over the result to get each evaluation as it finishes, until the run has ended; its `run` is then what
    `train` would have returned. Arguments and errors are those of `train`. RunFailed is raised where you wait for the
    run, as is any exception from a callback; callbacks are called in the thread that supervises the run.

        with asyncrl.training("ppo", env_id="CartPole-v1") as training:
            for evaluation in training:
                if evaluation["mean"] > 400:
                    break
        print(training.run.best_score)
    """
    request = request_for(algorithm, config, settings, trust, quiet)
    return Training(_Thread(request, "" if quiet else "python", callback))


class Training(Iterator[Evaluation]):
    """A run in the background. Iterating over it yields its evaluations as they are made, until the run has ended.

    A thread of this process supervises the run; no signal reaches it. The run stops cleanly on `stop`, at the end of a
    `with` block, on Ctrl-C while you wait for it, at the end of the program, and when this object is deleted, for
    example after `break` in `for evaluation in asyncrl.training(...)`. During the run the environment variables of
    numerical libraries ask for one thread.
    """

    def __init__(self, thread: _Thread) -> None:
        """Start the run, and return when its workers are running. Raises UsageError, or RunFailed if it breaks."""
        self._thread = thread
        with random_numbers_kept():  # a run uses torch's global generator only until its workers are running
            self._thread.start()
            with self._waiting():
                self._thread.at_work.wait()
        if self._thread.ended.done():
            self._thread.ended.result()

    @property
    def progress(self) -> Summary:
        """The state of the run, at most two seconds old."""
        return self._thread.progress

    @property
    def run(self) -> Run:
        """Wait for the end of the run, and return it. Raises RunFailed if it broke."""
        with self._waiting():
            return self._thread.ended.result()

    def stop(self) -> Run:
        """Stop the run cleanly, with a last checkpoint, and return it. Raises RunFailed if it broke."""
        self._thread.end()
        return self.run

    def __next__(self) -> Evaluation:
        with self._waiting():
            evaluation = self._thread.evaluations.get()
        if evaluation is None:
            self._thread.evaluations.put(None)  # for the next call
            self._thread.ended.result()
            raise StopIteration
        return evaluation

    def __enter__(self) -> Training:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.end()
        if error is None:
            self._thread.ended.result()

    def __del__(self) -> None:
        self._thread.end()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Stop the run on a Ctrl-C while the program waits for it. Raises UsageError in the run's own thread."""
        if threading.current_thread() is self._thread:
            raise UsageError("a callback cannot wait for its own run: use run.stop(), or return False")
        try:
            yield
        except KeyboardInterrupt:
            self._thread.end()
            raise


class _Thread(threading.Thread):
    """The thread that supervises the run."""

    def __init__(
        self, request: Request, speaks: Literal["", "python"], callback: Callback | Sequence[Callback] | None
    ) -> None:
        # A daemon: for other threads Python waits at its exit, before it would let us stop the run.
        super().__init__(daemon=True, name="asyncrl-training")
        self.at_work = threading.Event()
        """Set when the workers are running, or never will be."""
        self.evaluations: SimpleQueue[Evaluation | None] = SimpleQueue()
        """The evaluations of the run, then None."""
        self.progress = Summary()
        self.ended: Future[Run] = Future()
        """The run, or what it raised."""
        self._request, self._speaks = request, speaks
        self._signals = Signals()
        listener = Listener(lambda _: self.at_work.set(), self.evaluations.put, self._keep)
        self._calls = Calls(self._signals, callback, first=listener)
        atexit.register(self.end)

    def run(self) -> None:
        """Carry the run out, from settings to the last status."""
        try:
            with one_thread():
                resolved = self._request.resolved()
                refuse_launcher(resolved)
                if self._request.has_nothing_to_do(resolved):
                    run = Run.open(resolved.config.resume)
                else:
                    ended = carry_out(resolved, self._signals, self._speaks, self._calls.listener)
                    self._calls.end(ended)
                    run = run_of(ended)
            self.ended.set_result(run)
        except BaseException as error:
            self.ended.set_exception(error)
        finally:
            self.evaluations.put(None)
            self.at_work.set()
            atexit.unregister(self.end)

    def end(self) -> None:
        """Stop the run in order, and wait until it has ended, except in this thread itself."""
        self._signals.ask()
        if threading.current_thread() is not self:
            self.join()

    def _keep(self, summary: Summary) -> None:
        self.progress = summary
