"""A run as data: everything a process needs to build its part, picklable, and how each part is built from it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from asyncrl.core.config import RunConfig
from asyncrl.core.flat import bind_parameters, flatten_parameters
from asyncrl.core.schedules import linear
from asyncrl.envs.spec import Environment, EnvSpec, Spaces
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.normalize import SMALLEST_GREY_DEVIATION, Normalizer, moments_shape
from asyncrl.runtime.progress import Progress
from asyncrl.runtime.protocols import EVALUATOR, Agent, Page
from asyncrl.runtime.report import WorkerReport
from asyncrl.runtime.seeding import ACTIONS, ENVIRONMENT, NETWORK, derive, generator
from asyncrl.runtime.store import SharedStore
from asyncrl.runtime.worker import work
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
    """How often the run has been resumed: each part draws new random streams."""
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


MakeAgent = Callable[[RunPlan, int], tuple[Agent, Tensor]]
"""What builds an agent and its flat vector: `build_agent`, or something around it."""


def build_environments(plan: RunPlan, worker: int, count: int, evaluation: bool) -> list[Environment]:
    """The environments of one worker, each with its own seed."""
    return [
        plan.spec.make(derive(plan.config.seed, ENVIRONMENT, *plan.stream(worker, e)), evaluation=evaluation)
        for e in range(count)
    ]


def build_worker(plan: RunPlan, worker: int, make_agent: MakeAgent = build_agent) -> Generator[None]:
    """An actor-learner, ready to go: environments reset, memory allocated.

    `make_agent` lets the doctor listen in on the agent; everything else is as in a run.
    """
    config, page = plan.config, load_page(plan.page)
    agent, theta = make_agent(plan, worker)
    environments = build_environments(plan, worker, config.envs_per_worker, evaluation=False)
    collector = Collector(
        environments,
        agent,
        plan.spaces,
        config.t_max,
        config.gamma,
        plan.progress,
        look_ahead=page.LOOKS_AHEAD,
        normalizer=build_normalizer(plan, worker),
    )
    writer = RecordWriter(plan.folder.worker_file(worker))
    writer.write({"worker": worker, "event": "ready", "exploration": agent.exploration})
    report = WorkerReport(worker, collector, plan.progress, writer, config.record_interval_seconds)
    target_interval = getattr(config, "target_interval_steps", 0)
    return work(
        worker, agent, theta, collector, plan.store, plan.progress, learning_rate_of(config), report, target_interval
    )


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
