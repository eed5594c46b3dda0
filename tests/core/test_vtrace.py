"""V-trace by hand, against the paper's sum of products, and where it must be an n-step return."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asyncrl.core.returns import lambda_returns
from asyncrl.core.vtrace import vtrace


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def logs(*ratios: float) -> Tensor:
    return column(*ratios).log()


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def close(tensor: Tensor, *values: float) -> None:
    torch.testing.assert_close(tensor, column(*values))


def slow_vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    next_values: Tensor,
    last: Tensor,
    rho_bar: float,
    c_bar: float,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """Equation 1 as it is printed: for each s a sum over t, for each t a product over i; then the advantage."""
    arrays = (x.double().numpy() for x in (log_ratios, rewards, discounts, values, next_values))
    log_ratio, r, d, v, following = arrays
    steps, environments = r.shape
    target, advantage = np.zeros_like(r), np.zeros_like(r)
    for e in range(environments):
        rho = [min(rho_bar, np.exp(x)) for x in log_ratio[:, e]]
        c = [lambda_ * min(c_bar, np.exp(x)) for x in log_ratio[:, e]]
        ends = [next(t for t in range(s, steps) if last[t, e] or t == steps - 1) for s in range(steps)]
        for s in range(steps):
            target[s, e] = v[s, e]
            for t in range(s, ends[s] + 1):
                product = 1.0
                for i in range(s, t):
                    product *= d[i, e] * c[i]
                target[s, e] += product * rho[t] * (r[t, e] + d[t, e] * following[t, e] - v[t, e])
        for s in range(steps):
            then = following[s, e] if s == ends[s] else target[s + 1, e]
            advantage[s, e] = rho[s] * (r[s, e] + d[s, e] * then - v[s, e])
    return torch.from_numpy(target).float(), torch.from_numpy(advantage).float()


def rollout(steps: int, environments: int, seed: int) -> dict[str, Tensor]:
    """Random episodes with both kinds of ends; inside of one V(x_{t+1}) is the value the next step starts from."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    rewards, values, other = rng.normal(size=(3, *shape))
    last = rng.random(shape) < 0.3
    following = np.concatenate([values[1:], rng.normal(size=(1, environments))])
    arrays = {
        "log_ratios": rng.normal(scale=0.7, size=shape),
        "rewards": rewards,
        "discounts": np.where(last & (rng.random(shape) < 0.5), 0, 0.97),
        "values": values,
        "next_values": np.where(last, other, following),
    }
    return {name: torch.from_numpy(array).float() for name, array in arrays.items()} | {"last": torch.from_numpy(last)}


def test_three_steps_by_hand() -> None:
    """pi / mu = 0.5, 2, 1, clipped to 0.5, 1, 1; discount 0.5, V = 1, 2, 4 and then 8.

    delta_2 = 3 + 0.5 * 8 - 4 = 3               v_2 = 7
    delta_1 = 2 + 0.5 * 4 - 2 = 2               v_1 = 2 + 2 + 0.5 * 3 = 5.5
    delta_0 = 0.5 (1 + 0.5 * 2 - 1) = 0.5       v_0 = 1 + 0.5 + 0.5 * 0.5 * 3.5 = 2.375
    advantages: 3 + 4 - 4 = 3;  2 + 0.5 * 7 - 2 = 3.5;  0.5 (1 + 0.5 * 5.5 - 1) = 1.375
    """
    targets, advantages = vtrace(
        logs(0.5, 2, 1), column(1, 2, 3), column(0.5, 0.5, 0.5), column(1, 2, 4), column(2, 4, 8), flags(0, 0, 0)
    )

    close(targets, 2.375, 5.5, 7.0)
    close(advantages, 1.375, 3.5, 3.0)
    assert targets.dtype == advantages.dtype == torch.float32


def test_rho_bar_and_c_bar_clip_each_for_itself() -> None:
    """pi / mu = 4 twice, discount 0.5, V = 1, 2 and then 4, rho clipped to 2, c to 0.5.

    delta_1 = 2 (2 + 2 - 2) = 4                 v_1 = 6
    delta_0 = 2 (1 + 1 - 1) = 2                 v_0 = 1 + 2 + 0.5 * 0.5 * 4 = 4
    advantages: 2 (2 + 2 - 2) = 4;  2 (1 + 3 - 1) = 6
    """
    targets, advantages = vtrace(
        logs(4, 4), column(1, 2), column(0.5, 0.5), column(1, 2), column(2, 4), flags(0, 0), rho_bar=2, c_bar=0.5
    )

    close(targets, 4.0, 6.0)
    close(advantages, 6.0, 4.0)


