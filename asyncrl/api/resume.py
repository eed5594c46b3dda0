"""Resuming an earlier run: which one, with which settings, and whether its checkpoint fits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.algorithm import algorithm_of
from asyncrl.backends.restoring import check_fits
from asyncrl.catalog import module_of, name_of, short
from asyncrl.config.groups import flag
from asyncrl.config.run_config import RunConfig, from_plain, to_plain
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.output import print_line
from asyncrl.runtime.monitor import TIME_IS_OVER
from asyncrl.runtime.run import Layout
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import BadCheckpoint, Checkpoint
from asyncrl.storage.run_folder import RunFolder, default_name, read_status, runs_of, started_at
from asyncrl.storage.stored import Permission, Stored, read_stored


def newest(algorithm: str, config: RunConfig) -> Path | None:
    """The newest run with a checkpoint that this command started earlier; None if there is none.

    Its name is --run-name, or else the same except for the time at the end; for ranks the number of ranks may differ
    too.
    """
    runs = runs_of(Path(config.runs_dir), short(algorithm), config.env_id)
    if config.run_name:
        mine = [run for run in runs if run.path.name == config.run_name]
    elif config.backend == "collective":
        name = re.compile(rf"w\d+-s{config.seed}-")
        mine = [run for run in runs if name.match(run.path.name) and _backend_of(run) == "collective"]
    else:
        name_here = default_name(config.seed, config.workers, stamp="")
        mine = [run for run in runs if run.path.name.startswith(name_here)]
    begun = [run for run in mine if run.config_file.is_file() and checkpoints.find(run.checkpoints)]
    last = max(begun, default=None, key=lambda run: (started_at(run.path), run.path.name))
    return None if last is None else last.path


def _backend_of(run: RunFolder) -> str | None:
    """The backend on which a run was started; None if its configuration cannot be read."""
    try:
        return str(read_stored(run.config_file).config.get("backend"))
    except UsageError:
        return None


def is_finished(path: Path) -> bool:
    """Whether the run has reached its end; --max-seconds only ends a command."""
    status = read_status(path)
    return status.get("state") == "finished" and status.get("reason", TIME_IS_OVER) != TIME_IS_OVER


def stored_config(algorithm: str, stored: Stored, permission: Permission, trains: bool) -> RunConfig:
    """The configuration of a run, to be resumed or, unless it `trains`, to be played.

    Raises UsageError if it is not a run of this algorithm, or names code that may not be imported.
    """
    if module_of(stored.algorithm) != algorithm:
        raise UsageError(f"{stored.path.parent} is a run of {name_of(stored.algorithm)}; resume it with that command")
    config = stored.usable_config(permission, trains)
    try:
        return from_plain(algorithm_of(algorithm).Config, config)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{stored.path} cannot be read: {one_line(error)}") from None


def algorithm_in(run: str | os.PathLike[str], permission: Permission) -> str:
    """The name of the algorithm of a run. Raises UsageError."""
    return read_stored(RunFolder.open(Path(run)).config_file).usable_algorithm(permission)


def differences(stored: RunConfig, config: RunConfig) -> list[str]:
    """A line for each setting that differs in the resumed run, except for how much it prints. Raises UsageError."""
    if config.load != stored.load:
        raise UsageError("--load is for a new run: a run that is resumed has its own weights")
    if config.preset != stored.preset:
        raise UsageError(f"--preset is for a new run: this one began with {stored.preset}; give the settings instead")
    before, after = to_plain(stored), to_plain(config)
    names = [name for name in after if name not in ("resume", "quiet") and before[name] != after[name]]
    return [f"changed on resume: {flag(name)} {before[name]} -> {after[name]}" for name in names]


def check_place(run: Path, settings: Mapping[str, Any]) -> None:
    """Raise UsageError if `settings` have another name or place for a run that is resumed than its folder has."""
    place = Path(os.path.abspath(run))
    top = Path(os.path.abspath(settings.get("runs_dir") or place.parent))
    is_below = place.parent.is_relative_to(top) or place.parent.resolve().is_relative_to(top.resolve())
    if (settings.get("run_name") or place.name) != place.name or not is_below:
        raise UsageError("--run-name and --runs-dir are for a new run: a run that is resumed stays in its folder")


def refuse_links(run: RunFolder) -> None:
    """Raise UsageError if somebody else's run would write to places that are no part of it."""
    for path in (run.checkpoints, run.tensorboard, run.store_lock):
        if path.is_symlink() and not read_stored(run.config_file).is_own:
            raise UsageError(
                f"{run.path} was created by somebody else or on another machine, and its {path.name} is a link to "
                f"{os.readlink(path)}: replace the link by a copy"
            )


def load_for_resume(algorithm: str, config: RunConfig, layout: Layout) -> Checkpoint:
    """The newest valid checkpoint of the run to resume. Raises UsageError if there is none that fits."""
    try:
        run = RunFolder.open(Path(config.resume))
        refuse_links(run)
        checkpoint, skipped = checkpoints.load_newest(run.checkpoints, set_aside=True)
    except BadCheckpoint as error:
        raise UsageError(f"nothing to resume in {config.resume}: {error}") from None
    for line in skipped:
        print_line(line, error=True)
    check_fits(checkpoint, algorithm, config.env_id, config.optimizer, layout)
    # A run that was killed after its last step still has to make its last evaluation.
    if checkpoint.steps >= config.total_steps and is_finished(Path(config.resume)):
        made = f"the run has already trained for {checkpoint.steps} of {config.total_steps} steps; give a larger"
        raise UsageError(f"{made} total_steps to continue", f"{made} --total-steps to continue")
    return checkpoint
