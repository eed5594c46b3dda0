"""Priorities: by hand, and against a list that is walked through from its beginning."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import UsageError
from asyncrl.experience import priorities as tree
from asyncrl.experience.priorities import Priorities

INDICES = st.integers(0, 10**9)
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.integers(1, 5).map(float))
UPDATES = st.lists(st.lists(st.tuples(INDICES, NUMBERS), min_size=1, max_size=12), max_size=12)


@pytest.fixture(params=[4096, 2])
def top(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A tree as it is, which has no level of its own for so few slots, and one of as many levels as there can be."""
    monkeypatch.setattr(tree, "_TOP", request.param)
    return int(request.param)


def filled(*values: float) -> Priorities:
    priorities = Priorities(len(values))
    priorities.set(np.arange(len(values)), np.array(values))
    return priorities


def updated(slots: int, updates: list[list[tuple[int, float]]]) -> tuple[Priorities, list[float]]:
    """Priorities after some updates, and what a list is after them."""
    priorities, plain = Priorities(slots), [0.0] * slots
    for update in updates:
        indices = [index % slots for index, _ in update]
        priorities.set(np.array(indices), np.array([value for _, value in update]))
        for index, (_, value) in zip(indices, update, strict=True):
            plain[index] = value
    return priorities, plain


def test_slots_are_as_long_as_their_priorities() -> None:
    """3, 0, 1, 4 of a total of 8: slot 0 up to 3/8, slot 2 up to 1/2, slot 3 from there; slot 1 never."""
    priorities = filled(3, 0, 1, 4)

    drawn = priorities.sample(np.array([0, 0.374, 0.375, 0.499, 0.5, 0.999]))

    assert priorities.total == 8.0
    assert drawn.tolist() == [0, 0, 2, 2, 3, 3]


def test_of_a_slot_named_twice_the_last_priority_stays() -> None:
    """Slot 1 is given 5, then 2; the total knows."""
    priorities = filled(1, 1, 1)

    priorities.set(np.array([1, 0, 1]), np.array([5.0, 3.0, 2.0]))

    assert priorities.priority(np.array([0, 1, 2, 1])).tolist() == [3.0, 2.0, 1.0, 2.0]
    assert priorities.total == 6.0


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 600), UPDATES, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
def test_what_is_drawn_is_what_a_walk_along_a_list_finds(
    slots: int, updates: list[list[tuple[int, float]]], shares: list[float]
) -> None:
    """After any updates: the slot in which u x total lies, or, where rounding decides, one that touches the place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_TOP", 4)
        priorities, plain = updated(slots, updates)
    total = math.fsum(plain)
    if not total:
        return

    drawn = priorities.sample(np.array(shares))

    for share, slot in zip(shares, drawn.tolist(), strict=True):
        assert plain[slot] > 0
        assert math.fsum(plain[:slot]) <= total * (share + 1e-13)
        assert math.fsum(plain[: slot + 1]) >= total * (share - 1e-13)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 600), UPDATES)
def test_a_tree_is_that_of_its_priorities_whatever_came_before(
    slots: int, updates: list[list[tuple[int, float]]]
) -> None:
    """To the bit: it draws and adds up as one that was given the last priorities at once. Nothing drifts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_TOP", 4)
        priorities, plain = updated(slots, updates)
        fresh = filled(*plain)

    assert priorities.priority(np.arange(slots)).tolist() == plain
    assert priorities.total == fresh.total
    assert priorities.total == pytest.approx(math.fsum(plain), rel=1e-14)
    if fresh.total:
        shares = np.random.default_rng(0).random(50)
        assert priorities.sample(shares).tolist() == fresh.sample(shares).tolist()


def test_nothing_drifts_over_many_updates_of_very_different_size() -> None:
    """10 000 updates between 1e-9 and 1e9, then all priorities are 1: the total is the number of slots, exactly."""
    random = np.random.default_rng(0)
    priorities = Priorities(70_000)
    for _ in range(10_000):
        priorities.set(random.integers(0, 70_000, 8), 10 ** random.uniform(-9, 9, 8))

    priorities.set(np.arange(70_000), np.ones(70_000))

    assert priorities.total == 70_000.0


@pytest.mark.usefixtures("top")
def test_slots_come_in_proportion_to_their_priorities() -> None:
    """100 000 draws from 100 slots with priorities 0 to 99: each is as frequent as it should be."""
    priorities = filled(*range(100))

    drawn = priorities.sample((np.arange(100_000) + np.random.default_rng(0).random(100_000)) / 100_000)

    frequencies = np.bincount(drawn, minlength=100) / 100_000
    np.testing.assert_allclose(frequencies, np.arange(100) / 4950, atol=2e-5)


@pytest.mark.usefixtures("top")
def test_the_only_slot_that_has_one_is_drawn_always() -> None:
    """Wherever it lies, among 300 without."""
    shares = np.array([0.0, 0.5, np.nextafter(1, 0)])
    for slot in (0, 15, 16, 17, 255, 256, 299):
        priorities = Priorities(300)
        priorities.set(np.array([slot]), np.array([1e-300]))

        assert priorities.sample(shares).tolist() == [slot] * 3


def test_a_million_slots_have_levels_below_the_top() -> None:
    """Two of families; what the ends of the line lead to are the first slot and the last."""
    priorities = Priorities(1_000_000)
    priorities.set(np.arange(1_000_000), np.full(1_000_000, 0.5))

    assert priorities.total == 500_000.0
    shares = np.array([0.0, 0.1234565, np.nextafter(1, 0)])
    assert priorities.sample(shares).tolist() == [0, 123_456, 999_999]


def test_restored_priorities_draw_as_before() -> None:
    """And take further updates; those of another size are refused in one line."""
    priorities, copy = filled(*range(50)), Priorities(50)

    copy.restore(priorities.state())
    for one in (priorities, copy):
        one.set(np.array([7]), np.array([100.0]))

    shares = np.random.default_rng(0).random(100)
    assert copy.sample(shares).tolist() == priorities.sample(shares).tolist()
    with pytest.raises(UsageError, match="holds 50 priorities, this run has 40 slots"):
        Priorities(40).restore(priorities.state())


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_priority_that_is_none_is_refused_and_changes_nothing(bad: float) -> None:
    """Negative, not a number, infinite."""
    priorities = filled(1, 2)

    with pytest.raises(ValueError, match="negative or not finite"):
        priorities.set(np.array([0, 1]), np.array([5.0, bad]))
    assert priorities.total == 3.0
