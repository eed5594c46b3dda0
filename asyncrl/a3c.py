"""Asynchronous advantage actor-critic: A3C.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), Algorithm S3. Each
actor-learner, with theta' its own copy of the shared parameters theta:

    repeat
        theta' <- theta
        act t_max steps with a_t ~ pi(a | s_t; theta'), receiving r_t and s_{t+1}
        R <- 0 for a terminal s_t, V(s_t; theta') otherwise                     (bootstrap)
        for i = t-1, ..., t_start:
            R <- r_i + gamma R
            d theta += grad log pi(a_i | s_i) (R - V(s_i)) + beta grad H(pi(s_i))   (ascent)
            d theta -= value_cost grad (R - V(s_i))^2                               (descent)
        update theta with d theta, asynchronously and without a lock
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this page is what makes it A3C. Run it with
`python -m asyncrl.a3c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
EXPERIENCE = "gradient"
EXTRAS = ()


@dataclass(frozen=True)
class Config(PolicyConfig):
    """A3C: asynchronous advantage actor-critic (Mnih et al. 2016, Algorithm S3)."""


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("a3c", name, spaces)


make_network = make_actor_critic


class A3C:
    """One worker's policy and value, and its loss."""

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
        self.entropy_weight = config.entropy_weights[max(worker, 0) % len(config.entropy_weights)]
        self.exploration = {"entropy_weight": self.entropy_weight}

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t ~ pi(a_t | s_t; theta'), `[E]`."""
        policy, state = self.network.policy_at(observations, state)
        return policy.mode() if self.choose_best else policy.sample(self.generator), state, {}

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Summed over the T steps, as the paper accumulates its gradient, and averaged over the E environments."""
        config = self.config
        # One pass over all T + 1 observations: the last one is only there for the bootstrap.
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
        environments = values.shape[1]
        loss = (policy_loss + config.value_cost * value_loss - self.entropy_weight * entropy).sum() / environments
        return loss, lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": value_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
            "explained_variance": explained_variance(values.detach(), returns),
        }


make_agent = A3C


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.a3c"))
