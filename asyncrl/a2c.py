"""Synchronous advantage actor-critic: A2C.

OpenAI Baselines 2017, the synchronous variant of A3C (Mnih et al. 2016, arXiv 1602.01783). All actors act in step with
the parameters theta of one learner:

    repeat
        each actor: theta' <- theta, act t_max steps with a_t ~ pi(a | s_t; theta')
        wait for all of them, and put their rollouts side by side
        R <- 0 for a terminal s_t, V(s_t; theta) otherwise                      (bootstrap)
        for i = t-1, ..., t_start:  R <- r_i + gamma R
        update theta once, by the mean over all steps of all actors of
            - log pi(a_i | s_i) (R - V(s_i)) + value_cost (R - V(s_i))^2 - beta H(pi(s_i))
    until T > T_max

The loops are `actor` and `learner` in `asyncrl.runtime.loops`; this page is what makes them A2C. Run it with
`python -m asyncrl.a2c`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.config.groups import LearnerSettings
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, explained_variance, normalized, policy_gradient_loss, squared_error
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Extras, Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.gaussian import GaussianActorCritic
from asyncrl.nets.policies import make_actor_critic
from asyncrl.presets import preset_of

HAS_TARGET = False
TAKES_CONTINUOUS = True
PRIVATE_COPY = True
LOOKS_AHEAD = False
EXPERIENCE = "in step"
EXTRAS = ()


@dataclass(frozen=True)
class Config(PolicyConfig, LearnerSettings):
    """A2C: synchronous advantage actor-critic (OpenAI Baselines 2017)."""

    max_gradient_norm: float = 0.5
    """A gradient with a larger L2 norm is scaled down to it; 0: never."""
    entropy_weights: tuple[float, ...] = (0.01,)
    """beta: weight of the policy's entropy; the first of several counts."""


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("a2c", name, spaces)


make_network = make_actor_critic


class A2C:
    """Policy and value of an actor or of the learner, and the learner's loss."""

    def __init__(
        self,
        config: Config,
        network: ActorCritic | GaussianActorCritic,
        target: None,
        worker: int,
        generator: torch.Generator,
    ) -> None:
        self.config = config
        self.network = network
        self.generator = generator
        self.choose_best = worker == -1 and config.evaluation_policy == "greedy"
        self.exploration = {"entropy_weight": config.entropy_weights[0]}

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t ~ pi(a_t | s_t; theta'), `[E]`."""
        policy, state = self.network.policy_at(observations, state)
        return policy.mode() if self.choose_best else policy.sample(self.generator), state, {}

    def passes(self, batch: Rollout) -> Iterator[Rollout]:
        """The whole batch, once."""
        yield batch

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The mean over T steps of E environments."""
        config = self.config
        policy, values, states = self.network(rollout.observations, rollout.state, rollout.last)
        next_values = rollout.next_values(values[1:].detach(), self.network.values_of(rollout, states))
        policy, values = policy[:-1], values[:-1]
        rewards = rollout.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, rollout.discounts, next_values, rollout.last, config.gae_lambda)
        advantages = returns - values.detach()
        if config.normalize_advantages:
            advantages = normalized(advantages)

        policy_loss = policy_gradient_loss(policy.log_probability(rollout.actions), advantages)
        value_loss = squared_error(values, returns)
        entropy = policy.entropy()
        loss = (policy_loss + config.value_cost * value_loss - config.entropy_weights[0] * entropy).mean()
        return loss, lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": value_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
            "explained_variance": explained_variance(values.detach(), returns),
        }


make_agent = A2C


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.a2c"))
