"""Training, for the commands and the API: from settings to a run, and from a run to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from asyncrl.algorithm import algorithm_of
from asyncrl.api.narration import conclusion, introduction, what_next
from asyncrl.api.resume import AUTO, differences, is_finished, is_resumed, load_for_resume, newest, stored_config
from asyncrl.backends import sockets
from asyncrl.backends.handles import (
    restore,
)
from asyncrl.backends.outcome import Outcome, Signals, broken, failed
from asyncrl.backends.probing import probe
from asyncrl.backends.process_trees import stopping_together
from asyncrl.catalog import short
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.named import parcels
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import user_code, watched
from asyncrl.doctor.room import check_room, demand
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.monitor import Listener, Monitor, Summary
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Run, RunSpec, initial_parameters
from asyncrl.runtime.snapshots import exact_state, flat_parameters
from asyncrl.runtime.terminal import View, say
from asyncrl.storage import checkpoints
from asyncrl.storage.files import write_json
from asyncrl.storage.holding import FolderLost, Hold
from asyncrl.storage.run_folder import RunExists, RunFolder, default_name, host_facts
from asyncrl.storage.stored import Permission, read_stored, write_stored
from asyncrl.storage.tracking import make_trackers, require

MOST_AT_A_TIME = 100
"""Runs with the same settings that one program may start within the same second."""


@dataclass(frozen=True)
class Settled(Plan):
    """A run that can be made, before anything is created or started."""

    changes: list[str]
    """A line for each setting that differs in a resumed run."""
    facts: dict[str, Any]
    """What config.json says about the environment."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    run: Run
    outcome: Outcome
    summary: Summary


Read = Callable[[RunConfig | None, str], RunConfig]
"""Returns the requested configuration. The first argument has the defaults (None: the algorithm's own); the second, if
not empty, replaces `resume`. Raises UsageError."""


def settle(algorithm: str, read: Read, resume: str, permission: Permission) -> Settled:
    """Settings, environment and changes on resume, for the run in `resume`, the newest one, or a new one.

    `permission`: what of a resumed run's folder may be imported. Raises UsageError.
    """
    if resume != AUTO:
        return _settle(algorithm, read, resume, permission)
    settled = _settle(algorithm, read, "", permission)
    path = newest(algorithm, settled.config)
    return settled if path is None else _settle(algorithm, read, str(path), permission)


def _settle(algorithm: str, read: Read, resume: str, permission: Permission) -> Settled:
    method = algorithm_of(algorithm)
    if resume:
        stored = stored_config(
            algorithm, read_stored(RunFolder.open(Path(resume)).config_file), permission, trains=True
        )
        config = read(stored, resume)
        changes = differences(stored, config)
        spec = make_spec(config)
        spaces = look_at(algorithm, config, spec)
    else:
        changes = []
        first = read(None, "")
        spec = make_spec(first)
        spaces = look_at(algorithm, first, spec)  # the preset depends on it
        with user_code(f"{algorithm}'s preset()"):
            settings = method.preset(first.preset, spaces) | {"preset": first.preset}
        config = read(dataclasses.replace(method.Config(), **settings), "")
        if make_spec(config) != spec:
            spec = make_spec(config)
            spaces = look_at(algorithm, config, spec)
    # Described from the probed spaces: describing must not create another environment.
    facts = {"id": config.env_id, "description": spec.describe(spaces), **dataclasses.asdict(spaces)}
    settled = Settled(algorithm, config, spec, spaces, changes, facts)
    settled.check()
    require(config.track)
    _backend(config).refuse(settled)
    return settled


def _backend(config: RunConfig) -> Any:
    """The module of the backend, and no other."""
    return import_module(f"asyncrl.backends.{config.backend}")


def look_at(algorithm: str, config: RunConfig, spec: EnvSpec) -> Spaces:
    """The spaces of the environment. Raises UsageError if it cannot be used, or takes longer than --hang-seconds."""
    return probe(spec, algorithm, config.hang_seconds, here=config.backend == "serial")


def has_nothing_to_do(settled: Settled, resume: str) -> bool:
    """Whether the newest run was to be resumed, but has reached its end already."""
    config = settled.config
    return resume == AUTO and is_resumed(config) and is_finished(Path(config.resume)) and not settled.changes


