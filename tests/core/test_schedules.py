"""Schedules at their ends and between."""

from __future__ import annotations

import pytest

from asyncrl.core.schedules import crossed, linear


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (25, 0.775), (50, 0.55), (100, 0.1), (1000, 0.1)])
def test_linear_goes_straight_and_then_stays(step: int, expected: float) -> None:
    """1 to 0.1 over 100 steps."""
    assert linear(1.0, 0.1, step, 100) == pytest.approx(expected)


def test_linear_over_no_steps_is_its_end() -> None:
    """A schedule of length 0 has ended."""
    assert linear(1.0, 0.1, 0, 0) == 0.1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(0, 99, False), (99, 100, True), (95, 105, True), (100, 150, False), (95, 305, True)],
)
def test_crossing_a_multiple_is_noticed_even_if_it_is_jumped_over(before: int, after: int, expected: bool) -> None:
    """Period 100."""
    assert crossed(before, after, 100) is expected


def test_a_period_of_zero_is_never_crossed() -> None:
    """0 means never."""
    assert not crossed(0, 10, 0)
