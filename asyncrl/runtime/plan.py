"""A run as data: everything a process needs to build its part, picklable, and how each part is built from it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.config import RunConfig
from asyncrl.core.flat import bind_parameters, flatten_parameters
from asyncrl.core.rollout import Rollout
from asyncrl.core.schedules import linear
from asyncrl.envs.spec import BadEnvironment, Environment, EnvSpec, Spaces
from asyncrl.runtime.collect import MOST_BREAKS, Collector, Successor
from asyncrl.runtime.normalize import SMALLEST_GREY_DEVIATION, Normalizer, moments_shape
from asyncrl.runtime.progress import BUILDING, Progress
from asyncrl.runtime.protocols import EVALUATOR, Agent, Page
from asyncrl.runtime.report import WorkerReport
from asyncrl.runtime.seeding import ACTIONS, ENVIRONMENT, NETWORK, derive, generator
from asyncrl.runtime.store import SharedStore
from asyncrl.runtime.threads import enforce_one_thread, running_threads
from asyncrl.runtime.worker import Turn, work
from asyncrl.storage.files import write_synced
from asyncrl.storage.records import RecordWriter
from asyncrl.storage.run_folder import RunFolder

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each parameter, in the order of the flat vector."""


@dataclass(frozen=True)
class RunPlan:
    """One run, or one part of a resumed run."""

    page: str
    """Module of the algorithm, for example "asyncrl.a3c"."""
    config: RunConfig
    spec: EnvSpec
    spaces: Spaces
    folder: RunFolder
    layout: Layout
    store: SharedStore
    progress: Progress
    part: int = 0
    """How many parts there were before that left a checkpoint: each draws new random streams."""
    exact: dict[str, Any] | None = None
    """Serial backend: the state in which every worker is to go on, from the checkpoint."""
    incarnation: int = 0
    """How many processes held this one's place before and died: each draws new random streams."""

    def stream(self, worker: int, *place: int) -> tuple[int, ...]:
        """What distinguishes a random stream of a worker from all others of its purpose."""
        return (worker, *place, self.part, *([self.incarnation] if self.incarnation else []))


def load_page(module: str) -> Page:
    """The page of that name. Only this function brings pages and runtime together."""
    return cast(Page, importlib.import_module(module))


def initial_parameters(page: str, config: RunConfig, spaces: Spaces) -> tuple[Tensor, Layout]:
    """theta `[P]` at the beginning of a run with this seed, and its layout."""
    torch.manual_seed(derive(config.seed, NETWORK))
    network = load_page(page).make_network(config, spaces)
    layout = tuple((name, tuple(parameter.shape)) for name, parameter in network.named_parameters())
    return flatten_parameters(network), layout


def build_agent(plan: RunPlan, worker: int) -> tuple[Agent, Tensor]:
    """An agent and the flat vector `[P]` under its parameters, which a pull fills.

    For the methods that act on the shared parameters themselves it is theta, and a pull copies nothing. The target
    network lies on the shared theta^- in any case.
    """
    page = load_page(plan.page)
    network = page.make_network(plan.config, plan.spaces)
    if page.PRIVATE_COPY or worker == EVALUATOR:
        theta = flatten_parameters(network)
    else:
        theta = plan.store.theta
        bind_parameters(network, theta)
    target = None
    if plan.store.target is not None:
        target = page.make_network(plan.config, plan.spaces)
        bind_parameters(target, plan.store.target)
    random = generator(plan.config.seed, ACTIONS, *plan.stream(worker))
    return page.make_agent(plan.config, plan.spaces, network, target, worker, random), theta


def successor_of(plan: RunPlan, worker: int, evaluation: bool, say: Callable[[str], None]) -> Successor | None:
    """What replaces environments that broke, and says so; None if they should end their worker instead."""
    if plan.config.on_env_error == "stop":
        return None
    numbers = itertools.count(1)

    def successor(e: int, broken: Environment, error: BadEnvironment) -> tuple[Environment, NDArray[Any]]:
        phase = plan.progress.phase(worker)
        plan.progress.enter(worker, BUILDING)  # making one may take its time
        for _ in range(MOST_BREAKS):
            with contextlib.suppress(Exception):  # it is broken; what it says now is of no interest
                broken.close()
            broken = make_environment(plan, evaluation, worker, e, plan.part, plan.incarnation, next(numbers))
            plan.progress.count_rebuilt(worker)
            say(f"environment {e} made anew: {error}")
            try:
                first = broken.reset()
            except BadEnvironment as again:
                error = again
            else:
                plan.progress.enter(worker, phase)
                return broken, first
        raise error

    return successor


