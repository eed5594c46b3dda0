"""The networks of `actor_critic` and `q_network` for observations that end with an action mask (`Spaces.masked`).

The mask travels with the observation. So a loss, which evaluates the network at the observations of a rollout, uses the
masks with which the actions were chosen, and a bootstrap those of the state that it values.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.core.action_masks import masked
from asyncrl.core.distributions import Categorical
from asyncrl.core.rollout import State
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.q_network import QNetwork


class MaskedActorCritic(ActorCritic):
    """A policy that gives invalid actions a probability of 0. Its entropy is that of the valid ones."""

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Categorical, Tensor, State]:
        """As in the class above."""
        policy, values, states = super().forward(observations, state, last)
        return Categorical(masked(policy.logits, observations)), values, states

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, State]:
        """As in the class above."""
        policy, state = super().policy_at(observations, state)
        return Categorical(masked(policy.logits, observations)), state

    def policy_and_value_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, Tensor, State]:
        """As in the class above."""
        policy, value, state = super().policy_and_value_at(observations, state)
        return Categorical(masked(policy.logits, observations)), value, state


class MaskedQNetwork(QNetwork):
    """Action values of which those of invalid actions are INVALID, so that no maximum has them."""

    def forward(self, observations: Tensor, state: State = None, last: Tensor | None = None) -> tuple[Tensor, State]:
        """As in the class above."""
        q, states = super().forward(observations, state, last)
        return masked(q, observations), states

    def values_at(self, observations: Tensor, state: State = None) -> tuple[Tensor, State]:
        """As in the class above."""
        q, state = super().values_at(observations, state)
        return masked(q, observations), state
