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


def n_step_target(rewards: list[float], discounts: list[float], last: list[bool], value: float) -> float:
    """The target of one drawn step, whose last observation is worth `value`."""
    columns = (torch.tensor([column]).T for column in (rewards, discounts, last))
    return core.n_step_targets(*columns, torch.tensor([value])).item()


def test_an_n_step_target_is_three_rewards_and_a_bootstrap() -> None:
    """1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 8 = 4."""
    assert n_step_target([1.0, 2.0, 4.0], [0.5] * 3, [False] * 3, 8.0) == 4.0


def test_an_n_step_target_ends_where_its_episode_does() -> None:
    """The second step terminates: 1 + 0.5 * 2 = 2, whatever stands behind it and whatever that is worth."""
    assert n_step_target([1.0, 2.0, 1e30], [0.5, 0.0, 0.5], [False, True, True], 8.0) == 2.0


def test_an_n_step_target_bootstraps_at_a_time_limit() -> None:
    """It cuts the second step, whose episode's last observation is worth 8: 1 + 0.5 * 2 + 0.25 * 8 = 4."""
    assert n_step_target([1.0, 2.0, 1e30], [0.5, 0.5, 0.0], [False, True, False], 8.0) == 4.0


def test_an_n_step_target_may_end_with_its_last_step_or_with_its_first() -> None:
    """1 + 0.5 * 2 + 0.25 * 4 = 3 for a terminal third step; 1 + 0.5 * 8 = 5 for a time limit at the first."""
    assert n_step_target([1.0, 2.0, 4.0], [0.5, 0.5, 0.0], [False, False, True], 8.0) == 3.0
    assert n_step_target([1.0, 2.0, 4.0], [0.5, 0.5, 0.5], [True, False, False], 8.0) == 5.0


def test_with_one_step_it_is_the_one_step_target() -> None:
    """1 + 0.5 * 8 = 5."""
    assert n_step_target([1.0], [0.5], [False], 8.0) == 5.0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_n_step_targets_are_those_of_a_walk_from_step_to_step(n: int, batch: int, seed: int) -> None:
    """Any ends and time limits; of what lies behind a cut, even an infinity does not matter."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(n, batch)), rng.normal(size=batch)
    last = rng.random((n, batch)) < 0.3
    discounts = np.where(last & (rng.random((n, batch)) < 0.5), 0, 0.9)
    expected = np.zeros(batch)
    for b in range(batch):
        weight = 1.0
        for t in range(n):
            expected[b] += weight * rewards[t, b]
            weight *= discounts[t, b]
            if last[t, b]:
                rewards[t + 1 :, b] = np.inf
                break
        expected[b] += weight * values[b]

    targets = core.n_step_targets(*map(torch.from_numpy, (rewards, discounts, last, values)))

    np.testing.assert_allclose(targets, expected, rtol=1e-12, atol=1e-12)


def test_n_step_targets_along_a_rollout_are_its_returns() -> None:
    """From every step to the rollout's end they are what lambda = 1 gives: both read discounts and cuts alike."""
    rng = np.random.default_rng(0)
    rewards, next_values = rng.normal(size=(2, 7, 40)).astype(np.float32)
    last = rng.random((7, 40)) < 0.3
    discounts = np.where(last & (rng.random((7, 40)) < 0.5), 0, 0.9).astype(np.float32)
    returns = lambda_returns(rewards, discounts, next_values, last)

    for t in range(7):
        cut = np.where(last[t:].any(0), last[t:].argmax(0), 6 - t)
        window = (torch.from_numpy(array[t:]) for array in (rewards, discounts, last))
        targets = core.n_step_targets(*window, torch.from_numpy(next_values[t + cut, np.arange(40)]))

        np.testing.assert_allclose(targets, returns[t], rtol=1e-5, atol=1e-6)


def test_the_best_value_is_the_largest_or_with_double_q_that_of_thetas_choice() -> None:
    """theta^- has 1, 3, 2; theta has 9, 0, 10 and takes the third: 3 without, 2 with double Q."""
    target, online = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[9.0, 0.0, 10.0]])

    assert core.best_values(target).tolist() == [3.0]
    assert core.best_values(target, online).tolist() == [2.0]
