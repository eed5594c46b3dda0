"""Running moments of observations and of discounted returns, of all workers of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.moments import Moments
from asyncrl.runtime.shared_memory import shared_zeros


class RunMoments:
    """A row per worker, and one for the time before a resume, in shared memory: one writer each, no lock.

    On a *rank*, which shares no memory with the others, new samples are kept apart until all ranks `publish` theirs, so
    that all normalise with the same moments.
    """

    def __init__(self, workers: int, observation_size: int = 0, rank: bool = False) -> None:
        """`observation_size` is how many components of an observation have moments; 0: they are not normalised."""
        self._observation_rows = shared_zeros(workers + 1, 1 + 2 * observation_size, dtype=torch.float64)
        self._return_rows = shared_zeros(workers + 1, 3, dtype=torch.float64)
        size = self._observation_rows.shape[1]
        self.gathered = torch.zeros(size + 3, dtype=torch.float64) if rank else None
        """A rank's own rows behind each other, of observations and of returns, those not published among them."""
        self._own = (None, None) if self.gathered is None else (self.gathered[:size], self.gathered[size:])

    @property
    def observations(self) -> Moments:
        """Those of observations."""
        return Moments(self._observation_rows, self._own[0])

    @property
    def returns(self) -> Moments:
        """Those of discounted returns."""
        return Moments(self._return_rows, self._own[1])

    def publish(self, gathered: Sequence[Tensor]) -> None:
        """From now on all normalise with what each rank has gathered so far, in the order of ranks."""
        size = self._observation_rows.shape[1]
        rows = torch.stack(list(gathered))
        self._observation_rows[:-1] = rows[:, :size]
        self._return_rows[:-1] = rows[:, size:]

    def state(self) -> dict[str, Tensor]:
        """All rows merged, for a checkpoint."""
        return {
            "observation_moments": torch.from_numpy(self.observations.merged()),
            "return_moments": torch.from_numpy(self.returns.merged()),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint's. Raises UsageError, naming the setting, if it does not fit."""
        for name, rows in (("observation_moments", self._observation_rows), ("return_moments", self._return_rows)):
            if name not in state:
                raise UsageError(f"the checkpoint cannot be used: it lacks {name}")
            if state[name].shape != rows[-1].shape:
                raise UsageError(
                    "--normalize-observations cannot change on resume: the network has learnt with or without"
                )
        self._observation_rows[-1] = state["observation_moments"]
        self._return_rows[-1] = state["return_moments"]

    def of_workers(self) -> tuple[NDArray[np.float64], ...]:
        """What these workers have gathered, of observations and of returns, each merged to one row."""
        return tuple(Moments(rows[:-1]).merged() for rows in (self._observation_rows, self._return_rows))

    def lay_down(self, earlier: Sequence[NDArray[np.float64]]) -> None:
        """Set the moments not gathered by these workers: before a resume, and on other hosts."""
        for rows, row in zip((self._observation_rows, self._return_rows), earlier, strict=True):
            rows[-1] = torch.from_numpy(row)

    def rows(self) -> dict[str, Tensor]:
        """Copies of all rows, for a run that resumes exactly."""
        return {"observations": self._observation_rows.clone(), "returns": self._return_rows.clone()}

    def restore_rows(self, rows: Mapping[str, Tensor]) -> None:
        """Restore what `rows` returned."""
        self._observation_rows.copy_(rows["observations"])
        self._return_rows.copy_(rows["returns"])
