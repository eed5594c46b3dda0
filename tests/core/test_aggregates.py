"""Figures over environments, against numbers that can be worked out."""

from __future__ import annotations

import pytest
import scipy.stats

from asyncrl.core.statistics import normalized, optimality_gap, probability_of_improvement


def test_the_probability_of_improvement_is_mann_whitneys_u_over_all_pairs() -> None:
    """Per environment U / (n m), where equal runs count as half; the mean over environments."""
    ours, theirs = [[3.0, 1.0, 2.0], [5.0, 5.0]], [[2.0, 0.5], [5.0, 7.0]]
    of_first = scipy.stats.mannwhitneyu(ours[0], theirs[0]).statistic / 6

    assert of_first == pytest.approx(4.5 / 6)
    assert probability_of_improvement(ours, theirs).value == pytest.approx((4.5 / 6 + 0.25) / 2)
    assert not probability_of_improvement(ours, theirs).has_interval


def test_its_interval_is_of_the_runs_of_each_environment() -> None:
    """Runs that are all better leave no doubt; runs of one distribution leave a half in the interval."""
    low, high = [[1.0, 2.0, 3.0, 4.0, 5.0]] * 2, [[6.0, 7.0, 8.0, 9.0, 10.0]] * 2
    sure, unsure = probability_of_improvement(high, low), probability_of_improvement(low, low)

    assert (sure.value, sure.low, sure.high) == (1.0, 1.0, 1.0)
    assert unsure.value == 0.5
    assert 0.1 < unsure.low < 0.5 < unsure.high < 0.9


def test_being_above_the_goal_does_not_make_up_for_the_others() -> None:
    """Short by 0.5 and 0.25 and by nothing: 0.25 in the mean, where 1 - mean would be negative."""
    assert optimality_gap([0.5, 0.75, 3.0]) == pytest.approx(0.25)


def test_scores_are_normalised_by_two_players() -> None:
    assert normalized([-20.0, 0.0, 30.0], -20.0, 20.0) == [0.0, 0.5, 1.25]
    assert normalized([3.0, 3.0], 3.0, 3.0) == [1.0, 1.0]  # all are the best
