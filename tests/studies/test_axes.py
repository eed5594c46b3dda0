"""What the flags of a sweep mean."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.core.errors import UsageError
from asyncrl.studies.search import Axis, combine, group_words, make_axis
from asyncrl.studies.study import words_of

FIELDS = dict.fromkeys(("learning_rate", "t_max", "hidden_sizes"), float) | {"workers": int, "double_q": bool}


def axis_of(*words: str, seed: int = 1) -> Axis:
    """The axis of one flag."""
    ((flag, values),) = group_words(words)
    return make_axis(flag, values, FIELDS, seed)


def test_flags_may_be_plural_and_attached() -> None:
    """`--learning-rates`, `--workers`, which is plural anyway, and `--t-max=5`."""
    assert axis_of("--learning-rates", "1e-3", "1e-4") == Axis("learning_rate", ("1e-3", "1e-4"))
    assert axis_of("--workers", "1", "2").field == "workers"
    assert axis_of("--t-max=5") == Axis("t_max", ("5",))


def test_negative_numbers_are_values() -> None:
    """Only two dashes begin a flag."""
    assert group_words(["--t-max", "-1", "--workers", "2"]) == [("--t-max", ["-1"]), ("--workers", ["2"])]


def test_log_uniform_draws_are_uniform_in_the_logarithm() -> None:
    """2000 draws between 1e-4 and 1e-2: half of them below 1e-3; the same again for the same seed."""
    axis = axis_of("--learning-rates", "2000", "log-uniform", "1e-4", "1e-2")
    values = np.array(axis.values, float)

    assert axis.drawn == "log-uniform"
    assert 1e-4 <= values.min() < 1.1e-4
    assert 0.9e-2 < values.max() <= 1e-2
    assert np.mean(values < 1e-3) == pytest.approx(0.5, abs=0.04)
    assert axis == axis_of("--learning-rate", "2000", "log-uniform", "1e-4", "1e-2")


def test_more_draws_begin_with_the_fewer() -> None:
    """So that a sweep can be enlarged; another seed draws others."""
    few, many = (axis_of("--t-max", count, "uniform", "0", "1").values for count in ("5", "50"))

    assert many[:5] == few
    assert axis_of("--t-max", "5", "uniform", "0", "1", seed=2).values != few


def test_whole_numbers_are_drawn_whole() -> None:
    """Within the bounds."""
    values = axis_of("--workers", "50", "uniform", "1", "10").values

    assert {int(value) for value in values} == set(range(1, 11))


def test_lists_are_a_grid_and_draws_go_together() -> None:
    """2 x 2 listed values times 3 pairs drawn: 12 points, each pair always the same."""
    axes = [
        Axis("workers", ("1", "2")),
        Axis("learning_rate", ("a", "b", "c"), drawn="uniform"),
        Axis("t_max", ("5", "20")),
        Axis("gamma", ("x", "y", "z"), drawn="uniform"),
    ]
    points = combine(axes)

    assert len(points) == 12
    assert {(point["learning_rate"], point["gamma"]) for point in points} == {("a", "x"), ("b", "y"), ("c", "z")}
    assert {(point["workers"], point["t_max"]) for point in points} == {
        ("1", "5"),
        ("1", "20"),
        ("2", "5"),
        ("2", "20"),
    }


def test_points_become_the_flags_of_a_run() -> None:
    """A switch is on or off, a value in quotes is several words."""
    point = {"learning_rate": "1e-3", "hidden_sizes": "64 32", "double_q": "False"}

    assert words_of(point) == ["--learning-rate", "1e-3", "--hidden-sizes", "64", "32", "--no-double-q"]
    assert axis_of("--double-q") == Axis("double_q", ("True",))
    assert axis_of("--no-double-q") == Axis("double_q", ("False",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rat", "1"], "there is no --learning-rat; perhaps you meant --learning-rate"),
        (["--learning-rates"], "--learning-rates needs a value"),
        (["--t-max", "5", "5"], "--t-max has a value twice"),
        (["--t-max", "x", "uniform", "0", "1"], "--t-max takes N uniform LOW HIGH"),
        (["--t-max", "0", "uniform", "0", "1"], "needs at least one draw"),
        (["--t-max", "5", "log-uniform", "0", "1"], "LOW below HIGH"),
        (["--t-max", "5", "uniform", "1", "1"], "LOW below HIGH"),
    ],
)
def test_axes_that_make_no_sense_are_refused(words: list[str], message: str) -> None:
    """With one line."""
    with pytest.raises(UsageError, match=message):
        axis_of(*words)
