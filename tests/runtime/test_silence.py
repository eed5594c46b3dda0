"""Silence is what a watcher that is awake measures."""

from __future__ import annotations

import pytest

from asyncrl.runtime.clock import GAP_SECONDS, Silences, Watch


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def awake(watch: Watch, time: Time, seconds: float, step: float = 0.1) -> None:
    end = time.now + seconds
    while time.now < end - 1e-9:
        time.now += step
        watch.look()


def test_without_suspensions_silence_is_the_time_that_has_passed() -> None:
    time = Time()
    watch = Watch(now=time)
    heard = time.now
    awake(watch, time, 30)

    assert watch.silence(heard) == pytest.approx(30)


def test_a_suspension_of_the_watcher_is_no_silence() -> None:
    time = Time()
    watch = Watch(limit=20, now=time)
    awake(watch, time, 7)
    heard = time.now - 3
    time.now += 1000
    assert watch.silence(heard) == pytest.approx(3)
    awake(watch, time, 4)
    time.now += 500
    watch.look()

    assert watch.silence(heard) == pytest.approx(7)


def test_one_heard_after_the_suspension_is_not_forgiven_it() -> None:
    time = Time()
    watch = Watch(now=time)
    time.now += 1000
    watch.look()
    heard = time.now
    awake(watch, time, 12)

    assert watch.silence(heard) == pytest.approx(12)


def test_slow_rounds_below_the_gap_count_in_full_and_longer_ones_do_not_hide_the_rest() -> None:
    time = Time()
    watch = Watch(now=time)
    heard = time.now
    awake(watch, time, 40, step=GAP_SECONDS - 1)
    assert watch.silence(heard) == pytest.approx(40)
    for _ in range(10):  # a slow save every 9 seconds
        time.now += GAP_SECONDS + 1
        watch.look()
        awake(watch, time, 3)

    assert watch.silence(heard) == pytest.approx(40 + 10 * 3)


def test_with_a_short_limit_a_short_suspension_is_noticed() -> None:
    time = Time()
    watch = Watch(limit=2, now=time)
    heard = time.now
    time.now += 4

    assert watch.silence(heard) == pytest.approx(0)


def test_each_silence_is_said_once_and_so_is_its_end() -> None:
    """A second one is said anew; of one who was replaced it is not said that he answers again."""
    lines: list[str] = []
    silences = Silences(lines.append)
    for seconds in (4, 6, 8):
        silences.note("shard 0 on here", seconds)
    silences.note("host 1 on there", 7)
    for _ in range(2):
        silences.end("shard 0 on here", answers=True)
        silences.end("host 1 on there", answers=False)
    silences.note("shard 0 on here", 6)

    assert lines == [
        "shard 0 on here has not answered for 5 seconds",
        "host 1 on there has not answered for 5 seconds",
        "shard 0 on here answers again",
        "shard 0 on here has not answered for 5 seconds",
    ]
