"""The actor-learner: Algorithm S3 of Mnih et al. 2016, for any page and any store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.core.flat import gradient_of
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.runtime.progress import Progress
from asyncrl.runtime.protocols import Agent, Store
from asyncrl.runtime.report import WorkerReport


@dataclass
class Turn:
    """What lies between computing a gradient and pushing it: all of a worker that a checkpoint needs to know."""

    gradient: Tensor
    version: int = 0
    steps: int = 0
    waiting: bool = False
    """Whether the gradient has still to be pushed."""


def work(
    worker: int,
    agent: Agent,
    theta: Tensor,
    rollouts: Iterator[Rollout],
    store: Store,
    progress: Progress,
    learning_rate: Callable[[int], float],
    report: WorkerReport,
    target_interval_steps: int = 0,
    turn: Turn | None = None,
) -> Generator[None]:
    """Learn until the run is finished. `theta` `[P]` is the memory under the agent's own parameters (theta').

    It yields once per update, between computing the gradient and pushing it. A process just runs through; the serial
    backend lets other workers go on there, which is what makes their updates stale. `turn` says where it is; one that
    is waiting, from a checkpoint, is completed first.
    """
    parameters = list(agent.network.parameters())
    turn = turn or Turn(torch.empty_like(theta))
    gradient = turn.gradient
    metrics: Metrics = dict
    eta = learning_rate(progress.steps)
    try:
        if turn.waiting:
            store.push(worker, gradient, eta, turn.version)
            progress.count(worker, turn.steps)
            if target_interval_steps:
                store.refresh_target(progress.steps, target_interval_steps)
            turn.waiting = False
        while not progress.finished():
            version = store.pull(theta)  # theta' <- theta
            report.lap("pull")
            rollout = next(rollouts)  # t_max steps with theta'
            report.lap("rollout")
            loss, metrics = agent.loss(rollout)
            gradient_of(loss, parameters, out=gradient)  # d theta
            report.lap("loss")
            turn.version, turn.steps, turn.waiting = version, rollout.steps, True
            yield
            report.lap("wait")
            eta = learning_rate(progress.steps)
            push = store.push(worker, gradient, eta, version)  # asynchronous update of theta with d theta
            progress.count(worker, rollout.steps)  # T <- T + t_max E
            if target_interval_steps:
                store.refresh_target(progress.steps, target_interval_steps)  # theta^- <- theta
            turn.waiting = False
            report.lap("push")
            report.update(push, metrics, eta, rollout)
    finally:
        report.close(metrics, eta)
