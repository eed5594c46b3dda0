"""A replay memory in processes of its own: each has a part of it, and the learner draws from all.

The transport is elsewhere, as for hosts. Everything that holds for a memory beside the learner holds for each part: its
hosts' rollouts arrive as at a learner, and its own replay ratio says when a minibatch is due and when its actors wait.
A part that dies loses its steps. Its successor is an empty memory, in a new epoch for hosts and learner.

The learner has one call pending to each part. It brings the newest errors there and comes back with a minibatch once
one is due, while the learner learns from another. The learner takes whichever is there. So each part is drawn from as
often as its own hosts' steps ask for, and a lost one makes nobody wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.backends.handles import rollout_shape
from asyncrl.backends.ray.arrivals import Arrivals, Rollouts
from asyncrl.backends.ray.member import LAST_SECONDS
from asyncrl.backends.replay_plans import memory_plan_of_host
from asyncrl.core.rollout import Transitions
from asyncrl.experience.replay import Replay, normalized
from asyncrl.runtime.clock import Clock, Watch
from asyncrl.runtime.hosts import on_one_machine
from asyncrl.runtime.link import NEVER, Answer, Call, Callee, Empty, Link, Server, State, Wire, receive
from asyncrl.runtime.normalize import Normalizer
from asyncrl.runtime.protocols import LEARNER, Batch
from asyncrl.runtime.run import RunSpec

LOOK_SECONDS = 0.005
"""How long a learner without a minibatch waits for one before it looks after other things."""
DUE_SECONDS = 0.25
"""How long a memory may wait until a minibatch is due before it answers that none is."""


@dataclass(frozen=True)
class Feedback:
    """A learner's newest errors of what it has drawn."""

    epoch: int
    """The epoch of the memory that it was drawn from."""
    keys: NDArray[np.int64]
    """`[B]`"""
    errors: NDArray[np.float32]
    """`[B]`"""


@dataclass(frozen=True)
class Draw:
    """A learner asks for a minibatch."""

    steps: int
    """T as the learner knows it."""
    seconds: float
    """How long to wait until a minibatch is due."""
    feedback: Feedback | None = None
    """Of the minibatch before the last one."""


@dataclass(frozen=True)
class Drew:
    """A minibatch: the receipt of the learner's call, if one was due."""

    transitions: dict[str, NDArray[np.generic]]
    """The tensors of `Transitions` by name, nothing normalised."""
    keys: NDArray[np.int64] | None = None
    """`[B]` for the feedback, if the memory samples by priority."""
    facts: dict[str, float] = field(default_factory=dict)
    """Figures for the records."""


def tensor_of(array: NDArray[np.generic]) -> Tensor:
    """A copy: what has come over a transport may be read-only."""
    return torch.from_numpy(np.array(array))


class ReplayHost(Server):
    """One part of the memory."""

    def __init__(self, spec: RunSpec, number: int) -> None:
        """`spec` is that of the whole run."""
        super().__init__()
        self._spec, self._number = spec, number
        self._arrivals: Arrivals | None = None
        self._clock = Clock(1, 0)
        self._learner = Callee(1)

    def fill(self, epoch: int, state: State) -> None:
        """Begin with an empty memory: nothing of `state` is needed."""
        spec, workers = self._spec, self._spec.config.workers
        # Each memory of each part of the run has random numbers of its own.
        plan = memory_plan_of_host(spec, self._number, (spec.part, self._number, epoch))
        self._clock = Clock(plan.actors, 0)
        self._replay, hosts = Replay(plan, self._clock, lambda: None), plan.actors // workers
        self._learner.epoch = epoch
        shape = rollout_shape(on_one_machine(spec, workers))
        self._arrivals = Arrivals(self._replay, shape, hosts, workers, Callee(hosts, epoch))

    def state(self) -> State:
        """How many steps are stored. Raises Empty."""
        self._filled()
        steps = self._replay.steps
        return {"stored": np.array([np.minimum(steps.put, steps.capacity).sum()])}

    def exchange(self, call: Call[Rollouts] | Call[Draw]) -> Answer:
        """Take rollouts from a host, or give the learner a minibatch. Raises Empty.

        A host's number in calls is its number among the hosts of this memory.
        """
        arrivals = self._filled()
        if isinstance(call.load, Rollouts):
            return arrivals.hear(call)[0]
        with self.lock:
            if self._learner.admit(call):
                self._learner.receipts[0] = self._draw(arrivals, call.load)
            return self._learner.answer(call)

    def _draw(self, arrivals: Arrivals, draw: Draw) -> Drew | None:
        """A new minibatch if one is due."""
        feedback, memory = draw.feedback, self._replay
        if feedback is not None and feedback.epoch == self._learner.epoch:
            memory.feedback(tensor_of(feedback.keys), tensor_of(feedback.errors))
        self._clock.rebase(draw.steps)
        with arrivals.lock:
            arrivals.stored.wait_for(lambda: memory.ahead() >= 1, timeout=draw.seconds)
        batch = arrivals.take()
        if batch is None:
            return None
        arrivals.release()  # it counts as learnt: hosts may send the steps that this allows
        found = {one.name: getattr(batch.rollout, one.name) for one in fields(batch.rollout)}
        transitions = {name: value.numpy() for name, value in found.items() if isinstance(value, Tensor)}
        return Drew(transitions, None if batch.keys is None else batch.keys.numpy(), dict(batch.facts))

    def _filled(self) -> Arrivals:
        if self._arrivals is None:
            raise Empty
        return self._arrivals


