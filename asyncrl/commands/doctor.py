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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from asyncrl import catalog
from asyncrl.algorithm import GRADIENT, algorithm_of, load
from asyncrl.api.request import backend_of
from asyncrl.api.training import prepare
from asyncrl.backends.collective.board import RanksLost, first_line
from asyncrl.backends.collective.exchanges import leave
from asyncrl.backends.collective.launch import Launch, launched
from asyncrl.backends.handles import experience_bytes
from asyncrl.backends.probing import probe
from asyncrl.backends.processes import start_context
from asyncrl.commands.program import prints_aside, run_command
from asyncrl.config.commandline import parse
from asyncrl.config.groups import default_workers
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import HANG_SECONDS
from asyncrl.doctor import Finding, group, hosts
from asyncrl.doctor.environment import inspect_own, measure_speed
from asyncrl.doctor.learning import (
    NoAnswer,
    Question,
    ask,
    check_at_once,
    check_kernels,
    check_threads,
    judge_events,
    push_at_once,
    take_turns,
)
from asyncrl.doctor.room import check_room, raised_limit, shared_bytes
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Run, initial_parameters
from asyncrl.runtime.terminal import Screen, shown
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread

LEAST_FILES = 48
"""File descriptors without which nothing can be tried."""
EXERCISE: dict[str, Any] = {
    "env_id": "Chain",
    "env_kwargs": ("limit=9",),
    "workers": 2,
    "envs_per_worker": 1,
    "t_max": 16,
    "total_steps": 10_000,
    # Each step is compared as it was put.
    "normalize_observations": False,
    "normalize_returns": False,
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
ENVIRONMENT = ("env_id", "env_kwargs", "max_episode_steps")
VECTORS: dict[str, Any] = {"env_id": "Pendulum-v1", "env_kwargs": (), "max_episode_steps": 9}
"""The same for algorithms whose actions are vectors."""
PLAIN_SGD: dict[str, Any] = {
    "optimizer": "momentum-sgd", "optimizer_decay": 0.0, "learning_rate": 1.0, "learning_rate_schedule": "constant",
    "max_gradient_norm": 0.0,
}  # fmt: skip
"""With these theta counts the gradients that are applied to it."""


@dataclass(frozen=True)
class Config:
    """Check learning, this machine and an environment. Takes about ten seconds."""

    algorithm: str = "a3c"
    """Algorithm of the planned run, used to check learning."""
    env_id: str = "ALE/Pong-v5"
    """Environment to check and measure, including your own as module:factory."""
    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the environment, as key=value."""
    action_masks: bool = False
    """Whether the planned run chooses only among the actions that the environment's info["action_mask"] allows."""
    steps: int = 300
    """Number of random steps in the environment."""
    seed: int = 1
    """Seed of the environment and of all actions."""
    workers: int = field(default_factory=default_workers)
    """Workers of the planned run; the machine must have room for them. By default two per usable core."""
    statistics: Literal["auto", "shared", "per-worker"] = "auto"
    """Optimiser statistics of the planned run: shared, or one set per worker."""
    backend: Literal["local", "collective", "ray"] = "local"
    """First check ranks (collective: those that a launcher started with this command, or --workers ranks here) or the
    machines of a Ray cluster (ray)."""
    address: str = ""
    """Ray backend: the cluster to check, HOST:PORT or auto; empty: RAY_ADDRESS, or a new cluster on this machine."""
    runs_dir: Path = Path("runs")
    """Folder in which the run will be stored."""
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


def main(words: Sequence[str]) -> int:
    """Check what the command line says; returns the exit code."""
    request_one_thread()
    enforce_one_thread()
    program, with_ranks = "asyncrl doctor", False

    def check() -> int:
        nonlocal with_ranks
        launch = launched(os.environ)
        try:
            config = parse(Config, words, program)
        except UsageError:
            if launch is None or launch.rank == 0:
                raise
            return 2  # rank 0 says it
        with_ranks = launch is not None or config.backend == "collective"
        if launch is not None and launch.rank > 0:
            return group.attend(launch, words)
        with prints_aside():
            findings = find(config, launch, words)
        show(findings, config)
        return int(any(finding.verdict == "FAIL" for finding in findings))

    code = run_command(program, check)
    if with_ranks:
        leave(code)
    return code


def plan_of(config: Config) -> Plan:
    """The run to be checked. Raises UsageError for an algorithm or an environment that cannot be used at all."""
    algorithm = catalog.module_of(config.algorithm)
    load(algorithm)
    spec = EnvSpec(config.env_id, config.env_kwargs, action_masks=config.action_masks)
    # What it does when it is reset and stepped is for the checks to tell.
    spaces = probe(spec, algorithm, HANG_SECONDS, here=False, steps=False)
    plan = Plan(algorithm, planned(config, algorithm, spaces), spec, spaces)
    plan.check()
    wished = dataclasses.replace(plan.config, backend=config.backend)
    backend_of(wished).refuse(dataclasses.replace(plan, config=wished))
    return plan


def find(config: Config, launch: Launch | None, words: Sequence[str]) -> list[Finding]:
    """All findings. Raises UsageError for an algorithm or an environment that cannot be used at all."""
    try:
        plan = plan_of(config)
    except UsageError:
        if launch is not None:
            group.turn_away(launch, words)
        raise
    algorithm = plan.algorithm
    parameters = initial_parameters(plan)[0].numel()
    found = []
    to_fit = plan
    if launch is not None or config.backend == "collective":
        found += check_group(launch, config.workers, words, parameters)
        size = plan.config.workers if launch is None else launch.size
        with_ranks = dataclasses.replace(plan.config, backend="collective", workers=size, statistics="auto")
        to_fit = dataclasses.replace(plan, config=with_ranks)
    if config.backend == "ray":
        needed = shared_bytes(plan, parameters, experience_bytes(plan))
        found += hosts.examine(start_context(algorithm), config.address, config.workers, needed, parameters)
    room = [check_kernels(), *check_room(to_fit, parameters, config.runs_dir)]
    if 0 < raised_limit() < LEAST_FILES:  # the checks themselves would fail
        return [*found, *room]
    with tempfile.TemporaryDirectory(prefix="asyncrl-doctor-", ignore_cleanup_errors=True) as folder:
        context = start_context(algorithm)
        found += [*check_learning(context, algorithm, folder, config.statistics), *room]
        try:
            small = dataclasses.replace(plan.config, workers=1, runs_dir=folder)
            alone = prepare(dataclasses.replace(plan, config=small))
        except UsageError as error:
            return [*found, Finding("a run of one worker", "FAIL", str(error), "free the missing resources")]
        return found + check_environment(context, alone, config)


def check_group(launch: Launch | None, ranks: int, words: Sequence[str], parameters: int) -> list[Finding]:
    """What there is to say of the ranks of a launcher, or of so many started here; for rank 0."""
    try:
        return group.examine(launch or group.started(ranks, words), words, parameters)
    except RanksLost as error:
        return [Finding("exchanges between ranks", "FAIL", first_line(error), "read the messages of the other ranks")]


def planned(config: Config, algorithm: str, spaces: Spaces) -> RunConfig:
    """The run that the algorithm would start with these flags."""
    method = algorithm_of(algorithm)
    names = ("env_id", "env_kwargs", "action_masks", "seed", "workers", "statistics")
    given = {name: getattr(config, name) for name in names} | {"runs_dir": str(config.runs_dir)}
    return method.Config(**(method.preset("default", spaces) | given))


def exercise_run(algorithm: str, folder: str | Path, **settings: Any) -> Run:
    """A small run of `algorithm` on Chain, or on Pendulum, below `folder`."""
    method = algorithm_of(algorithm)
    task = EXERCISE if method.takes_discrete else EXERCISE | VECTORS
    names = {setting.name for setting in dataclasses.fields(method.Config)}
    fitting = {name: value for name, value in task.items() if name in names}
    spec = EnvSpec.of(RunConfig(**{name: value for name, value in fitting.items() if name in ENVIRONMENT}))
    spaces = spec.probe()
    config = method.Config(**(method.preset("default", spaces) | fitting | {"runs_dir": str(folder)} | settings))
    return prepare(Plan(algorithm, config, spec, spaces))


def check_learning(context: BaseContext, algorithm: str, folder: str, statistics: str) -> list[Finding]:
    """What the processes of a small run do in turns, and what its workers do at once."""
    try:
        run = exercise_run(algorithm, folder, statistics=statistics)
        initial = run.handles.store.snapshot()
        said = take_turns(context, run)
        events = [event for one in said for event in one["events"]]
        found = [check_threads([one["threads"] for one in said]), *judge_events(run, initial, events)]
        if algorithm_of(algorithm).experience == GRADIENT:
            run = exercise_run(algorithm, folder, **PLAIN_SGD)
            initial = run.handles.store.snapshot()
            ask(context, push_at_once, run, range(run.spec.config.workers))
            found.append(check_at_once(run, initial))
        return found
    except (NoAnswer, UsageError) as error:
        remedy = f"read the message; does `{catalog.command_of(algorithm)} --env-id Chain` run?"
        return [Finding("a small run in Chain", "FAIL", str(error), remedy)]


def check_environment(context: BaseContext, run: Run, config: Config) -> list[Finding]:
    """The environment, in a worker's process: a hang or a crash ends only that process. Then how fast it trains."""

    def asked(question: Question, check: str, remedy: str) -> list[Finding]:
        try:
            return [Finding(**found) for found in ask(context, question, run, [0])[0]]
        except NoAnswer as error:
            return [Finding(check, "FAIL", str(error), remedy)]

    made = "a worker process can create it"
    remedy = "it must not depend on the command's own process, and no step may block"
    found = asked(partial(inspect_own, config.steps, config.seed), made, remedy)
    if found[0].check != made:
        found = [Finding(made, "ok", config.env_id), *found]
    return found + asked(measure_speed, "speed of one worker", "fix what the environment checks report")


def show(findings: Sequence[Finding], config: Config) -> None:
    """Print the findings as a table, or as JSON."""
    failed = [finding for finding in findings if finding.verdict == "FAIL"]
    if config.json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        told = {"algorithm": config.algorithm, "env_id": config.env_id, "ok": not failed, "checks": checks}
        print_line(json.dumps(told, indent=2))
        return
    width = None if sys.stdout.isatty() else max(80, shutil.get_terminal_size().columns)
    console = Screen(width=width, highlight=False)
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
    grid.add_column(overflow="fold")
    for finding in findings:
        figure = shown(finding.figure)
        if finding.remedy:
            figure.append(shown(f"\n-> {finding.remedy}", COLOURS[finding.verdict]))
        grid.add_row(shown(finding.verdict, COLOURS[finding.verdict]), shown(finding.check), figure)
    return grid
