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
from asyncrl.experience.blocks import RolloutShape
from asyncrl.experience.messages import block_of, header_of, packed
from asyncrl.runtime.accord import Accord
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Batch, Counts, Receipt

REPLY = 5
"""Integers before all ranks' steps and theta: updates, dropped updates, the decision, and two times in nanoseconds: how
long rank 0 learnt, and how long the previous broadcast of theta took."""

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
        ...

    def adopt(self, updates: int, dropped: int) -> None:
        """Take over the learner's counts, after its theta."""
        ...


class Gathered:
    """One rank's side of the exchange."""

    def __init__(
        self, shape: RolloutShape, ranks: int, rank: int, clock: Clock, store: Adopting, accord: Accord
    ) -> None:
        self._shape = shape
        self._ranks, self._rank = ranks, rank
        self._clock = clock
        self._store = store
        self._accord = accord
        self._messages: list[Tensor] = []
        """Rank 0: the gathered rollouts, until the learner is done with them."""
        self._wishes: list[int] = []
        self._learnt_since = self._sending = 0.0
        """Rank 0: when the last batch was complete, and the seconds its broadcast of theta took."""
        self._transport: tuple[Gather, Broadcast] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_transport": None, "_messages": []}

    def connect(self, gather: Gather, broadcast: Broadcast) -> None:
        """Set the transport of rollouts to rank 0, and of theta back to the others."""
        self._transport = gather, broadcast

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: once the learner is done with the last batch."""
        return not self._messages

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Hand over a rollout together with all other ranks; all but rank 0 then wait for the new theta."""
        assert self._transport is not None
        began = time.perf_counter()
        messages, waited = self._transport[0](packed(self._shape, rollout, version, self._accord.wish))
        self._learnt_since = time.perf_counter()
        self._accord.note(waited, self._learnt_since - began - waited)
        if self._rank == 0:
            headers = [header_of(message) for message in messages]
            self._messages = messages
            self._wishes = [wish for _, _, wish in headers]
            self._count([steps for _, steps, _ in headers])
        else:
            self._exchange_theta()
        return Receipt(True, steps=self._clock.steps, finished=self._clock.finished())

    def take(self, learner: int = LEARNER) -> Batch | None:
        """Rank 0: the rollouts of all ranks side by side; None until they have been gathered."""
        if not self._messages:
            return None
        taken = [blocks.read(block_of(self._shape, message)) for message in self._messages]
        return Batch(Rollout.side_by_side([rollout for rollout, _ in taken]), [version for _, version in taken])

    def release(self, learner: int = LEARNER) -> None:
        """Rank 0: the learner is done with the batch; send the others its theta, so that they go on."""
        self._exchange_theta()
        self._messages = []

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Does nothing: nothing is sampled by priority."""

    def state(self) -> dict[str, Tensor]:
        """Empty: nothing is kept between batches."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing: `state` is empty."""

    def _exchange_theta(self) -> None:
        """Broadcast rank 0's theta, counts and decision, and the steps of all ranks."""
        assert self._transport is not None
        store, clock, accord = self._store, self._clock, self._accord
        numbers = torch.zeros(REPLY + self._ranks, dtype=torch.int64)
        if self._rank == 0:
            decided = accord.settle([*self._wishes, accord.wish], clock)
            steps = [header_of(message)[1] for message in self._messages]
            counts = store.counts()
            spent = [int(1e9 * seconds) for seconds in (time.perf_counter() - self._learnt_since, self._sending)]
            numbers.copy_(torch.tensor([counts.updates, counts.dropped_gradients, decided, *spent, *steps]))
        message = torch.cat([numbers.view(torch.uint8), store.theta.view(torch.uint8)])
        began = time.perf_counter()
        self._transport[1](message)
        took = time.perf_counter() - began
        if self._rank == 0:
            self._sending = took
            accord.note(communicating=took)
        else:
            size = numbers.numel() * 8
            updates, dropped, decided, learnt, sent, *steps = message[:size].view(torch.int64).tolist()
            learning = min(took, learnt / 1e9)
            sending = min(took - learning, sent / 1e9)
            accord.note(took - learning - sending, sending, learning)  # the rest: waiting for the last rollout
            store.theta.copy_(message[size:].clone().view(torch.float32))
            store.adopt(updates, dropped)
            accord.settle([decided], clock)
            self._count(steps)

    def _count(self, steps: list[int]) -> None:
        for rank, own in enumerate(steps):
            self._clock.count(rank, own)


class Kept:
    """Rollouts that stay on their rank: each rank's learner averages its gradients with the others'."""

    def __init__(self, shape: RolloutShape, clock: Clock) -> None:
        self._shape = shape
        self._clock = clock
        self._message: Tensor | None = None

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: once the learner is done with the last one."""
        return self._message is None

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Hand over a copy of a rollout, and count its steps on this rank."""
        self._message = packed(self._shape, rollout, version, 0)
        self._clock.count(actor, rollout.steps)
        return Receipt(True, steps=self._clock.steps, finished=self._clock.finished())

    def take(self, learner: int = LEARNER) -> Batch | None:
        """This rank's rollout; None if there is none."""
        if self._message is None:
            return None
        rollout, version = blocks.read(block_of(self._shape, self._message))
        return Batch(Rollout.side_by_side([rollout]), [version])

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with the rollout."""
        self._message = None

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Does nothing: nothing is sampled by priority."""

    def state(self) -> dict[str, Tensor]:
        """Empty: nothing is kept between batches."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Does nothing: `state` is empty."""
