"""The actor-learner: Algorithm S3 of Mnih et al. 2016, for any page and any store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, cast

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
    """One update on its way: all of a worker that a checkpoint needs to know while others have their turns."""

    gradient: Tensor
    private_copy: bool = True
    """Whether the worker acts with its own copy of theta, so that its gradient comes before the others' turns."""
    rollout: Rollout | None = None
    steps: int = 0
    """Of the rollout."""
    pulled: int = 0
    """Version of theta with which the rollout began."""
    version: int = 0
    """Version of theta at which the gradient is taken."""
    waiting: bool = False
    """Whether there is something that has still to be pushed."""

    def state(self) -> dict[str, Any]:
        """What has to be known of one that is waiting: the gradient, or the rollout of which it will be taken."""
        pending = self.gradient.clone() if self.private_copy else cast(Rollout, self.rollout).as_dict()
        return {"pending": pending, "steps": self.steps, "pulled": self.pulled, "version": self.version}

    def restore(self, state: dict[str, Any]) -> None:
        """Wait again with what `state` said."""
        if self.private_copy:
            self.gradient.copy_(state["pending"])
        else:
            self.rollout = Rollout.from_dict(state["pending"])
        self.steps, self.pulled, self.version = state["steps"], state["pulled"], state["version"]
        self.waiting = True


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

    It yields once per update. A process just runs through; the serial backend lets other workers push there. With a
    private copy the gradient is computed before the others' turns, at the theta' that was acted with, and is stale
    when it is pushed. Without one, theta' is theta itself: the others change it while the worker acts, and the gradient
    is computed after their turns, at theta as it is by then. `turn` says where the worker is; one that is waiting, from
    a checkpoint, is completed first.
    """
    parameters = list(agent.network.parameters())
    turn = turn or Turn(torch.empty_like(theta))
    metrics: Metrics = dict
    eta = learning_rate(progress.steps)

    def differentiate() -> Metrics:
        loss, metrics = agent.loss(cast(Rollout, turn.rollout))
        gradient_of(loss, parameters, out=turn.gradient)  # d theta
        report.lap("loss")
        return metrics

    try:
        while turn.waiting or not progress.finished():
            if not turn.waiting:
                turn.version = turn.pulled = store.pull(theta)  # theta' <- theta
                report.lap("pull")
                turn.rollout = next(rollouts)  # t_max steps with theta'
                turn.steps = turn.rollout.steps
                report.lap("rollout")
                if turn.private_copy:
                    metrics = differentiate()
                turn.waiting = True
                yield
                report.lap("wait")
            if not turn.private_copy:
                turn.version = store.pull(theta)  # theta as it is by now
                metrics = differentiate()
            eta = learning_rate(progress.steps)
            push = store.push(worker, turn.gradient, eta, turn.version)  # asynchronous update of theta with d theta
            progress.count(worker, turn.steps)  # T <- T + t_max E
            if target_interval_steps:
                store.refresh_target(progress.steps, target_interval_steps)  # theta^- <- theta
            turn.waiting = False
            report.lap("push")
            report.update(push, turn, metrics, eta)
    finally:
        report.close(metrics, eta)
