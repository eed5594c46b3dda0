"""What actor-critics share: a policy and a value in one network, and actions drawn from the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncrl.algorithm import GRADIENT, Algorithm, Who, initialisation_of
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, explained_variance, normalized
from asyncrl.core.rollout import Extras, Rollout, State, at_places
from asyncrl.core.spaces import Spaces
from asyncrl.nets.trunk import Trunk, hidden_widths, make_body

if TYPE_CHECKING:
    from asyncrl.nets.actor_critic import ActorCritic
    from asyncrl.nets.gaussian import GaussianActorCritic


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

        def trunk() -> Trunk:
            widths = hidden_widths(config.network, config.hidden_sizes, spaces.kind)
            body = make_body(config.network, widths, spaces, config.normalize_observations)
            return Trunk(body, config.lstm_cells)

        initialisation = initialisation_of(config)
        if spaces.is_continuous:
            from asyncrl.nets.gaussian import GaussianActorCritic

            return GaussianActorCritic(
                trunk(), trunk(), spaces.action_low, spaces.action_high,
                config.mean, config.variance, config.first_deviation, initialisation,
            )  # fmt: skip
        if spaces.masked:
            from asyncrl.nets.action_masks import MaskedActorCritic

            return MaskedActorCritic(trunk(), spaces.actions, initialisation)
        from asyncrl.nets.actor_critic import ActorCritic

        return ActorCritic(trunk(), spaces.actions, initialisation)

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t ~ pi(a_t | s_t; theta'), `[E]`; its log-probability and V(s_t; theta') if these are among the extras."""
        extras: Extras = {}
        if "value" in self.extras:
            policy, extras["value"], state = self.network.policy_and_value_at(observations, state)
        else:
            policy, state = self.network.policy_at(observations, state)
        actions = policy.mode() if self.choose_best else policy.sample(self.generator)
        if "log_probability" in self.extras:
            extras["log_probability"] = policy.log_probability(actions)
        return actions, state, extras

    def next_values(self, rollout: Rollout, values: Tensor, states: State) -> Tensor:
        """V of the state that each step leads to `[T, E]`, without a gradient.

        `values` are those of the rollout's observations `[T + 1, E]`, `states` those after each step.
        """

        def value_of(final: Tensor) -> Tensor:
            value: Tensor = self.network(final, at_places(states, *rollout.truncated))[1]
            return value.detach()

        return rollout.next_values(values[1:].detach(), value_of)

    def scaled(self, advantages: Tensor) -> Tensor:
        """The advantages, normalised if the settings say so. A single one would become 0, and stays as it is."""
        return normalized(advantages) if self.config.normalize_advantages and advantages.numel() > 1 else advantages

    def weighted(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, steps: int) -> Tensor:
        """The three terms of the loss in one, step by step: policy, value and entropy, weighted as at T = `steps`."""
        weight, schedule = self.entropy_weight, self.config.entropy_schedule
        if schedule != "constant":
            from asyncrl.core.points import value_at

            weight *= value_at(schedule, steps / self.config.total_steps)
        return policy_loss + self.config.value_cost * value_loss - weight * entropy

    @staticmethod
    def figures(policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, values: Tensor, returns: Tensor) -> Metrics:
        """What the records have of these terms: their means, and how much of the returns the values explain."""
        return lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": value_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
            "explained_variance": explained_variance(values.detach(), returns),
        }
