"""V-trace: returns of a policy from an older one's actions (Espeholt et al. 2018, arXiv 1802.01561, section 4.1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """What a learner computes from a rollout that is older than its policy; constants without gradients."""

    targets: Tensor
    """`[T, E]` v_s: the target of V(x_s)."""
    advantages: Tensor
    """`[T, E]` rho_s (r_s + d_s v_{s+1} - V(x_s)): the factor of grad log pi(a_s | x_s)."""


def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    last: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """V-trace targets and policy-gradient advantages of a rollout; all tensors `[T, E]`, float32 but `last`, bool.

    `log_ratios` are log pi(a_t | x_t) - log mu(a_t | x_t), of the learner's policy and the one that acted. `values`
    are V(x_t), and `next_values` those of the observation each step led to, which where a time limit cut the episode
    is its own last one. A step that terminated has a discount of 0; `last` is True at either end of an episode.

        v_s     = V(x_s) + sum_{t=s}^{end} (prod_{i=s}^{t-1} d_i c_i) delta_t                           (equation 1)
        delta_t = rho_t (r_t + d_t V(x_{t+1}) - V(x_t))
        rho_t   = min(rho_bar, pi / mu),   c_i = lambda min(c_bar, pi / mu)                    (remark 2 for lambda)

    The sum ends with the episode or the rollout. It is computed backwards (remark 1):

        v_s - V(x_s) = delta_s + d_s c_s (v_{s+1} - V(x_{s+1}))

    The advantage takes V(x_{s+1}), from `next_values`, in v_{s+1}'s place where the sum ends. With pi = mu, and bars
    of at least 1, the targets are the lambda returns of `asyncrl.core.returns`, with lambda = 1 the n-step returns of
    A3C. So are then the advantages; with lambda < 1 they keep the form of section 4.2, r_s + d_s v_{s+1} - V(x_s), and
    are not the generalised advantages, v_s - V(x_s), for which rlax has lambda v_{s+1} + (1 - lambda) V(x_{s+1}) in
    v_{s+1}'s place.
    """
    with torch.no_grad():
        ratios = log_ratios.exp()
        rho = ratios.clamp(max=rho_bar)
        goes_on = ~last
        goes_on[-1] = False
        carried = lambda_ * ratios.clamp(max=c_bar) * discounts * goes_on
        excess = rho * (rewards + discounts * next_values - values)  # delta_t, and soon v_t - V(x_t)
        rows, weights = excess.unbind(), carried.unbind()
        for t in range(len(rows) - 2, -1, -1):
            rows[t].addcmul_(weights[t], rows[t + 1])
        targets = values + excess
        following = torch.where(goes_on, targets.roll(-1, 0), next_values)
        return VTrace(targets, rho * (rewards + discounts * following - values))
