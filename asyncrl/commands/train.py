"""The command behind every page: `python -m asyncrl.a3c ...` and its siblings."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from asyncrl.backends import local, serial
from asyncrl.backends.handles import build_handles
from asyncrl.backends.outcome import Outcome, Signals, broken, failed
from asyncrl.checks import machine
from asyncrl.checks.finding import Finding
from asyncrl.commands.program import run_command
from asyncrl.commands.resume import (
    AUTO,
    differences,
    is_finished,
    is_resumed,
    load_for_resume,
    newest,
    short,
    stored_config,
)
from asyncrl.config.commandline import parse, value_of
from asyncrl.config.groups import default_workers
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.cores import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.normalize import moments_shape
from asyncrl.runtime.run import Run, RunSpec, initial_parameters, load_page
from asyncrl.runtime.snapshots import exact_state, flat_parameters
from asyncrl.runtime.terminal import View, make_view, number, say
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage import checkpoints
from asyncrl.storage.files import write_json
from asyncrl.storage.run_folder import RunExists, RunFolder, default_name, host_facts

FILES_PER_CHILD = 3
"""Descriptors that the supervisor keeps for each child: two, and one to spare."""


def main(page: str, words: Sequence[str] | None = None) -> int:
    """Train as the command line `words` say, with the algorithm of module `page`; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    program = "asyncrl " + short(page)
    return run_command(program, lambda: train(page, words, program))


def train(page: str, words: Sequence[str], program: str) -> int:
    """One run from the first check to the last line. Raises UsageError before anything is made or started."""
    config, spec, spaces, changes, facts = configure(page, words, program)
    if value_of("--resume", words) == AUTO:
        if not is_resumed(config) and (path := newest(page, config)) is not None:
            config, spec, spaces, changes, facts = configure(page, [*words, "--resume", str(path)], program)
        if is_resumed(config) and is_finished(Path(config.resume)) and not changes:
            say(f"{config.resume} is finished; there is nothing to do")
            return 0
    # From here on a signal is noted instead: there is a folder that has to say how the run ended.
    with Signals().caught() as signals, ExitStack() as stack:
        if is_resumed(config):
            stack.enter_context(RunFolder.open(Path(config.resume)).occupied())
        run = prepare(page, config, spec, spaces)
        if not is_resumed(config):
            stack.enter_context(run.spec.folder.occupied())
        checkpoints.clean(run.spec.folder.checkpoints)  # what a save that was killed has left
        folder, view = run.spec.folder, make_view(config.quiet, f"{short(page)} on {config.env_id}")
        say(f"run folder: {folder.path}")
        for line in [facts["description"], *introduction(run), *changes]:
            view.say(line)
        write_json(folder.config_file, {"page": page, "config": to_plain(config), "environment": facts})
        write_json(folder.host_file, host_facts() | {"torch_kernels": torch.backends.cpu.get_cpu_capability()})
        monitor = Monitor(run)
        outcome = conclude(follow(run, monitor, view, signals), monitor)
    view.close(monitor.summary)
    if outcome.traceback:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(outcome.traceback, file=sys.stderr, flush=True)
    if monitor.summary.remark:
        say(monitor.summary.remark)
    say(f"{outcome.state}: {outcome.reason}; best evaluation {number(monitor.summary.best_score)}")
    say(f"run folder: {folder.path}")
    return outcome.exit_code


def prepare(page: str, config: RunConfig, environment: EnvSpec, spaces: Spaces) -> Run:
    """Folder, store and counters of a run, as its newest checkpoint has them on --resume. Raises UsageError."""
    try:
        theta, layout = initial_parameters(page, config, spaces)
    except (MemoryError, RuntimeError) as error:  # torch raises the latter
        if "memory" not in str(error):
            raise
        raise UsageError("there is not enough memory for a network of this size") from None
    checkpoint = load_for_resume(page, config, layout) if is_resumed(config) else None
    check_room(page, config, environment, spaces, theta.numel())
    part = 1 + checkpoint.facts["part"] if checkpoint else 0
    exact = exact_state(checkpoint, config) if checkpoint and config.backend == "serial" else None
    if checkpoint:
        theta = flat_parameters(checkpoint, layout)
    spec = RunSpec(page, config, environment, spaces, open_folder(page, config), layout, part, exact)
    return Run(spec, build_handles(spec, theta, checkpoint))


