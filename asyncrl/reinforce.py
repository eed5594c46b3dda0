"""REINFORCE: the policy gradient of whole episodes.

Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", with a
running baseline; what Karpathy's "Pong from pixels" trains. Each worker, with theta' its own copy of theta:

    repeat
        theta' <- theta
        act one episode with a_t ~ pi(a | s_t; theta')
        for i = the last step, ..., the first:  G_i <- r_i + gamma G_{i+1}      (no bootstrap: nothing follows the end)
        d theta = the sum over its steps of grad log pi(a_i | s_i) (G_i - b)    (ascent)
        b runs after the mean of G
        update theta with d theta
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this class is what makes it REINFORCE. Run it with
`python -m asyncrl.reinforce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asyncrl.actor_critic import ActorCriticMethod
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, policy_gradient_loss
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces

if TYPE_CHECKING:
    from asyncrl.nets.actor_critic import ActorCritic
    from asyncrl.nets.gaussian import GaussianActorCritic

BASELINE_UNIT = 50.0
"""theta holds the baseline in this unit: an update moves a single number by about eta, and returns go to hundreds."""


class RunningBaseline(nn.Module):
    """b, the same for every state: one number of theta, so that workers share it and checkpoints keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.baseline = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        """b in units of BASELINE_UNIT, `[T, E, 1]` for features `[T, E, F]`."""
        return self.baseline.expand(*features.shape[:-1], 1)


class Reinforce(ActorCriticMethod):
    """One worker's policy, and its loss."""

    whole_episodes = True
    presets = "reinforce"

    @dataclass(frozen=True)
    class Config(PolicyConfig):
        """REINFORCE: the policy gradient of whole episodes (Williams 1992)."""

        t_max: int = 1000
        """Longest part of an episode used for one update; later rewards do not count towards its returns."""
        max_gradient_norm: float = 0.5
        """Scale gradients with a larger L2 norm down to this norm; 0: never."""
        gae_lambda: float = 1.0
        """Returns are of whole episodes: always 1."""
        value_cost: float = 0.5
        """Weight of the baseline's squared error."""
        normalize_advantages: bool = True
        """Normalise the advantages of an update to mean 0 and standard deviation 1."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            self._require("gae_lambda", self.gae_lambda == 1, "must be 1: returns are of whole episodes")

    @classmethod
    def make_network(cls, config: Config, spaces: Spaces) -> ActorCritic | GaussianActorCritic:
        """A policy, with the baseline where others have a value of states."""
        network = super().make_network(config, spaces)
        network.value = RunningBaseline()
        if spaces.is_continuous:
            network.value_trunk = network.policy_trunk  # a number needs no layers of its own
        return network

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Summed over the steps of an episode, averaged over the episodes; padding counts for nothing."""
        config, played = self.config, rollout.played
        policy, baselines, _ = self.network(rollout.observations[:-1], rollout.state, rollout.last)
        rewards = rollout.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, rollout.discounts, torch.zeros_like(rewards), rollout.last)[played]
        baselines = baselines[played]
        advantages = self.scaled(returns - BASELINE_UNIT * baselines.detach())

        policy_loss = policy_gradient_loss(policy.log_probability(rollout.actions)[played], advantages)
        baseline_loss = torch.square(returns / BASELINE_UNIT - baselines)
        entropy = policy.entropy()[played]
        loss = self.weighted(policy_loss, baseline_loss, entropy, rollout.acted_at).sum() / played.shape[1]
        return loss, lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": BASELINE_UNIT**2 * baseline_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
        }


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.reinforce"))
