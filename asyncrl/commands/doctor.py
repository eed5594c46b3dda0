"""`python -m asyncrl doctor`: does learning work on this machine, and with this environment?

Every check uses the code of a real run, for a few seconds, in separate processes. Exit code 0 if all is well, 1 if a
check failed, 2 for a mistake on the command line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from asyncrl import catalog
from asyncrl.algorithm import GRADIENT, algorithm_of, load
from asyncrl.api.training import make_spec, prepare
from asyncrl.backends.collective.board import RanksLost, first_line
from asyncrl.backends.collective.exchanges import leave
from asyncrl.backends.collective.launch import Launch, launched
from asyncrl.backends.handles import experience_bytes
from asyncrl.backends.looking import look
from asyncrl.backends.processes import start_context
from asyncrl.backends.ray import require_ray
from asyncrl.checks import environment, group, hosts, learning, machine
from asyncrl.checks.finding import Finding
from asyncrl.checks.learning import NoAnswer
from asyncrl.commands.program import prints_aside, run_command
from asyncrl.config.commandline import parse
from asyncrl.config.groups import default_workers
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import HANG_SECONDS
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Run, initial_parameters
from asyncrl.runtime.terminal import shown
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread

WANTED = "forkserver" if sys.platform == "linux" else "spawn"
"""How children must be started."""
A3C, N_STEP_Q = "asyncrl.a3c", "asyncrl.n_step_q"
EXERCISE: dict[str, Any] = {
    "env_id": "Chain",
    "env_kwargs": ("limit=9",),
    "workers": 2,
    "envs_per_worker": 1,
    "t_max": 16,
    "total_steps": 10_000,
    # The checks compare what the agent saw with what a second environment returns.
    "normalize_observations": False,
    "normalize_returns": False,
    # Returns that are the n-step return.
    "gae_lambda": 1.0,
    "normalize_advantages": False,
    "reward_clip": 0.0,
    "lstm_cells": 0,
    # Some updates of each batch, a queue in which rollouts grow old, and a memory that is overwritten.
    "epochs": 2,
    "minibatches": 2,
    "queue_length": 2,
    "batch_rollouts": 0,
    "memory_steps": 152,
    "warmup_steps": 32,
    "minibatch": 16,
    # Half an update for each rollout: after a warm-up of one from each actor, the learner waits in its second turn.
    "replay_ratio": 0.5 / 16,
    "target_interval_updates": 2,
    # T goes to 48.
    "target_interval_steps": 40,
}
"""The task of the checks, as far as an algorithm has such settings: each rollout of 16 steps contains an episode's end,
nearly always by the time limit."""
PLAIN_SGD: dict[str, Any] = {
    "optimizer": "momentum-sgd",
    "optimizer_decay": 0.0,
    "learning_rate": 1.0,
    "anneal_learning_rate": False,
    "max_gradient_norm": 0.0,
}
"""With these theta counts the gradients that are applied to it."""


@dataclass(frozen=True)
class Config:
    """Check learning, this machine and an environment. Takes some ten seconds."""

    algorithm: str = "a3c"
    """Algorithm of the planned run. Learning is checked with A3C and n-step Q, or with this one if it has a learner."""
    env_id: str = "ALE/Pong-v5"
    """Environment to check and measure: any that can be trained on, yours as module:factory."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the environment, as key=value."""
    steps: int = 300
    """Random steps in that environment."""
    seed: int = 1
    """Seed of the environment and of all actions."""
    workers: int = field(default_factory=default_workers)
    """Workers of the planned run, for which there must be room. By default two per usable core."""
    statistics: Literal["auto", "shared", "per-worker"] = "auto"
    """Who owns the optimiser's statistics in the planned run."""
    backend: Literal["local", "collective", "ray"] = "local"
    """Look first at ranks (collective: those that a launcher has started with this command, or --workers here) or at
    the machines of a Ray cluster (ray)."""
    address: str = ""
    """Ray backend: the cluster to look at, HOST:PORT or auto; empty: RAY_ADDRESS, or a new cluster on this machine."""
    runs_dir: Path = Path("runs")
    """Where the run will be written."""
    json: bool = False
    """Print the results as JSON."""

    def __post_init__(self) -> None:
        for name, most in (("steps", 1_000_000), ("workers", 10_000)):
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"--{name} must be 1 to {most:_}, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must lie between 0 and 2^63, got {self.seed}")
        if self.address and self.backend != "ray":
            raise UsageError("--address is for --backend ray")


def main(words: Sequence[str] | None = None) -> int:
    """Check what the command line says; returns the exit code."""
    words = sys.argv[1:] if words is None else words
    request_one_thread()
    enforce_one_thread()
    program = "asyncrl doctor"

    def check() -> int:
        launch = launched(os.environ)
        try:
            config = parse(Config, words, program)
        except UsageError:
            if launch is None or launch.rank == 0:
                raise
            return 2  # rank 0 says it
        if launch is not None and launch.rank > 0:
            return group.attend(launch, words)
        with prints_aside():
            findings = find(config, launch, words)
        show(findings, config)
        return int(any(finding.verdict == "FAIL" for finding in findings))

    code = run_command(program, check)
    leave(code)
    return code


