"""The parameters of a host whose gradients are applied elsewhere: by parameter shards (Gorila, Nair et al. 2015)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.flat import clip_by_norm
from asyncrl.core.updates import Descent
from asyncrl.parameters.shards import Gradients, Judged
from asyncrl.parameters.shared import COLUMN_OF, UPDATES, SharedStore
from asyncrl.runtime.clock import Clock, shared_zeros
from asyncrl.runtime.protocols import STALE, UNDER_WAY, Receipt, Update

SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.0001, 0.002
"""Pauses of a writer that waits for an answer: longer and longer."""
ANSWERED, APPLIED, STALENESS = range(3)
"""Columns of a writer's answers."""
_COLUMNS = 8  # int64 per row: no two writers share a cache line


class PushingStore(SharedStore):
    """theta `[P]` in shared memory as a copy of the shards', and a place for each writer's gradient on its way there.

    A push leaves its gradient there, clipped and with its learning rate, and waits until the shards have judged it. So
    the next pull has the writer's own update, and each writer has at most one gradient under way. Gradients that are
    not finite, or of an unusual loss, are dropped here; those that are too old are dropped by the shards, which keep
    the optimiser's statistics. The host's `Pushes` carries gradients and answers.
    """

    def __init__(
        self, initial: Tensor, descent: Descent, workers: int, clock: Clock, shards: int, lock_file: str | None = None
    ) -> None:
        """`shards` is the number of parts of theta."""
        super().__init__(initial, descent, workers, clock, lock_file)
        writers = len(self._losses)
        self.gradients = shared_zeros(writers, initial.numel())
        """`[N, P]`"""
        self.rates = shared_zeros(writers, dtype=torch.float64)
        """`[N]` eta of each gradient."""
        columns = -(-(1 + shards) // _COLUMNS) * _COLUMNS
        self._pushed = shared_zeros(writers, columns, dtype=torch.int64)
        self._answers = shared_zeros(writers, _COLUMNS, dtype=torch.int64)
        self._seen = shared_zeros(shards, dtype=torch.int64)
        self._pulled = np.zeros(shards, np.int64)
        """`[shards]` this process's: updates in each part at its newest pull."""

    @property
    def updates(self) -> int:
        """Updates of all hosts in theta."""
        return int(self._seen[0])

    def hear_of(self, updates: int) -> None:
        """Does nothing: `updates` has those of all hosts."""

    @property
    def torn(self) -> bool:
        """False: updates are made elsewhere."""
        return False

    @property
    def pushed(self) -> NDArray[np.int64]:
        """`[N]` how many gradients each writer has pushed. The newest is complete, and stays until it is answered."""
        own: NDArray[np.int64] = self._pushed.numpy()[:, 0]
        return own

    @property
    def versions(self) -> NDArray[np.int64]:
        """`[N, shards]` updates in each part of theta when each gradient was computed."""
        own: NDArray[np.int64] = self._pushed.numpy()[:, 1 : 1 + len(self._seen)]
        return own

    @property
    def answered(self) -> NDArray[np.int64]:
        """`[N]` how many of them have been answered."""
        own: NDArray[np.int64] = self._answers.numpy()[:, ANSWERED]
        return own

    def pull(self, into: Tensor) -> int:
        """theta' <- theta. Copies to `into` `[P]` and returns the number of updates seen."""
        with self.exclusive():
            self._pulled[:] = self._seen.numpy()
            if into is not self.theta:
                into.copy_(self.theta)
        return int(self._pulled[0])

    def push(self, update: Update) -> Receipt:
        """Post a gradient of the theta pulled last, count its steps, and wait until it is applied or dropped.

        A run that is being left does not wait: the receipt then says UNDER_WAY.
        """
        eta = self._descent.learning_rate_at(self._clock.steps)
        norm = clip_by_norm(update.gradient, self._descent.max_gradient_norm)
        reason, staleness = self._fault(update, norm), 0
        self._count(update)
        if reason:
            self._counts[self._row(update.worker), COLUMN_OF[reason]] += 1
        else:
            reason, staleness = self._hand_over(update, eta)
        self._refresh_target(self._clock.steps)
        return Receipt(not reason, reason, norm, staleness, eta)

    def _hand_over(self, update: Update, eta: float) -> tuple[str, int]:
        """Why the gradient was dropped, if it was, and its staleness."""
        row = self._row(update.worker)
        if not self._await_answer(update.worker, row):  # to one that a predecessor has left
            return UNDER_WAY, 0
        self.gradients[row].copy_(update.gradient)
        self.rates[row] = eta
        self.versions[row] = self._pulled
        self.pushed[row] += 1
        if not self._await_answer(update.worker, row):
            return UNDER_WAY, 0
        answer = self._answers.numpy()[row]
        return "" if answer[APPLIED] else STALE, int(answer[STALENESS])

    def _await_answer(self, writer: int, row: int) -> bool:
        """Wait until the newest gradient is answered; False if the run is left before that."""
        pause = SHORTEST_WAIT_SECONDS
        while self.answered[row] < self.pushed[row]:
            if self._clock.leaving():
                return False
            self._clock.beat(writer)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT_SECONDS)
        return True

    def answer(self, row: int, applied: bool, staleness: int) -> None:
        """Answer a writer's newest gradient, and count it."""
        self._counts[row, UPDATES if applied else COLUMN_OF[STALE]] += 1
        answer = self._answers.numpy()[row]
        answer[APPLIED], answer[STALENESS] = applied, staleness
        answer[ANSWERED] = self.pushed[row]

    def see(self, shard: int, updates: int) -> None:
        """A part of theta has been renewed, and contains so many updates."""
        self._seen[shard] = updates

    def state(self) -> dict[str, Any]:
        """Copies of what belongs in a checkpoint besides theta and the optimiser's statistics."""
        return {name: tensor for name, tensor in super().state().items() if name != "statistics"}


