"""Arguments of environments, from a program and from a command line."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.config.arguments import parse_argument
from asyncrl.config.files import read_settings
from asyncrl.config.run_config import RunConfig
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.named import Handed, known_here


class Mode(enum.IntEnum):
    """A number that is none."""

    EASY = 1


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, down to the last part."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    return repr(one) == repr(other)


def through_a_file(value: Any) -> Any:
    """The value as an environment gets it, by way of config.json."""
    (word,) = settings_for(RunConfig, {"env_kwargs": {"value": value}})["env_kwargs"]
    _, arrived = parse_argument(json.loads(json.dumps(word)))
    return arrived.copy() if isinstance(arrived, Handed) else arrived


@pytest.mark.parametrize(
    "value",
    [
        0, -3, True, None, 0.1, -0.0, 1e-320, 2**70, math.inf, -math.inf, math.nan, "", "3", "inf", "nan", "None",
        "@__main__:lambda", "a=b", "line\nbreak\x00\x1b\ud800", b"x", [], (), (1,), {}, set(), {1, 2},
        [1, [2.5, "x", None], {"a": (math.inf, [math.nan])}], {1: "one", None: 2, (3, 4): {}},
    ],
)  # fmt: skip
def test_what_python_can_write_arrives_as_it_was_given(value: Any) -> None:
    """Strings that look like something else too."""
    assert same(through_a_file(value), value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.int64(-3), -3),
        (np.uint8(7), 7),
        (np.bool_(False), False),
        (np.str_("3"), "3"),
        (np.bytes_(b"x"), b"x"),
        (np.float64("-inf"), -math.inf),
        ([np.float32(1.5), {"lo": np.float64("nan")}], [1.5, {"lo": math.nan}]),
        ((1, np.int16(2)), (1, 2)),
        ({np.str_("a"): np.bool_(True)}, {"a": True}),
    ],
)
def test_scalars_of_numpy_become_those_of_python(value: Any, expected: Any) -> None:
    """Also within others."""
    assert same(through_a_file(value), expected)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3.0), np.array(2.0), [np.zeros(2), 1], Path("/data/x"), Mode.EASY, {"mode": Mode.EASY}, range(3),
        Fraction(1, 3), int, len, frozenset({1}), bytearray(b"x"), OrderedDict(a=1), 1 + 2j, (lambda: 3),
        np.datetime64("2026-01-02"), slice(1, 2), np.longdouble(0.1),
    ],
)  # fmt: skip
def test_all_else_is_handed_over_as_an_object(value: Any) -> None:
    """With its type, to this run's processes."""
    arrived = through_a_file(value)

    assert type(arrived) is type(value)
    assert callable(value) or repr(arrived) == repr(value)


def test_lists_that_hold_themselves_or_are_too_deep_are_objects_too() -> None:
    """No parser would read them."""
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]

    assert through_a_file(endless)[0][0][0] is not None
    assert through_a_file(deep) == deep


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"value": (i for i in range(3))}, "env_kwargs value: a generator cannot be passed to other processes"),
        ({"no name": 1}, "env_kwargs takes argument names as keys, got 'no name'"),
        ({1: 2}, "env_kwargs takes argument names as keys, got 1"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(given: dict[Any, Any], line: str) -> None:
    """In one line."""
    with pytest.raises(UsageError, match=line):
        settings_for(RunConfig, {"env_kwargs": given})


def test_a_file_of_settings_hands_nothing_over(tmp_path: Path) -> None:
    """TOML has dates."""
    file = tmp_path / "settings.toml"
    file.write_text("[env_kwargs]\nmass = 3.0\n")
    assert read_settings(file).config["env_kwargs"] == ["mass=3.0"]

    file.write_text("[env_kwargs]\nwhen = 2026-01-02\n")
    with pytest.raises(UsageError, match="env_kwargs when is a date, which is not a Python literal"):
        read_settings(file)


@pytest.mark.parametrize(
    ("word", "value"),
    [("x=3", 3), ("x=-inf", -math.inf), ("x=[nan, 1]", [math.nan, 1]), ("x=walk", "walk"), ("x=a=b", "a=b"),
     ("x=", ""), ("x=infinity", "infinity"), ("x=f(3)", "f(3)"), ("x=@home", "@home")],
)  # fmt: skip
def test_words_of_a_command_line_are_literals_or_text(word: str, value: Any) -> None:
    """As people type them."""
    assert same(parse_argument(word)[1], value)


def test_another_program_does_not_know_what_was_handed_over() -> None:
    """It may call something else by the same name."""
    (word,) = settings_for(RunConfig, {"env_kwargs": {"value": np.arange(3.0)}})["env_kwargs"]

    with pytest.raises(UsageError, match="was passed by another program"):
        known_here(word.partition("@")[2], "another")
