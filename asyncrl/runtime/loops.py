"""The three loops, for any algorithm, any store and any experience.

    actor_learner    A3C and the Q family (Mnih et al. 2016, Algorithm S3)
    actor, learner   A2C, PPO, IMPALA, Gorila, Ape-X

Each is a generator. A process runs through it; the serial backend switches to another one at every yield. What it
yields says whether something was done; if not, the loop waits for somebody else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from asyncrl.algorithm import Algorithm
from asyncrl.core.devices import CPU
from asyncrl.core.flat import bind_parameters, flatten_parameters, gradient_of, split_like
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout, on_device
from asyncrl.nets.trunk import compute_in, keep_activations
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Experience, Store, Update
from asyncrl.runtime.telemetry import Telemetry

WORKED, WAITS = True, False


class Replica:
    """theta' of a network, and theta^- of a target network: views on the store's vectors if it has any, or copies."""

    def __init__(
        self,
        store: Store,
        network: nn.Module,
        target: nn.Module | None,
        private_copy: bool,
        precision: str = "float32",
        taped: tuple[int, int] | None = None,
        compiled: bool = False,
    ) -> None:
        """Puts each network on one flat vector. `private_copy`: theta' is a copy even if theta can be viewed.

        Both are copies for networks on another device than the store's.

        With a `precision` of "bfloat16" large layers have a copy in bfloat16 of their part of theta' in any case.
        `taped`: keep what the network computes when it acts between two pulls; so many observations of each of so many
        environments. `compiled`: act by compiled code where there is any.
        """
        there = any(parameter.device.type != CPU for parameter in network.parameters())
        theta = None if private_copy or there else store.view()
        self.theta: Tensor = flatten_parameters(network) if theta is None else theta
        """theta' `[P]`."""
        if theta is not None:
            bind_parameters(network, theta)
        parameters = list(network.parameters())
        parts = split_like(self.theta, parameters)
        compute_in(network, precision)
        self._casts = [
            (parameter.detach(), part)
            for parameter, part in zip(parameters, parts, strict=True)
            if parameter.dtype != torch.float32
        ]
        self._forgets = keep_activations(network, *taped) if taped else []
        if compiled:
            from asyncrl.nets.acting import act_compiled

            self._forgets += act_compiled(network, changing=theta is not None)
        self.target: Tensor | None = None
        """theta^- `[P]`, or this process's copy of it."""
        self._copies_target = False
        if target is not None:
            view = None if there else store.target_view()
            self._copies_target = view is None
            self.target = flatten_parameters(target) if view is None else view
            if view is not None:
                bind_parameters(target, view)
            compute_in(target, precision, cast_weights=False)

    def pull(self, store: Store) -> int:
        """theta' <- theta, and theta^- if it is copied; returns the version."""
        if self._copies_target and self.target is not None:
            store.target(self.target)
        version = store.pull(self.theta)
        for narrow, part in self._casts:
            narrow.copy_(part)
        for forget in self._forgets:
            forget()
        return version


@dataclass
class Pending:
    """A pending update: all that a checkpoint needs to know of a worker while others have their turns."""

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
    loss: float | None = None
    """Of which it is the gradient, by which it may be dropped."""
    waiting: bool = False
    """Whether something is still to be pushed."""

    def state(self) -> dict[str, Any]:
        """What a pending update consists of: the gradient, or the rollout from which it will be computed.

        The gradient is stored as bytes: it need not be finite, since the push looks at that.
        """
        rollout = None if self.private_copy else cast(Rollout, self.rollout).as_dict()
        pending = rollout or self.gradient.clone().view(torch.uint8)
        numbers = {"steps": self.steps, "pulled": self.pulled, "version": self.version, "loss": self.loss}
        return {"pending": pending, **numbers}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        if self.private_copy:
            self.gradient.copy_(state["pending"].clone().view(torch.float32))
        else:
            self.rollout = Rollout.from_dict(state["pending"])
        self.steps, self.pulled, self.version = state["steps"], state["pulled"], state["version"]
        self.loss = state.get("loss")
        self.waiting = True


