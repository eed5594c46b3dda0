"""Returns, computed backwards in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def lambda_returns(
    rewards: NDArray[np.float32],
    discounts: NDArray[np.float32],
    next_values: NDArray[np.float32],
    last: NDArray[np.bool_],
    lambda_: float = 1.0,
) -> NDArray[np.float32]:
    """TD(lambda) returns G of a rollout; all arrays `[T, E]`.

        G_t = r_t + d_t ((1 - lambda) V(s_{t+1}) + lambda G_{t+1})
        G_t = r_t + d_t V(s_{t+1})                   at the rollout's end and wherever an episode ended

    With lambda = 1 this is the n-step return R of Mnih et al. 2016 (Algorithm S3): the longest one each state can
    have. G_t - V(s_t) is the generalised advantage estimate of Schulman et al. 2016 (arXiv 1506.02438, eq. 16).
    A discount of 0 ends an episode; a truncated one bootstraps because it keeps its discount.
    """
    returns = np.empty_like(rewards)
    following = next_values[-1]
    for t in range(len(rewards) - 1, -1, -1):
        tail = np.where(last[t], next_values[t], (1.0 - lambda_) * next_values[t] + lambda_ * following)
        following = returns[t] = rewards[t] + discounts[t] * tail
    return returns
