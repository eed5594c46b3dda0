"""Censored medians, ratios and bootstrap intervals, against numbers that can be worked out."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from asyncrl.studies.statistics import RESAMPLES, Sample, mean, ratio, unity


def test_a_censored_run_counts_as_slower_than_all_others() -> None:
    """It ended at 50, yet it is the last of the three: the median is 80, not 60."""
    sample = Sample((60.0, 80.0, 50.0), (True, True, False))

    assert sample.median == 80.0
    assert sample.bound == 80.0


def test_with_half_of_the_runs_censored_the_median_is_only_a_bound() -> None:
    """Of four runs two never arrived: it is at least the median of what is known, (60 + 100) / 2."""
    sample = Sample((50.0, 60.0, 100.0, 100.0), (True, True, False, False))

    assert sample.median == math.inf
    assert sample.bound == 80.0


def test_bounds_point_the_right_way() -> None:
    """If many workers do not arrive, the speed-up is at most; if one worker does not, at least; if both, unknown."""
    arrived, censored = Sample.complete([40.0] * 3), Sample((100.0,) * 3, (False,) * 3)

    assert (ratio(arrived, censored).value, ratio(arrived, censored).bound) == (0.4, "<=")
    assert (ratio(censored, arrived).value, ratio(censored, arrived).bound) == (2.5, ">=")
    assert str(ratio(censored, censored)) == "unknown"


def test_the_bootstrap_has_the_distribution_of_a_resampled_median() -> None:
    """The median of 5 draws from 5 values is the smallest with P(Binomial(5, 1/5) >= 3) = 0.05792, and so on."""
    at_most = [sum(math.comb(5, k) * p**k * (1 - p) ** (5 - k) for k in (3, 4, 5)) for p in (0.2, 0.4, 0.6, 0.8, 1.0)]
    exact = np.diff([0.0, *at_most])
    medians = Sample.complete([1.0, 2.0, 3.0, 4.0, 5.0]).resampled_medians(np.random.default_rng(1), 20_000)

    counts = Counter(medians.tolist())
    shares = [counts[value] / 20_000 for value in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert exact[0] == pytest.approx(0.05792)
    assert shares == pytest.approx(exact, abs=0.01)


def test_the_interval_of_a_ratio_is_known_where_one_side_is_constant() -> None:
    """12 / median of {1, 2, 3, 4, 6}: both outermost medians have more than 2.5 %, so the interval is all of it."""
    estimate = ratio(Sample.complete([12.0] * 5), Sample.complete([1.0, 2.0, 3.0, 4.0, 6.0]))

    assert (estimate.value, estimate.low, estimate.high, estimate.bound) == (4.0, 2.0, 12.0, "")
    assert len(estimate.resamples) == RESAMPLES


def test_the_same_study_gives_the_same_interval() -> None:
    """Resampling has a seed of its own."""
    one, many = Sample.complete([5.0, 7.0, 11.0]), Sample.complete([2.0, 3.0, 5.0])

    assert ratio(one, many) == ratio(one, many)


def test_the_mean_over_environments_is_the_papers() -> None:
    """Arithmetic: of 2 and 4, 3. An interval of constants has no width."""
    two, four = (ratio(Sample.complete([8.0] * 3), Sample.complete([value] * 3)) for value in (4.0, 2.0))

    average = mean([two, four])
    assert (average.value, average.low, average.high, average.bound) == (3.0, 3.0, 3.0, "")


def test_a_bound_in_one_environment_makes_the_mean_a_bound() -> None:
    """Of the same direction; of both directions it is nothing."""
    arrived, censored = Sample.complete([40.0] * 3), Sample((100.0,) * 3, (False,) * 3)

    assert mean([unity(), ratio(arrived, censored)]).bound == "<="
    assert mean([ratio(censored, arrived), ratio(arrived, censored)]).bound == "?"
    assert mean([unity(), ratio(censored, censored)]).bound == "?"
