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
    goes_on = ~last
    goes_on[-1] = False
    lambdas = np.float32(lambda_) * goes_on
    # G_t = returns_t + carried_t G_{t+1}: all but the sum over time is done for the whole rollout at once.
    returns: NDArray[np.float32] = rewards + discounts * (1 - lambdas) * next_values
    carried = discounts * lambdas
    for t in range(len(rewards) - 2, -1, -1):
        returns[t] += carried[t] * returns[t + 1]
    return returns
