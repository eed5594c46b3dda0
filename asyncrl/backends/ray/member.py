"""A host as those see it who exchange with the shards or the learner for it, and how it begins."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithm import MEMORY
from asyncrl.backends.handles import clock_of, experience_of, rollout_shape, shared
from asyncrl.experience.batches import Batches
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Report
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.normalize import RunMoments
from asyncrl.runtime.protocols import LEARNER, Counts
from asyncrl.runtime.run import Handles, RunSpec

LAST_SECONDS = 5.0
"""Time for the last calls, at the end."""
ON_THE_WAY = 2
"""Rollouts of each actor for which there is room on the way to a replay memory elsewhere."""


@dataclass(frozen=True)
class Beginning:
    """What a host needs to know to take part, as plain data."""

    spec: RunSpec
    """The spec of the whole run."""
    host: int
    incarnation: int
    """Counts the processes that have had the host's number, from 1."""
    steps: int
    """T at which the run was resumed."""
    seconds: float
    """Seconds that the run has taken so far."""
    moments: tuple[NDArray[np.float64], ...]
    """Moments at which the run was resumed."""
    state: dict[str, NDArray[np.generic]]
    """The store's state besides theta."""
    updates: int = 0
    """Updates in theta when the run was resumed."""


class Member:
    """A host as those see it who exchange with the others for it."""

    def __init__(self, beginning: Beginning) -> None:
        self.beginning = beginning
        spec, config = beginning.spec, beginning.spec.config
        self.learns = spec.learns_on_hosts
        """Whether theta is in shards; else one learner has it."""
        learners = spec.learners // config.most_hosts if self.learns else 0
        self.learners = range(LEARNER, LEARNER - learners, -1)
        """The numbers of this host's learners."""
        self.firsts: list[set[int]] = [set() for _ in range(config.workers)]
        """If one learner has theta: with which of its rollouts each process of a worker has begun."""
        self.joined, self.done = threading.Event(), threading.Event()
        """Set when theta has come, and when the workers have ended: only the last exchange is left."""

    @property
    def handles(self) -> Handles:
        """What this host's workers share."""
        raise NotImplementedError

    def say(self, line: str) -> None:
        """Report a line to be shown."""
        raise NotImplementedError

    def tell_exchanges(self, row: dict[str, Any] | None) -> None:
        """Report a row on exchanges; None: there were none."""
        raise NotImplementedError

    def report(self) -> Report:
        """What all here have counted. Called before theta is read, so that theta has all counted updates."""
        steps = [*enumerate(self.handles.clock.worker_steps()), *((learner, 0) for learner in self.learners)]
        tallies = [[count, *self.handles.store.counts(who)] for who, count in steps]
        return Report(np.array(tallies, np.int64), self.handles.moments.of_workers())

    def learn_of_others(self, others: Report) -> None:
        """Let this host's workers see T, updates and moments of the other hosts."""
        clock, store, beginning = self.handles.clock, self.handles.store, self.beginning
        if self.learns and isinstance(store, SharedStore):
            store.hear_of(beginning.updates + int(others.tallies[1]))
        clock.rebase(max(clock.base_steps, beginning.steps + int(others.tallies[0])))
        self.handles.moments.lay_down(beginning.moments, others.moments)

    def at(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with T and the time as this host knows them."""
        clock = self.handles.clock
        return {"steps": clock.steps, "seconds": round(clock.seconds, 3)} | row


def build(beginning: Beginning, spec: RunSpec) -> Handles:
    """What the workers of one host share, theta still missing. `spec` describes the run of this host alone.

    If a learner is elsewhere, the store is a copy of its theta, and the experience has the rollouts on their way to it.
    """
    config, theta = spec.config, torch.zeros(sum(math.prod(shape) for _, shape in spec.layout))
    if spec.learns_on_hosts:
        shards = beginning.spec.config.parameter_shards if beginning.spec.pushes_every_update else 0
        handles = shared(spec, theta, shards=shards)
    else:
        clock, moments = clock_of(spec), RunMoments(config.workers, spec.moments_size)
        on_their_way = (
            Batches(rollout_shape(spec), config.workers, clock, in_step=False, capacity=ON_THE_WAY)
            if spec.method.experience == MEMORY
            else experience_of(spec, clock, moments)
        )
        handles = Handles(Mirror(theta, config.descent, config.workers, clock), clock, moments, on_their_way)
    handles.clock.rebase(beginning.steps, beginning.seconds)
    handles.moments.lay_down(beginning.moments)
    state = {name: torch.from_numpy(np.array(array)) for name, array in beginning.state.items()}
    handles.store.restore(theta, state, Counts())
    return handles
