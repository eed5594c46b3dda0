"""The shared parameters of one machine: Hogwild, as in Mnih et al. 2016."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.flat import clip_by_norm
from asyncrl.core.schedules import crossed
from asyncrl.core.updates import Descent
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import LEARNER, Receipt, Update
from asyncrl.runtime.shared_memory import shared_zeros

UPDATES, DROPPED, EARLIER_UPDATES, BEGUN = range(4)
"""Columns of a writer's row: updates it ended and gradients it dropped, updates of earlier parts of the run, updates it
began."""
MISFIT = (
    "the checkpoint's optimiser statistics are of another --optimizer, of other --statistics, or, with --statistics "
    "per-worker, of another number of --workers"
)
"""What another shape of the statistics in a checkpoint means."""


class SharedStore:
    """theta `[P]` and the optimiser's statistics in shared memory, read and written by everybody without a lock.

    What that means: updates of two workers may overwrite each other element by element, and a pull may see half of
    another's update. Aligned 4-byte stores are not torn, so every element is some worker's value. A snapshot is such
    a mixture too. With `lock_file` pushes and pulls are serialised instead, by a lock that the kernel takes back from
    a process that dies.
    """

    def __init__(
        self,
        initial: Tensor,
        descent: Descent,
        workers: int,
        clock: Clock,
        lock_file: str | None = None,
        zeros: Callable[..., Tensor] = shared_zeros,
    ) -> None:
        """`initial` is theta `[P]` at the beginning; `zeros` makes the memory (shape, and dtype by name)."""
        self.theta = zeros(initial.numel())
        self.theta.copy_(initial)
        owners = workers if descent.per_worker_statistics else 1
        # Allocated here and now: statistics created at the first step would be private to the process that steps.
        self.statistics = zeros(owners, descent.rule.statistics, initial.numel())
        self._target: Tensor | None = None
        """theta^- `[P]`; refreshed by whoever sees that it is due."""
        if descent.target_interval_steps:
            self._target = zeros(initial.numel())
            self._target.copy_(initial)
        self._target_steps = zeros(1, dtype=torch.int64)
        self._descent = descent
        self._clock = clock
        self._lock_file = lock_file
        self._lock: int | None = None
        # A row per writer: the workers, then a learner; the last row is what earlier parts of the run counted.
        self._cells = zeros(workers + 2, 8, dtype=torch.int64)
        self._counts: NDArray[np.int64] = self._cells.numpy()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_counts"} | {"_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counts = self._cells.numpy()

    @property
    def updates(self) -> int:
        """Updates applied to theta so far."""
        return int(self._counts[:, UPDATES].sum())

    @property
    def dropped(self) -> int:
        """Gradients dropped because they were not finite."""
        return int(self._counts[:, DROPPED].sum())

    @property
    def torn(self) -> bool:
        """Whether the learner has begun an update and not ended it: if it is dead, theta is half of one."""
        own = self._counts[self._row(LEARNER)]
        return bool(own[BEGUN] != own[UPDATES])

    def counts(self, worker: int) -> tuple[int, int]:
        """Updates applied and gradients dropped by one worker since this part of the run began."""
        own = self._counts[self._row(worker)]
        return int(own[UPDATES]), int(own[DROPPED])

    def view(self) -> Tensor:
        """theta `[P]` itself."""
        return self.theta

    def target_view(self) -> Tensor | None:
        """theta^- `[P]` itself; None without a target network."""
        return self._target

    def target(self, into: Tensor) -> None:
        """Copy theta^- to `into` `[P]`."""
        if self._target is not None and into is not self._target:
            into.copy_(self._target)

    def pull(self, into: Tensor) -> int:
        """theta' <- theta. Copies to `into` `[P]` and returns the number of updates seen."""
        with self._exclusive():
            version = self.updates
            if into is not self.theta:
                into.copy_(self.theta)
        return version

    def push(self, update: Update) -> Receipt:
        """theta <- theta - eta update(gradient), exactly once; T <- T + steps; theta^- <- theta if that is due.

        The gradient is clipped in place. One that is not finite is counted and not applied: one NaN would reach every
        worker and stay in the statistics for ever.
        """
        eta = self._descent.learning_rate_at(self._clock.steps)
        norm = clip_by_norm(update.gradient, self._descent.max_gradient_norm)
        counts = self._counts[self._row(update.worker)]
        applied, staleness = math.isfinite(norm), 0
        if applied:
            with self._exclusive():
                before = self.updates
                private = len(self.statistics) > 1 and update.worker != LEARNER
                seen = int(counts[UPDATES] + counts[EARLIER_UPDATES]) if private else before
                statistics = self.statistics[update.worker if private else 0]
                counts[BEGUN] = counts[UPDATES] + 1
                self._descent.rule.apply(self.theta, update.gradient, statistics, eta, seen)
                counts[UPDATES] += 1
            staleness = before - update.version
        else:
            counts[DROPPED] += 1
        self._count(update)
        steps = self._clock.steps
        self._refresh_target(steps)
        return Receipt(applied, "" if applied else "not finite", norm, staleness, eta, steps, self._clock.finished())

    def _count(self, update: Update) -> None:
        """T <- T + steps."""
        if update.steps:
            self._clock.count(update.worker, update.steps)

    def _row(self, writer: int) -> int:
        return len(self._counts) - 2 if writer == LEARNER else writer

    def _refresh_target(self, steps: int) -> None:
        """theta^- <- theta if T = `steps` has crossed a multiple of the interval since the last time.

        Two workers that see the same crossing at the same time copy twice, which does no harm. `T mod I == 0` of the
        pseudo-code would miss most crossings: T grows by whole rollouts of many workers.
        """
        if self._target is None:
            return
        if crossed(int(self._target_steps), steps, self._descent.target_interval_steps):
            self._target_steps.fill_(steps)
            self._target.copy_(self.theta)

    def snapshot(self) -> Tensor:
        """A private copy of theta `[P]`, taken while others may be writing."""
        return self.theta.clone()

    def state(self) -> dict[str, Tensor]:
        """Copies of all that belongs into a checkpoint beside theta."""
        state = {
            "statistics": self.statistics.clone(),
            "worker_updates": torch.from_numpy(self._counts[:-2, UPDATES] + self._counts[:-2, EARLIER_UPDATES]),
        }
        if self._target is not None:
            state |= {"target": self._target.clone(), "target_steps": self._target_steps.clone()}
        return state

    def restore(self, theta: Tensor, state: Mapping[str, Tensor], updates: int, dropped: int) -> None:
        """Put back what a checkpoint holds. Raises UsageError, naming the setting, if it does not fit."""
        if theta.shape != self.theta.shape:
            raise UsageError("the checkpoint's network has another size than this run's")
        shapes = {name: tensor.shape for name, tensor in self.state().items()}
        workers = shapes.pop("worker_updates")  # their number may change
        if missing := sorted({"worker_updates", *shapes} - state.keys()):
            raise UsageError(f"the checkpoint cannot be used: it lacks {', '.join(missing)}")
        for name, shape in shapes.items():
            if state[name].shape != shape:
                raise UsageError(
                    MISFIT if name == "statistics" else f"the shape of the checkpoint's {name} is not this run's"
                )
        self.theta.copy_(theta)
        self.statistics.copy_(state["statistics"])
        if state["worker_updates"].shape == workers:
            self._counts[:-2, EARLIER_UPDATES] = state["worker_updates"].numpy()
        if self._target is not None:
            self._target.copy_(state["target"])
            self._target_steps.copy_(state["target_steps"])
        self._counts[-1, UPDATES], self._counts[-1, DROPPED] = updates, dropped
        self._counts[:, BEGUN] = self._counts[:, UPDATES]  # no update is half done any more

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._lock_file is None:
            yield
            return
        import fcntl  # POSIX only, and only --update locked needs it

        if self._lock is None:  # each process opens the file for itself: a lock belongs to the open file
            self._lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