def find(config: Config, launch: Launch | None, words: Sequence[str]) -> list[Finding]:
    """All findings. Raises UsageError for an algorithm or an environment that cannot be used at all."""
    algorithm = catalog.module_of(config.algorithm)
    load(algorithm)
    spec = make_spec(RunConfig(env_id=config.env_id, env_kwargs=config.env_kwargs))
    # What it does when it is reset and stepped is for the checks to tell.
    spaces = look(spec, algorithm, HANG_SECONDS, here=False, steps=False)
    found = check_group(config, launch, words, algorithm, spec, spaces)
    if config.backend == "ray":
        found += check_hosts(config, algorithm, spec, spaces)
    if 0 < machine.descriptor_limit() < machine.LEAST_FILES:  # the checks themselves would fail
        return [*found, machine.check_descriptors(config.workers, per_child=4)]
    return [*found, *examine(config, algorithm, spec, spaces)]


def examine(config: Config, algorithm: str, spec: EnvSpec, spaces: Spaces) -> list[Finding]:
    """All checks, in the order in which they are shown."""
    run = run_config(config, algorithm, spaces)
    Plan(algorithm, run, spec, spaces).check()
    context = start_context(algorithm)
    with tempfile.TemporaryDirectory(prefix="asyncrl-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        found, open_per_child = check_learning(context, algorithm, folder, config.statistics)
        room = list(check_room(algorithm, run, spec, spaces, open_per_child))
        try:
            tried = check_environment(context, folder, config, spec, spaces)
            tried += check_speed(context, algorithm, folder, run, spec, spaces)
        except UsageError as error:
            tried = [no_room(error)]
        return [*found, *room, *tried]


def check_group(
    config: Config, launch: Launch | None, words: Sequence[str], algorithm: str, spec: EnvSpec, spaces: Spaces
) -> list[Finding]:
    """Rank 0: what there is to say of ranks; nothing without any."""
    if launch is None and config.backend != "collective":
        return []
    parameters = initial_parameters(Plan(algorithm, run_config(config, algorithm, spaces), spec, spaces))[0].numel()
    try:
        with ExitStack() as stack:
            launch = launch or stack.enter_context(group.started(config.workers, words))
            return group.examine(stack.enter_context(group.gathered(launch)), launch.by, words, parameters)
    except RanksLost as error:
        return [Finding("exchanges between ranks", "FAIL", first_line(error), "see what the other ranks say")]


def check_hosts(config: Config, algorithm: str, spec: EnvSpec, spaces: Spaces) -> list[Finding]:
    """What there is to say of a Ray cluster's machines. Raises UsageError without Ray."""
    require_ray()
    plan = Plan(algorithm, run_config(config, algorithm, spaces), spec, spaces)
    parameters = initial_parameters(plan)[0].numel()
    needed = shared_bytes(plan, parameters)
    return hosts.examine(start_context(algorithm), config.address, config.workers, needed, parameters)


def shared_bytes(plan: Plan, parameters: int) -> int:
    """Bytes of shared memory that the planned run takes on one machine."""
    target, experience = plan.method.has_target, experience_bytes(plan)
    return machine.shared_bytes(plan.config, parameters, plan.moments_size, target, experience)


def no_room(error: UsageError) -> Finding:
    """The finding if this machine has no room even for the small runs of the checks."""
    return Finding("a small run", "FAIL", str(error), "make the room that is missing, and try again")


def run_config(config: Config, algorithm: str, spaces: Spaces) -> RunConfig:
    """The run that the algorithm would start with these flags."""
    given = {
        "env_id": config.env_id,
        "env_kwargs": config.env_kwargs,
        "seed": config.seed,
        "workers": config.workers,
        "statistics": config.statistics,
        "runs_dir": str(config.runs_dir),
    }
    method = algorithm_of(algorithm)
    return method.Config(**(method.preset("default", spaces) | given))


def exercise_run(algorithm: str, folder: Path, **settings: Any) -> Run:
    """A small run of `algorithm` on Chain, below `folder`."""
    spec = make_spec(RunConfig(env_id=EXERCISE["env_id"], env_kwargs=EXERCISE["env_kwargs"]))
    spaces = spec.probe()
    method = algorithm_of(algorithm)
    names = {setting.name for setting in dataclasses.fields(method.Config)}
    fitting = {name: value for name, value in EXERCISE.items() if name in names}
    config = method.Config(**(method.preset("default", spaces) | fitting | {"runs_dir": str(folder)} | settings))
    return prepare(Plan(algorithm, config, spec, spaces))


def check_learning(context: BaseContext, algorithm: str, folder: Path, statistics: str) -> tuple[list[Finding], int]:
    """What learning does in turns, and at once; also how many files each process needs here.

    An algorithm with a learner is checked itself; else A3C and n-step Q are.
    """
    with_learner = algorithm_of(algorithm).experience != GRADIENT
    try:
        if with_learner:
            runs = [exercise_run(algorithm, folder)]
        else:
            runs = [
                exercise_run(A3C, folder, statistics=statistics),
                exercise_run(N_STEP_Q, folder, workers=1),
            ]
            at_once = exercise_run(A3C, folder, **PLAIN_SGD)
    except UsageError as error:
        return [no_room(error)], 4
    before, opened = machine.open_files(), 0
    heard: list[learning.Record] = []
    found: list[list[Finding]] = []
    try:
        for run in runs:
            initial = run.handles.store.snapshot()
            records, most = learning.hear(context, run)
            opened = max(opened, (most - before) // len(records))
            heard += records.values()
            found.append(list(learning.judge_records(run, initial, records)))
        if not with_learner:
            initial = at_once.handles.store.snapshot()
            learning.run_children(context, learning.push_at_once, at_once, range(at_once.spec.config.workers))
            of_q = [finding for finding in found.pop() if finding.check == learning.TARGET_NETWORK]
            found.append([learning.check_at_once(at_once, initial), *of_q])
    except NoAnswer as error:
        command = catalog.command_of(algorithm if with_learner else A3C)
        return [Finding("a worker process", "FAIL", str(error), f"see what it says; does `{command}` run?")], 4
    return [
        learning.check_start_method(context.get_start_method() or "", WANTED, heard),
        learning.check_threads(heard),
        *chain.from_iterable(found),
    ], opened


def check_room(algorithm: str, run: RunConfig, spec: EnvSpec, spaces: Spaces, open_per_child: int) -> Iterator[Finding]:
    """Memory, file descriptors and disk for the planned run."""
    plan = Plan(algorithm, run, spec, spaces)
    learners, parameters, experience = plan.learners, initial_parameters(plan)[0].numel(), experience_bytes(plan)
    yield machine.check_shared_memory(shared_bytes(plan, parameters))
    needed = machine.processes_bytes(run, spec, spaces, parameters, learners) + experience
    yield machine.check_memory(run.workers, needed, machine.available_bytes(), learners)
    yield machine.check_descriptors(run.workers, open_per_child, learners=learners)
    yield machine.check_disk(machine.checkpoint_bytes(run, parameters, plan.method.has_target), Path(run.runs_dir))


def check_environment(
    context: BaseContext, folder: Path, config: Config, spec: EnvSpec, spaces: Spaces
) -> list[Finding]:
    """The environment, checked in a worker process: a hang or a crash ends only that process."""
    run = with_environment(exercise_run(A3C, folder / "environment"), spec, spaces)
    name = "a worker's process makes it"
    try:
        learning.run_child(context, environment.Inspection(config.steps, config.seed), run, 0)
    except NoAnswer as error:
        return [Finding(name, "FAIL", str(error), "nothing may depend on the command's own process; no step may block")]
    return [Finding(name, "ok", f"{config.env_id}"), *environment.read_inspection(run)]


def with_environment(run: Run, environment: EnvSpec, spaces: Spaces) -> Run:
    """The same in another environment."""
    spec = dataclasses.replace(run.spec, environment=environment, spaces=spaces)
    return dataclasses.replace(run, spec=spec)


def check_speed(
    context: BaseContext, algorithm: str, folder: Path, settings: RunConfig, spec: EnvSpec, spaces: Spaces
) -> Iterator[Finding]:
    """Two seconds of one worker's training on the environment, in turns with the learner if there is one."""
    config = dataclasses.replace(settings, workers=1, runs_dir=str(folder / "speed"))
    run = prepare(Plan(algorithm, config, spec, spaces))
    try:
        learning.run_child(context, machine.train_a_while, run, 0)
    except NoAnswer as error:
        yield Finding("speed of one worker", "FAIL", str(error), "correct what the checks of the environment say")
        return
    yield machine.check_speed(run)


def show(findings: Sequence[Finding], config: Config) -> None:
    """Print the findings as a table, or as JSON."""
    failed = [finding for finding in findings if finding.verdict == "FAIL"]
    if config.json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        print_line(
            json.dumps(
                {"algorithm": config.algorithm, "env_id": config.env_id, "ok": not failed, "checks": checks}, indent=2
            )
        )
        return
    console = Console(
        width=None if sys.stdout.isatty() else max(80, shutil.get_terminal_size().columns), highlight=False
    )
    console.print(table(findings))
    console.print(
        f"{len(failed)} of {len(findings)} checks failed" if failed else f"all {len(findings)} checks passed",
        style="bold red" if failed else "bold green",
    )


COLOURS = {"ok": "green", "note": "yellow", "FAIL": "bold red"}


def table(findings: Sequence[Finding]) -> Table:
    """The findings as a rich table; what to do is below the figure."""
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column()
    for finding in findings:
        figure = shown(finding.figure)
        if finding.remedy:
            figure.append(shown(f"\n-> {finding.remedy}", COLOURS[finding.verdict]))
        grid.add_row(shown(finding.verdict, COLOURS[finding.verdict]), shown(finding.check), figure)
    return grid


if __name__ == "__main__":
    raise SystemExit(main())
