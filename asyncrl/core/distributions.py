"""Distributions over actions: what the outputs of a network mean, and how actions are drawn from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from asyncrl.core.losses import categorical_entropy


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Actions `[...]` drawn from softmax(logits), logits `[..., A]`.

    By the Gumbel-max trick: the largest of the logits, each with its own noise -log(Exp(1)) (Gumbel 1954). It takes a
    third of the time of torch.multinomial, which first normalises and adds up probabilities.
    """
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - noise.log_()).argmax(-1)


class Categorical:
    """One of A actions, from logits `[..., A]`; actions are int64 `[...]`."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def __getitem__(self, steps: slice) -> Categorical:
        """The same at some of the steps only."""
        return Categorical(self.logits[steps])

    @cached_property
    def log_probabilities(self) -> Tensor:
        """log pi `[..., A]`."""
        return torch.log_softmax(self.logits, -1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Actions `[...]`."""
        return sample(self.logits, generator)

    def mode(self) -> Tensor:
        """The best actions `[...]`, the first of equals."""
        return self.logits.argmax(-1)

    def log_probability(self, actions: Tensor) -> Tensor:
        """log pi(a | s) `[...]`."""
        return self.log_probabilities.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """-sum_a pi(a) log pi(a) `[...]`."""
        return categorical_entropy(self.log_probabilities)


@dataclass(frozen=True)
class Gaussian:
    """A vector of n real numbers, independent normals; actions are float32 `[..., n]`, not yet clipped to a box."""

    mean: Tensor
    """`[..., n]`."""
    deviation: Tensor
    """Standard deviation, `[..., n]` or broadcastable to it: `[..., 1]` is the paper's spherical Gaussian."""

    def __getitem__(self, steps: slice) -> Gaussian:
        """The same at some of the steps only."""
        return Gaussian(self.mean[steps], self.deviation.expand_as(self.mean)[steps])

    def sample(self, generator: torch.Generator) -> Tensor:
        """mean + deviation * noise, `[..., n]`."""
        return self.mean + self.deviation * torch.randn(self.mean.shape, generator=generator)

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_probability(self, actions: Tensor) -> Tensor:
        """Sum over the components of -(a - mu)^2 / (2 sigma^2) - log sigma - log(2 pi) / 2, `[...]`."""
        deviation = self.deviation.expand_as(self.mean)
        distance = (actions - self.mean) / deviation
        return (-0.5 * distance.square() - deviation.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the components of (log(2 pi sigma^2) + 1) / 2, `[...]` (section 9)."""
        deviation = self.deviation.expand_as(self.mean)
        return (deviation.log() + 0.5 * (math.log(2 * math.pi) + 1)).sum(-1)
