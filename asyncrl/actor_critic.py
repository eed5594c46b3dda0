"""What actor-critics share: a policy and a value in one network, and actions drawn from the policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithm import GRADIENT, Algorithm, Who
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, explained_variance, normalized
from asyncrl.core.rollout import Extras, State
from asyncrl.core.spaces import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.gaussian import GaussianActorCritic
from asyncrl.nets.policies import make_actor_critic


class ActorCriticMethod(Algorithm):
    """Policy and value in one network, and actions drawn from the policy."""

    takes_continuous = True
    config: PolicyConfig
    network: ActorCritic | GaussianActorCritic

    def __init__(
        self, config: Any, network: Any, target: Any, who: Who, number: int, generator: torch.Generator
    ) -> None:
        super().__init__(config, network, target, who, number, generator)
        self.choose_best = who == "evaluator" and config.evaluation_policy == "greedy"
        weights = config.entropy_weights
        learns = who == "worker" and self.experience == GRADIENT
        self.entropy_weight: float = weights[number % len(weights)] if learns else weights[0]
        self.exploration = {"entropy_weight": self.entropy_weight}

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> ActorCritic | GaussianActorCritic:
        """Policy and value on the configured body, shared unless actions are continuous."""
        return make_actor_critic(config, spaces)

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t ~ pi(a_t | s_t; theta'), `[E]`, and its log-probability if that is among the extras."""
        policy, state = self.network.policy_at(observations, state)
        actions = policy.mode() if self.choose_best else policy.sample(self.generator)
        extras = {"log_probability": policy.log_probability(actions)} if "log_probability" in self.extras else {}
        return actions, state, extras

    def scaled(self, advantages: Tensor) -> Tensor:
        """The advantages, normalised if the settings say so."""
        return normalized(advantages) if self.config.normalize_advantages else advantages

    def weighted(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor) -> Tensor:
        """The three terms of the loss in one, step by step: policy, value and entropy."""
        return policy_loss + self.config.value_cost * value_loss - self.entropy_weight * entropy

    @staticmethod
    def figures(policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, values: Tensor, returns: Tensor) -> Metrics:
        """What the records have of these terms: their means, and how much of the returns the values explain."""
        return lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": value_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
            "explained_variance": explained_variance(values.detach(), returns),
        }
