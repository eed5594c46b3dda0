"""A page of the tests' own: A3C that counts its updates, in place of learning."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from asyncrl import a3c
from asyncrl.a3c import EXPERIENCE, EXTRAS, HAS_TARGET, LOOKS_AHEAD, PRIVATE_COPY, TAKES_CONTINUOUS, Config
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from tests.counting import SETTINGS, counting_loss, from_zero


class Counting(a3c.A3C):
    """Acts as A3C does, which here is at random."""

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Minus the sum of all parameters."""
        return counting_loss(self.network)


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """One update after every five steps of one environment, each of which adds 2^-10."""
    return {**SETTINGS, "envs_per_worker": 1, "t_max": 5}


make_agent, make_network = Counting, from_zero(a3c.make_network)

__all__ = [
    "EXPERIENCE", "EXTRAS", "HAS_TARGET", "LOOKS_AHEAD", "PRIVATE_COPY", "TAKES_CONTINUOUS",
    "Config", "make_agent", "make_network", "preset",
]  # fmt: skip
