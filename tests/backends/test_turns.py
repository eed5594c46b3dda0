"""Whose turn it is."""

from __future__ import annotations

from itertools import islice

from asyncrl.backends.serial import by_delays, make_schedule, random_order


def test_round_robin_goes_round() -> None:
    """0, 1, 2, 0, 1, 2, ..."""
    assert list(islice(make_schedule("round-robin", 3, 0, ()), 7)) == [0, 1, 2, 0, 1, 2, 0]


def test_delays_are_a_schedule_of_their_own() -> None:
    """Whatever the name says, which the settings allow for the plain one only."""
    assert list(islice(make_schedule("round-robin", 2, 0, (1.0, 2.0)), 6)) == [0, 0, 1, 0, 0, 1]


def test_random_order_is_seeded_and_gives_everybody_turns() -> None:
    """Same seed, same order; another seed, another order."""
    first, again, other = (list(islice(random_order(4, seed), 400)) for seed in (1, 1, 2))

    assert first == again != other
    assert all(60 <= first.count(worker) <= 140 for worker in range(4))


def test_a_worker_that_takes_twice_as_long_gets_half_the_turns() -> None:
    """Worker 0 is ready at 1, 2, 3, ...; worker 1 at 2, 4, ..."""
    assert list(islice(by_delays(2, (1.0, 2.0)), 6)) == [0, 0, 1, 0, 0, 1]


def test_delays_repeat_over_the_workers() -> None:
    """Four workers with delays 1 and 3: the even ones are the fast ones."""
    turns = list(islice(by_delays(4, (1.0, 3.0)), 80))

    assert turns.count(0) == turns.count(2) == 30
    assert turns.count(1) == turns.count(3) == 10
