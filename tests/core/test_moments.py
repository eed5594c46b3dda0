"""Running moments of several writers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.moments import Moments


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

    mean, deviation = moments.mean_and_deviation()

    if len(samples) >= 2:
        np.testing.assert_allclose(mean, samples.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(deviation, samples.std(0), rtol=1e-4, atol=1e-3)


def test_nothing_seen_changes_nothing() -> None:
    """Mean 0, deviation 1."""
    mean, deviation = Moments(torch.zeros(2, 7, dtype=torch.float64)).mean_and_deviation()

    assert (mean.tolist(), deviation.tolist()) == ([0.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("size", [1e20, 1e38])
def test_numbers_whose_squares_no_float32_holds_have_moments(size: float) -> None:
    """Mean and deviation of -1, 1 and 3 of them are 1 and sqrt(8 / 3)."""
    moments = Moments(torch.zeros(2, 3, dtype=torch.float64))
    moments.add(0, torch.tensor([[-size], [size], [3 * size]]))

    mean, deviation = moments.mean_and_deviation()

    np.testing.assert_allclose([mean[0] / size, deviation[0] / size], [1.0, np.sqrt(8 / 3)], rtol=1e-5)