def check_room(page: str, config: RunConfig, spec: EnvSpec, spaces: Spaces, parameters: int) -> None:
    """Raise UsageError if there is not enough memory, too few file descriptors, or next to no disk."""
    check_memory(page, config, spec, spaces, parameters)
    target = load_page(page).HAS_TARGET
    children = config.workers if config.backend == "local" else 0
    place = Path(config.resume if is_resumed(config) else config.runs_dir)
    needed = children * machine.worker_bytes(config, spec, spaces, parameters)
    demand(machine.check_memory(children, needed, machine.available_bytes()))
    machine.allow_more_files()
    demand(machine.check_descriptors(children, FILES_PER_CHILD))
    demand(machine.check_disk(machine.checkpoint_bytes(config, parameters, target), place))


def check_memory(page: str, config: RunConfig, spec: EnvSpec, spaces: Spaces, parameters: int) -> None:
    """Raise UsageError if there is not enough shared memory for the store of a run with these settings."""
    moments = math.prod(moments_shape(spec, spaces)) if config.normalize_observations else 0
    needed = machine.shared_bytes(config, parameters, moments, load_page(page).HAS_TARGET)
    demand(machine.check_shared_memory(needed))


def demand(finding: Finding) -> None:
    """Raise UsageError if it is a failure."""
    if finding.verdict == "FAIL":
        raise UsageError(f"{finding.check}: {finding.figure}; {finding.remedy}")


