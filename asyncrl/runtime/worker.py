"""The actor-learner: Algorithm S3 of Mnih et al. 2016, for any page and any store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import torch
from torch import Tensor

from asyncrl.core.flat import gradient_of
from asyncrl.core.rollout import Rollout
from asyncrl.runtime.progress import Progress
from asyncrl.runtime.protocols import Agent, Store
from asyncrl.runtime.report import WorkerReport


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
) -> Generator[None]:
    """Learn until the run is finished. `theta` `[P]` is the memory under the agent's own parameters (theta').

    It yields once per update, between computing the gradient and pushing it. A process just runs through; the serial
    backend lets other workers go on there, which is what makes their updates stale.
    """
    parameters = list(agent.network.parameters())
    gradient = torch.empty_like(theta)
    metrics: dict[str, Tensor] = {}
    eta = learning_rate(progress.steps)
    try:
        while not progress.finished():
            version = store.pull(theta)  # theta' <- theta
            report.lap("pull")
            rollout = next(rollouts)  # t_max steps with theta'
            report.lap("rollout")
            loss, metrics = agent.loss(rollout)
            gradient_of(loss, parameters, out=gradient)  # d theta
            report.lap("loss")
            yield
            report.lap("wait")
            eta = learning_rate(progress.steps)
            push = store.push(worker, gradient, eta, version)  # asynchronous update of theta with d theta
            progress.count(worker, rollout.steps)  # T <- T + t_max
            if target_interval_steps:
                store.refresh_target(progress.steps, target_interval_steps)  # theta^- <- theta
            report.lap("push")
            report.update(push, metrics, eta, rollout)
    finally:
        report.close(metrics, eta)
