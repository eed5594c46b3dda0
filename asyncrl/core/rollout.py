"""What a worker has seen between two updates."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

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
    rewards: Tensor
    """`[T, E]` float32, raw, never clipped: clipping is a matter of the loss."""
    discounts: Tensor
    """`[T, E]` float32: gamma, or 0 where the episode terminated (or a life was lost and that counts as the end)."""
    last: Tensor
    """`[T, E]` bool: True where the return is cut: the episode ended here in either way."""
    truncated: tuple[Tensor, Tensor]
    """Times and environments `([K], [K])`, int64, of the truncated episodes."""
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
        return self.rewards.numel()

    def learning_rewards(self, clip: float) -> Tensor:
        """Rewards as a loss takes them, `[T, E]`: scaled, then clipped to [-clip, clip]; with 0 not clipped."""
        rewards = self.rewards * self.reward_scale
        return rewards.clamp_(-clip, clip) if clip else rewards

    def next_values(self, following: Tensor, value_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The value of the state each step leads to, `[T, E]`.

        `following` `[T, E]` are values of the observations 1..T. Those of the truncated episodes' last observations,
        which stand nowhere among them, are asked for: `value_of` takes them as `[1, K, ...]` and gives `[1, K]`. Where
        an episode terminated the value is multiplied by a discount of 0 later, so what stands there does not matter.
        """
        if self.final_observations is None:
            return following
        values = following.clone()
        values[self.truncated] = value_of(self.final_observations[None])[0]
        return values
