"""How workers explore differently, given the values of all actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.distributions import sample
from asyncrl.core.points import value_at
from asyncrl.core.schedules import linear


class Exploration(Protocol):
    """A worker's way to explore, given the values of all actions."""

    def choose(self, values: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Actions `[E]` from action values `[E, A]` when all workers have made `steps` steps."""

    def probabilities(self, values: Tensor, steps: int) -> Tensor:
        """The distribution `[E, A]` that `choose` draws from."""

    def facts(self) -> dict[str, float]:
        """What distinguishes this worker, for the records."""


@dataclass(frozen=True)
class EpsilonGreedy:
    """The best action, or a random one with probability epsilon, which falls from 1 to `final` over `over` steps."""

    final: float
    over: int = 0
    schedule: str = ""
    """epsilon over these steps, if it does not fall linearly, by name or points (`asyncrl.core.points`)."""

    def epsilon(self, steps: int) -> float:
        """epsilon at T = `steps`."""
        if self.schedule:
            return value_at(self.schedule, steps / self.over)
        return linear(1.0, self.final, steps, self.over)

    def choose(self, values: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Actions `[E]`; each environment explores independently."""
        environments, actions = values.shape
        explore = torch.rand(environments, generator=generator) < self.epsilon(steps)
        anything = torch.randint(actions, (environments,), generator=generator)
        return torch.where(explore, anything, values.argmax(-1))

    def probabilities(self, values: Tensor, steps: int) -> Tensor:
        """epsilon / A for every action and the rest for the best."""
        epsilon = self.epsilon(steps)
        probabilities = torch.full_like(values, epsilon / values.shape[-1])
        return probabilities.scatter_add(-1, values.argmax(-1, True), torch.full_like(values[..., :1], 1.0 - epsilon))

    def facts(self) -> dict[str, float]:
        """The final epsilon."""
        return {"final_epsilon": self.final}


@dataclass(frozen=True)
class Boltzmann:
    """Actions with probability proportional to exp(Q / temperature)."""

    temperature: float

    def choose(self, values: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Actions `[E]`."""
        return sample(values / self.temperature, generator)

    def probabilities(self, values: Tensor, steps: int) -> Tensor:
        """softmax(Q / temperature)."""
        return torch.softmax(values / self.temperature, -1)

    def facts(self) -> dict[str, float]:
        """The temperature."""
        return {"temperature": self.temperature}


def draw_epsilon(epsilons: Sequence[float], probabilities: Sequence[float], seed: Sequence[int]) -> float:
    """One worker's final epsilon, drawn as in section 8 of the paper: {0.1, 0.01, 0.5} with {0.4, 0.3, 0.3}."""
    return float(np.random.default_rng(seed).choice(epsilons, p=np.asarray(probabilities) / np.sum(probabilities)))


def ladder_epsilon(worker: int, workers: int, base: float = 0.4, alpha: float = 7.0) -> float:
    """epsilon_i = epsilon^(1 + alpha i / (N - 1)), fixed for worker i of N (Horgan et al. 2018, Ape-X)."""
    return float(base ** (1 + alpha * worker / max(1, workers - 1)))


def spread_temperature(worker: int, workers: int, low: float, high: float) -> float:
    """Temperatures of the workers from `low` to `high`, evenly spaced in the logarithm."""
    share = worker / max(1, workers - 1)
    return float(low ** (1 - share) * high**share)
