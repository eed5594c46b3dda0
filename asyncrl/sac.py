"""Soft actor-critic: SAC.

Haarnoja et al. 2018 (arXiv 1812.05905), Algorithm 1, with a learnt temperature. Actors fill one memory, from which one
learner samples:

    each actor, repeatedly
        theta' <- theta, act by a ~ pi(s; theta'), and store (s, a, r, s') in the memory
    the learner, repeatedly
        sample a minibatch of (s, a, r, s');  a' ~ pi(s'; theta),  b ~ pi(s; theta)
        y = r + gamma (min_i Q_i(s', a'; theta^-) - alpha log pi(a' | s'))               (equations 3 and 5)
        update the critics with      grad sum_i (Q_i(s, a; theta) - y)^2 / 2             (equation 5)
        update the policy with       grad alpha log pi(b | s) - min_i Q_i(s, b; theta)   (equation 9)
        update the temperature with  grad -log(alpha) (log pi(b | s) + H)                (equation 18)
        theta^- <- theta^- + tau (theta - theta^-)
    until T > T_max,   with b = tanh(mu + sigma noise), scaled to the box of actions

Policy, critics and temperature are parts of one theta, and one update moves all. The loops are `actor` and `learner` in
`asyncrl.runtime.loops`, the memory is `asyncrl.experience.replay`; this class is what makes them SAC. Run it with
`python -m asyncrl.sac`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.algorithm import MEMORY, Algorithm
from asyncrl.apex_dpg import ReplayActorCritic
from asyncrl.config.groups import limited
from asyncrl.config.replay import ContinuousReplayConfig
from asyncrl.core.distributions import Gaussian
from asyncrl.core.losses import Metrics
from asyncrl.core.returns import n_step_targets
from asyncrl.core.rollout import Extras, State, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.nets.gaussian import Box

LOG_DEVIATIONS = (-20.0, 2.0)
"""Bounds of log sigma, as in its authors' code."""


@dataclass(frozen=True)
class Squashed:
    """tanh of a vector of independent normals, scaled to a box; actions are float32 `[..., n]`."""

    inner: Gaussian
    """Before the tanh."""
    box: Box

    @property
    def mean(self) -> Tensor:
        """The action of mu, `[..., n]`, for films and other programs."""
        return self.box.stretch(self.inner.mean)

    @property
    def deviation(self) -> Tensor:
        """Half the distance between the actions of mu - sigma and mu + sigma, `[..., n]`, for the same."""
        mean, deviation = self.inner.mean, self.inner.deviation
        return (self.box.stretch(mean + deviation) - self.box.stretch(mean - deviation)) / 2

    def drawn(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action of standard normal `noise` `[..., n]` in half widths of the box, and its log-probability `[...]`.

        That is the density of its free components (equation 26). Both have a gradient in mu and sigma.
        """
        before, free = self.inner.mean + self.inner.deviation * noise, (..., self.box.free)
        inner = Gaussian(self.inner.mean[free], self.inner.deviation[free])
        return before.tanh(), inner.log_probability(before[free]) - _log_slope(before[free]).sum(-1)


def _log_slope(before: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) of u, exactly also where tanh(u) is rounded to 1."""
    return 2 * (math.log(2) - before - F.softplus(-2 * before))


class SoftActorCritic(ReplayActorCritic):
    """A squashed normal policy, two critics and the temperature."""

    def __init__(self, config: Any, spaces: Spaces) -> None:
        super().__init__(config, spaces, outputs=2, critics=2)
        self.log_temperature = nn.Parameter(torch.full((1,), math.log(config.temperature)))

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Squashed, Tensor, State]:
        """The policy at `[T, E]`, and the least q of its best actions `[T, E]`."""
        flat = observations.flatten(0, 1)
        inner = self.policy_of(flat).inner
        values = self.values_of(self.seen(flat), inner.mean.tanh()).amin(0)
        shape = observations.shape[:2]
        mean, deviation = (part.view(*shape, -1) for part in (inner.mean, inner.deviation))
        return Squashed(Gaussian(mean, deviation), self.box), values.view(shape), None

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Squashed, State]:
        """The policy at observations `[E, ...]`."""
        return self.policy_of(observations), None

    def policy_of(self, observations: Tensor) -> Squashed:
        """The policy at observations `[B, ...]`."""
        mean, log_deviation = self.outputs(observations).chunk(2, -1)
        return Squashed(Gaussian(mean, log_deviation.clamp(*LOG_DEVIATIONS).exp()), self.box)


@dataclass(frozen=True, slots=True)
class Noisy(Transitions):
    """Transitions with the noise of the actions that the loss draws, so that it is a function of them."""

    noise: Tensor = dataclasses.field(kw_only=True)
    """`[2, B, n]` standard normal: for the actions in `observations`, and in `following`."""


