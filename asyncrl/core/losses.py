"""Losses as pure functions: tensors in, tensors out, one value per step; the caller reduces them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Metrics: TypeAlias = Callable[[], dict[str, Tensor]]
"""Detached scalars about one loss, worked out only when a record is written."""


def policy_gradient_loss(log_probabilities: Tensor, advantages: Tensor) -> Tensor:
    """-log pi(a_t | s_t) A_t, per step `[...]`. Descending it ascends the expected return (Algorithm S3).

    The advantage is a constant here: no gradient flows into it, whatever it was computed from.
    """
    return -log_probabilities * advantages.detach()


def squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """(R_t - V(s_t))^2 per step `[...]`. The target is a constant: no gradient flows into it."""
    return torch.square(targets.detach() - values)


def categorical_entropy(log_probabilities: Tensor) -> Tensor:
    """H(pi) = -sum_a pi(a) log pi(a) of `[..., A]` log-probabilities, giving `[...]`, in nats."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1)
