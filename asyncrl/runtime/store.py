"""The shared parameters of one machine: Hogwild, as in Mnih et al. 2016."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.flat import clip_by_norm
from asyncrl.core.moments import Moments
from asyncrl.core.schedules import crossed
from asyncrl.core.updates import UpdateRule
from asyncrl.runtime.memory import shared_zeros
from asyncrl.runtime.protocols import Push

UPDATES, DROPPED, EARLIER_UPDATES = range(3)
"""Columns of a worker's row; the last is what it did in earlier parts of the run."""
MISFITS = {
    "statistics": "the checkpoint's optimiser statistics are of another --optimizer, of other --statistics, or, with "
    "--statistics per-worker, of another number of --workers",
    "observation_moments": "--normalize-observations cannot change on resume: the network has learnt with or without",
}
"""What another shape of a tensor in a checkpoint means."""


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
        rule: UpdateRule,
        workers: int,
        max_gradient_norm: float = 0.0,
        per_worker_statistics: bool = False,
        lock_file: str | None = None,
        target: bool = False,
        observation_size: int = 0,
    ) -> None:
        self.theta: Tensor = shared_zeros(initial.numel())
        self.theta.copy_(initial)
        owners = workers if per_worker_statistics else 1
        # Allocated here and now: statistics created at the first step would be private to the process that steps.
        self.statistics: Tensor = shared_zeros(owners, rule.statistics, initial.numel())
        self.target: Tensor | None = None
        """theta^- `[P]`, the target network of the value-based methods; refreshed by whoever sees that it is due."""
        if target:
            self.target = shared_zeros(initial.numel())
            self.target.copy_(initial)
        # Running moments of observations and of discounted returns: a row per worker and one for earlier parts.
        self.observation_moments = shared_zeros(workers + 1, 1 + 2 * observation_size, dtype=torch.float64)
        self.return_moments = shared_zeros(workers + 1, 3, dtype=torch.float64)
        self._target_steps = shared_zeros(1, dtype=torch.int64)
        self.rule = rule
        self.workers = workers
        self.max_gradient_norm = max_gradient_norm
        self.lock_file = lock_file
        self._lock: int | None = None
        # One row per worker, one writer per row; the last row is what earlier parts of the run counted.
        self._cells = shared_zeros(workers + 1, 8, dtype=torch.int64)
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

    def counts(self, worker: int) -> tuple[int, int]:
        """Updates applied and gradients dropped by one worker since this part of the run began."""
        own = self._counts[worker]
        return int(own[UPDATES]), int(own[DROPPED])

    def pull(self, into: Tensor) -> int:
        """theta' <- theta. Copies to `into` `[P]` and returns the number of updates seen."""
        with self._exclusive():
            version = self.updates
            if into is not self.theta:
                into.copy_(self.theta)
        return version

    def push(self, worker: int, gradient: Tensor, learning_rate: float, version: int) -> Push:
        """theta <- theta - update(gradient), exactly once; `gradient` `[P]` is clipped in place.

        A gradient that is not finite is counted and not applied: one NaN would reach every worker and stay in the
        statistics for ever.
        """
        norm = clip_by_norm(gradient, self.max_gradient_norm)
        counts = self._counts[worker]
        if not math.isfinite(norm):
            counts[DROPPED] += 1
            return Push(False, norm, 0)
        with self._exclusive():
            before = self.updates
            own = worker if len(self.statistics) > 1 else 0
            seen = int(counts[UPDATES] + counts[EARLIER_UPDATES]) if len(self.statistics) > 1 else before
            self.rule.apply(self.theta, gradient, self.statistics[own], learning_rate, seen)
            counts[UPDATES] += 1
        return Push(True, norm, before - version)

    def refresh_target(self, steps: int, period: int) -> bool:
        """theta^- <- theta if T = `steps` has crossed a multiple of `period` since the last time; True if it had.

        Two workers that see the same crossing at the same time copy twice, which does no harm. `T mod period == 0`
        of the pseudo-code would miss most crossings: T grows by whole rollouts of many workers.
        """
        if self.target is None or not crossed(int(self._target_steps), steps, period):
            return False
        self._target_steps.fill_(steps)
        self.target.copy_(self.theta)
        return True

    def snapshot(self) -> Tensor:
        """A private copy of theta `[P]`, taken while others may be writing."""
        return self.theta.clone()

    def state(self) -> dict[str, Tensor]:
        """Copies of all that belongs into a checkpoint beside theta."""
        state = {
            "statistics": self.statistics.clone(),
            "worker_updates": torch.from_numpy(self._counts[:-1, UPDATES] + self._counts[:-1, EARLIER_UPDATES]),
            "observation_moments": torch.from_numpy(Moments(self.observation_moments).merged()),
            "return_moments": torch.from_numpy(Moments(self.return_moments).merged()),
        }
        if self.target is not None:
            state |= {"target": self.target.clone(), "target_steps": self._target_steps.clone()}
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
                raise UsageError(MISFITS.get(name, f"the shape of the checkpoint's {name} is not this run's"))
        self.theta.copy_(theta)
        self.statistics.copy_(state["statistics"])
        if state["worker_updates"].shape == workers:
            self._counts[:-1, EARLIER_UPDATES] = state["worker_updates"].numpy()
        self.observation_moments[-1] = state["observation_moments"]
        self.return_moments[-1] = state["return_moments"]
        if self.target is not None:
            self.target.copy_(state["target"])
            self._target_steps.copy_(state["target_steps"])
        self._counts[-1, UPDATES], self._counts[-1, DROPPED] = updates, dropped

    def moments(self) -> dict[str, Tensor]:
        """Copies of all rows of the moments, for a run that is to go on exactly as it was."""
        return {"observations": self.observation_moments.clone(), "returns": self.return_moments.clone()}

    def restore_moments(self, rows: Mapping[str, Tensor]) -> None:
        """Go back to what `moments` said."""
        self.observation_moments.copy_(rows["observations"])
        self.return_moments.copy_(rows["returns"])

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self.lock_file is None:
            yield
            return
        import fcntl  # POSIX only, and only --update locked needs it

        if self._lock is None:  # each process opens the file for itself: a lock belongs to the open file
            self._lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
