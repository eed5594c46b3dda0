"""A local copy of parameters that live on other machines, for the evaluator, the monitor and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.parameters.shared import COUNTED, SharedStore
from asyncrl.runtime.clock import shared_zeros
from asyncrl.runtime.protocols import Counts

KEPT_ELSEWHERE = ("statistics", "target", "target_steps")
"""Names in a store's state, besides theta and counts."""


class Mirror(SharedStore):
    """A copy of theta on other machines, with the counts of their workers. One process writes it.

    Nobody pushes. As with theta itself, a reader may see a mixture of two versions.
    """

    def __init__(self, *about: Any) -> None:
        """As a `SharedStore`."""
        super().__init__(*about)
        self._version = shared_zeros(1, dtype=torch.int64)
        """Updates that theta has had, if whoever has it counts them; 0: as many as its writers have counted."""

    @property
    def updates(self) -> int:
        """Updates that theta has had, lost ones among them."""
        return int(self._version) or super().updates

    def counts(self, worker: int | None = None) -> Counts:
        """Counts of one worker's updates since the run began or was resumed; None: of all updates that arrived."""
        counts = super().counts(worker)
        return counts if worker is not None else counts._replace(updates=self.updates)

    @property
    def torn(self) -> bool:
        """False: updates are made elsewhere."""
        return False

    def show(self, theta: Tensor, tallies: NDArray[np.int64], balance: tuple[int, int] | None = None) -> None:
        """Copy theta `[P]`, and the counts of updates, `[N, len(Counts)]`: of each worker, and of a learner if any.

        `balance`: updates in theta and updates lost, where workers may have made others that never arrived.
        """
        self.theta.copy_(theta)
        if balance is not None:
            self.lose(balance[1])
            self._version.fill_(sum(balance))
        # Counts after theta, so that theta contains all counted updates. An outdated count is ignored.
        own = self._counts[: len(tallies), :COUNTED]
        np.maximum(own, tallies, out=own)

    def show_statistics(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Copy what a host's store keeps besides theta: statistics and target."""
        for name, part in self._parts().items():
            if name in KEPT_ELSEWHERE and name in state:
                part.copy_(torch.from_numpy(np.array(state[name])))