class SAC(Algorithm):
    """The policy and the critics of an actor or of the learner, and its loss."""

    experience = MEMORY
    extras = ("action_value", "state_value")
    has_target = True
    takes_continuous, takes_discrete = True, False
    presets = "sac"

    @dataclass(frozen=True)
    class Config(ContinuousReplayConfig):
        """SAC: soft actor-critic with a learnt temperature (Haarnoja et al. 2018)."""

        preset: Literal["default", "paper", "zoo"] = "default"  # type: ignore[assignment]  # one more than others have
        """Starting point of the other settings: the defaults, the paper's, or RL Baselines3 Zoo's for MuJoCo."""
        learning_rate: float = 3e-4
        """Learning rate (eta) of policy, critics and temperature at the first step."""
        warmup_steps: int = 10_000
        """Steps in the memory before learning starts; actions in the run's first steps are random."""
        replay_ratio: float = 1.0
        """Updates per step after the warm-up, kept by making actors or learner wait."""
        priority_exponent: float = 0.0
        """alpha: how much more often steps with large errors are sampled; 0: uniform sampling."""
        target_interval_updates: int = 1
        """Updates between refreshes of the target network."""
        target_rate: float = limited(0.005, most=1, above=0)
        """tau: how far a refresh moves the target network towards the network; 1: copy it."""
        temperature: float = limited(1.0, above=0)
        """alpha at the first step: weight of the policy's entropy."""
        learn_temperature: bool = True
        """Adapt alpha so that the entropy approaches --target-entropy."""
        target_entropy: float = -1.0
        """Target entropy (H) for each component of an action, in half widths of its box."""

    config: Config
    network: SoftActorCritic
    target: SoftActorCritic

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> SoftActorCritic:
        """Policy, critics and temperature."""
        return SoftActorCritic(config, spaces)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t ~ pi `[E, n]`, in the run's first steps uniform, and the values for its initial priority if it has one.

        These are of single draws: Q(s, a), and what the return would bootstrap from, Q(s, b) - alpha log pi(b | s).
        """
        network, box = self.network, self.network.box
        policy = network.policy_of(observations)
        shape = policy.inner.mean.shape
        if self.who == "worker" and steps < self.config.warmup_steps:
            scaled = 2 * torch.rand(shape, generator=self.generator) - 1
        elif self.who == "evaluator" and self.config.evaluation_policy == "greedy":
            scaled = policy.inner.mean.tanh()
        else:
            scaled = policy.inner.sample(self.generator).tanh()
        left = dict.fromkeys(self.extras, torch.zeros(len(observations)))
        if self.config.priority_exponent:
            seen = network.seen(observations)
            fresh, log_probability = policy.drawn(torch.randn(shape, generator=self.generator))
            left["action_value"] = network.values_of(seen, scaled).amin(0)
            soft = network.values_of(seen, fresh).amin(0) - network.log_temperature.exp() * log_probability
            left["state_value"] = soft
        return box.centre + box.half_width * scaled, state, left

    def passes(self, batch: Transitions) -> Iterator[Noisy]:
        """The whole batch, once, with noise."""
        shape = (2, *batch.actions.shape)
        noise = torch.randn(shape, generator=self.generator).to(batch.actions.device)
        yield Noisy(**{field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}, noise=noise)

    def loss(self, part: Noisy) -> tuple[Tensor, Metrics]:
        """The sum of the losses of critics, policy and temperature, each with a gradient in its own parameters only."""
        config, network, target = self.config, self.network, self.target
        log_alpha = network.log_temperature
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            chosen, log_probability = network.policy_of(part.following).drawn(part.noise[1])
            following = target.values_of(target.seen(part.following), chosen).amin(0) - alpha * log_probability
        rewards = part.learning_rewards(config.reward_clip)
        targets = n_step_targets(rewards, part.discounts, part.last, following)  # y
        seen = network.seen(part.observations)
        values = network.values_of(seen, network.box.scaled(part.actions))
        errors = values - targets
        self.errors = errors.detach().abs().mean(0)
        value_loss = 0.5 * errors.square().sum(0)

        chosen, log_probability = network.policy_of(part.observations).drawn(part.noise[0])
        # A linear function of the action with the gradient of q, so that nothing else of q gets one.
        climb = (network.slope(seen, chosen) * chosen).sum(-1)
        policy_loss = alpha * log_probability - climb
        missing = -log_probability.detach() - config.target_entropy * network.box.dimensions  # entropy above the target
        temperature_loss = log_alpha * missing if config.learn_temperature else 0.0
        loss = (part.weights * value_loss + policy_loss + temperature_loss).mean()
        return loss, lambda: {
            "value_loss": value_loss.detach().mean(),
            "q_mean": values.detach().mean(),
            "entropy": -log_probability.detach().mean(),
            "temperature": alpha.mean(),
        }


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.sac"))