def follow(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end on its backend; an exception here ends the run as failed, its processes gone."""
    backend = serial.run if run.spec.config.backend == "serial" else local.run
    try:
        monitor.write_status("starting")
        return backend(run, monitor, view, signals)
    except Exception as error:
        return broken(error)


def conclude(outcome: Outcome, monitor: Monitor) -> Outcome:
    """Last checkpoint, last rows, last status; what goes wrong here makes the run a failed one."""
    try:
        try:
            monitor.save_checkpoint()
        finally:
            monitor.end()
    except (OSError, ValueError) as error:
        if outcome.state != "failed":
            outcome = failed(f"could not save the end of the run: {error}")
    with contextlib.suppress(OSError):  # on a full disk the exit code and the last line must do
        monitor.write_status(outcome.state, outcome.reason, outcome.exit_code, outcome.traceback)
    return outcome


def configure(
    page: str, words: Sequence[str], program: str
) -> tuple[RunConfig, EnvSpec, Spaces, list[str], dict[str, Any]]:
    """Configuration, environment and what was changed on resume, as lines to print. Raises UsageError."""
    module = load_page(page)
    resumed = value_of("--resume", words)
    if resumed not in ("", AUTO):
        stored = stored_config(page, Path(resumed))
        config = parse(module.Config, words, program, default=stored)
        changes = differences(stored, config)
        spec = make_spec(config)
        spaces = spec.probe()
    else:
        changes = []
        first = parse(module.Config, words, program)
        spec = make_spec(first)
        spaces = spec.probe()  # only to know what kind of preset it wants
        settings = module.preset(first.preset, spaces) | {"preset": first.preset}
        config = parse(module.Config, words, program, default=dataclasses.replace(module.Config(), **settings))
        if make_spec(config) != spec:
            spec = make_spec(config)
            spaces = spec.probe()
    # Said of the environment itself, by what has just been probed: describing must not make another one.
    facts = {"id": config.env_id, "description": spec.describe(spaces), **dataclasses.asdict(spaces)}
    if spaces.is_continuous and not module.TAKES_CONTINUOUS:
        raise UsageError(f"{config.env_id} has continuous actions; {program} chooses between discrete ones")
    if config.backend == "serial" and config.on_worker_error == "restart":
        raise UsageError("--on-worker-error restart is for --backend local: a serial run has no process to replace")
    if config.update == "locked" and sys.platform == "win32":
        raise UsageError("--update locked needs a POSIX system")
    return config, spec, spaces, changes, facts


def make_spec(config: RunConfig) -> EnvSpec:
    """The environment the configuration describes."""
    return EnvSpec(
        env_id=config.env_id,
        env_kwargs=tuple(parse_argument(word) for word in config.env_kwargs),
        frame_skip=config.frame_skip,
        frame_stack=config.frame_stack,
        image_size=config.image_size,
        noop_max=config.noop_max,
        sticky_actions=config.sticky_actions,
        life_loss=config.life_loss,
        full_action_space=config.full_action_space,
        max_episode_steps=config.max_episode_steps,
    )


def parse_argument(word: str) -> tuple[str, Any]:
    """A key=value word of --env-kwargs: a Python literal if it is one, else text."""
    key, equals, value = word.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--env-kwargs takes key=value, got {word!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval raises
        return key, value


def open_folder(page: str, config: RunConfig) -> RunFolder:
    """The folder to write to: a new one, or the resumed run's."""
    if is_resumed(config):
        return RunFolder.open(Path(config.resume))
    create = partial(RunFolder.create, Path(config.runs_dir), short(page), config.env_id)
    if config.run_name:
        # A run that was killed before its first checkpoint begins again where it lies: it has nothing to lose.
        return create(config.run_name, again=config.resume == AUTO)
    name = default_name(config.seed, config.workers)
    try:
        return create(name)
    except RunExists:  # a run like this one was started within the same second
        return create(f"{name}-{os.getpid()}")


def chosen_by_preset(run: Run) -> str:
    """Where the preset set something else than the page's plain defaults and the command line left it at that."""
    module, config, spaces = load_page(run.spec.page), run.spec.config, run.spec.spaces
    plain = module.Config()
    chosen = {
        name: value
        for name, value in module.preset(config.preset, spaces).items()
        if value != getattr(plain, name) and value == getattr(config, name)
    }
    kind = "Atari" if spaces.kind == "atari" else f"a {spaces.kind}"
    kind += " and continuous actions" if spaces.is_continuous else ""
    said = ", ".join(f"{name} {_plainly(value)}" for name, value in chosen.items())
    return f"preset {config.preset} for {kind}: {said or 'the plain defaults'}"


def _plainly(value: Any) -> str:
    """The value of a setting, as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_plainly, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def introduction(run: Run) -> list[str]:
    """What a run says at its start, after the environment's description."""
    config = run.spec.config
    parameters = sum(math.prod(shape) for _, shape in run.spec.layout)
    lines = [
        f"{short(run.spec.page)}, preset {config.preset}: {parameters:,} parameters, "
        f"{config.workers} workers x {config.envs_per_worker} environments, t_max {config.t_max}, "
        f"{config.optimizer} {config.learning_rate:g}, {config.update} updates, {config.statistics} statistics",
    ]
    lines.append(chosen_by_preset(run))
    if config.backend == "local" and config.workers > default_workers():
        cores = len(usable_cores())
        lines.append(f"{config.workers} workers share {cores} cores: no faster than {default_workers()} would be")
    if run.spec.part:
        lines.append(
            f"resumed at {run.handles.clock.steps:,} steps after {run.handles.clock.seconds:.0f} s; "
            + ("every worker goes on where it was" if run.spec.exact else "environments begin new episodes")
        )
    lines.append(f"watch it: tensorboard --logdir {run.spec.folder.path}")
    return lines
