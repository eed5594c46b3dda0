"""A local copy of parameters that live on other machines, for the evaluator, the monitor and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.parameters.shared import COUNTED, SharedStore

KEPT_ELSEWHERE = ("statistics", "target", "target_steps")
"""Names in a store's state, besides theta and counts."""


class Mirror(SharedStore):
    """A copy of theta on other machines, with the counts of their workers. One process writes it.

    Nobody pushes. As with theta itself, a reader may see a mixture of two versions.
    """

    @property
    def torn(self) -> bool:
        """False: updates are made elsewhere."""
        return False

    def show(self, theta: Tensor, tallies: NDArray[np.int64]) -> None:
        """Copy theta `[P]`, and the counts of updates, `[N, len(Counts)]`: of each worker, and of a learner if any."""
        self.theta.copy_(theta)
        # Counts after theta, so that theta contains all counted updates. An outdated count is ignored.
        own = self._counts[: len(tallies), :COUNTED]
        np.maximum(own, tallies, out=own)

    def show_statistics(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Copy what a host's store keeps besides theta: statistics and target."""
        mine = {"statistics": self.statistics, "target": self._target, "target_steps": self._target_steps}
        for name in KEPT_ELSEWHERE:
            tensor = mine[name]
            if tensor is not None and name in state:
                tensor.copy_(torch.from_numpy(np.array(state[name])))
