"""From actors to one learner: a ring of rollouts per actor, and the learner's batches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.blocks import Ring, RolloutShape, entries_under, ring_bytes
from asyncrl.runtime.clock import BUILDING, ENDED, Clock, Watch, shared_zeros
from asyncrl.runtime.protocols import LEARNER, Batch

PATIENCE_SECONDS = 10.0
"""How long an in-step batch waits for an actor that is running but late: it may hang."""


class Batches:
    """Rollouts on their way to one learner. An actor without room waits, and so does a learner without a batch.

    *In step* (A2C, PPO), a batch is one rollout of each actor. With a `capacity` of 1 an actor has room again once the
    learner is done with the batch, so it acts with the new theta. With 2 it makes its next rollout meanwhile. Otherwise
    (IMPALA) actors run up to `capacity` rollouts ahead, and a batch is whatever is ready, up to `most` rollouts.
    """

    def __init__(
        self,
        shape: RolloutShape,
        actors: int,
        clock: Clock,
        in_step: bool,
        capacity: int = 1,
        most: int = 0,
        in_turns: bool = False,
    ) -> None:
        """Allocates a ring for each actor. `most` 0: as many rollouts as there are actors.

        *In turns* (the serial backend), time does not matter: an in-step batch waits for missing actors without limit,
        since none can be lost, and until their rings are full, since nothing happens by itself.
        """
        layout = shape.layout()
        # One allocation for all: each piece of shared memory costs every process a file descriptor.
        memory = shared_zeros(actors, ring_bytes(layout, capacity), dtype=torch.uint8)
        self.rings = [Ring(layout, capacity, piece) for piece in memory]
        """A ring per actor."""
        self._clock = clock
        self._in_step = in_step
        self._most = most or actors
        self._shape = shape
        self._memory = torch.empty(0)
        """Where the observations of a batch are copied side by side."""
        self._taken: list[tuple[Ring, int]] = []
        self._patience = math.inf if in_turns else PATIENCE_SECONDS
        self._awaited = capacity if in_turns else 1
        """Rollouts of each actor that an in-step batch waits for."""
        self._waiting: tuple[Watch, float] | None = None
        """Since when a batch has been waited for."""
        self._given_up: set[int] = set()
        """Actors that were too late; batches do not wait for them until they put another rollout."""

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout."""
        return self.rings[actor].free() > 0

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Copy a rollout into the actor's ring, and count its steps."""
        ring = self.rings[actor]
        blocks.write(ring.begin(), rollout, version)
        ring.publish()
        self._clock.count(actor, rollout.steps)

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The learner's next batch; None if it is not ready."""
        ready = [ring.ready() for ring in self.rings]
        if not any(ready) or (self._in_step and self._must_wait(ready)):
            return None
        self._waiting = None
        taken = self._choose(ready)
        unread = [ring.read(i) for ring, count in taken for i in range(count)]
        places = self._observation_memory(len(unread))
        pieces = torch.split(places, self._shape.environments, 1)
        read = [blocks.read(block, place) for block, place in zip(unread, pieces, strict=True)]
        rollouts, versions = [rollout for rollout, _ in read], [version for _, version in read]
        again = sum(min(count, ring.used()) for ring, count in taken)
        for ring, count in taken:
            ring.use(count)
        self._taken = taken
        missing = sum(count == 0 for count in ready) if self._in_step else 0
        return Batch(Rollout.side_by_side(rollouts, places), versions, sum(ready) - len(rollouts), missing, again)

    def _observation_memory(self, rollouts: int) -> Tensor:
        """`[T + 1, rollouts E, ...]` for a batch's observations, in memory that the next batch reuses.

        Allocating megabytes for each batch would take as long as filling them.
        """
        shape = (self._shape.steps + 1, rollouts * self._shape.environments, *self._shape.spaces.observation_shape)
        size = math.prod(shape)
        if len(self._memory) < size:
            dtype = torch.float32 if self._shape.moments else getattr(torch, self._shape.spaces.observation_dtype)
            self._memory = torch.empty(size, dtype=dtype)
        return self._memory[:size].view(shape)

    def _choose(self, ready: list[int]) -> list[tuple[Ring, int]]:
        """How many rollouts to take from each ring: in step one; else one of each in turn, up to `most`.

        The fullest ring is first; of equally full ones that whose next rollout is of the oldest theta. Otherwise the
        same few actors would have room again and again, wherever the learner is slower than they are.
        """
        if self._in_step:
            return [(ring, 1) for ring, count in zip(self.rings, ready, strict=True) if count]
        counts = [0] * len(ready)
        left = min(self._most, sum(ready))

        def place(actor: int) -> tuple[int, int]:
            rest, ring = ready[actor] - counts[actor], self.rings[actor]
            return -rest, blocks.version_of(ring.read(counts[actor])) if rest else 0

        while left:
            for actor in sorted(range(len(ready)), key=place):
                if left and counts[actor] < ready[actor]:
                    counts[actor] += 1
                    left -= 1
        return [(ring, count) for ring, count in zip(self.rings, counts, strict=True) if count]

    def _must_wait(self, ready: list[int]) -> bool:
        """Whether rollouts of running actors are missing, and there is still patience."""
        late = [actor for actor, count in enumerate(ready) if count < self._awaited]
        # Nobody waits for those that were lost, or whose successors are still starting.
        missing = {actor for actor in late if self._clock.phase(actor) not in (BUILDING, ENDED)}
        self._given_up &= missing
        if missing <= self._given_up or self._clock.finished():
            return False
        if self._waiting is None:
            self._waiting = Watch(), time.monotonic()
        watch, since = self._waiting
        if watch.silence(since) > self._patience:
            self._given_up = missing
            return False
        return True

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with its batch: actors have room again."""
        for ring, count in self._taken:
            ring.release(count)
        self._taken = []

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Does nothing: each rollout is taken once."""

    def state(self) -> dict[str, Tensor]:
        """Copies of the rollouts in the rings. Call it while nobody puts or takes."""
        return {
            f"{actor}.{name}": tensor for actor, ring in enumerate(self.rings) for name, tensor in ring.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises UsageError if it does not fit."""
        for actor, ring in enumerate(self.rings):
            ring.restore(entries_under(state, str(actor)))
            if not all(blocks.points_within(self._shape, ring.read(i)) for i in range(ring.ready())):
                raise UsageError("the checkpoint's experience cannot be used: its truncations or actions are invalid")
