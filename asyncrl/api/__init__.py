"""The Python API: train, evaluate and use agents from a program. The commands call the modules below it.

Nothing here reads argv, exits, or prints unless asked to. A call leaves the process's threads, signal handlers and
random numbers as they were.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.algorithm import Algorithm
from asyncrl.api.background import Training
from asyncrl.api.playing import Result, load_run
from asyncrl.api.policy import Policy
from asyncrl.api.runs import Rows, Run, RunFailed, random_numbers_kept, run_in, run_of
from asyncrl.api.settings import File, asked_for, settings_for
from asyncrl.api.training import carry_out, has_nothing_to_do
from asyncrl.backends.outcome import PROGRAM, Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Listener
from asyncrl.runtime.monitor import Summary as Progress
from asyncrl.runtime.threads import one_thread
from asyncrl.storage.stored import Permission

__all__ = [
    "Evaluation",
    "Policy",
    "Progress",
    "Result",
    "Rows",
    "Run",
    "RunFailed",
    "Training",
    "load",
    "train",
    "training",
]


def train(
    algorithm: str | type[Algorithm] | None = None,
    *,
    config: RunConfig | File | None = None,
    quiet: bool = True,
    trust: bool = False,
    on_evaluation: Callable[[Evaluation], Any] | None = None,
    on_progress: Callable[[Progress], Any] | None = None,
    **settings: Any,
) -> Run:
    """Train, and return when the run has ended.

    `algorithm` is "a3c" or another of the package's names, your own class, or the name of its module. `settings` are
    fields of its Config; the others default as in `python -m asyncrl.a3c`. `config` is a file with settings, like the
    command's `--config`: a run's config.json, its folder, or TOML. It may also name the algorithm, and `settings`
    override it. Or `config` is a complete Config, which no preset changes. With `quiet` False the call prints what the
    command prints. With `trust`, everything is imported that the folder behind `config` or `resume` names, whoever made
    it.

    `on_evaluation` is called with each evaluation, `on_progress` every two seconds. If one returns False, the run stops
    in order. If one raises, the run stops in order and the exception propagates.

    Ctrl-C, or another signal that asks to stop, stops the run in order and is then handled as before the call: Ctrl-C
    raises KeyboardInterrupt. Raises UsageError before anything is created or started, and RunFailed if the run broke.
    """
    signals = Signals()
    calls = _Calls(signals)
    listener = Listener(evaluated=partial(calls, on_evaluation), looked=partial(calls, on_progress))
    with one_thread(), random_numbers_kept():
        asked = asked_for(algorithm, config, quiet, settings, trust)
        settled = asked.settled()
        if has_nothing_to_do(settled, asked.resume):
            return run_in(Path(settled.config.resume))
        with signals.caught():
            ended = carry_out(settled, signals, speaks=not quiet, listener=listener)
    if calls.raised is not None:
        raise calls.raised
    if signals.first not in (None, PROGRAM):
        signal.raise_signal(signals.first)
    return run_of(ended)


class _Calls:
    """Calls a program's functions during its run. If one returns False or raises, the run stops in order."""

    def __init__(self, signals: Signals) -> None:
        self.raised: BaseException | None = None
        self._signals = signals

    def __call__(self, function: Callable[[Any], Any] | None, argument: Any) -> None:
        """Call a function, if there is one and none has raised."""
        if function is None or self.raised is not None:
            return
        try:
            goes_on = function(argument) is not False
        except BaseException as error:
            self.raised, goes_on = error, False
        if not goes_on:
            self._signals.ask()


def load(
    run: Run | str | os.PathLike[str],
    checkpoint: str = "best",
    greedy: bool | None = None,
    seed: int = 0,
    *,
    env_id: str | Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    network: str | Callable[..., Any] | None = None,
    trust: bool = False,
) -> Policy:
    """The policy that a run has learnt, for use in your program.

    `checkpoint` is "best", "newest" or a checkpoint's name; `greedy` None means as in the run's own evaluations; `seed`
    is for sampled actions. `env_id`, `env_kwargs` and `network`, as `train` takes them, replace the run's own, which
    another program may have handed over. What somebody else's folder names is imported only with `trust`. Raises
    UsageError.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    with one_thread(), random_numbers_kept():
        own = {"env_id": env_id, "env_kwargs": env_kwargs, "network": network}
        given = settings_for(RunConfig, {name: value for name, value in own.items() if value is not None})
        permission = Permission(given, trust)
        return Policy(load_run(path, checkpoint, seed, greedy, permission=permission))
