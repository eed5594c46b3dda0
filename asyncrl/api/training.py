"""Training, for the commands and the API: from settings to a run, and from a run to its end."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from asyncrl.api.request import ResolvedRun, backend_of
from asyncrl.backends import sockets
from asyncrl.backends.outcome import ASKED, Outcome, Signals, broken, failed
from asyncrl.backends.process_trees import stopping_together
from asyncrl.catalog import short
from asyncrl.config.groups import AUTO
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import handed_over, user_code, watched
from asyncrl.doctor.room import check_room, demand
from asyncrl.runtime.monitor import NOBODY, Listener, Monitor, Summary, View
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Run, RunSpec, initial_parameters
from asyncrl.storage import checkpoints
from asyncrl.storage.files import write_json
from asyncrl.storage.holding import Hold
from asyncrl.storage.run_folder import RunExists, RunFolder, default_name, host_facts, run_path
from asyncrl.storage.stored import read_stored, write_stored

MOST_AT_A_TIME = 100
"""Runs with the same settings that one program may start within the same second."""


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    run: Run
    outcome: Outcome
    summary: Summary


def carry_out(
    resolved: ResolvedRun,
    signals: Signals,
    speaks: Literal["", "shell", "python"],
    listener: Listener = NOBODY,
    meeting: Any = None,
) -> Ended:
    """Carry a run out, from its folder to its last status. Raises UsageError before the run begins, nothing after that.

    `signals` are being caught: the first one stops the run in order. `speaks` is the language of the advice that is
    printed; "" prints nothing at all, `--quiet` still prints the folder and the outcome. `meeting`, a
    `collective.board.Board`: the ranks that a launcher has started, for the collective backend.
    """
    config = resolved.config
    tell, view = View().say, View()
    if speaks:
        from asyncrl.api import advice, narration
        from asyncrl.runtime.terminal import TerminalView, say

        title = f"{short(resolved.algorithm)} on {config.env_id}"
        tell, view = say, view if config.quiet else TerminalView(title)
    with ExitStack() as stack:

        def hold(folder: RunFolder) -> Hold:
            return stack.enter_context(folder.occupied(tell, lambda: signals.first is not None))

        held = hold(RunFolder.open(Path(config.resume))) if config.is_resumed else None
        run = prepare(resolved, view.say)
        folder = run.spec.folder
        held = held or hold(folder)
        checkpoints.clean(folder.checkpoints)  # left by a save that was killed
        tell(f"run folder: {folder.path}")
        if speaks:
            for line in narration.introduction(run, resolved.changes, speaks):
                view.say(line)
        write_stored(folder.config_file, resolved.algorithm, to_plain(config), resolved.facts)
        write_json(folder.host_file, host_facts() | {"torch_kernels": torch.backends.cpu.get_cpu_capability()})
        trackers = _trackers_of(run) if config.track else {}
        monitor = Monitor(run, listener, trackers, held.lost, view.say)
        outcome = conclude(follow(run, monitor, view, signals, meeting), monitor)
    view.close(monitor.summary)
    if speaks:
        for line in narration.conclusion(outcome, monitor.summary):
            tell(line)
        for line in advice.what_next(folder.path, speaks):
            view.say(line)
    tell(f"run folder: {folder.path}")
    return Ended(run, outcome, monitor.summary)


def _trackers_of(run: Run) -> dict[str, Any]:
    """Those of --track. Raises UsageError if one cannot begin, and leaves no folder of a new run."""
    from asyncrl.storage.tracking import make_trackers

    config, path = run.spec.config, run.spec.folder.path
    try:
        title = f"{short(run.spec.algorithm)} {config.env_id} {path.name}"
        return make_trackers(config.track, config.track_project, title, path)
    except UsageError:
        if not config.is_resumed:
            shutil.rmtree(path)
        raise


def prepare(plan: Plan, say: Callable[[str], None] = lambda _: None) -> Run:
    """Create folder, store and counters of a run, or restore them from the newest checkpoint. Raises UsageError.

    `say` is called with a line about the weights of --load.
    """
    algorithm, config = plan.algorithm, plan.config
    try:
        with watched(config.hang_seconds), user_code(f"{algorithm}'s network"):
            theta, layout = initial_parameters(plan)
    except (MemoryError, RuntimeError) as error:  # the latter is raised by torch
        if "memory" not in str(error):
            raise
        raise UsageError("there is not enough memory for a network of this size") from None
    checkpoint = None
    if config.is_resumed:
        from asyncrl.api.resume import load_for_resume

        checkpoint = load_for_resume(algorithm, config, layout)
    moments: dict[str, Tensor] = {}
    if config.load and checkpoint is None:
        from asyncrl.api.weights import taken_from

        theta, moments = taken_from(plan, theta, layout, say)
    if config.backend != "serial":
        sockets.make_place()
    place = Path(config.resume if config.is_resumed else config.runs_dir)
    demand(check_room(plan, theta.numel(), place))
    exact = None
    # Emulators would take a stranger's state as it is, and may crash.
    if checkpoint and config.backend == "serial" and read_stored(Path(config.resume) / "config.json").is_own:
        exact = backend_of(config).exact_state(checkpoint, config)
    begun: tuple[int, float] = (0, 0.0)
    if checkpoint:
        from asyncrl.backends.restoring import flat_parameters, restore

        theta, begun = flat_parameters(checkpoint, layout), (checkpoint.steps, checkpoint.seconds)
    own = handed_over([algorithm, *plan.environment.own_names, config.network, getattr(config, "exploration", "")])
    spec = RunSpec(
        algorithm, config, plan.environment, plan.spaces, open_folder(algorithm, config), layout,
        1 + checkpoint.facts["part"] if checkpoint else 0, exact, parcels=own,
    )  # fmt: skip
    handles = backend_of(config).share(spec, theta, *begun)
    if checkpoint:
        restore(handles, theta, checkpoint, exactly=exact is not None)
    elif moments:
        handles.moments.restore(moments)
    return Run(spec, handles)


def follow(run: Run, monitor: Monitor, view: View, signals: Signals, meeting: Any = None) -> Outcome:
    """Follow the run to its end on its backend; after an exception the run has failed, and its processes are gone."""
    try:
        monitor.write_status("starting")
        with stopping_together():
            with_ranks = {} if meeting is None else {"meeting": meeting}
            outcome = cast(Outcome, backend_of(run.spec.config).run(run, monitor, view, signals, **with_ranks))
            return replace(outcome, reason=signals.reason) if outcome.reason == ASKED else outcome
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
            if not monitor.save_checkpoint():
                raise ValueError("the learner is gone, and theta contains half of its last update")
        finally:
            monitor.end()
    except Exception as error:  # among others there may be no memory for a last copy, of which torch tells its own way
        if outcome.state != "failed":
            expected = isinstance(error, OSError | ValueError | RuntimeError | MemoryError)
            why, traceback = str(error) or type(error).__name__, None if expected else broken(error).traceback
            outcome = failed(f"could not save the end of the run: {why}", traceback)
    monitor.write_last_status(outcome.state, outcome.reason, outcome.exit_code, outcome.traceback)
    return outcome


def open_folder(algorithm: str, config: RunConfig) -> RunFolder:
    """The folder to write to: a new one, or the resumed run's."""
    if config.is_resumed:
        return RunFolder.open(Path(config.resume))
    place = Path(config.runs_dir), short(algorithm), config.env_id
    create = partial(RunFolder.create, *place)
    if config.run_name:
        # A run that was killed before its first checkpoint starts afresh in the same folder.
        if config.resume == AUTO:
            from asyncrl.api.resume import refuse_links

            refuse_links(RunFolder(run_path(*place, config.run_name)))
        try:
            return create(config.run_name, again=config.resume == AUTO)
        except RunExists:
            from asyncrl.api.advice import run_exists

            raise run_exists(run_path(*place, config.run_name)) from None
    name = default_name(config.seed, config.workers)
    # Others of the same name may have been started within the same second, by this process too.
    for another in ("", f"-{os.getpid()}", *(f"-{os.getpid()}-{number}" for number in range(2, MOST_AT_A_TIME))):
        with contextlib.suppress(RunExists):
            return create(name + another)
    return create(name)
