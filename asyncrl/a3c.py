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

The loop itself is `asyncrl.runtime.worker.work`; this page is what makes it A3C. Run it with `python -m asyncrl.a3c`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from asyncrl.core.config import ATARI, PAPER, PAPER_ATARI, RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.losses import Metrics, policy_gradient_loss, squared_error
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Rollout, State
from asyncrl.envs.spec import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.bodies import make_body
from asyncrl.nets.gaussian import GaussianActorCritic
from asyncrl.nets.memory import Trunk, at_places

HAS_TARGET = False
TAKES_CONTINUOUS = True
PRIVATE_COPY = True
LOOKS_AHEAD = False


@dataclass(frozen=True)
class Config(RunConfig):
    """A3C: asynchronous advantage actor-critic (Mnih et al. 2016, Algorithm S3)."""

    # A policy that still explores scores better than its most likely actions, which get stuck: sampled -16 against
    # greedy -21 half-way through Pong.
    evaluation_policy: Literal["greedy", "sampled"] = "sampled"
    """Whether the evaluator takes the most likely action or draws from the policy as the workers do."""
    gae_lambda: float = 0.95
    """lambda of the returns (GAE); 1 is the paper's n-step return."""
    # With the usual 0.01 Pong's policy kept an entropy of 1.5 out of ln 6 = 1.8 and lost points to its own dice.
    entropy_weights: tuple[float, ...] = (0.003,)
    """beta: weight of the policy's entropy. Several values are dealt out to the workers in turn."""
    value_cost: float = 0.5
    """Weight of the squared value error."""
    lstm_cells: int = 0
    """Cells of an LSTM after the last hidden layer (the paper's has 256); 0: feed-forward."""
    mean: Literal["bounded", "linear"] = "bounded"
    """Continuous actions: the policy's mean kept within the action's bounds by tanh, or the paper's linear output."""
    variance: Literal["free", "state"] = "free"
    """Continuous actions: a deviation per component, or the paper's one softplus variance that depends on the state."""
    first_deviation: float = 0.15
    """Variance free: with what deviation it begins; for bounded means in half widths between an action's bounds."""
    normalize_advantages: bool = False
    """Scale the advantages of a rollout to mean 0 and standard deviation 1."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("gae_lambda", 0 <= self.gae_lambda <= 1, "must lie between 0 and 1")
        possible = bool(self.entropy_weights) and all(0 <= weight < math.inf for weight in self.entropy_weights)
        self._require("entropy_weights", possible, "must be at least one number, none of them negative")
        self._require("value_cost", 0 <= self.value_cost < math.inf, "must not be negative")
        if self.normalize_advantages and self.t_max * self.envs_per_worker < 2:
            raise UsageError("--normalize-advantages needs more than one step per update: --t-max or --envs-per-worker")
        self._require("first_deviation", 0 < self.first_deviation < math.inf, "must be a positive number")
        self._require("lstm_cells", 0 <= self.lstm_cells <= 100_000, "must be 0 to 100_000")


CONTINUOUS: dict[str, Any] = {
    "envs_per_worker": 8,
    "t_max": 32,
    "optimizer": "adam",
    "optimizer_decay": 0.999,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 5e-4,
    "max_gradient_norm": 5.0,
    "gae_lambda": 0.95,
    "entropy_weights": (0.0,),
    "normalize_observations": True,
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""What trained HalfCheetah steadily, with 2 workers as with 16 (docs/results/continuous.md). Where actions are vectors,
observations and returns have no common scale."""

BOARD: dict[str, Any] = {
    "envs_per_worker": 16,
    "t_max": 8,
    "learning_rate": 3e-3,
    "optimizer_epsilon": 1e-5,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": False,
}
"""What trained MinAtar's Breakout best of what was tried (docs/results/minatar.md); normalised planes did worse."""

