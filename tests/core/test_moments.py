"""Running moments of several writers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.moments import Moments, mean_and_deviation
from asyncrl.core.outliers import SPREAD_OVER, unusual


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=12), st.integers(0, 999))
def test_merged_rows_are_the_moments_of_all_samples(batches: list[tuple[int, int]], seed: int) -> None:
    """Whichever of three workers added which batch."""
    rng = np.random.default_rng(seed)
    moments, everything = Moments(torch.zeros(4, 5, dtype=torch.float64)), []
    for worker, size in batches:
        batch = rng.normal(3.0, 2.0, (size, 2)).astype(np.float32)
        moments.add(worker, torch.from_numpy(batch))
        everything.append(batch)
    samples = np.concatenate(everything).astype(np.float64)

    mean, deviation = mean_and_deviation(moments.merged())

    if len(samples) >= 2:
        np.testing.assert_allclose(mean, samples.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(deviation, samples.std(0), rtol=1e-4, atol=1e-3)


def test_nothing_seen_changes_nothing() -> None:
    """Mean 0, deviation 1."""
    mean, deviation = mean_and_deviation(Moments(torch.zeros(2, 7, dtype=torch.float64)).merged())

    assert (mean.tolist(), deviation.tolist()) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("size", [1e20, 1e38])
def test_numbers_whose_squares_no_float32_holds_have_moments(size: float) -> None:
    """Mean and deviation of -1, 1 and 3 of them are 1 and sqrt(8 / 3)."""
    moments = Moments(torch.zeros(2, 3, dtype=torch.float64))
    moments.add(0, torch.tensor([[-size], [size], [3 * size]]))

    mean, deviation = mean_and_deviation(moments.merged())

    np.testing.assert_allclose([mean[0] / size, deviation[0] / size], [1.0, np.sqrt(8 / 3)], rtol=1e-5)


def test_a_value_is_unusual_beyond_so_many_deviations_above_the_mean() -> None:
    """1, 3, -1, 3 have mean 2 and variance 1 in size: with 2 deviations 4 is usual and 4.1 is not.

    Over 4 values, a fifth of 6 counts a quarter: mean 2 + 4 / 4 = 3, variance 3/4 (1 + 4^2 / 4) = 3.75.
    """
    row = np.zeros(3)
    first = [unusual(row, value, 2.0, over=4) for value in (1.0, 3.0, -1.0, 3.0)]

    assert (first, row.tolist()) == ([False] * 4, [4.0, 2.0, 1.0])
    assert not unusual(row.copy(), 4.0, 2.0, over=4)
    assert unusual(row.copy(), 4.1, 2.0, over=4)
    assert unusual(row, -6.0, 2.0, over=4)
    assert row.tolist() == [5.0, 3.0, 3.75]


def test_the_first_values_are_all_usual() -> None:
    """Nothing is known of their spread."""
    row = np.zeros(3)

    assert not any(unusual(row, 10.0**i, 1.0) for i in range(SPREAD_OVER))


def test_what_becomes_larger_for_good_is_soon_usual() -> None:
    """A thousandfold loss is dropped a few times only, and never for ever, even after losses that were all the same."""
    rng = np.random.default_rng(0)
    for before in (rng.random(500), np.zeros(500)):
        row = np.zeros(3)
        for value in before:
            unusual(row, value, 3.0)

        dropped = [unusual(row, 1000.0 * value, 3.0) for value in rng.random(200)]

        assert 1 <= sum(dropped) < 20
        assert not any(dropped[100:])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_unusual_and_leaves_no_trace(value: float) -> None:
    """Also among the first."""
    row = np.array([3.0, 1.0, 1.0])

    assert unusual(row, value, 3.0)
    assert row.tolist() == [3.0, 1.0, 1.0]
