"""Returns by hand, against a slow reference, and at their corners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core import returns as core


def lambda_returns(*arrays: np.ndarray, lambda_: float = 1.0) -> np.ndarray:
    """The function under test, from arrays to an array."""
    return core.lambda_returns(*map(torch.from_numpy, arrays), lambda_=lambda_).numpy()


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def flags(*values: bool) -> np.ndarray:
    return np.array(values, np.bool_)[:, None]


def test_n_step_returns_of_three_steps() -> None:
    """R_2 = 3 + 0.5 * 8 = 7;  R_1 = 2 + 0.5 * 7 = 5.5;  R_0 = 1 + 0.5 * 5.5 = 3.75."""
    returns = lambda_returns(column(1, 2, 3), column(0.5, 0.5, 0.5), column(100, 100, 8), flags(0, 0, 0))

    assert returns[:, 0].tolist() == [3.75, 5.5, 7.0]


def test_a_terminal_step_cuts_the_return() -> None:
    """The second step terminates: R_1 = 2, R_0 = 1 + 0.5 * 2 = 2; R_2 belongs to the next episode."""
    returns = lambda_returns(column(1, 2, 3), column(0.5, 0, 0.5), column(100, 100, 8), flags(0, 1, 0))

    assert returns[:, 0].tolist() == [2.0, 2.0, 7.0]


def test_a_truncated_step_bootstraps_from_its_own_last_observation() -> None:
    """A time limit cut the second step, whose last observation is worth 10: R_1 = 2 + 0.5 * 10 = 7, R_0 = 4.5."""
    returns = lambda_returns(column(1, 2, 3), column(0.5, 0.5, 0.5), column(100, 10, 8), flags(0, 1, 0))

    assert returns[:, 0].tolist() == [4.5, 7.0, 7.0]


def test_lambda_zero_is_the_one_step_target() -> None:
    """r + 0.5 V(s'): 1 + 0.5 * 4 = 3, 2 + 0.5 * 6 = 5."""
    returns = lambda_returns(column(1, 2), column(0.5, 0.5), column(4, 6), flags(0, 0), lambda_=0.0)

    assert returns[:, 0].tolist() == [3.0, 5.0]


def test_lambda_mixes_the_next_value_and_the_next_return() -> None:
    """G_1 = 2 + 0.5 * 6 = 5;  G_0 = 1 + 0.5 (0.25 * 4 + 0.75 * 5) = 3.375."""
    returns = lambda_returns(column(1, 2), column(0.5, 0.5), column(4, 6), flags(0, 0), lambda_=0.75)

    assert returns[:, 0].tolist() == [3.375, 5.0]


def test_environments_do_not_mix() -> None:
    """Two environments together give what each gives alone."""
    rng = np.random.default_rng(0)
    rewards, next_values = rng.normal(size=(2, 6, 2)).astype(np.float32)
    last = rng.random((6, 2)) < 0.3
    discounts = np.where(last & (rng.random((6, 2)) < 0.5), 0, 0.9).astype(np.float32)

    together = lambda_returns(rewards, discounts, next_values, last, lambda_=0.9)

    for e in range(2):
        alone = lambda_returns(*(x[:, e : e + 1] for x in (rewards, discounts, next_values, last)), lambda_=0.9)
        np.testing.assert_array_equal(together[:, e : e + 1], alone)


def slow_generalised_advantage(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    last: np.ndarray,
    lam: float,
) -> np.ndarray:
    """Equation 16 of Schulman et al. 2016, as the double sum it is: A_t = sum_l (prod d lambda) delta_{t+l}."""
    steps = len(rewards)
    advantages = np.zeros(steps)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            advantages[t] += weight * (rewards[k] + discounts[k] * next_values[k] - values[k])
            if last[k]:
                break
            weight *= discounts[k] * lam
    return advantages


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.95, 1.0]), st.integers(0, 10_000))
def test_returns_minus_values_are_the_generalised_advantages(steps: int, lam: float, seed: int) -> None:
    """The recursion equals the double sum for random episodes, ends and truncations."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, steps)).astype(np.float32)
    last = rng.random(steps) < 0.3
    discounts = np.where(last & (rng.random(steps) < 0.5), 0, 0.97).astype(np.float32)
    # Inside an episode V(s_{t+1}) is the value the next step starts from; at its end it is something else.
    following = np.append(values[1:], rng.normal()).astype(np.float32)
    next_values = np.where(last, rng.normal(size=steps), following).astype(np.float32)

    returns = lambda_returns(rewards[:, None], discounts[:, None], next_values[:, None], last[:, None], lambda_=lam)[
        :, 0
    ]

    expected = slow_generalised_advantage(rewards, discounts, values, next_values, last, lam)
    np.testing.assert_allclose(returns - values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_a_single_step_has_only_its_bootstrap(lam: float) -> None:
    """With T = 1 lambda does not matter: 1 + 0.9 * 2 = 2.8."""
    returns = lambda_returns(column(1), column(0.9), column(2), flags(0), lambda_=lam)

    assert returns[0, 0] == pytest.approx(2.8)
