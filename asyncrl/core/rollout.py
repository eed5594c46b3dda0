"""A worker's experience between two updates."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

State: TypeAlias = tuple[Tensor, ...] | None
"""The recurrent state of E environments, each tensor `[E, ...]`; None for a feed-forward network."""
Extras: TypeAlias = dict[str, Tensor]
"""What an algorithm's `act` returns besides the actions, by name, `[E]` each; in a rollout `[T, E]`."""
EACH_STEP = ("actions", "rewards", "discounts", "last")
"""The fields of a rollout with an entry for each step of each environment."""


def at_end(states: State) -> State:
    """The state after the last step, `[E, ...]`, from the states after each, `[T, E, ...]`."""
    return None if states is None else tuple(part[-1] for part in states)


def at_places(states: State, times: Tensor, environments: Tensor) -> State:
    """The states after certain steps, `[K, ...]`, from the states after each, `[T, E, ...]`."""
    return None if states is None else tuple(part[times, environments] for part in states)


@dataclass(frozen=True, slots=True)
class Rollout:
    """T steps of E environments, time first. The arrays are reused by the next rollout: do not keep them.

    An episode that *terminated* at step t has `discounts[t] = 0`. One that was *truncated* (a time limit) keeps its
    discount and bootstraps from its own last observation, kept in `final_observations`, because `observations[t + 1]`
    already belongs to the next episode. `last[t]` is True in both cases.
    """

    observations: Tensor
    """`[T + 1, E, ...]` uint8 or float32: observation t is what action t was chosen on."""
    actions: Tensor
    """`[T, E]` int64, or float32 `[T, E, n]` where actions are vectors."""
    rewards: Tensor
    """`[T, E]` float32, raw: clipping happens in the loss."""
    discounts: Tensor
    """`[T, E]` float32: gamma, or 0 where the episode terminated (or a life was lost and that counts as the end)."""
    last: Tensor
    """`[T, E]` bool: True where the episode ended, in either way, and the return is cut."""
    truncated: tuple[Tensor, Tensor]
    """Times and environments `([K], [K])`, int64, of the truncated episodes."""
    final_observations: Tensor | None
    """`[K, ...]` the last real observations of those episodes; None when there are none."""
    state: State = None
    """The recurrent state in which the rollout began."""
    reward_scale: float | Tensor = 1.0
    """The factor of rewards in the loss if returns are normalised; `[E]` if it differs between environments."""
    next_actions: Tensor | None = None
    """`[T, E]` the actions taken in observation t + 1; only for algorithms that look ahead (Sarsa)."""
    acted_at: int = 0
    """T, the steps of all workers, that determined the exploration."""
    extras: Extras = dataclasses.field(default_factory=dict)
    """`[T, E]` each: what `act` returned for the loss, such as log-probabilities."""
    raw: Tensor | None = None
    """`[T + 1, E, ...]` raw observations; None: `observations` are raw."""
    raw_final: Tensor | None = None
    """`[K, ...]` the same for `final_observations`."""
    moments: tuple[Tensor, Tensor] | None = None
    """Mean and reciprocal deviation with which the raw observations were normalised; None: they were not."""
    lengths: Tensor | None = None
    """`[E]` int64: steps of each environment if rollouts are whole episodes, later rows being padding; None: T."""

    def as_dict(self) -> dict[str, Any]:
        """A copy as plain data, arrays and tensors, by field name."""
        return dict(copy.deepcopy({field.name: getattr(self, field.name) for field in dataclasses.fields(self)}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rollout:
        """The rollout that `as_dict` turned into `data`; its tuples may have become lists."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**fields)

    @property
    def steps(self) -> int:
        """Agent steps in this rollout: T x E without padding."""
        return self.rewards.numel() if self.lengths is None else int(self.lengths.sum())

    @property
    def played(self) -> Tensor:
        """True where a step was made, False for padding, `[T, E]` bool."""
        if self.lengths is None:
            return torch.ones_like(self.last)
        return torch.arange(len(self.rewards))[:, None] < self.lengths

    def learning_rewards(self, clip: float) -> Tensor:
        """Rewards for a loss, `[T, E]`: scaled, then clipped to [-clip, clip]; with 0 not clipped."""
        rewards = self.rewards * self.reward_scale
        return rewards.clamp_(-clip, clip) if clip else rewards

    def next_values(self, following: Tensor, value_of: Callable[[Tensor], Tensor]) -> Tensor:
        """The value of the state each step leads to, `[T, E]`.

        `following` `[T, E]` are the values of observations 1..T. The last observations of truncated episodes are not
        among them: `value_of` takes these as `[1, K, ...]` and returns `[1, K]`. Where an episode terminated, the value
        is multiplied by a discount of 0 later and does not matter.
        """
        if self.final_observations is None:
            return following
        values = following.clone()
        values[self.truncated] = value_of(self.final_observations[None])[0]
        return values

    @classmethod
    def side_by_side(cls, rollouts: Sequence[Rollout], observations: Tensor | None = None) -> Rollout:
        """Rollouts of equal length as one rollout of all their environments, in order, without raw observations.

        `observations` are those of all of them if they are already side by side.
        """
        offsets = list(itertools.accumulate((len(one.rewards[0]) for one in rollouts), initial=0))
        finals = [one.final_observations for one in rollouts if one.final_observations is not None]
        states = [one.state for one in rollouts if one.state is not None]
        scales = [torch.as_tensor(one.reward_scale).expand(len(one.rewards[0])) for one in rollouts]
        steps: dict[str, Any] = {name: torch.cat([getattr(one, name) for one in rollouts], 1) for name in EACH_STEP}
        return cls(
            **steps,
            observations=torch.cat([one.observations for one in rollouts], 1) if observations is None else observations,
            truncated=(
                torch.cat([one.truncated[0] for one in rollouts]),
                torch.cat([one.truncated[1] + offset for one, offset in zip(rollouts, offsets, strict=False)]),
            ),
            final_observations=torch.cat(finals) if finals else None,
            state=tuple(torch.cat(parts) for parts in zip(*states, strict=True)) if states else None,
            reward_scale=torch.cat(scales),
            acted_at=max(one.acted_at for one in rollouts),
            extras={name: torch.cat([one.extras[name] for one in rollouts], 1) for name in rollouts[0].extras},
        )


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Some steps of some environments of a batch, for one of several passes over it."""

    observations: Tensor
    """`[T, B, ...]`; single steps are `[1, B, ...]`."""
    actions: Tensor
    """`[T, B]` or `[T, B, n]`."""
    extras: Extras
    """`[T, B]` each: what was computed before the passes."""
    acted_at: int
    """T, the steps of all workers, at the time of acting."""
    state: State = None
    """The recurrent state in which the sequences begin."""
    last: Tensor | None = None
    """`[T, B]` where an episode ended, so that the state is reset."""

    def flat(self) -> Minibatch:
        """All steps of all environments as single ones, `[1, T B, ...]`, without a state.

        Images have their channels last in memory, as the networks compute, so that no pass reorders them again.
        """
        observations = self.observations.flatten(0, 1)
        if observations.dim() == 4:
            observations = observations.contiguous(memory_format=torch.channels_last)
        return Minibatch(
            observations[None],
            self.actions.flatten(0, 1)[None],
            {name: values.reshape(1, -1) for name, values in self.extras.items()},
            self.acted_at,
        )

    def select(self, chosen: Tensor) -> Minibatch:
        """Those of the B with the indices `chosen` `[b]`."""
        observations = self.observations
        if observations.dim() == 5 and not observations.is_contiguous():  # `flat`'s layout, which is kept
            observations = observations.movedim(2, -1).index_select(1, chosen).movedim(-1, 2)
        else:
            observations = observations.index_select(1, chosen)  # twice as fast as indexing
        return Minibatch(
            observations,
            self.actions[:, chosen],
            {name: values[:, chosen] for name, values in self.extras.items()},
            self.acted_at,
            None if self.state is None else tuple(part[chosen] for part in self.state),
            None if self.last is None else self.last[:, chosen],
        )


@dataclass(frozen=True, slots=True)
class Transitions:
    """B transitions of n steps each, drawn one by one from a replay memory.

    Rewards end with the first `last`: the rows after it belong to the next episode.
    """

    observations: Tensor
    """`[B, ...]` the observation on which the first action was chosen."""
    actions: Tensor
    """`[B]` int64: the first action; float32 `[B, n]` where actions are vectors."""
    rewards: Tensor
    """`[n, B]` float32, raw."""
    discounts: Tensor
    """`[n, B]` float32: gamma, or 0 where the episode terminated."""
    last: Tensor
    """`[n, B]` bool: True where the return is cut, as in a rollout."""
    following: Tensor
    """`[B, ...]` what the return bootstraps from: the observation n steps later, or that after the first `last`."""
    weights: Tensor
    """`[B]` float32: weight of each in the loss; 1 if all are drawn equally often."""
    reward_scale: float = 1.0
    """The factor of rewards in the loss if returns are normalised."""

    def learning_rewards(self, clip: float) -> Tensor:
        """Rewards for a loss, `[n, B]`: scaled, then clipped to [-clip, clip]; with 0 not clipped."""
        rewards = self.rewards * self.reward_scale
        return rewards.clamp_(-clip, clip) if clip else rewards


Part: TypeAlias = Rollout | Minibatch | Transitions
"""What one update is computed from."""
Experienced = TypeVar("Experienced", bound=Rollout | Transitions)


def on_device(experience: Experienced, device: torch.device) -> Experienced:
    """The same on a device; on the CPU, where experience is collected, it is returned as it is."""
    if device.type == "cpu":
        return experience
    fields = {field.name: getattr(experience, field.name) for field in dataclasses.fields(experience)}
    return dataclasses.replace(experience, **tree_map_only(Tensor, lambda tensor: tensor.to(device), fields))
