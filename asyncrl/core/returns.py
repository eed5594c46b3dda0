"""Returns, and the values they end with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def lambda_returns(
    rewards: Tensor, discounts: Tensor, next_values: Tensor, last: Tensor, lambda_: float = 1.0
) -> Tensor:
    """TD(lambda) returns G of a rollout; all tensors `[T, E]`.

        G_t = r_t + d_t ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})
        G_t = r_t + d_t V(s_{t+1})                   at the rollout's end and wherever an episode ended

    With lambda = 1 this is the n-step return R of Mnih et al. 2016 (Algorithm S3): the longest one each state can
    have. G_t - V(s_t) is the generalised advantage estimate of Schulman et al. 2016 (arXiv 1506.02438, eq. 16).
    A discount of 0 ends an episode; a truncated one bootstraps because it keeps its discount.
    """
    device = rewards.device  # a learner may have another; the sum over time is numpy's
    rewards, discounts, next_values, last = (one.cpu() for one in (rewards, discounts, next_values, last))
    goes_on = ~last.numpy()
    goes_on[-1] = False
    lambdas = np.float32(lambda_) * goes_on
    # G_t = returns_t + carried_t G_{t+1}: everything but the sum over time is done for the whole rollout at once. In
    # numpy, whose calls on short rows take a third of the time of torch's.
    returns = rewards.numpy() + discounts.numpy() * (1 - lambdas) * next_values.numpy()
    carried = discounts.numpy() * lambdas
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += carried[t] * returns[t + 1]
    return torch.from_numpy(returns).to(device)


def n_step_targets(rewards: Tensor, discounts: Tensor, last: Tensor, values: Tensor) -> Tensor:
    """n-step targets of B steps drawn one by one, `[B]`, from what followed each of them, `[n, B]`.

        y = r_0 + d_0 r_1 + ... + d_0 ... d_{m-2} r_{m-1} + d_0 ... d_{m-1} V

    m is n, or fewer where an episode ended: `last` cuts the return after the first step it marks, and what follows
    belongs to the next episode. `values` `[B]` are those of the observations m steps later, at a time limit the last of
    their episode. A discount of 0 ends an episode; a truncated one keeps its discount and bootstraps.
    """
    behind = (last.cumsum(0) - last.int()).bool()
    reached = discounts.masked_fill(behind, 1.0).cumprod(0)
    earned = rewards.masked_fill(behind, 0.0)
    return earned[0] + (reached[:-1] * earned[1:]).sum(0) + reached[-1] * values


def best_values(target: Tensor, online: Tensor | None = None) -> Tensor:
    """max_a Q(s, a; theta^-) `[...]` of action values `[..., A]`.

    With `online`, Q(s, a; theta), it is double Q (van Hasselt et al. 2016): theta chooses the action, theta^- gives its
    value.
    """
    if online is None:
        return target.amax(-1)
    return target.gather(-1, online.argmax(-1, keepdim=True)).squeeze(-1)