def carry_out(
    settled: Settled,
    signals: Signals,
    speaks: bool,
    listener: Listener | None = None,
    meeting: Any = None,
) -> Ended:
    """Carry a run out, from its folder to its last status. Raises UsageError before the run begins, nothing after that.

    `signals` are being caught: the first one stops the run in order. Without `speaks` nothing at all is printed;
    `--quiet` still prints the folder and the outcome. `meeting`, a `collective.board.Board`: the ranks that a launcher
    has started, for the collective backend.
    """
    config = settled.config
    tell = say if speaks else _say_nothing
    with ExitStack() as stack:
        hold = partial(_hold, stack, tell, signals)
        held = hold(RunFolder.open(Path(config.resume))) if is_resumed(config) else None
        run = prepare(settled)
        folder = run.spec.folder
        held = held or hold(folder)
        checkpoints.clean(folder.checkpoints)  # left by a save that was killed
        view = View(config.quiet or not speaks, f"{short(settled.algorithm)} on {config.env_id}")
        tell(f"run folder: {folder.path}")
        for line in introduction(run, settled.facts["description"], settled.changes):
            view.say(line)
        write_stored(folder.config_file, settled.algorithm, to_plain(config), settled.facts)
        write_json(folder.host_file, host_facts() | {"torch_kernels": torch.backends.cpu.get_cpu_capability()})
        title = f"{short(settled.algorithm)} {config.env_id} {folder.path.name}"
        try:
            trackers = make_trackers(config.track, config.track_project, title, folder.path)
        except UsageError:
            if not is_resumed(config):
                shutil.rmtree(folder.path)
            raise
        monitor = Monitor(run, listener, trackers, held.lost, view.say)
        outcome = conclude(follow(run, monitor, view, signals, meeting), monitor)
    view.close(monitor.summary)
    for line in conclusion(run, outcome, monitor.summary):
        tell(line)
    for line in what_next(run):
        view.say(line)
    tell(f"run folder: {folder.path}")
    return Ended(run, outcome, monitor.summary)


def _hold(stack: ExitStack, say: Callable[[str], None], signals: Signals, folder: RunFolder) -> Hold:
    """Hold a run's folder until the end of `stack`. Raises UsageError while another process does."""
    return stack.enter_context(folder.occupied(say, lambda: signals.first is not None))


def _say_nothing(line: str) -> None:
    pass


def prepare(plan: Plan) -> Run:
    """Create folder, store and counters of a run, or restore them from the newest checkpoint. Raises UsageError."""
    algorithm, config = plan.algorithm, plan.config
    try:
        with watched(config.hang_seconds), user_code(f"{algorithm}'s network"):
            theta, layout = initial_parameters(plan)
    except (MemoryError, RuntimeError) as error:  # the latter is raised by torch
        if "memory" not in str(error):
            raise
        raise UsageError("there is not enough memory for a network of this size") from None
    checkpoint = load_for_resume(algorithm, config, layout) if is_resumed(config) else None
    if config.backend != "serial":
        sockets.make_place()
    place = Path(config.resume if is_resumed(config) else config.runs_dir)
    demand(check_room(plan, theta.numel(), place))
    exact = exact_state(checkpoint, config) if checkpoint and config.backend == "serial" else None
    begun: tuple[int, float] = (0, 0.0)
    if checkpoint:
        theta, begun = flat_parameters(checkpoint, layout), (checkpoint.steps, checkpoint.seconds)
    own = parcels([algorithm, *plan.environment.own_names, config.network, getattr(config, "exploration", "")])
    spec = RunSpec(
        algorithm, config, plan.environment, plan.spaces, open_folder(algorithm, config), layout,
        1 + checkpoint.facts["part"] if checkpoint else 0, exact, parcels=own,
    )  # fmt: skip
    handles = _backend(config).share(spec, theta, *begun)
    if checkpoint:
        restore(handles, theta, checkpoint)
    return Run(spec, handles)


def follow(run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Any = None) -> Outcome:
    """Follow the run to its end on its backend; after an exception the run has failed, and its processes are gone."""
    try:
        monitor.write_status("starting")
        with stopping_together():
            with_ranks = {} if meeting is None else {"meeting": meeting}
            return cast(Outcome, _backend(run.spec.config).run(run, monitor, view, signals, **with_ranks))
    except BaseException as error:  # signals are caught, so that it is of user code even if it says KeyboardInterrupt
        return broken(error)


def conclude(outcome: Outcome, monitor: Monitor) -> Outcome:
    """Write the last checkpoint, rows and status; after an error the run has failed.

    If the run's folder is no longer its own nothing is written, and that is why the run has ended.
    """
    if (reason := monitor.lost()) is not None:
        monitor.close()
        monitor.run.spec.folder.remove_remains()
        return failed(reason)
    try:
        try:
            monitor.save_checkpoint()
        finally:
            monitor.end()
    except (OSError, ValueError, FolderLost) as error:
        if outcome.state != "failed":
            outcome = failed(f"could not save the end of the run: {error}")
    monitor.write_last_status(outcome.state, outcome.reason, outcome.exit_code, outcome.traceback)
    return outcome


def make_spec(config: RunConfig) -> EnvSpec:
    """The environment the configuration describes."""
    return EnvSpec.of(config)


def open_folder(algorithm: str, config: RunConfig) -> RunFolder:
    """The folder to write to: a new one, or the resumed run's."""
    if is_resumed(config):
        return RunFolder.open(Path(config.resume))
    create = partial(RunFolder.create, Path(config.runs_dir), short(algorithm), config.env_id)
    if config.run_name:
        # A run that was killed before its first checkpoint starts afresh in the same folder.
        return create(config.run_name, again=config.resume == AUTO)
    name = default_name(config.seed, config.workers)
    # Others of the same name may have been started within the same second, by this process too.
    for another in ("", f"-{os.getpid()}", *(f"-{os.getpid()}-{number}" for number in range(2, MOST_AT_A_TIME))):
        with contextlib.suppress(RunExists):
            return create(name + another)
    return create(name)
