"""A user's own classes and functions, by name and on their way between processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncrl.core import named
from asyncrl.core.errors import UsageError
from asyncrl.core.named import find, hand_over, known_here, name_for, parcels
from asyncrl.core.user_code import is_name


def double(number: int) -> int:
    """Something that other processes can import."""
    return 2 * number


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test hands over is forgotten."""
    monkeypatch.setattr(named, "_things", {})
    monkeypatch.setattr(named, "_packed", {})


def elsewhere(monkeypatch: pytest.MonkeyPatch, *sent: named.Parcel) -> None:
    """Go on as a process that knows nothing but what was sent to it."""
    content = pickle.dumps(sent)
    monkeypatch.setattr(named, "_things", {})
    monkeypatch.setattr(named, "_packed", {})
    pickle.loads(content)


def test_what_can_be_imported_goes_by_its_name() -> None:
    """Nothing has to travel."""
    name = name_for(double)

    assert name == f"{__name__}:double"
    assert parcels([name]) == ()
    assert find(name) is double


def local(factor: int) -> Callable[[int], int]:
    """A function within a function."""

    def times(number: int) -> int:
        return factor * number

    return times


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (local(3), "__main__:local_locals_times"),
        (lambda number: 3 * number, "__main__:lambda"),
        (partial(local(1), 6), "__main__:partial_local_locals_times"),
    ],
)
def test_what_cannot_be_imported_travels_as_bytes(
    thing: Callable[..., int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closures, lambdas, partial functions."""
    assert name_for(thing) == name
    assert is_name(name)

    elsewhere(monkeypatch, *parcels([name, name]))

    assert find(name)(*[] if isinstance(thing, partial) else [2]) == 6
    assert find(name) is find(name)


def test_a_class_of_the_program_is_found_again_by_whoever_defines_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook that was started anew; anybody else is told where it was."""
    program = ModuleType("__main__")
    exec("class Lamps:\n    colour = 'red'", program.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", program)
    name = name_for(program.Lamps)
    assert name == "__main__:Lamps"

    elsewhere(monkeypatch)
    assert find(name) is program.Lamps

    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    with pytest.raises(UsageError, match="__main__:Lamps was defined in a program or a notebook"):
        find(name)


def test_a_class_that_is_defined_again_leaves_the_older_one_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is run again: earlier runs keep what they were handed."""
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    names = []
    for number in (2, 5):
        exec(f"def answer(): return {number}", program.__dict__)
        names.append(name_for(program.answer))

    assert names == ["__main__:answer", "__main__:answer_2"]
    assert [find(name)() for name in names] == [2, 5]
    elsewhere(monkeypatch, *parcels(names))
    assert [find(name)() for name in names] == [2, 5]


class Maker:
    """Its instances can be called, and so can its methods."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> int:
        """The number."""
        return self.number

    make = __call__


def nested(number: int) -> type:
    """A class within a function."""

    class Number(int):
        def __new__(cls) -> int:  # type: ignore[misc]
            return number

    return Number


@pytest.mark.parametrize(
    ("make", "called"),
    [
        (lambda number: lambda: number, "__main__:lambda_locals_lambda"),
        (lambda number: partial(int, number), "__main__:partial_int"),
        (lambda number: partial(partial(int), number), "__main__:partial_int"),
        (Maker, "__main__:Maker_object"),
        (lambda number: Maker(number).make, "__main__:Maker___call"),
        (nested, "__main__:nested_locals_Number"),
    ],
)
def test_no_two_things_have_one_name(
    make: Callable[[int], Callable[[], int]], called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither here nor in another process; each keeps its own."""
    things = [make(number) for number in (1, 2, 3)]
    names = [name_for(thing) for thing in things]

    assert names == [called, f"{called}_2", f"{called}_3"]
    assert [name_for(thing) for thing in things] == names
    assert [find(name)() for name in names] == [1, 2, 3]
    elsewhere(monkeypatch, *parcels(names))
    assert [find(name)() for name in names] == [1, 2, 3]


def test_a_bound_method_keeps_its_name_each_time_that_it_is_asked_for() -> None:
    """Python makes a new object each time."""
    maker = Maker(4)

    assert name_for(maker.make) == name_for(maker.make)
    assert name_for(maker.make) != name_for(Maker(4).make)


def test_what_another_program_calls_by_the_same_name_is_another_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is a class or a function that this program has under that name."""
    mine = name_for(partial(int, 5))
    assert known_here(mine, named.PROGRAM) == mine
    with pytest.raises(UsageError, match=r"__main__:partial_int was passed by another program or notebook"):
        known_here(mine, "another")

    program = ModuleType("__main__")
    exec("class Lamps: pass", program.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert find(known_here("__main__:Lamps", "another")) is program.Lamps


def test_each_asker_gets_a_copy_of_a_value_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the program or an environment does to theirs; equal values have one name."""
    value = np.array([1.0, 2.0])
    handed = hand_over(value)
    assert hand_over(value.copy()) == handed
    value[0] = 7.0
    assert hand_over(value) != handed

    elsewhere(monkeypatch, *parcels([handed.name]))
    handed.copy()[1] = 9.0
    assert handed.copy().tolist() == [1.0, 2.0]
    with pytest.raises(UsageError, match="passed by another program"):
        named.Handed("__main__:nobody").copy()


def test_what_cannot_travel_is_refused() -> None:
    """With its name and the reason."""
    generator = (i for i in range(3))

    def holds() -> Any:
        return next(generator)

    with pytest.raises(UsageError, match=r"holds cannot be passed to other processes: TypeError: .*put it into a mod"):
        parcels([name_for(holds)])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("no.such.module:make", "there is no module no.such.module here; install it or set PYTHONPATH"),
        (f"{__name__}:nothing", "has no nothing"),
        (f"{__name__}:__doc__", "__doc__ is a str, not a function that makes one"),
    ],
)
def test_a_name_that_names_nothing_is_one_line(name: str, line: str) -> None:
    """Which says what is wrong."""
    with pytest.raises(UsageError, match=line):
        find(name)


def test_ids_of_gymnasium_are_no_names() -> None:
    """They may have a colon, too."""
    assert [is_name(text) for text in ("lamps:Lamps", "package:Name-v0", "CartPole-v1", "auto")] == [
        True, False, False, False,
    ]  # fmt: skip
