"""Censored medians, ratios and bootstrap intervals, against numbers that can be worked out."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats

from asyncrl.core.statistics import RESAMPLES, Sample, mean, mean_of, median, ratio, unity


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
    arrived, censored = Sample.complete([40.0] * 5), Sample((100.0,) * 5, (False,) * 5)

    assert (ratio(arrived, censored).value, ratio(arrived, censored).bound) == (0.4, "<=")
    assert (ratio(censored, arrived).value, ratio(censored, arrived).bound) == (2.5, ">=")
    assert str(ratio(censored, censored)) == "unknown"


def test_the_bootstrap_has_the_distribution_of_a_resampled_median() -> None:
    """The median of 5 draws from 5 values is the smallest with P(Binomial(5, 1/5) >= 3) = 0.05792, and so on."""
    at_most = [sum(math.comb(5, k) * p**k * (1 - p) ** (5 - k) for k in (3, 4, 5)) for p in (0.2, 0.4, 0.6, 0.8, 1.0)]
    exact = np.diff([0.0, *at_most])
    medians = [
        low for low, _ in ratio(Sample.complete([1.0, 2.0, 3.0, 4.0, 5.0]), Sample.complete([1.0] * 5)).resamples
    ]

    counts = Counter(medians)
    shares = [counts[value] / RESAMPLES for value in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert exact[0] == pytest.approx(0.05792)
    assert shares == pytest.approx(exact, abs=0.03)


def test_the_interval_of_a_ratio_is_known_where_one_side_is_constant() -> None:
    """12 / median of {1, 2, 3, 4, 6}: both outermost medians have more than 2.5 %, so the interval is all of it."""
    estimate = ratio(Sample.complete([12.0] * 5), Sample.complete([1.0, 2.0, 3.0, 4.0, 6.0]))

    assert (estimate.value, estimate.low, estimate.high, estimate.bound) == (4.0, 2.0, 12.0, "")
    assert len(estimate.resamples) == RESAMPLES


def test_the_same_study_gives_the_same_interval() -> None:
    """Resampling has a seed of its own."""
    one, many = Sample.complete([5.0, 7.0, 11.0, 4.0, 6.0]), Sample.complete([2.0, 3.0, 5.0, 4.0, 2.5])

    assert ratio(one, many) == ratio(one, many)
    assert ratio(one, many).has_interval


def test_the_mean_over_environments_is_the_papers() -> None:
    """Arithmetic: of 2 and 4, 3. An interval of constants has no width."""
    two, four = (ratio(Sample.complete([8.0] * 5), Sample.complete([value] * 5)) for value in (4.0, 2.0))

    average = mean([two, four])
    assert (average.value, average.low, average.high, average.bound) == (3.0, 3.0, 3.0, "")


def test_a_bound_in_one_environment_makes_the_mean_a_bound() -> None:
    """Of the same direction; of both directions it is nothing."""
    arrived, censored = Sample.complete([40.0] * 5), Sample((100.0,) * 5, (False,) * 5)

    assert mean([unity(), ratio(arrived, censored)]).bound == "<="
    assert mean([ratio(censored, arrived), ratio(arrived, censored)]).bound == "?"
    assert mean([unity(), ratio(censored, censored)]).bound == "?"


@pytest.mark.parametrize(
    ("runs", "low", "high", "level"),
    [(5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (10, 2, 9, 0.978516), (20, 6, 15, 0.958611)],
)
def test_the_interval_of_a_median_is_between_two_runs(runs: int, low: int, high: int, level: float) -> None:
    """The k-th smallest and largest of n have a confidence of 1 - 2 P(Binomial(n, 1/2) < k), as in scipy from 6 on."""
    values = np.arange(1.0, runs + 1)
    estimate = median(Sample.complete(values.tolist()))

    assert (estimate.low, estimate.high) == (low, high)
    assert 1 - 2 * sum(math.comb(runs, k) for k in range(low)) / 2**runs == pytest.approx(level, abs=1e-6)
    if runs > 5:
        theirs = scipy.stats.quantile_test(values, p=0.5).confidence_interval()
        assert (theirs.low, theirs.high) == (low, high)


def test_a_censored_end_is_open() -> None:
    """Of six runs one never arrived: the interval's end is a run that would have taken longer than all others."""
    estimate = median(Sample((1.0, 2.0, 3.0, 4.0, 5.0, 5.0), (True,) * 5 + (False,)))

    assert str(estimate) == "3.50 [1.00, unbounded]"


def test_a_ratio_that_censoring_leaves_open_says_so() -> None:
    """Two of five runs never arrived, so more than 2.5 % of resampled medians are infinite: the ratio may be 0."""
    slow = Sample((1.0, 2.0, 3.0, 9.0, 9.0), (True, True, True, False, False))
    fast = Sample.complete([1.0] * 5)

    assert (ratio(slow, fast).value, ratio(slow, fast).high) == (3.0, math.inf)
    assert (ratio(fast, slow).low, ratio(fast, slow).bound) == (0.0, "")
    assert str(ratio(fast, Sample((9.0,) * 5, (False,) * 5))) == "<= 0.11 [0.00, 0.11]"
    assert str(ratio(Sample((9.0,) * 5, (False,) * 5), fast)) == ">= 9.00 [9.00, unbounded]"


@pytest.mark.parametrize("runs", [1, 2, 3, 4])
def test_fewer_than_five_runs_have_no_interval(runs: int) -> None:
    sample = Sample.complete([float(value) for value in range(1, runs + 1)])

    for estimate in (median(sample), mean_of(sample.values), ratio(sample, Sample.complete([1.0] * 9))):
        assert not estimate.has_interval
        assert "[" not in str(estimate)
    assert not mean([unity(), ratio(sample, sample)]).has_interval


@pytest.mark.parametrize(("usual", "other"), [(500.0, 100.0), (0.0, 1.0)])
def test_the_interval_of_a_mean_is_open_to_both_sides_though_most_are_equal(usual: float, other: float) -> None:
    """Of a task that is solved but for one game: as far as the means of resamples, none to six of the other."""
    estimate = mean_of([usual] * 9 + [other])

    step = (other - usual) / 10
    low, high = sorted((usual, usual + 3 * step))
    assert estimate.low <= low + 1e-9
    assert estimate.high >= high - 1e-9


def test_the_interval_of_a_mean_stays_near_scores_that_are_nearly_equal_but_for_one() -> None:
    """Resamples without the one have an error a hundred times smaller than the sample's."""
    estimate = mean_of([404.0, 404.5, 405.0] * 3 + [300.0])

    assert 404 - 2 * 105 < estimate.low < 385
    assert 404 < estimate.high < 420


def test_the_interval_of_a_skewed_mean_reaches_further_up() -> None:
    """The studentised bootstrap knows that a sample of a skewed distribution often lacks its large values."""
    values = [1.0, 1.1, 1.2, 1.4, 1.5, 1.7, 2.0, 2.5, 3.5, 8.0]
    estimate = mean_of(values)

    assert estimate.high - estimate.value > 2 * (estimate.value - estimate.low)
