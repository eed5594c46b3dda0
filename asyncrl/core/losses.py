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


def clipped_error(values: Tensor, targets: Tensor, bound: float) -> Tensor:
    """The squared error per step `[...]` whose gradient has the error clipped to [-bound, bound]; 0: not clipped.

    Mnih et al. 2015 ("Human-level control"), Methods, with bound 1. Beyond the bound the loss grows linearly.
    """
    squared = squared_error(values, targets)
    if not bound:
        return squared
    size = (targets.detach() - values).abs()
    return torch.where(size <= bound, squared, bound * (2 * size - bound))


def importance_weights(priorities: Tensor, beta: float) -> Tensor:
    """(N P(i))^-beta over the largest of the batch, float32 `[B]`: what undoes the bias of prioritised draws.

    Schaul et al. 2016, section 3.4. P(i) is priority i by the sum of all; N and that sum cancel. With beta = 1 the bias
    is undone wholly, with 0 not at all.
    """
    return (priorities.min() / priorities).pow(beta).float()


def clipped_surrogate(
    log_probabilities: Tensor, old_log_probabilities: Tensor, advantages: Tensor, clip: float
) -> Tensor:
    """-min(r A, clip(r, 1 - clip, 1 + clip) A) with r = pi(a|s) / pi_old(a|s), per step `[...]`.

    Equation 7 of Schulman et al. 2017 (arXiv 1707.06347) as a loss to descend. There is no gradient where the ratio
    has already left the interval in the direction of the advantage. The old policy and the advantage are constants.
    """
    ratios = (log_probabilities - old_log_probabilities.detach()).exp()
    constant = advantages.detach()
    return -torch.minimum(ratios * constant, ratios.clamp(1 - clip, 1 + clip) * constant)


def clipped_value_loss(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> Tensor:
    """max((V - R)^2, (V_clipped - R)^2), per step `[...]`, with V_clipped at most `clip` away from the old value.

    As in OpenAI's baselines (ppo2), but without their factor of 1/2, like `squared_error`. There is no gradient where
    the clipped value is the worse of the two. The old values and targets are constants.
    """
    old = old_values.detach()
    return torch.maximum(
        squared_error(values, targets), squared_error(old + (values - old).clamp(-clip, clip), targets)
    )


def categorical_entropy(log_probabilities: Tensor) -> Tensor:
    """H(pi) = -sum_a pi(a) log pi(a) of `[..., A]` log-probabilities, giving `[...]`, in nats."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def normalized(advantages: Tensor) -> Tensor:
    """Advantages scaled to mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 one that knows nothing."""
    return 1 - (returns - values).var(correction=0) / (returns.var(correction=0) + 1e-8)
