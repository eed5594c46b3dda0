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

The loop itself is `asyncrl.runtime.loops.actor_learner`; this page is what makes it REINFORCE. Run it with
`python -m asyncrl.reinforce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, normalized, policy_gradient_loss
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
WHOLE_EPISODES = True

BASELINE_UNIT = 50.0
"""theta holds the baseline in this unit: an update moves a single number by about eta, and returns go to hundreds."""


@dataclass(frozen=True)
class Config(PolicyConfig):
    """REINFORCE: the policy gradient of whole episodes (Williams 1992)."""

    t_max: int = 1000
    """The longest piece of an episode that is learnt from at once; what follows it does not count for its returns."""
    max_gradient_norm: float = 0.5
    """A gradient with a larger L2 norm is scaled down to it; 0: never."""
    gae_lambda: float = 1.0
    """Returns are of whole episodes: always 1."""
    value_cost: float = 0.5
    """Weight of the baseline's squared error."""
    normalize_advantages: bool = True
    """Scale the advantages of an update to mean 0 and standard deviation 1."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("gae_lambda", self.gae_lambda == 1, "must be 1: returns are of whole episodes")


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("reinforce", name, spaces)


class RunningBaseline(nn.Module):
    """b, the same for every state: one number of theta, so that workers share it and checkpoints keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.baseline = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        """b in units of BASELINE_UNIT, `[T, E, 1]` for features `[T, E, F]`."""
        return self.baseline.expand(*features.shape[:-1], 1)


def make_network(config: Config, spaces: Spaces) -> ActorCritic | GaussianActorCritic:
    """A policy, with the baseline where others have a value of states."""
    network = make_actor_critic(config, spaces)
    network.value = RunningBaseline()
    if isinstance(network, GaussianActorCritic):
        network.value_trunk = network.policy_trunk  # a number needs no layers of its own
    return network


class Reinforce:
    """One worker's policy, and its loss."""

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
        """Summed over the steps of an episode, averaged over the episodes; padding counts for nothing."""
        config, played = self.config, rollout.played
        policy, baselines, _ = self.network(rollout.observations[:-1], rollout.state, rollout.last)
        rewards = rollout.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, rollout.discounts, torch.zeros_like(rewards), rollout.last)[played]
        baselines = baselines[played]
        advantages = returns - BASELINE_UNIT * baselines.detach()
        if config.normalize_advantages:
            advantages = normalized(advantages)

        policy_loss = policy_gradient_loss(policy.log_probability(rollout.actions)[played], advantages)
        baseline_loss = torch.square(returns / BASELINE_UNIT - baselines)
        entropy = policy.entropy()[played]
        episodes = played.shape[1]
        loss = (policy_loss + config.value_cost * baseline_loss - self.entropy_weight * entropy).sum() / episodes
        return loss, lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": BASELINE_UNIT**2 * baseline_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
        }


make_agent = Reinforce


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.reinforce"))
