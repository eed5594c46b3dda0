"""The networks of `actor_critic` and `q_network` for observations that end with an action mask (`Spaces.masked`).

The mask travels with the observation. So a loss, which evaluates the network at the observations of a rollout, uses the
masks with which the actions were chosen, and a bootstrap those of the state that it values.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.core.action_masks import masked
from asyncrl.core.distributions import Categorical
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.q_network import QNetwork


class MaskedActorCritic(ActorCritic):
    """A policy that gives invalid actions a probability of 0. Its entropy is that of the valid ones."""

    def policy_on(self, features: Tensor, observations: Tensor) -> Categorical:
        """As in the class above."""
        return Categorical(masked(self.policy(features), observations))


class MaskedQNetwork(QNetwork):
    """Action values of which those of invalid actions are INVALID, so that no maximum has them."""

    def values_on(self, features: Tensor, observations: Tensor) -> Tensor:
        """As in the class above."""
        return masked(self.head(features), observations)