VECTOR: dict[str, Any] = {
    "envs_per_worker": 8,
    "t_max": 8,
    "optimizer": "adam",
    "optimizer_decay": 0.999,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 2e-3,
    "max_gradient_norm": 0.5,
    "entropy_weights": (0.01,),
    "normalize_observations": True,
    # Without it the error of a value that has to grow to 100 drowns the policy's gradient in the layers they share.
    "normalize_returns": True,
    "evaluation_policy": "greedy",
}
"""What trains CartPole well."""


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    if name == "paper":
        return (
            PAPER
            | {
                "gae_lambda": 1.0,
                "entropy_weights": (0.01,),
                "value_cost": 0.5,
                "normalize_advantages": False,
                "evaluation_policy": "sampled",
                "lstm_cells": 0,
                "mean": "linear",
                "variance": "state",
            }
            | (PAPER_ATARI if spaces.kind == "atari" else {})
        )
    vectors = CONTINUOUS if spaces.is_continuous else VECTOR
    return {"atari": ATARI, "screen": {}, "board": BOARD, "vector": vectors}[spaces.kind]


def make_network(config: Config, spaces: Spaces) -> ActorCritic | GaussianActorCritic:
    """Policy and value on the body the configuration names; they share it unless actions are continuous."""

    def trunk() -> Trunk:
        body = make_body(config, spaces.observation_shape, spaces.observation_dtype, spaces.kind)
        return Trunk(body, config.lstm_cells)

    initialisation = "torch7" if config.preset == "paper" else "orthogonal"
    if spaces.is_continuous:
        return GaussianActorCritic(
            trunk(), trunk(), spaces.action_low, spaces.action_high,
            config.mean, config.variance, config.first_deviation, initialisation,
        )  # fmt: skip
    return ActorCritic(trunk(), spaces.actions, initialisation)


class A3C:
    """One worker's policy and value, and its loss."""

    def __init__(
        self,
        config: Config,
        spaces: Spaces,
        network: ActorCritic | GaussianActorCritic,
        target: None,
        worker: int,
        generator: torch.Generator,
    ) -> None:
        self.config = config
        self.network = network
        self.generator = generator
        self.choose_best = worker < 0 and config.evaluation_policy == "greedy"
        self.entropy_weight = config.entropy_weights[max(worker, 0) % len(config.entropy_weights)]
        self.exploration = {"entropy_weight": self.entropy_weight}

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State]:
        """a_t ~ pi(a_t | s_t; theta'), `[E]`."""
        policy, state = self.network.policy_at(observations, state)
        return policy.mode() if self.choose_best else policy.sample(self.generator), state

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Summed over the T steps, as the paper accumulates its gradient, and averaged over the E environments."""
        config = self.config
        # One pass over all T + 1 observations: the last one is only there for the bootstrap.
        policy, values, states = self.network(rollout.observations, rollout.state, rollout.last)
        next_values = self._next_values(rollout, values.detach(), states)
        policy, values = policy[:-1], values[:-1]
        rewards = rollout.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, rollout.discounts, next_values, rollout.last, config.gae_lambda)
        surprise = returns - values.detach()
        advantages = surprise
        if config.normalize_advantages:
            advantages = (surprise - surprise.mean()) / (surprise.std(correction=0) + 1e-8)

        policy_loss = policy_gradient_loss(policy.log_probability(rollout.actions), advantages)
        value_loss = squared_error(values, returns)
        entropy = policy.entropy()
        environments = values.shape[1]
        loss = (policy_loss + config.value_cost * value_loss - self.entropy_weight * entropy).sum() / environments
        return loss, lambda: {
            "policy_gradient_loss": policy_loss.detach().mean(),
            "value_loss": value_loss.detach().mean(),
            "entropy": entropy.detach().mean(),
            "explained_variance": 1 - surprise.var(correction=0) / (returns.var(correction=0) + 1e-8),
        }

    @torch.no_grad()
    def _next_values(self, rollout: Rollout, values: Tensor, states: State) -> Tensor:
        """V(s_{t+1}; theta') `[T, E]`: within the rollout, beyond its end, and where a time limit cut an episode."""

        def value_of(final: Tensor) -> Tensor:
            value: Tensor = self.network(final, at_places(states, *rollout.truncated))[1]
            return value

        return rollout.next_values(values[1:], value_of)


make_agent = A3C


if __name__ == "__main__":
    from asyncrl.train import main

    raise SystemExit(main("asyncrl.a3c"))