@dataclass(eq=False)
class Lane:
    """What the learner has to do with one part of the memory."""

    link: Link[Draw]
    called: float = -math.inf
    """When the newest call was made."""
    drew: Drew | None = None
    """A minibatch that has come."""
    feedback: Feedback | None = None
    """For the next call."""
    empty: float = -math.inf
    """When the last call was made to which the memory answered that nothing is due."""


class RemoteReplay:
    """All parts as the experience of one learner, for its thread; `drained` may be called by another."""

    def __init__(self, wire: Wire, memories: int, learner: int, clock: Clock, normalizer: Normalizer | None) -> None:
        """`learner` is greater than that of any earlier learner."""
        self._clock, self._normalizer = clock, normalizer
        self.lanes: Sequence[Lane] = [Lane(Link(wire, memory, 0, learner)) for memory in range(memories)]
        self._next = 0
        """The memory whose minibatch is preferred: they take turns."""
        self._taken: tuple[Lane, int] = self.lanes[0], NEVER
        """From which memory the minibatch is that is being learnt from, and the memory's epoch."""
        self._ending = math.inf
        self._watch = Watch(LAST_SECONDS)
        """For whoever asks whether the memories are drained."""

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The next minibatch that has come, normalised by the newest moments; None if there is none yet."""
        self._ask()
        if self._ready() is None:
            self._receive(LOOK_SECONDS)
        lane = self._ready()
        if lane is None:
            return None
        drew, lane.drew = lane.drew, None
        assert drew is not None
        self._taken, self._next = (lane, lane.link.epoch), self.lanes.index(lane) + 1
        self._ask()  # so that the next one is under way while this one is learnt from
        keys = None if drew.keys is None else tensor_of(drew.keys)
        tensors: dict[str, Any] = {name: tensor_of(array) for name, array in drew.transitions.items()}
        return Batch(normalized(Transitions(**tensors), self._normalizer), [], keys=keys, facts=drew.facts)

    def _ready(self) -> Lane | None:
        """The first memory in turn whose minibatch has come."""
        in_turn = (self.lanes[(self._next + further) % len(self.lanes)] for further in range(len(self.lanes)))
        return next((lane for lane in in_turn if lane.drew is not None), None)

    def _ask(self) -> None:
        """Have a call pending to each memory whose minibatch has not come."""
        seconds = DUE_SECONDS if self._ending == math.inf else 0.0
        for lane in self.lanes:
            if lane.link.has_credit and lane.drew is None:
                feedback, lane.feedback, lane.called = lane.feedback, None, time.monotonic()
                lane.link.call(Draw(self._clock.steps, seconds, feedback))
            lane.link.repeat()

    def _receive(self, seconds: float) -> None:
        """Wait up to `seconds` for an answer."""
        lanes = {lane.link: lane for lane in self.lanes}
        for link, answer, _ in receive(list(lanes), seconds):
            if link.accept(answer):
                lane = lanes[link]
                lane.drew = answer.receipt
                lane.empty = lane.called if lane.drew is None else lane.empty

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Keep errors for the next call to the memory that the newest minibatch is from."""
        lane, epoch = self._taken
        lane.feedback = Feedback(epoch, keys.numpy(), errors.numpy())

    def release(self, learner: int = LEARNER) -> None:
        """Does nothing: a minibatch counts as learnt in its memory once it has been drawn."""

    def drained(self) -> bool:
        """Whether no memory has anything left to learn from, once hosts have sent their last steps.

        One that does not answer any more is not waited for.
        """
        if self._ending == math.inf:
            self._watch = Watch(LAST_SECONDS)
        self._ending = ending = min(self._ending, time.monotonic())
        return all(
            lane.empty > ending
            or (lane.drew is None and self._watch.silence(max(lane.link.heard, ending)) > LAST_SECONDS)
            for lane in self.lanes
        )
