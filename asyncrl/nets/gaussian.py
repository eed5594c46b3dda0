"""Policy and value for continuous actions (Mnih et al. 2016, section 9), as two separate networks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.core.distributions import Gaussian
from asyncrl.core.rollout import State
from asyncrl.nets.bodies import initialise
from asyncrl.nets.trunk import Trunk

SMALLEST_DEVIATION = 1e-3
"""Keeps log sigma finite when a variance vanishes; with bounded means in half widths of the box."""


class GaussianActorCritic(nn.Module):
    """A Gaussian policy and a state value.

    `mean` is "linear" (the paper's): the network's output; or "bounded": its tanh, scaled to the box from `low` to
    `high`, one bound per component. Actions are clipped to the box, so all means outside it act alike, and a linear
    mean that has left the box drifts. Components without two finite bounds are always linear.

    `variance` is "state" (the paper's): one softplus variance for all components, a function of the state; or "free"
    (the usual choice today): one deviation per component, independent of the state, learnt as its logarithm from
    `first_deviation` on. With bounded means, deviations are in half widths of the box.
    """

    def __init__(
        self,
        policy_trunk: Trunk,
        value_trunk: Trunk,
        low: tuple[float, ...],
        high: tuple[float, ...],
        mean: str,
        variance: str,
        first_deviation: float,
        initialisation: str,
    ) -> None:
        super().__init__()
        self.policy_trunk, self.value_trunk = policy_trunk, value_trunk
        self.mean = nn.Linear(policy_trunk.features, len(low))
        self.value: nn.Module = nn.Linear(value_trunk.features, 1)
        gains: dict[nn.Module, float] = {self.mean: 0.01, self.value: 1.0}
        self.variance: nn.Linear | None = None
        self.log_deviation: nn.Parameter | None = None
        if variance == "state":
            self.variance = nn.Linear(policy_trunk.features, 1)
            gains[self.variance] = 0.01
        else:
            self.log_deviation = nn.Parameter(torch.full((len(low),), math.log(first_deviation)))
        self.box = Box(low, high) if mean == "bounded" else None
        initialise(self, initialisation, gains)

    def initial_state(self, environments: int) -> State:
        """The states of both memories in which episodes begin; None without memories."""
        return _joined(self.policy_trunk.initial_state(environments), self.value_trunk.initial_state(environments))

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Gaussian, Tensor, State]:
        """Policy at `[T, E]`, values `[T, E]` and states after each step, of observations `[T, E, *shape]`."""
        of_policy, of_value = _halves(state)
        features, policy_states = self.policy_trunk(observations, of_policy, last)
        seen, value_states = self.value_trunk(observations, of_value, last)
        return self._gaussian(features), self.value(seen).squeeze(-1), _joined(policy_states, value_states)

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Gaussian, State]:
        """All that acting needs: the policy `[E]` at observations `[E, *shape]`, and the states after them."""
        if state is not None:  # the memory of the value must see every observation too
            policy, _, state = self.policy_and_value_at(observations, state)
            return policy, state
        return self._gaussian(self.policy_trunk.step(observations, None)[0]), None

    def policy_and_value_at(self, observations: Tensor, state: State = None) -> tuple[Gaussian, Tensor, State]:
        """The same with the value `[E]` between the two."""
        of_policy, of_value = _halves(state)
        features, policy_state = self.policy_trunk.step(observations, of_policy)
        seen, value_state = self.value_trunk.step(observations, of_value)
        return self._gaussian(features), self.value(seen).squeeze(-1), _joined(policy_state, value_state)

    def _gaussian(self, features: Tensor) -> Gaussian:
        mean = self.mean(features)
        if self.variance is not None:
            # Clamped before the root, whose gradient is infinite at 0.
            deviation = F.softplus(self.variance(features)).clamp_min(SMALLEST_DEVIATION**2).sqrt()
        else:
            assert self.log_deviation is not None
            deviation = self.log_deviation.exp().clamp_min(SMALLEST_DEVIATION)
        if self.box is not None:
            mean, deviation = self.box.stretch(mean), self.box.unit * deviation
        return Gaussian(mean, deviation)


def _halves(state: State) -> tuple[State, State]:
    """The states of the policy's memory and of the value's."""
    return (None, None) if state is None else (state[: len(state) // 2], state[len(state) // 2 :])


def _joined(policy: State, value: State) -> State:
    return None if policy is None or value is None else (*policy, *value)


class Box:
    """The box of possible actions: `centre` and `half_width` `[n]`, 0 and 1 for a component without bounds.

    `free` is an index of the components with more than one possible value, of which there are `dimensions`. `unit`
    `[n]` is the unit of deviations, 1 for the other components.
    """

    def __init__(self, low: tuple[float, ...], high: tuple[float, ...]) -> None:
        lowest, highest = torch.tensor(low), torch.tensor(high)
        self.bounded = torch.isfinite(highest - lowest)  # False also for the largest floats, which bound nothing
        self.centre = torch.where(self.bounded, (lowest + highest) / 2, 0.0)
        self.half_width = torch.where(self.bounded, (highest - lowest) / 2, 1.0)
        is_free = self.half_width > 0
        self.unit = torch.where(is_free, self.half_width, 1.0)
        self.dimensions = int(is_free.sum())
        self.free = slice(None) if self.dimensions == len(low) else is_free

    def scaled(self, actions: Tensor) -> Tensor:
        """Actions `[..., n]` in half widths, from -1 to 1 within the bounds."""
        return (actions - self.centre) / self.unit

    def stretch(self, outputs: Tensor) -> Tensor:
        """centre + half_width tanh(x) for `outputs` x `[..., n]`; x itself for components without bounds."""
        return self.centre + self.half_width * torch.where(self.bounded, outputs.tanh(), outputs)
