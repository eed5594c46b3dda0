"""From the actors of all ranks to the learner of rank 0, in step: rollouts are gathered, theta is broadcast.

There are two exchanges per batch. A put waits until all ranks have put; on all ranks but 0 it then waits for the
learner's new theta. The transport is elsewhere: whoever runs the ranks passes in `gather` and `broadcast`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.blocks import RolloutShape, block_of, header_of, packed
from asyncrl.runtime.agreement import Agreement
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Batch, Counts

REPLY = 3
"""Integers before all ranks' steps and theta: updates, dropped updates, the decision."""

Gather = Callable[[Tensor], tuple[list[Tensor], float]]
"""Sends bytes of any length to rank 0. Returns the messages of all ranks there, in the order of ranks, an empty list
elsewhere, and the seconds of that spent waiting for other ranks to arrive."""
Broadcast = Callable[[Tensor], None]
"""Overwrites a tensor with that of rank 0."""


class Adopting(Protocol):
    """A store that can take over the theta of another rank."""

    theta: Tensor

    def counts(self) -> Counts:
        """Updates in theta, and dropped ones."""

    def adopt(self, updates: int, dropped: int) -> None:
        """Take over the learner's counts, after its theta."""


class Kept:
    """Rollouts that stay on their rank: each rank's learner averages its gradients with the others'."""

    def __init__(self, shape: RolloutShape, clock: Clock) -> None:
        self._shape = shape
        self._clock = clock
        self._messages: list[Tensor] = []
        """The next batch, until the learner is done with it."""

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: once the learner is done with the last batch."""
        return not self._messages

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Hand over a copy of a rollout, and count its steps on this rank."""
        self._messages = [packed(self._shape, rollout, version, 0)]
        self._clock.count(actor, rollout.steps)

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The rollouts side by side; None if there are none."""
        if not self._messages:
            return None
        taken = [blocks.read(block_of(self._shape, message)) for message in self._messages]
        return Batch(Rollout.side_by_side([rollout for rollout, _ in taken]), [version for _, version in taken])

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with the batch."""
        self._messages = []

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Does nothing: nothing is sampled by priority."""

    def state(self) -> dict[str, Tensor]:
        """Empty: nothing is kept between batches."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing: `state` is empty."""


class Gathered(Kept):
    """One rank's side of the exchange. Only rank 0 has batches."""

    def __init__(
        self, shape: RolloutShape, ranks: int, rank: int, clock: Clock, store: Adopting, agreement: Agreement
    ) -> None:
        super().__init__(shape, clock)
        self._ranks, self._rank = ranks, rank
        self._store = store
        self._agreement = agreement
        self._transport: tuple[Gather, Broadcast] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_transport": None, "_messages": []}

    def connect(self, gather: Gather, broadcast: Broadcast) -> None:
        """Set the transport of rollouts to rank 0, and of theta back to the others."""
        self._transport = gather, broadcast

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Hand over a rollout together with all other ranks; all but rank 0 then wait for the new theta."""
        assert self._transport is not None
        began = time.perf_counter()
        self._messages, waited = self._transport[0](packed(self._shape, rollout, version, self._agreement.wish))
        self._agreement.note(wait_for_ranks=waited, communicate=time.perf_counter() - began - waited)
        if self._rank == 0:
            self._count([header_of(message)[1] for message in self._messages])
        else:
            self._exchange_theta()

    def release(self, learner: int = LEARNER) -> None:
        """Rank 0: the learner is done with the batch; send the others its theta, so that they go on."""
        self._exchange_theta()
        super().release()

    def _exchange_theta(self) -> None:
        """Broadcast rank 0's theta, counts and decision, and the steps of all ranks."""
        assert self._transport is not None
        store, agreement = self._store, self._agreement
        numbers = torch.zeros(REPLY + self._ranks, dtype=torch.int64)
        if self._rank == 0:
            headers = [header_of(message) for message in self._messages]
            steps = [own for _, own, _ in headers]
            decided = agreement.settle([*(wish for _, _, wish in headers), agreement.wish], self._clock)
            counts = store.counts()
            numbers.copy_(torch.tensor([counts.updates, counts.dropped_gradients, decided, *steps]))
        message = torch.cat([numbers.view(torch.uint8), store.theta.view(torch.uint8)])
        began = time.perf_counter()
        self._transport[1](message)
        took = time.perf_counter() - began
        if self._rank == 0:
            agreement.note(communicate=took)
            return
        agreement.note(wait=took)
        size = numbers.numel() * 8
        updates, dropped, decided, *steps = message[:size].view(torch.int64).tolist()
        store.theta.copy_(message[size:].clone().view(torch.float32))
        store.adopt(updates, dropped)
        agreement.settle([decided], self._clock)
        self._count(steps)

    def _count(self, steps: list[int]) -> None:
        for rank, own in enumerate(steps):
            self._clock.count(rank, own)
