"""Returns, computed backwards in time."""

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
    goes_on = ~last.numpy()
    goes_on[-1] = False
    lambdas = np.float32(lambda_) * goes_on
    # G_t = returns_t + carried_t G_{t+1}: all but the sum over time is done for the whole rollout at once. In numpy,
    # whose calls on a row of a few numbers take a third of the time of torch's.
    returns = rewards.numpy() + discounts.numpy() * (1 - lambdas) * next_values.numpy()
    carried = discounts.numpy() * lambdas
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += carried[t] * returns[t + 1]
    return torch.from_numpy(returns)
