"""From the actors of all ranks to the learner of rank 0, in step: rollouts are gathered, theta comes back.

Two exchanges per batch. A put waits until all ranks have put, and on all but rank 0 until the learner is done and its
theta has come. Nothing of transport is here; who runs the ranks hands in `gather` and `broadcast`.
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
from asyncrl.experience.ring import Block
from asyncrl.runtime.accord import Accord
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Batch, Counts, Receipt

HEADER = 3
"""Numbers before a rollout: how many truncated episodes it has, its steps, its rank's wish."""
REPLY = 5
"""Numbers before the steps of all and theta: updates, dropped ones, what was decided, and in nanoseconds how long rank
0 has learnt and how long it took to send theta the time before."""

Gather = Callable[[Tensor], tuple[list[Tensor], float]]
"""Bytes of any length, to rank 0: all ranks' in their order there, and nothing elsewhere. Also how many seconds of that
were only spent in waiting for others to come."""
Broadcast = Callable[[Tensor], None]
"""Replaces a tensor by that of rank 0."""


class Adopting(Protocol):
    """A store whose theta can be another rank's."""

    theta: Tensor

    def counts(self) -> Counts:
        """Updates theta contains, and those that were dropped."""
        ...

    def adopt(self, updates: int, dropped: int) -> None:
        """theta is now another one."""
        ...


class Gathered:
    """One rank's side of it."""

    def __init__(
        self, shape: RolloutShape, ranks: int, rank: int, clock: Clock, store: Adopting, accord: Accord
    ) -> None:
        self._shape = shape
        self._ranks, self._rank = ranks, rank
        self._clock = clock
        self._store = store
        self._accord = accord
        self._messages: list[Tensor] = []
        """Rank 0: what was gathered and the learner has not done with."""
        self._wishes: list[int] = []
        self._learnt_since = self._sending = 0.0
        """Rank 0: when the last batch had been gathered, and the seconds in which its theta was sent."""
        self._transport: tuple[Gather, Broadcast] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_transport": None, "_messages": []}

    def connect(self, gather: Gather, broadcast: Broadcast) -> None:
        """How rollouts come to rank 0, and theta to the others."""
        self._transport = gather, broadcast

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: when the last batch has been learnt from."""
        return not self._messages

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Hand over a rollout, with all other ranks; all but rank 0 then wait for what has been learnt from it."""
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
        """Rank 0: the rollouts of all ranks side by side; None before they have been gathered."""
        if not self._messages:
            return None
        taken = [blocks.read(block_of(self._shape, message)) for message in self._messages]
        return Batch(Rollout.side_by_side([rollout for rollout, _ in taken]), [version for _, version in taken])

    def release(self, learner: int = LEARNER) -> None:
        """Rank 0: the learner has done with the batch; the others get its theta and go on."""
        self._exchange_theta()
        self._messages = []

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Nothing is drawn by priority."""

    def state(self) -> dict[str, Tensor]:
        """Nothing lies between batches."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to go back to."""

    def _exchange_theta(self) -> None:
        """Rank 0's theta, counts, decision and the steps of all ranks, to everybody."""
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
            accord.note(took - learning - sending, sending, learning)  # the rest: until the last rollout had come
            store.theta.copy_(message[size:].clone().view(torch.float32))
            store.adopt(updates, dropped)
            accord.settle([decided], clock)
            self._count(steps)

    def _count(self, steps: list[int]) -> None:
        for rank, own in enumerate(steps):
            self._clock.count(rank, own)


class Kept:
    """Rollouts that stay on their rank, whose own learner averages its gradients with the others'."""

    def __init__(self, shape: RolloutShape, clock: Clock) -> None:
        self._shape = shape
        self._clock = clock
        self._message: Tensor | None = None

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: when the last one has been learnt from."""
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
        """The learner has done with it."""
        self._message = None

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Nothing is drawn by priority."""

    def state(self) -> dict[str, Tensor]:
        """Nothing lies between batches."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to go back to."""


def packed(shape: RolloutShape, rollout: Rollout, version: int, wish: int) -> Tensor:
    """A rollout as bytes, with room for as many last observations as it has."""
    finals = len(rollout.truncated[0])
    message = torch.zeros(8 * HEADER + shape.layout(finals).block_bytes, dtype=torch.uint8)
    message[: 8 * HEADER].view(torch.int64).copy_(torch.tensor([finals, rollout.steps, wish]))
    blocks.write(block_of(shape, message), rollout, version)
    return message


def block_of(shape: RolloutShape, message: Tensor) -> Block:
    """The tensors of a message, as views."""
    data = message[8 * HEADER :]
    places = shape.layout(header_of(message)[0]).places()
    return {name: data[place].view(dtype).view(size) for (name, size, dtype), place in places}


def header_of(message: Tensor) -> list[int]:
    """The numbers before a rollout."""
    header: list[int] = message[: 8 * HEADER].view(torch.int64).tolist()
    return header
