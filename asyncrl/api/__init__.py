"""The Python API: train, evaluate and use agents from a program. The commands call the modules below it.

Nothing here reads argv, exits, or prints unless asked to; the process's threads, signal handlers and random numbers are
as before when a call returns.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from asyncrl.api.background import Training
from asyncrl.api.listening import Hooks
from asyncrl.api.playing import Result, load_run
from asyncrl.api.policy import Policy
from asyncrl.api.runs import Rows, Run, RunFailed, random_numbers_kept, run_in, run_of
from asyncrl.api.settings import File, asked_for
from asyncrl.api.training import carry_out, has_nothing_to_do
from asyncrl.backends.outcome import PROGRAM, Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.runtime.evaluator import Evaluation
from asyncrl.runtime.monitor import Summary as Progress
from asyncrl.runtime.threads import one_thread

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
    page: str | ModuleType | None = None,
    *,
    config: RunConfig | File | None = None,
    quiet: bool = True,
    on_evaluation: Callable[[Evaluation], Any] | None = None,
    on_progress: Callable[[Progress], Any] | None = None,
    **settings: Any,
) -> Run:
    """Train, and return when the run has ended.

    `page` is "a3c" or another page of the package, the module of one's own, or its name. `settings` are fields of the
    page's Config, those left out as `python -m asyncrl.a3c` would have them. `config` is a file with settings, as the
    command's `--config` takes it: a run's config.json, its folder, or TOML. `settings` count more than the file, which
    may also name the page. Or `config` is a Config that has all settings, and no preset changes them. `quiet` False
    prints what the command prints.

    `on_evaluation` is called with each evaluation, `on_progress` every two seconds. One that returns False ends the run
    in order, and so does one that raises: the exception then goes on.

    Ctrl-C, or another signal that asks to stop, ends the run in order and then goes to who would have got it: Ctrl-C
    raises KeyboardInterrupt. Raises UsageError before anything is made or started, and RunFailed if the run broke.
    """
    signals = Signals()
    hooks = Hooks(signals, on_evaluation, on_progress)
    with one_thread(), random_numbers_kept():
        asked = asked_for(page, config, quiet, settings)
        settled = asked.settled()
        if has_nothing_to_do(settled, asked.resume):
            return run_in(Path(settled.config.resume))
        with signals.caught():
            ended = carry_out(settled, signals, speaks=not quiet, listener=hooks)
    hooks.raise_what_they_raised()
    if signals.first not in (None, PROGRAM):
        signal.raise_signal(signals.first)
    return run_of(ended)


def load(
    run: Run | str | os.PathLike[str], checkpoint: str = "best", greedy: bool | None = None, seed: int = 0
) -> Policy:
    """The policy that a run has learnt, to act with in your program.

    `checkpoint` is best, newest or the name of one; `greedy` None is the policy of the run's own evaluations; `seed` is
    that of the actions it draws. Raises UsageError.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    with one_thread(), random_numbers_kept():
        return Policy(load_run(path, checkpoint, seed, greedy))