class Pushes:
    """Carries gradients from the store to the shards, and what they say of them back. One per host."""

    def __init__(self, store: PushingStore, parts: Sequence[slice]) -> None:
        """`parts` are the shards' parts of theta."""
        self._store, self._parts = store, parts
        writers = len(store.rates)
        self._carried: list[NDArray[np.intp]] = [np.zeros(0, np.intp)] * len(parts)
        """Whose gradients the newest call to each shard brings."""
        self._told = np.zeros((len(parts), writers), np.int64)
        """`[shards, N]` the newest push of each writer that a shard has judged."""
        self._applied = np.zeros((len(parts), writers), bool)
        self._staleness = np.zeros((len(parts), writers), np.int64)
        self._split = 0

    @property
    def idle(self) -> bool:
        """Whether every gradient has been answered."""
        return bool((self._store.answered >= self._store.pushed).all())

    def take_split(self) -> int:
        """Gradients, since the last call of this, that some shards have applied and others have found to be too old.

        They count as applied.
        """
        split, self._split = self._split, 0
        return split

    def waiting(self, shard: int) -> NDArray[np.intp]:
        """`[n]` the writers whose gradients the shard has not judged yet."""
        return np.flatnonzero(self._store.pushed > self._told[shard])

    def gradients(self, shard: int) -> Gradients | None:
        """The shard's parts of all gradients that wait, for a call; None if none do."""
        self._carried[shard] = rows = self.waiting(shard)
        if not len(rows):
            return None
        store, index = self._store, torch.from_numpy(rows)
        values = store.gradients[:, self._parts[shard]][index].numpy()  # an index copies
        return Gradients(values, store.rates[index].numpy(), store.versions[rows, shard])

    def tell(self, shard: int, judged: Judged) -> None:
        """A shard has judged the gradients in the newest call to it; those judged by all shards are answered."""
        store, rows = self._store, self._carried[shard]
        self._told[shard, rows] = store.pushed[rows]
        self._applied[shard, rows], self._staleness[shard, rows] = judged.applied, judged.staleness
        for row in rows.tolist():
            if (self._told[:, row] == store.pushed[row]).all():
                applied = self._applied[:, row]
                self._split += bool(applied.any() and not applied.all())
                store.answer(row, bool(applied.any()), int(self._staleness[:, row].max()))
