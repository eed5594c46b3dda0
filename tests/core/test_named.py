"""A user's own classes and functions, by name and on their way between processes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from asyncrl.core import named
from asyncrl.core.errors import UsageError
from asyncrl.core.named import find, is_name, name_for, parcels


def double(number: int) -> int:
    """Something that other processes can import."""
    return 2 * number


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test hands over is forgotten."""
    monkeypatch.setattr(named, "_things", {})
    monkeypatch.setattr(named, "_arrived", {})


def elsewhere(monkeypatch: pytest.MonkeyPatch, *sent: named.Parcel) -> None:
    """Go on as a process that knows nothing but what was sent to it."""
    content = pickle.dumps(sent)
    monkeypatch.setattr(named, "_things", {})
    monkeypatch.setattr(named, "_arrived", {})
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
        (partial(local(1), 6), "__main__:partial"),
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


def test_the_newest_class_of_a_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is run again defines it anew; a process that had the old one gets the new one."""
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    sent = []
    for number in (2, 5):
        exec(f"def answer(): return {number}", program.__dict__)
        name = name_for(program.answer)
        sent.append(parcels([name]))

    elsewhere(monkeypatch, *sent[0])
    assert find(name)() == 2
    pickle.loads(pickle.dumps(sent[1]))
    assert find(name)() == 5


def test_functions_without_a_name_do_not_take_each_others() -> None:
    """Two lambdas of one call."""
    first, second = (lambda: 1), (lambda: 2)
    names = [name_for(first), name_for(second), name_for(first)]

    assert names == [names[0], f"{names[0]}_2", names[0]]
    assert [find(name)() for name in names] == [1, 2, 1]


def test_what_cannot_travel_is_refused() -> None:
    """With its name and the reason."""
    generator = (i for i in range(3))

    def holds() -> Any:
        return next(generator)

    with pytest.raises(UsageError, match=r"holds cannot be handed to other processes: TypeError: .*put it into a mod"):
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
