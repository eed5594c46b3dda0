"""What a worker has seen between two updates."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

State: TypeAlias = tuple[Tensor, ...] | None
"""The recurrent state of E environments, each tensor `[E, ...]`; None for a feed-forward network."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of E environments, time first. The arrays are reused by the next rollout: do not keep them.

    An episode that *terminated* at step t has `discounts[t] = 0`. One that was *truncated* (a time limit) keeps its
    discount, and what it bootstraps from is its own last observation, kept in `final_observations`: the row
    `observations[t + 1]` already belongs to the next episode. `last[t]` is True in both cases.
    """

    observations: Tensor
    """`[T + 1, E, ...]` uint8 or float32: observation t is what action t was chosen on."""
    actions: Tensor
    """`[T, E]` int64, or float32 `[T, E, n]` where actions are vectors."""
    rewards: NDArray[np.float32]
    """`[T, E]` raw, never clipped: clipping is a matter of the loss."""
    discounts: NDArray[np.float32]
    """`[T, E]` gamma, or 0 where the episode terminated (or a life was lost and that counts as the end)."""
    last: NDArray[np.bool_]
    """`[T, E]` True where the return is cut: the episode ended here in either way."""
    truncated: tuple[NDArray[np.intp], NDArray[np.intp]]
    """Times and environments `([K], [K])` of the truncated episodes."""
    final_observations: Tensor | None
    """`[K, ...]` the last real observations of those episodes; None when there are none."""
    state: State = None
    """The recurrent state in which the rollout began."""
    reward_scale: float = 1.0
    """What the loss multiplies rewards by, where returns are normalised."""
    next_actions: Tensor | None = None
    """`[T, E]` what was then done in observation t + 1; only for pages that look ahead (Sarsa)."""
    acted_at: int = 0
    """T, the steps of all workers, by which exploration went."""

    def as_dict(self) -> dict[str, Any]:
        """A copy as plain data, arrays and tensors, by name of the field."""
        return dict(copy.deepcopy({field.name: getattr(self, field.name) for field in dataclasses.fields(self)}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rollout:
        """The rollout of which `as_dict` made `data`; its tuples may have become lists."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**fields)

    @property
    def steps(self) -> int:
        """Agent steps in this rollout: T x E."""
        return int(self.rewards.size)

    def learning_rewards(self, clip: float) -> NDArray[np.float32]:
        """Rewards as a loss takes them, `[T, E]`: scaled, then clipped to [-clip, clip]; with 0 not clipped."""
        rewards = self.rewards * np.float32(self.reward_scale)
        return np.clip(rewards, -clip, clip) if clip else rewards

    def next_values(
        self, following: NDArray[np.float32], final_values: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """The value of the state each step leads to, `[T, E]`.

        `following` `[T, E]` are values of the observations 1..T and `final_values` `[K]` of the truncated episodes'
        last ones, which stand nowhere among them. Where an episode terminated the value is multiplied by a discount
        of 0 later, so what stands there does not matter.
        """
        if final_values is None:
            return following
        values = following.copy()
        values[self.truncated] = final_values
        return values
