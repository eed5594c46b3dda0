"""Distributed prioritized experience replay for continuous actions: Ape-X DPG.

Horgan et al. 2018 (arXiv 1803.00933), sections 3.3 and 4.2: deterministic policy gradients (Silver et al. 2014,
Lillicrap et al. 2016) with the actors, the memory and the learner of Ape-X:

    each actor i of N, repeatedly
        theta' <- theta, act by a = pi(s; theta') + sigma_i noise
        p = |G - q(s_t, a_t; theta')|, from the values it has acted with
        store the n-step transitions in the memory, with their priorities p
    the learner, repeatedly
        sample a minibatch with P(k) = p_k^alpha / sum_i p_i^alpha,  w_k = (N P(k))^-beta / max w
        G = r_t + gamma r_{t+1} + ... + gamma^n q(s_{t+n}, pi(s_{t+n}; theta^-); theta^-)
        update the critic with grad w (G - q(s_t, a_t; theta))^2 / 2, and renew p = |G - q(s_t, a_t; theta)|
        update the policy with grad pi(s_t; theta) grad_a q(s_t, a; theta) at a = pi(s_t; theta)
        every I_target updates: theta^- <- theta;  new steps overwrite the oldest ones
    until T > T_max

Policy and critic are parts of one theta, and one update moves both. The loops are `actor` and `learner` in
`asyncrl.runtime.loops`, the memory is `asyncrl.experience.replay`; this class is what makes them Ape-X DPG. Run it with
`python -m asyncrl.apex_dpg`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.algorithm import MEMORY, Algorithm, Who
from asyncrl.config.groups import limited
from asyncrl.config.replay import ContinuousReplayConfig
from asyncrl.core.distributions import Gaussian
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import spread_temperature
from asyncrl.core.losses import Metrics, squared_error
from asyncrl.core.returns import n_step_targets
from asyncrl.core.rollout import Extras, State, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.nets.bodies import linear_layers, parameters_of
from asyncrl.nets.gaussian import Box
from asyncrl.nets.products import linear
from asyncrl.nets.trunk import Reducible, Trunk, make_body

WIDTHS = (256, 256)
"""Widths of the hidden layers if none are given."""


class Layers(Reducible):
    """A fully connected network, `[B, i]` -> `[B, o]`, initialised like torch's linear layers."""

    def __init__(self, sizes: tuple[int, ...], activation: str = "relu") -> None:
        """`sizes` are those of the input, the hidden layers and the output."""
        super().__init__()
        self.hidden = linear_layers(sizes[:-1])
        self.output = nn.Linear(sizes[-2], sizes[-1])
        self._activation = activation

    @cached_property
    def _layers(self) -> list[tuple[Tensor, Tensor]]:  # at the first pass: until then layers may be replaced
        return [*parameters_of(self.hidden), (self.output.weight, self.output.bias)]

    def large(self) -> nn.Module:
        """The hidden layers."""
        return self.hidden

    def forward(self, inputs: Tensor, frozen: bool = False) -> Tensor:
        """`[B, o]` of inputs `[B, i]`; no gradient for the parameters if they are `frozen`."""
        layers = [(weight.detach(), bias.detach()) for weight, bias in self._layers] if frozen else self._layers
        hidden = inputs
        with self.precision:
            for weight, bias in layers[:-1]:
                hidden = linear(hidden, weight, bias, self._activation)
        return F.linear(hidden.float(), *layers[-1])


class ReplayActorCritic(nn.Module):
    """A policy and `critics` action values q(s, a), which share nothing.

    Vectors go into the layers as they are, images through the convolutions of `--network` first. Actions outside are
    the environment's; inside they are in half widths of its box, from -1 to 1. The critics do not see components with a
    single possible value: whatever the policy's outputs for these are, the action is the same.
    """

    def __init__(
        self, config: Any, spaces: Spaces, outputs: int = 1, critics: int = 1, activation: str = "relu"
    ) -> None:
        """The policy has `outputs` for each component of an action. Raises UsageError for components without bounds."""
        super().__init__()
        self.box = Box(spaces.action_low, spaces.action_high)
        if not self.box.bounded.all():
            raise UsageError(f"{config.env_id} has unbounded actions; this algorithm scales actions to bounds")
        widths = config.hidden_sizes or WIDTHS
        self.policy_trunk, self.value_trunk = (
            Trunk(make_body(config.network, (), spaces, config.normalize_observations)) for _ in range(2)
        )
        components = len(spaces.action_low)
        self.policy = Layers((self.policy_trunk.features, *widths, outputs * components), activation)
        sizes = (self.value_trunk.features + self.box.dimensions, *(getattr(config, "critic_sizes", ()) or widths), 1)
        self.value = nn.ModuleList(Layers(sizes, activation) for _ in range(critics))

    def seen(self, observations: Tensor) -> Tensor:
        """What the critics' layers take of observations `[B, ...]`: `[B, F]`."""
        return self.value_trunk.step(observations, None)[0]

    def outputs(self, observations: Tensor) -> Tensor:
        """What the policy's layers make of observations `[B, ...]`."""
        made: Tensor = self.policy(self.policy_trunk.step(observations, None)[0])
        return made

    def values_of(self, seen: Tensor, scaled: Tensor, frozen: bool = False) -> Tensor:
        """q of each critic, `[critics, B]`, of what it has `seen` and `scaled` actions `[B, n]`."""
        both = torch.cat([seen, scaled[..., self.box.free]], -1)
        return torch.stack([critic(both, frozen).squeeze(-1) for critic in self.value])

    def slope(self, seen: Tensor, scaled: Tensor) -> Tensor:
        """grad_a of the least q at `scaled` actions, `[B, n]`, without a gradient for anybody."""
        free = scaled.detach().requires_grad_()
        least = self.values_of(seen.detach(), free, frozen=True).amin(0)
        return torch.autograd.grad(least.sum(), free)[0]


