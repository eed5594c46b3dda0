"""Runs that have ended, and their records, for programs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from asyncrl.api.training import Ended
from asyncrl.core.errors import UsageError
from asyncrl.runtime.seeding import GLOBAL_GENERATOR
from asyncrl.runtime.threads import one_thread
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder, read_status

if TYPE_CHECKING:
    from asyncrl.api.playing import Result
    from asyncrl.runtime.evaluator import Evaluation

RowT = TypeVar("RowT")


class RunFailed(RuntimeError):
    """A run that broke. Its message is the reason; a worker's traceback is attached as a note."""

    def __init__(self, path: Path, reason: str, traceback: str | None) -> None:
        super().__init__(reason)
        self.path = path
        """Folder of the run."""
        self.reason = reason
        self.traceback = traceback
        """Traceback of the process that raised; None if the reason says it all."""
        if traceback:
            self.add_note(traceback)

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.reason, self.traceback)  # a pool's process may have raised it


class Rows(list[RowT]):
    """Rows of records: a list of dictionaries."""

    def frame(self) -> Any:
        """The rows as a pandas.DataFrame, with a column for each key. Raises UsageError without pandas."""
        from asyncrl.core.extras import imported

        return imported("pandas", "a frame needs pandas", package="pandas").DataFrame(list(self))


@dataclass(frozen=True)
class Run:
    """A run and its records."""

    path: Path
    """The run's folder."""
    state: str
    """finished or stopped; of a run that was opened also starting, running, failed or died."""
    reason: str
    """Why it ended."""
    best_score: float | None
    """Mean of its best evaluation; None if there was none."""
    steps: int
    """Steps of all workers together."""

    def __repr__(self) -> str:
        from asyncrl.api.advice import describe_run

        return describe_run(self.path, self.state, self.steps, self.best_score)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """The run in a folder, whatever its state. Raises UsageError for a folder without a run or its status.json."""
        folder = RunFolder.open(folder_of(path))
        status = read_status(folder.path)
        try:
            return cls(folder.path, *(status[name] for name in ("state", "reason", "best_score", "steps")))
        except KeyError as error:
            raise UsageError(f"{folder.status_file} is missing or damaged: it has no {error}") from None

    def __fspath__(self) -> str:
        """The run's folder: a run may be given wherever a folder may."""
        return str(self.path)

    def evaluate(
        self, episodes: int = 10, seed: int = 0, checkpoint: str = "best", greedy: bool | None = None
    ) -> Result:
        """Play whole episodes with the learnt policy; `greedy` None: as in its own evaluations. Raises UsageError."""
        if not isinstance(episodes, int | np.integer) or episodes < 1:
            raise UsageError(f"episodes must be at least 1, and whole, got {episodes!r}")
        from asyncrl.api.playing import load_run, play_run

        with one_thread(), random_numbers_kept():
            return play_run(load_run(self.path, checkpoint, seed, greedy), episodes)

    def evaluations(self) -> Rows[Evaluation]:
        """Its own evaluations, oldest first (docs/metrics.md, evaluator.jsonl)."""
        return Rows(read_records(RunFolder(self.path).evaluator_file))  # type: ignore[arg-type]

    def records(self) -> Rows[dict[str, Any]]:
        """Its progress, a row every two seconds: returns, speed, losses (docs/metrics.md, supervisor.jsonl)."""
        return Rows(row for row in read_records(RunFolder(self.path).supervisor_file) if "event" not in row)


def folder_of(run: str | os.PathLike[str]) -> Path:
    """The path of a run's folder. Raises UsageError for what is no path."""
    if not isinstance(run, str | os.PathLike):
        raise UsageError(f"a run is given by its folder, got {run!r}")
    return Path(run)


def run_of(ended: Ended) -> Run:
    """The result of `carry_out`, for a program. Raises RunFailed if the run broke."""
    outcome, path = ended.outcome, ended.run.spec.folder.path
    if outcome.state == "failed":
        raise RunFailed(path, outcome.reason, outcome.traceback)
    return Run(path, outcome.state, outcome.reason, ended.summary.best_score, ended.summary.steps)


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restore the state of torch's global generator after the block."""
    with GLOBAL_GENERATOR:
        state = torch.get_rng_state()
    try:
        yield
    finally:
        with GLOBAL_GENERATOR:
            torch.set_rng_state(state)
