"""The Python API: train, evaluate and use agents from a program. The commands call what stands below it.

Nothing here reads argv, exits, or prints unless asked to; the process's threads, signal handlers and random numbers are
as before when a call returns.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from asyncrl import pages
from asyncrl.api.playing import Result, load_run, play_run
from asyncrl.api.policy import Policy
from asyncrl.api.resume import AUTO, is_finished, is_resumed, newest
from asyncrl.api.settings import settings_for
from asyncrl.api.training import Settled, carry_out, settle
from asyncrl.backends.launch import launched
from asyncrl.backends.outcome import Signals
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import one_line
from asyncrl.runtime.run import Run as RunToMake
from asyncrl.runtime.terminal import View, make_view
from asyncrl.runtime.threads import one_thread
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder

__all__ = ["Policy", "Result", "Run", "RunFailed", "load", "train"]


class RunFailed(RuntimeError):
    """A run that broke. Its message is the reason; a worker's traceback is attached as a note."""

    def __init__(self, path: Path, reason: str, traceback: str | None) -> None:
        super().__init__(reason)
        self.path = path
        """Folder of the run."""
        self.reason = reason
        self.traceback = traceback
        """Of the process that raised; None if what happened needs none."""
        if traceback:
            self.add_note(traceback)


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    path: Path
    """Its folder."""
    state: str
    """finished or stopped."""
    reason: str
    """Why it ended."""
    best_score: float | None
    """Mean of its best evaluation; None if it made none."""

    def evaluate(
        self, episodes: int = 10, seed: int = 0, checkpoint: str = "best", greedy: bool | None = None
    ) -> Result:
        """Play whole episodes with what it has learnt; `greedy` None: as its own evaluations. Raises UsageError."""
        if episodes < 1:
            raise UsageError(f"episodes must be at least 1, got {episodes}")
        with _undisturbed():
            return play_run(load_run(self.path, checkpoint, seed, greedy), episodes)

    def evaluations(self) -> list[dict[str, Any]]:
        """The rows of its own evaluations, oldest first (docs/metrics.md, evaluator.jsonl)."""
        return read_records(RunFolder(self.path).evaluator_file)


def train(page: str | ModuleType, *, config: RunConfig | None = None, quiet: bool = True, **settings: Any) -> Run:
    """Train, and return when the run has ended.

    `page` is "a3c" or another page of the package, the module of one's own, or its name. `settings` are fields of the
    page's Config, those left out as `python -m asyncrl.a3c` would have them; or `config` has them all, and no preset
    changes them. `quiet` False prints the course of the run.

    Ctrl-C, or another signal that asks to stop, ends the run in order and then goes to who would have got it: Ctrl-C
    raises KeyboardInterrupt. Raises UsageError before anything is made or started, and RunFailed if the run broke.
    """
    module = _module_name(page)
    pages.load(module)
    signals = Signals()
    with _undisturbed():
        settled = _settled(module, config, settings | {"quiet": quiet})
        if settled.config.backend == "collective" and (launch := launched(os.environ)) is not None:
            raise UsageError(
                f"under {launch.by} use the command, python -m asyncrl.{pages.short(module)} --backend collective: "
                "from Python each of its processes would start ranks of its own"
            )
        if is_resumed(settled.config) and AUTO in (settings.get("resume"), config.resume if config else ""):
            path = Path(settled.config.resume)
            if is_finished(path) and not settled.changes:
                return _run_in(path)
        with signals.caught():
            ended = carry_out(settled, signals, lambda run: _begin(settled, run))
    if signals.first is not None:
        signal.raise_signal(signals.first)
    outcome, path = ended.outcome, ended.run.spec.folder.path
    if outcome.state == "failed":
        raise RunFailed(path, outcome.reason, outcome.traceback)
    return Run(path, outcome.state, outcome.reason, ended.summary.best_score)


def load(
    run: Run | str | os.PathLike[str], checkpoint: str = "best", greedy: bool | None = None, seed: int = 0
) -> Policy:
    """What a run has learnt, to act with in a program of one's own.

    `checkpoint` is best, newest or the name of one; `greedy` None is the policy of the run's own evaluations; `seed`
    is that of the actions it draws. Raises UsageError.
    """
    path = run.path if isinstance(run, Run) else Path(run)
    with _undisturbed():
        return Policy(load_run(path, checkpoint, seed, greedy))


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave threads, and torch's random numbers, as they were."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        yield


def _module_name(page: str | ModuleType) -> str:
    if isinstance(page, str):
        return pages.module_of(page)
    if page.__name__ != "__main__":
        return page.__name__
    if page.__spec__ is None:
        raise UsageError("a page must be a module that workers can import: put it into a file of its own")
    return page.__spec__.name


def _settled(module: str, config: RunConfig | None, settings: dict[str, Any]) -> Settled:
    """The run that the settings, or the configuration, describe. Raises UsageError."""
    cls = pages.load(module).Config
    if config is None:
        given = settings_for(cls, settings)
    elif not isinstance(config, cls):
        raise UsageError(f"config is a {type(config).__module__}.Config, {module} takes a {cls.__module__}.Config")
    elif settings.keys() > {"quiet"}:
        raise UsageError("give the settings one by one or a config, not both")
    else:
        given = {"quiet": settings["quiet"]}
    resume = str(given.get("resume", "") if config is None else config.resume)

    def read(default: RunConfig | None) -> RunConfig:
        made: RunConfig = replace(config or default or cls(), **given)
        return made

    settled = settle(module, read, resume)
    if settled.config.resume != AUTO or (path := newest(module, settled.config)) is None:
        return settled
    given["resume"] = str(path)
    return settle(module, read, str(path))


def _begin(settled: Settled, run: RunToMake) -> View:
    view = make_view(settled.config.quiet, f"{pages.short(settled.page)} on {settled.config.env_id}")
    for line in [f"run folder: {run.spec.folder.path}", settled.facts["description"], *settled.changes]:
        view.say(line)
    return view


def _run_in(path: Path) -> Run:
    """The run in a folder, as its status.json has it."""
    folder = RunFolder.open(path)
    try:
        status = read_json(folder.status_file)
        return Run(folder.path, status["state"], status["reason"], status["best_score"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{folder.status_file} cannot be read: {one_line(error)}") from None