def actor_learner(
    worker: int,
    agent: Algorithm,
    replica: Replica,
    rollouts: Iterator[Rollout],
    store: Store,
    clock: Clock,
    telemetry: Telemetry,
    pending: Pending,
) -> Generator[bool]:
    """Act and push gradients until the run is finished.

    With a private copy the gradient is computed before the others' turns, at the theta' that acted, and is stale when
    it is pushed. Without one, theta' is theta itself: the others change it while the worker acts, and the gradient is
    computed after their turns, at the current theta. An update `pending` from a checkpoint is completed first.
    """
    parameters = list(agent.network.parameters())
    metrics: Metrics = dict

    def differentiate() -> Metrics:
        loss, metrics = agent.loss(cast(Rollout, pending.rollout))
        gradient_of(loss, parameters, out=pending.gradient)  # d theta
        pending.loss = loss.item()
        telemetry.lap("loss")
        return metrics

    try:
        while pending.waiting or not clock.finished():
            if not pending.waiting:
                pending.version = pending.pulled = replica.pull(store)  # theta' <- theta
                telemetry.lap("pull")
                pending.rollout = next(rollouts)  # t_max steps with theta'
                pending.steps = pending.rollout.steps
                telemetry.lap("rollout")
                if pending.private_copy:
                    metrics = differentiate()
                pending.waiting = True
                yield WORKED
                telemetry.lap("wait")
            if not pending.private_copy:
                pending.version = replica.pull(store)  # the current theta
                metrics = differentiate()
            update = Update(worker, pending.gradient, pending.version, pending.steps, pending.loss)
            receipt = store.push(update)  # theta by d theta, asynchronously; T <- T + t_max E
            pending.waiting = False
            telemetry.lap("push")
            telemetry.update(receipt, pending.steps, metrics, pending.rollout, pending.version - pending.pulled)
    finally:
        telemetry.write()


def actor(
    worker: int,
    replica: Replica,
    rollouts: Iterator[Rollout],
    store: Store,
    experience: Experience,
    clock: Clock,
    telemetry: Telemetry,
) -> Generator[bool]:
    """Act and hand over rollouts until the run is finished; wait while there is no room."""
    try:
        while not clock.finished():
            if not experience.has_room(worker):
                clock.beat(worker)
                yield WAITS
                telemetry.lap("wait")
                continue
            version = replica.pull(store)  # theta' <- theta
            telemetry.lap("pull")
            rollout = next(rollouts)  # t_max steps with theta'
            telemetry.lap("rollout")
            experience.put(worker, rollout, version)  # T <- T + t_max E
            telemetry.lap("put")
            telemetry.handed_over(rollout.steps)
            yield WORKED
            telemetry.lap("wait")
    finally:
        telemetry.write()


def learner(
    agent: Algorithm,
    replica: Replica,
    store: Store,
    experience: Experience,
    clock: Clock,
    telemetry: Telemetry,
    who: int = LEARNER,
) -> Generator[bool]:
    """Learn from the actors' rollouts until the run is finished and nothing is left.

    `who` is LEARNER, or the worker whose actor shares the process with this learner.
    """
    parameters = list(agent.network.parameters())
    gradient = torch.empty_like(replica.theta)
    try:
        while True:
            over = clock.finished()  # asked first, so that everything put before the end is learnt from
            batch = experience.take(who)
            if batch is None:
                if over:
                    return
                clock.beat(who)
                yield WAITS
                telemetry.lap("wait")
                continue
            telemetry.lap("take")
            telemetry.batch(batch, store.updates)
            replica.pull(store)  # a copy is one update behind, and passes may start by computing the batch's values
            for part in agent.passes(on_device(batch.rollout, replica.theta.device)):
                if clock.leaving():
                    return  # a batch may have many updates, and a learner that is late to exit is killed during one
                version = replica.pull(store)
                loss, metrics = agent.loss(part)
                gradient_of(loss, parameters, out=gradient)  # d theta
                telemetry.lap("loss")
                receipt = store.push(Update(who, gradient.cpu(), version, 0, loss.detach()))
                clock.beat(who)
                telemetry.lap("push")
                telemetry.update(receipt, 0, metrics, part)
            if batch.keys is not None:
                experience.feedback(batch.keys, agent.errors.cpu(), who)
            experience.release(who)
            yield WORKED
            telemetry.lap("wait")
    finally:
        telemetry.write()


def bundled(actor: Generator[bool], learner: Generator[bool]) -> Generator[bool]:
    """An actor and a learner in one process, in turns, until both have ended (Gorila, Nair et al. 2015)."""
    loops = [actor, learner]
    try:
        while loops:
            turns = [(loop, next(loop, None)) for loop in loops]
            loops = [loop for loop, worked in turns if worked is not None]
            if loops:
                yield any(worked for _, worked in turns)
    finally:
        actor.close()
        learner.close()