MakeAgent = Callable[[RunPlan, int], tuple[Agent, Tensor]]
"""What builds an agent and its flat vector: `build_agent`, or something around it."""


def build_environments(plan: RunPlan, worker: int, count: int, evaluation: bool) -> list[Environment]:
    """The environments of one worker, each with its own seed."""
    return [make_environment(plan, evaluation, *plan.stream(worker, e)) for e in range(count)]


def make_environment(plan: RunPlan, evaluation: bool, *stream: int) -> Environment:
    """One environment, whose seed is drawn from a stream of its own."""
    environment = plan.spec.make(derive(plan.config.seed, ENVIRONMENT, *stream), evaluation=evaluation)
    enforce_one_thread()  # whatever it has told the libraries
    return environment


@dataclass(frozen=True)
class Learner:
    """An actor-learner, ready to go: environments reset, memory allocated."""

    learning: Generator[None]
    """What `work` returns: its loop."""
    agent: Agent
    collector: Collector
    turn: Turn
    writer: RecordWriter

    def close(self) -> None:
        """End the loop, which then writes its last row; close its file, even if that never began, and environments."""
        self.learning.close()
        self.writer.close()
        self.collector.close()

    def state(self) -> dict[str, Any] | None:
        """Everything it will do depends on, beside what all share; None if an environment cannot tell."""
        collector, turn = self.collector.state(), self.turn
        if collector is None:
            return None
        pending = turn.state() if turn.waiting else None
        return {"collector": collector, "random": self.agent.generator.get_state(), "pending": pending}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to what `state` said; before the loop has begun."""
        self.collector.restore(state["collector"])
        self.agent.generator.set_state(state["random"])
        if state["pending"] is not None:
            self.turn.restore(state["pending"])


def build_learner(plan: RunPlan, worker: int, make_agent: MakeAgent = build_agent) -> Learner:
    """An actor-learner. `make_agent` lets the doctor listen in on the agent; everything else is as in a run."""
    config, page = plan.config, load_page(plan.page)
    agent, theta = make_agent(plan, worker)
    before = running_threads()
    environments = build_environments(plan, worker, config.envs_per_worker, evaluation=False)
    writer = RecordWriter(plan.folder.worker_file(worker))
    collector = Collector(
        environments,
        agent,
        plan.spaces,
        config.t_max,
        config.gamma,
        plan.progress,
        look_ahead=page.LOOKS_AHEAD,
        normalizer=build_normalizer(plan, worker),
        successor=successor_of(plan, worker, False, lambda line: writer.write({"worker": worker, "event": line})),
    )
    threads = running_threads() - before
    writer.write({"worker": worker, "event": "ready", "exploration": agent.exploration, "threads": threads})
    dump = partial(dump_culprit, plan.folder.culprit_file(worker), agent)
    private_copy = page.PRIVATE_COPY
    report = WorkerReport(worker, collector, plan.progress, writer, config.record_interval_seconds, private_copy, dump)
    target_interval = getattr(config, "target_interval_steps", 0)
    turn = Turn(torch.empty_like(theta), private_copy)
    learning = work(
        worker, agent, theta, collector, plan.store, plan.progress, learning_rate_of(config), report, target_interval,
        turn,
    )  # fmt: skip
    return Learner(learning, agent, collector, turn, writer)


def dump_culprit(file: Path, agent: Agent, rollout: Rollout) -> str:
    """Keep a rollout, and the parameters its gradient was taken at, as tensors by name; says where."""
    tensors = {f"parameters.{name}": parameter.detach() for name, parameter in agent.network.named_parameters()}
    for field in dataclasses.fields(rollout):
        value = getattr(rollout, field.name)
        if isinstance(value, Tensor):
            tensors[f"rollout.{field.name}"] = value
    write_synced(file, safetensors.torch.save({name: tensor.clone() for name, tensor in tensors.items()}))
    return f"its rollout and parameters are in {file.name}"


def build_normalizer(plan: RunPlan, worker: int) -> Normalizer | None:
    """The worker's view of the shared moments; None if nothing is normalised."""
    config = plan.config
    if not (config.normalize_observations or config.normalize_returns):
        return None
    shape = moments_shape(plan.spec, plan.spaces) if config.normalize_observations else ()
    return Normalizer(
        plan.store,
        worker,
        shape,
        config.normalize_returns and worker >= 0,
        config.gamma,
        least_deviation=SMALLEST_GREY_DEVIATION if plan.spec.is_atari else 0.0,
    )


def learning_rate_of(config: RunConfig) -> Callable[[int], float]:
    """eta as a function of T."""
    end = 0.0 if config.anneal_learning_rate else config.learning_rate
    return lambda steps: linear(config.learning_rate, end, steps, config.total_steps)
