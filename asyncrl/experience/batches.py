"""From actors to one learner: a ring per actor, read in order, and what the learner takes at once."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.blocks import RolloutShape
from asyncrl.experience.ring import Ring, ring_bytes
from asyncrl.runtime.clock import BUILDING, ENDED, Clock
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt
from asyncrl.runtime.shared_memory import shared_zeros

PATIENCE_SECONDS = 10.0
"""How long a batch in step waits for an actor that is at work and has nothing while others have: it may hang."""


def batches_bytes(shape: RolloutShape, actors: int, capacity: int) -> int:
    """Bytes of shared memory that `Batches` of rings of `capacity` rollouts take."""
    return actors * ring_bytes(shape.layout(), capacity)


class Batches:
    """Rollouts on their way to one learner. An actor without room waits, and so does a learner without a batch.

    *In step* (A2C, PPO) a batch is one rollout of each actor. With a `capacity` of 1 an actor has room again when the
    learner has done with the batch: it acts with what was learnt from it. With 2 it makes its next rollout meanwhile.
    Otherwise (IMPALA) actors run ahead as far as `capacity` goes, and a batch is what is there, up to `most` rollouts.
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

        *In turns* (the serial backend) time does not matter: a batch in step waits for those who are missing as long as
        it takes, since nobody is lost, and for what actors make meanwhile, since nothing happens by itself.
        """
        layout = shape.layout()
        # One piece for all: each piece of shared memory costs every process a file descriptor.
        memory = shared_zeros(actors, ring_bytes(layout, capacity), dtype=torch.uint8)
        self._rings = [Ring(layout, capacity, piece) for piece in memory]
        self._clock = clock
        self._in_step = in_step
        self._most = most or actors
        self._shape = shape
        self._memory = torch.empty(0)
        """Where the observations of a batch are put side by side."""
        self._taken: list[tuple[Ring, int]] = []
        self._patience = math.inf if in_turns else PATIENCE_SECONDS
        self._awaited = capacity if in_turns else 1
        """Rollouts of each actor that a batch in step waits for."""
        self._waiting_since: float | None = None
        self._given_up: set[int] = set()
        """Actors that were waited for in vain; nobody waits for them again before they have put something."""

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout."""
        return self._rings[actor].free() > 0

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Copy a rollout into the actor's ring, and count its steps."""
        ring = self._rings[actor]
        blocks.write(ring.begin(), rollout, version)
        ring.publish()
        self._clock.count(actor, rollout.steps)
        return Receipt(True, steps=self._clock.steps, finished=self._clock.finished())

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The learner's next batch; None if it is not there yet."""
        ready = [ring.ready() for ring in self._rings]
        if not any(ready) or (self._in_step and self._waits(ready)):
            return None
        self._waiting_since = None
        taken = self._deal(ready)
        unread = [ring.read(i) for ring, count in taken for i in range(count)]
        places = self._places(len(unread))
        rollouts, versions = [], []
        for block, place in zip(unread, torch.split(places, self._shape.environments, 1), strict=True):
            assert block is not None  # nobody overwrites what has not been released
            rollout, version = blocks.read(block, place)
            rollouts.append(rollout)
            versions.append(version)
        again = sum(min(count, ring.used()) for ring, count in taken)
        for ring, count in taken:
            ring.use(count)
        self._taken = taken
        missing = sum(count == 0 for count in ready) if self._in_step else 0
        return Batch(Rollout.side_by_side(rollouts, places), versions, sum(ready) - len(rollouts), missing, again)

    def _places(self, rollouts: int) -> Tensor:
        """`[T + 1, rollouts E, ...]` for observations side by side, in memory that the next batch uses again: to get
        megabytes afresh for each batch takes as long as to fill them."""
        shape = (self._shape.steps + 1, rollouts * self._shape.environments, *self._shape.spaces.observation_shape)
        size = math.prod(shape)
        if len(self._memory) < size:
            dtype = torch.float32 if self._shape.moments else getattr(torch, self._shape.spaces.observation_dtype)
            self._memory = torch.empty(size, dtype=dtype)
        return self._memory[:size].view(shape)

    def _deal(self, ready: list[int]) -> list[tuple[Ring, int]]:
        """How many rollouts to take of each ring: in step one; else one of each in turn, the fullest first, until there
        are `most`."""
        if self._in_step:
            return [(ring, 1) for ring, count in zip(self._rings, ready, strict=True) if count]
        counts = [0] * len(ready)
        left = min(self._most, sum(ready))
        while left:
            for actor in sorted(range(len(ready)), key=lambda actor: counts[actor] - ready[actor]):
                if left and counts[actor] < ready[actor]:
                    counts[actor] += 1
                    left -= 1
        return [(ring, count) for ring, count in zip(self._rings, counts, strict=True) if count]

    def _waits(self, ready: list[int]) -> bool:
        """Whether some are missing who are at work, and have not been waited for long enough."""
        missing = {actor for actor, count in enumerate(ready) if count < self._awaited and self._is_at_work(actor)}
        self._given_up &= missing
        if missing <= self._given_up or self._clock.finished():
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since > self._patience:
            self._given_up = missing
            return False
        return True

    def _is_at_work(self, actor: int) -> bool:
        """Whether it may put a rollout soon; one that was lost will not, nor its successor while it is being built."""
        return self._clock.phase(actor) not in (BUILDING, ENDED)

    def release(self, learner: int = LEARNER) -> None:
        """The learner has done with what it took: the room is the actors' again."""
        for ring, count in self._taken:
            ring.release(count)
        self._taken = []

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Each rollout is taken once: errors do not matter."""

    def state(self) -> dict[str, Tensor]:
        """Copies of what lies in the rings, while nobody puts or takes."""
        return {
            f"{actor}.{name}": tensor for actor, ring in enumerate(self._rings) for name, tensor in ring.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` said. Raises UsageError if it does not fit."""
        for actor, ring in enumerate(self._rings):
            prefix = f"{actor}."
            ring.restore({name.removeprefix(prefix): own for name, own in state.items() if name.startswith(prefix)})
