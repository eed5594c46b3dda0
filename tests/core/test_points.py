"""Schedules by name and by points, and functions of the progress that are sampled into points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from asyncrl import a3c, n_step_q
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import EpsilonGreedy
from asyncrl.core.points import is_schedule, points_of, value_at
from asyncrl.core.updates import Descent, UpdateRule


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("linear", (1.0, 0.75, 0.5, 0.0)),
        ("constant", (1.0, 1.0, 1.0, 1.0)),
        ("cosine", (1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0)),
        ("0:0,0.5:1,1:0.2", (0.0, 0.5, 1.0, 0.2)),
        ("0.25:2", (2.0, 2.0, 2.0, 2.0)),
        ("0:1,0.5:1,0.5:0.1", (1.0, 1.0, 0.1, 0.1)),
        ("0.25:1,0.75:0", (1.0, 1.0, 0.5, 0.0)),
    ],
)
def test_schedules_go_through_their_points(schedule: str, values: tuple[float, ...]) -> None:
    """At 0, a quarter, a half and the end; and they stay there."""
    assert [value_at(schedule, share) for share in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(values)
    assert value_at(schedule, 1.5) == pytest.approx(values[-1])


@pytest.mark.parametrize(
    "text", ["", "falling", "0:1,x:2", "0:1:2", "0.5:1,0:1", "0:1,1.5:0", "-1:1", "0:-1", "0:nan", "0:inf"]
)
def test_what_is_no_schedule_is_seen(text: str) -> None:
    """Other words, shares that do not rise from 0 to 1, values that are no numbers or below 0."""
    assert not is_schedule(text)
    with pytest.raises(ValueError):  # noqa: PT011
        points_of(text)
    with pytest.raises(UsageError, match="--learning-rate-schedule takes linear, cosine, constant or points such as"):
        a3c.A3C.Config(learning_rate_schedule=text)


def test_the_learning_rate_follows_its_schedule() -> None:
    """By hand: 0.2 over 1,000 steps."""
    rates = {
        name: [Descent(UpdateRule("adam"), 0.2, 1000, schedule=name).learning_rate_at(t) for t in (0, 250, 1000, 2000)]
        for name in ("linear", "cosine", "0:0.5,0.25:1,1:0.1")
    }

    assert rates["linear"] == pytest.approx([0.2, 0.15, 0.0, 0.0])
    assert rates["cosine"] == pytest.approx([0.2, 0.1 * (1 + math.sqrt(0.5)), 0.0, 0.0])
    assert rates["0:0.5,0.25:1,1:0.1"] == pytest.approx([0.1, 0.2, 0.02, 0.02])
    config = a3c.A3C.Config(learning_rate=0.2, total_steps=1000, learning_rate_schedule="cosine")
    assert config.descent.learning_rate_at(500) == pytest.approx(0.1)
    constant = a3c.A3C.Config(learning_rate=0.2, learning_rate_schedule="constant")
    assert (constant.descent.anneal_over, constant.descent.learning_rate_at(10**9)) == (0, 0.2)


def test_epsilon_follows_its_schedule_in_all_workers() -> None:
    """Where they would have drawn final ones; the records name the last value."""
    config = n_step_q.NStepQ.Config(total_steps=1000, epsilon_schedule="0:1,0.1:0.2,1:0.1")
    explorations = [config.exploration_of(worker) for worker in range(3)]

    assert explorations == [EpsilonGreedy(0.1, 1000, "0:1,0.1:0.2,1:0.1")] * 3
    first = explorations[0]
    assert isinstance(first, EpsilonGreedy)
    assert [first.epsilon(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.1])
    assert first.facts() == {"final_epsilon": 0.1}
    with pytest.raises(UsageError, match="--epsilon-schedule is for --exploration drawn and equal, not ladder"):
        n_step_q.NStepQ.Config(epsilon_schedule="linear", exploration="ladder")
    with pytest.raises(UsageError, match="--epsilon-schedule takes"):
        n_step_q.NStepQ.Config(epsilon_schedule="0:2")


def test_a_function_of_the_remaining_progress_becomes_points() -> None:
    """As in Stable-Baselines3; points that say nothing are left out, and its largest value is the setting."""

    def taken(**given: Any) -> dict[str, Any]:
        return settings_for(n_step_q.NStepQ.Config if "epsilons" in given else a3c.A3C.Config, given)

    assert taken(lr=lambda remaining: 3e-4 * remaining) == {
        "learning_rate": 3e-4, "learning_rate_schedule": "0:1,1:0",
    }  # fmt: skip
    assert taken(learning_rate=lambda _: 0.1) == {"learning_rate": 0.1, "learning_rate_schedule": "constant"}
    assert taken(learning_rate=[(0, 1e-3), (0.5, 2e-3), (1, 0)]) == {
        "learning_rate": 2e-3, "learning_rate_schedule": "0:0.5,0.5:1,1:0",
    }  # fmt: skip
    assert taken(entropy_weights=lambda remaining: 0.02 if remaining > 0.5 else 0.01) == {
        "entropy_weights": (0.02,), "entropy_schedule": "0:1,0.49:1,0.5:0.5,1:0.5",
    }  # fmt: skip
    assert taken(epsilons=lambda remaining: max(0.1, 1 - 9 * (1 - remaining))) == {
        "epsilon_schedule": "0:1,0.1:0.1,1:0.1"
    }
    assert taken(entropy_weights=[0.01, 0.02]) == {"entropy_weights": (0.01, 0.02)}
    warm = settings_for(a3c.A3C.Config, {"learning_rate": lambda remaining: 1e-3 * math.cos(remaining) ** 2})
    for share in (0.0, 0.123, 0.5, 0.987):
        value = warm["learning_rate"] * value_at(warm["learning_rate_schedule"], share)
        assert value == pytest.approx(1e-3 * math.cos(1 - share) ** 2, rel=2e-4)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"learning_rate": lambda _: -1.0}, "learning_rate must be finite and at least 0 throughout the run, got -1.0"),
        ({"learning_rate": lambda _: math.inf}, "throughout the run, got inf"),
        ({"learning_rate": lambda x: 1 / (x - 1)}, "called with the remaining progress 1: ZeroDivisionError"),
        ({"learning_rate": lambda: 1.0}, "called with the remaining progress 1: TypeError"),
        ({"learning_rate": [(0.5, 1), (0, 1)]}, "shares of the run must rise from 0 to 1"),
        ({"learning_rate": [(0, 1), 2]}, "learning_rate takes pairs of a share of the run and a value"),
        ({"learning_rate": abs, "learning_rate_schedule": "linear"}, "leave out learning_rate_schedule"),
    ],
)
def test_a_function_that_cannot_be_a_schedule_is_one_line(given: dict[str, Any], line: str) -> None:
    """Before anything begins."""
    with pytest.raises(UsageError, match=line):
        settings_for(a3c.A3C.Config, given)
