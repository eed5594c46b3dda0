"""From actors to one learner: a ring per actor, read in order, and what the learner takes at once."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.blocks import RolloutShape
from asyncrl.experience.ring import Ring, ring_bytes
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt
from asyncrl.runtime.shared_memory import shared_zeros

PATIENCE_SECONDS = 10.0
"""How long a batch in step waits for an actor that has nothing while others have: it may be dead."""


def batches_bytes(shape: RolloutShape, actors: int, capacity: int) -> int:
    """Bytes of shared memory that `Batches` of rings of `capacity` rollouts take."""
    return actors * ring_bytes(shape.layout(), capacity)


class Batches:
    """Rollouts on their way to one learner. An actor without room waits, and so does a learner without a batch.

    *In step* (A2C, PPO) a batch is one rollout of each actor, and an actor has room again when the learner has done
    with the batch: it acts with what was learnt from it. Otherwise (IMPALA) actors run ahead as far as `capacity` goes,
    and a batch is what is there, up to `most` rollouts.
    """

    def __init__(
        self,
        shape: RolloutShape,
        actors: int,
        clock: Clock,
        in_step: bool,
        capacity: int = 2,
        most: int = 0,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Allocates a ring for each actor. `most` 0: as many rollouts as there are actors.

        `patience` is the seconds that a batch in step waits for those who are missing; infinite where time must not
        matter, and nobody is lost.
        """
        layout, capacity = shape.layout(), 1 if in_step else capacity
        # One piece for all: each piece of shared memory costs every process a file descriptor.
        memory = shared_zeros(actors, ring_bytes(layout, capacity), dtype=torch.uint8)
        self._rings = [Ring(layout, capacity, piece) for piece in memory]
        self._clock = clock
        self._in_step = in_step
        self._most = most or actors
        self._taken: list[tuple[Ring, int]] = []
        self._patience = patience
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
        rollouts = []
        versions = []
        for ring, count in taken:
            for i in range(count):
                block = ring.read(i)
                assert block is not None  # nobody overwrites what has not been released
                rollout, version = blocks.read(block)
                rollouts.append(rollout)
                versions.append(version)
        self._taken = taken
        missing = sum(count == 0 for count in ready) if self._in_step else 0
        return Batch(Rollout.side_by_side(rollouts), versions, sum(ready) - len(rollouts), missing)

    def _deal(self, ready: list[int]) -> list[tuple[Ring, int]]:
        """How many rollouts to take of each ring: one of each in turn, the fullest first, until there are `most`."""
        counts = [0] * len(ready)
        left = min(self._most, sum(ready))
        while left:
            for actor in sorted(range(len(ready)), key=lambda actor: counts[actor] - ready[actor]):
                if left and counts[actor] < ready[actor]:
                    counts[actor] += 1
                    left -= 1
        return [(ring, count) for ring, count in zip(self._rings, counts, strict=True) if count]

    def _waits(self, ready: list[int]) -> bool:
        """Whether some are missing who may still come, and have not been waited for long enough."""
        missing = {actor for actor, count in enumerate(ready) if not count}
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