def test_lambda_shortens_the_traces() -> None:
    """As the hand-computed three steps with lambda = 0.5: v_1 = 2 + 2 + 0.25 * 3, v_0 = 1.5 + 0.125 * 2.75."""
    targets, _ = vtrace(
        logs(0.5, 2, 1),
        column(1, 2, 3),
        column(0.5, 0.5, 0.5),
        column(1, 2, 4),
        column(2, 4, 8),
        flags(0, 0, 0),
        lambda_=0.5,
    )

    close(targets, 1.84375, 4.75, 7.0)


def test_a_terminated_episode_ends_the_trace() -> None:
    """The second step terminates, and what its next value is does not matter: v_1 = 2, v_0 = 1 + 0.5 * 2 = 2."""
    targets, advantages = vtrace(
        logs(1, 1, 1), column(1, 2, 3), column(0.5, 0, 0.5), column(7, 5, 4), column(5, 100, 8), flags(0, 1, 0)
    )

    close(targets, 2.0, 2.0, 7.0)
    close(advantages, -5.0, -3.0, 3.0)


def test_a_truncated_episode_bootstraps_from_its_own_last_observation() -> None:
    """A time limit cut the second step, whose last observation is worth 10, not the 4 of the next episode's first.

    v_1 = 2 + 0.5 * 10 = 7, v_0 = 1 + 0.5 * 7 = 4.5; advantages 4.5 - 7 and 7 - 5.
    """
    targets, advantages = vtrace(
        logs(1, 1, 1), column(1, 2, 3), column(0.5, 0.5, 0.5), column(7, 5, 4), column(5, 10, 8), flags(0, 1, 0)
    )

    close(targets, 4.5, 7.0, 7.0)
    close(advantages, -2.5, 2.0, 3.0)


@pytest.mark.parametrize("lambda_", [0.0, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_at_age_zero_the_targets_are_the_lambda_returns(lambda_: float, seed: int) -> None:
    """pi = mu: with lambda = 1 A3C's n-step returns, below GAE's; the advantages with 1 are return minus value."""
    given_ = rollout(9, 4, seed) | {"log_ratios": torch.zeros(9, 4)}

    targets, advantages = vtrace(**given_, lambda_=lambda_)

    names = ("rewards", "discounts", "next_values", "last")
    returns = lambda_returns(*(given_[name] for name in names), lambda_)
    torch.testing.assert_close(targets, returns, rtol=1e-5, atol=1e-5)
    if lambda_ == 1.0:
        torch.testing.assert_close(advantages, returns - given_["values"], rtol=1e-5, atol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    steps=st.integers(1, 12),
    environments=st.integers(1, 3),
    rho_bar=st.sampled_from([0.5, 1.0, 3.0]),
    c_bar=st.sampled_from([0.3, 1.0, 2.0]),
    lambda_=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_the_recursion_is_the_sum_of_products(
    steps: int, environments: int, rho_bar: float, c_bar: float, lambda_: float, seed: int
) -> None:
    """For random episodes, ends, truncations and ratios."""
    given_ = rollout(steps, environments, seed)

    fast = vtrace(**given_, rho_bar=rho_bar, c_bar=c_bar, lambda_=lambda_)

    slow = slow_vtrace(**given_, rho_bar=rho_bar, c_bar=c_bar, lambda_=lambda_)
    torch.testing.assert_close(fast.targets, slow[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.advantages, slow[1], rtol=1e-4, atol=1e-4)


def test_an_action_the_new_policy_would_not_take_leaves_the_value_alone() -> None:
    """pi / mu = 0: v = V and no gradient, whatever came after."""
    targets, advantages = vtrace(
        column(-torch.inf, 0), column(1, 2), column(0.5, 0.5), column(3, 4), column(4, 5), flags(0, 0)
    )

    assert (targets[0], advantages[0]) == (3.0, 0.0)


def test_a_ratio_beyond_all_numbers_is_clipped_like_any_other() -> None:
    """exp(1000) is no float32; clipped it is 1."""
    arguments = column(1, 2), column(0.5, 0), column(3, 4), column(4, 5), flags(0, 1)

    huge, one = vtrace(column(1000, 1000), *arguments), vtrace(column(0, 0), *arguments)

    assert torch.equal(huge.targets, one.targets)
    assert torch.equal(huge.advantages, one.advantages)


def test_no_gradient_flows_through_either_and_the_arguments_stay_as_they_were() -> None:
    given_ = rollout(5, 2, 0)
    before = {name: tensor.clone() for name, tensor in given_.items()}
    for name in ("log_ratios", "values", "next_values"):
        given_[name].requires_grad_()

    result = vtrace(**given_)

    assert not result.targets.requires_grad
    assert not result.advantages.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in given_.items())
