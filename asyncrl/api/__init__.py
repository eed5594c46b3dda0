"""The Python API: train, evaluate and use agents from a program. The commands call the modules below it.

Nothing here reads argv, exits, or prints unless asked to. A call leaves the process's threads, signal handlers and
random numbers as they were.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asyncrl.algorithm import Algorithm
from asyncrl.api.request import File, refuse_launcher, request_for
from asyncrl.api.runs import Run, random_numbers_kept, run_of
from asyncrl.api.training import carry_out
from asyncrl.backends.outcome import PROGRAM, Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.runtime.monitor import NOBODY
from asyncrl.runtime.threads import one_thread

if TYPE_CHECKING:
    from asyncrl.api.callbacks import Callback
    from asyncrl.runtime.evaluator import Evaluation
    from asyncrl.runtime.monitor import Summary as Progress


def train(
    algorithm: str | type[Algorithm] | None = None,
    *,
    config: RunConfig | File | None = None,
    quiet: bool = True,
    trust: bool = False,
    callback: Callback | Sequence[Callback] | None = None,
    on_evaluation: Callable[[Evaluation], Any] | None = None,
    on_progress: Callable[[Progress], Any] | None = None,
    **settings: Any,
) -> Run:
    """Train, and return when the run has ended.

    `algorithm` is "a3c" or another of the package's names, your own class, or the name of its module. `settings` are
    fields of its Config; the others default as in `python -m asyncrl.a3c`. `config` is a file with settings, like the
    command's `--config`: a run's config.json, its folder, or TOML. It may also name the algorithm, and `settings`
    override it. `config` may also be a complete Config, which no preset changes. With `quiet` False the call prints
    what the command prints. With `trust`, all code named by the folder behind `config` or `resume` is imported, whoever
    created that folder.

    `callback` is an `asyncrl.Callback` or a list of them. `on_evaluation` is called with each evaluation, `on_progress`
    every two seconds. If one returns False, the run stops cleanly. If one raises, the run stops cleanly and the
    exception propagates.

    Ctrl-C, or another signal that asks to stop, stops the run cleanly and is then handled as before the call: Ctrl-C
    raises KeyboardInterrupt. Raises UsageError before anything is created or started, and RunFailed if the run broke.
    """
    signals, calls = Signals(), None
    if any(given is not None for given in (callback, on_evaluation, on_progress)):
        from asyncrl.api.callbacks import Calls

        calls = Calls(signals, callback, on_evaluation, on_progress)
    with one_thread(), random_numbers_kept():
        request = request_for(algorithm, config, settings, trust, quiet)
        resolved = request.resolved()
        refuse_launcher(resolved)
        if request.has_nothing_to_do(resolved):
            return Run.open(resolved.config.resume)
        with signals.caught():
            listener = calls.listener if calls else NOBODY
            ended = carry_out(resolved, signals, speaks="" if quiet else "python", listener=listener)
    if calls is not None:
        calls.end(ended)
    if signals.first not in (None, PROGRAM):
        signal.raise_signal(signals.first)
    return run_of(ended)
