"""The shared parameters of one machine: Hogwild, as in Mnih et al. 2016."""

from __future__ import annotations

import contextlib
import math
import os
import time
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
from asyncrl.runtime.clock import Clock, shared_zeros
from asyncrl.runtime.protocols import LEARNER, NOT_FINITE, OUTLIER, STALE, Counts, Receipt, Update

COUNTED = len(Counts._fields)
"""The first columns of a writer's row are its `Counts`."""
UPDATES = 0
COLUMN_OF = {NOT_FINITE: 1, STALE: 2, OUTLIER: 3}
"""Column of a writer's row, by the reason why a gradient was dropped."""
EARLIER_UPDATES, BEGUN, ELSEWHERE, LOST = range(COUNTED, COUNTED + 4)
"""Further columns: updates before the run was resumed (less the lost ones), updates begun; in the last row, updates
made elsewhere, and updates that are counted and in theta no more."""
MISFIT = (
    "the checkpoint's optimiser statistics belong to another --optimizer, to other --statistics or, where each worker "
    "has its own, to another number of --workers"
)
"""The error if the statistics in a checkpoint have another shape."""


class SharedStore:
    """theta `[P]` and the optimiser's statistics in shared memory, read and written by all workers without a lock.

    So updates of two workers may overwrite each other element by element, and a pull or a snapshot may see half of an
    update. Aligned 4-byte writes are atomic, so every element is some worker's value. With `lock_file` pushes, pulls
    and a host's exchanges are serialised instead, by a lock that the kernel releases when a process dies.
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
        """`initial` is the first theta `[P]`; `zeros` allocates memory (shape, and dtype as a keyword)."""
        self.theta = zeros(initial.numel())
        self.theta.copy_(initial)
        owners = workers if descent.per_worker_statistics else 1
        # Allocated now: statistics created at the first step would be private to one process.
        self.statistics = zeros(owners, descent.rule.statistics, initial.numel())
        self._target: Tensor | None = None
        """theta^- `[P]`; refreshed by any worker that sees it is due."""
        if descent.has_target:
            self._target = zeros(initial.numel())
            self._target.copy_(initial)
        self._target_steps = zeros(1, dtype=torch.int64)
        """T, or the number of updates, at the last refresh."""
        self._descent = descent
        self._clock = clock
        self._lock_file = lock_file
        # A row per writer: the workers, then the learners. The last row has the counts from before a resume.
        self._workers = workers
        writers = workers + max(1, len(clock.learners))
        self._cells = zeros(writers + 1, 8, dtype=torch.int64)
        self._counts: NDArray[np.int64] = self._cells.numpy()
        # A row per writer as well: the number of losses, their running mean and variance.
        self._losses = zeros(writers, 3, dtype=torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_counts"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counts = self._cells.numpy()

    @property
    def updates(self) -> int:
        """Updates applied to theta so far."""
        return int(self._counts[:, UPDATES].sum())

    @property
    def lost(self) -> int:
        """How many of these updates are in theta no more: whoever had them died, and an earlier theta took its place.

        They stay in `updates`, which is theta's version and never falls.
        """
        return int(self._counts[-1, LOST])

    def lose(self, updates: int) -> None:
        """Set how many updates of the run were lost in all."""
        self._counts[-1, LOST] = updates

    @property
    def torn(self) -> bool:
        """Whether the only learner has begun an update and not ended it: if it is dead, half an update is in theta."""
        own = self._counts[self._row(LEARNER)]
        return len(self._clock.learners) < 2 and bool(own[BEGUN] != own[UPDATES])

    def counts(self, worker: int | None = None) -> Counts:
        """Counts of one worker's updates since the run began or was resumed; None: of all updates of the run."""
        own = self._counts.sum(0) if worker is None else self._counts[self._row(worker)]
        return Counts(*own[:COUNTED].tolist())

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
        with self.exclusive():
            version = self.updates
            if into is not self.theta:
                into.copy_(self.theta)
        return version

    def push(self, update: Update) -> Receipt:
        """theta <- theta - eta update(gradient), exactly once; T <- T + steps; theta^- <- theta if that is due.

        The gradient is clipped in place. A gradient that is not finite is counted but not applied: a NaN would reach
        every worker and stay in the statistics. If the rules of Nair et al. 2015 are set, the same holds for a gradient
        that is too old or has an unusual loss. The steps count in any case.
        """
        eta = self._descent.learning_rate_at(self._clock.steps)
        norm = clip_by_norm(update.gradient, self._descent.max_gradient_norm)
        counts = self._counts[self._row(update.worker)]
        reason = self._fault(update, norm)
        with self.exclusive():
            before = self.updates
            staleness = before - update.version
            if not reason and 0 < self._descent.max_staleness < staleness:
                reason = STALE
            if not reason:
                private = len(self.statistics) > 1 and update.worker >= 0
                seen = self._made_by(update.worker) if private else max(before - self.lost, self._made_by(slice(-1)))
                statistics = self.statistics[update.worker if private else 0]
                counts[BEGUN] = counts[UPDATES] + 1
                self._descent.rule.apply(self.theta, update.gradient, statistics, eta, seen)
                counts[UPDATES] += 1
        if reason:
            counts[COLUMN_OF[reason]] += 1
        self._count(update)
        self._refresh_target(self._clock.steps)
        return Receipt(not reason, reason, norm, staleness, eta)

    def _made_by(self, writers: int | slice) -> int:
        """Updates of some writers that the statistics have seen: with those from before a resume, without lost ones.

        A host that is replaced counts from 0, but its statistics are its predecessor's.
        """
        return int(self._counts[writers, UPDATES].sum() + self._counts[writers, EARLIER_UPDATES].sum())

    def _fault(self, update: Update, norm: float) -> str:
        """Why a gradient must be dropped, regardless of its age; empty if it need not be."""
        if not math.isfinite(norm):
            return NOT_FINITE
        deviations = self._descent.max_loss_deviations
        if not deviations or update.loss is None:
            return ""
        from asyncrl.core.outliers import unusual  # only this rule needs it

        losses: NDArray[np.float64] = self._losses.numpy()[self._row(update.worker)]
        return OUTLIER if unusual(losses, float(update.loss), deviations) else ""

    def _count(self, update: Update) -> None:
        """T <- T + steps."""
        if update.steps:
            self._clock.count(update.worker, update.steps)

    def _row(self, writer: int) -> int:
        return writer if writer >= 0 else self._workers + LEARNER - writer

    def hear_of(self, updates: int) -> None:
        """So many updates have been made elsewhere: on other hosts, and before this one joined. They refresh theta^-.

        The optimiser's statistics have not seen them, so they are not among `updates`.
        """
        self._counts[-1, ELSEWHERE] = max(updates, int(self._counts[-1, ELSEWHERE]))

    def _refresh_target(self, steps: int) -> None:
        """theta^- <- theta if T = `steps`, or the number of updates, has crossed a multiple of the interval.

        If two workers see the same crossing at once, both copy, which does no harm. The pseudo-code's `T mod I == 0`
        would miss most crossings, since T grows by whole rollouts of many workers.
        """
        if self._target is None:
            return
        by_steps = self._descent.target_interval_steps
        updates = self.updates + int(self._counts[-1, ELSEWHERE])
        now, interval = (steps, by_steps) if by_steps else (updates, self._descent.target_interval_updates)
        if crossed(int(self._target_steps), now, interval):
            self._target_steps.fill_(now)
            self._target.lerp_(self.theta, self._descent.target_rate)  # a copy, to the bit, with a rate of 1

    def snapshot(self) -> Tensor:
        """A private copy of theta `[P]`, taken while others may be writing."""
        return self.theta.clone()

    def counted_copy(self, part: slice = slice(None), tries: int = 5) -> tuple[Tensor, Counts]:
        """A private copy of a part of theta with the counts of the updates in it, if possible from between two updates.

        With many writers there may be no moment without an update: then some are in the copy and not yet counted.
        """
        for left in reversed(range(tries)):
            with self.exclusive():  # then there is no update now, and the counts are those of the copy
                begun, counts = self._counts[:, BEGUN].copy(), self.counts()
                if not left or (begun == self._counts[:, UPDATES]).all():
                    copy = self.theta[part].clone()
                    if not left or (begun == self._counts[:, BEGUN]).all():
                        break
            time.sleep(0.001)
        return copy, counts

    def _parts(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides theta and counts, by name."""
        parts = {"statistics": self.statistics, "losses": self._losses}
        if self._target is not None:
            parts |= {"target": self._target, "target_steps": self._target_steps}
        return parts

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that belongs in a checkpoint besides theta."""
        updates = torch.from_numpy(self._counts[:-1, [UPDATES, EARLIER_UPDATES]].sum(1))
        return {name: part.clone() for name, part in self._parts().items()} | {"writer_updates": updates}

    def restore(self, theta: Tensor, state: Mapping[str, Tensor], counts: Counts) -> None:
        """Restore what a checkpoint holds; `counts` are those from before a resume.

        Raises UsageError, naming the setting, if it does not fit.
        """
        if theta.shape != self.theta.shape:
            raise UsageError("the checkpoint's network has a different size from this run's")
        parts = self._parts()
        if missing := sorted({*parts, "writer_updates"} - state.keys()):
            raise UsageError(f"the checkpoint cannot be used: it lacks {', '.join(missing)}")
        made = state["writer_updates"]
        if made.dim() != 1 or made.dtype != torch.int64 or bool((made < 0).any()):
            raise UsageError("the checkpoint cannot be used: its writer_updates are not counts")
        fitting = {name: part for name, part in parts.items() if state[name].shape == part.shape}
        for name in parts.keys() - fitting.keys() - {"losses"}:  # a row for each worker, whose number may change
            raise UsageError(
                MISFIT if name == "statistics" else f"the shape of the checkpoint's {name} is not this run's"
            )
        self.theta.copy_(theta)
        for name, part in fitting.items():
            part.copy_(state[name])
        if len(made) == len(self._counts) - 1:
            self._counts[:-1, EARLIER_UPDATES] = made.numpy() - self._counts[:-1, UPDATES]
        self._counts[-1, :COUNTED] = counts
        self._counts[:, BEGUN] = self._counts[:, UPDATES]  # no update is incomplete now

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the lock, and hold it; does nothing without one."""
        if self._lock_file is None:
            yield
            return
        import fcntl  # POSIX only, and only --update locked needs it

        # Opened anew each time: a lock belongs to the open file, and must keep out threads of this process as well.
        lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing does not release it if a process was forked meanwhile
            os.close(lock)