class DeterministicActorCritic(ReplayActorCritic):
    """pi(s) and q(s, a)."""

    def choose(self, observations: Tensor) -> Tensor:
        """pi(s) `[B, n]` of observations `[B, ...]`, in half widths of the box."""
        return self.outputs(observations).tanh()

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Gaussian, Tensor, State]:
        """pi as a distribution without width `[T, E]`, and q of its actions `[T, E]`."""
        flat = observations.flatten(0, 1)
        chosen = self.choose(flat)
        values = self.values_of(self.seen(flat), chosen)[0]
        policy = self._certain(chosen.view(*observations.shape[:2], -1))
        return policy, values.view(observations.shape[:2]), None

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Gaussian, State]:
        """The same policy at observations `[E, ...]`."""
        return self._certain(self.choose(observations)), None

    def _certain(self, chosen: Tensor) -> Gaussian:
        return Gaussian(self.box.centre + self.box.half_width * chosen, torch.zeros_like(chosen))


class ApeXDPG(Algorithm):
    """The policy and the critic of an actor or of the learner, its exploration, and its loss."""

    experience = MEMORY
    extras = ("action_value", "state_value")
    has_target = True
    takes_continuous, takes_discrete = True, False
    presets = "apex_dpg"

    @dataclass(frozen=True)
    class Config(ContinuousReplayConfig):
        """Ape-X DPG: a deterministic policy from a shared memory (Horgan et al. 2018)."""

        critic_sizes: tuple[int, ...] = limited((), 1, 100_000)
        """Widths of the critic's hidden layers, if different from the policy's."""
        activation: Literal["relu", "tanh"] = "relu"
        """Activation after each hidden layer."""
        n_step: int = 5
        """Steps of a transition, after which its return bootstraps."""
        target_interval_updates: int = 100
        """Updates between refreshes of the target network."""
        noises: tuple[float, float] = limited((0.1, 0.4), 0)
        """Smallest and largest deviation of the actors' noise, in half widths; spaced evenly on a log scale."""
        slope_clip: float = limited(1.0, 0)
        """Clip each component of the gradient of q by an action to [-x, x]; 0: do not clip."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            self._require("noises", self.noises[0] <= self.noises[1], "must be in ascending order")

    config: Config
    network: DeterministicActorCritic
    target: DeterministicActorCritic

    def __init__(
        self, config: Any, network: Any, target: Any, who: Who, number: int, generator: torch.Generator
    ) -> None:
        super().__init__(config, network, target, who, number, generator)
        self.noise = 0.0
        if who == "worker" or config.evaluation_policy == "sampled":
            self.noise = spread_temperature(number % config.workers, config.workers, *config.noises)
        self.exploration = {"noise": self.noise}

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> DeterministicActorCritic:
        """Policy and critic."""
        return DeterministicActorCritic(config, spaces, activation=config.activation)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E, n]`, pi and noise, within the box, and the values for its initial priority."""
        network = self.network
        best, seen = network.choose(observations), network.seen(observations)
        noise = torch.randn(best.shape, generator=self.generator)
        actions = (best + self.noise * noise).clamp_(-1.0, 1.0)
        left = {"action_value": network.values_of(seen, actions)[0], "state_value": network.values_of(seen, best)[0]}
        return network.box.centre + network.box.half_width * actions, state, left

    def loss(self, part: Transitions) -> tuple[Tensor, Metrics]:
        """Half the weighted squared errors, and what moves actions up the slope of q; averaged over the minibatch."""
        config, network = self.config, self.network
        rewards = part.learning_rewards(config.reward_clip)
        with torch.no_grad():
            choice = self.target.choose(part.following)
            following = self.target.values_of(self.target.seen(part.following), choice)[0]
        targets = n_step_targets(rewards, part.discounts, part.last, following)  # G
        seen = network.seen(part.observations)
        values = network.values_of(seen, network.box.scaled(part.actions))[0]
        self.errors = targets - values.detach()
        errors = squared_error(values, targets)

        chosen = network.choose(part.observations)
        slope = network.slope(seen, chosen)
        if config.slope_clip:
            slope = slope.clamp_(-config.slope_clip, config.slope_clip)
        climb = (slope * chosen).sum(-1)  # a linear function of pi with the gradient that is wanted
        loss = (0.5 * part.weights * errors - climb).mean()
        return loss, lambda: {
            "value_loss": errors.detach().mean(),
            "q_mean": values.detach().mean(),
            "q_slope": slope.abs().mean(),
        }


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.apex_dpg"))
