"""A user's own classes, functions and values: named `module:attribute`, or handed over by a program.

What a program hands over may be written in a script or in a cell of a notebook, where no other process can import it.
Then it is called `__main__:attribute`, and travels to the processes of a run as bytes made by cloudpickle. These are
never written to a file. No two things that a program hands over have the same name.
"""

from __future__ import annotations

import importlib
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from asyncrl.core.errors import UsageError

PROGRAM = secrets.token_hex(8)
"""Tells this program from others, which call other things by the same names."""
_things: dict[str, Any] = {}
"""What this process was handed, by name."""
_packed: dict[str, bytes] = {}
"""The same as bytes: values, of which each environment gets a copy, and what came from another process and has not been
asked for yet."""
_naming = threading.Lock()
"""Two runs of one program may begin at the same time."""


@dataclass(frozen=True)
class Parcel:
    """Something of a user's own on its way to another process, which knows it by its name once this has arrived."""

    name: str
    content: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self.name, self.content)


def _receive(name: str, content: bytes) -> Parcel:
    _things.pop(name, None)
    _packed[name] = content
    return Parcel(name, content)


@dataclass(frozen=True)
class Handed:
    """A value that a program has handed over, such as an array; as text it is `@` and its name."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"

    def copy(self) -> Any:
        """A new copy of the value. Raises UsageError if this program was not handed it."""
        if self.name not in _packed:
            raise UsageError(f"{self.name} was passed by another program, and this program does not have it")
        return _unpack(self.name, _packed[self.name])


def name_for(thing: Callable[..., Any]) -> str:
    """The name under which all processes of a run find a class or a function.

    It is remembered here unless other processes can import it. Each thing keeps its name: a class that a notebook's
    cell defines again has another one, so that earlier runs keep theirs.
    """
    module, attribute = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    importable = module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is not None
    if importable and attribute.isidentifier() and getattr(sys.modules[module], attribute, None) is thing:
        return f"{module}:{attribute}"
    with _naming:
        name = _free_name(_described(thing), lambda name: name in _things and _is_same(_things[name], thing))
        _things[name] = thing
    return name


def hand_over(value: Any) -> Handed:
    """Keep a value for the processes of a run, as it is now. Equal bytes have one name.

    Raises UsageError for what cannot travel.
    """
    kind = type(value).__name__
    content = _pack(f"a {kind}", value)
    with _naming:
        name = _free_name(kind, lambda name: _packed.get(name) == content)
        _packed[name] = content
    return Handed(name)


def _described(thing: Any) -> str:
    """What a readable name says of a class or function, or of another object that can be called."""
    if isinstance(thing, partial):
        return f"partial_{_described(thing.func)}"
    return getattr(thing, "__qualname__", "") or f"{type(thing).__name__}_object"


def _free_name(described: str, is_mine: Callable[[str], bool]) -> str:
    """The first name like this that is free, or mine already."""
    name = first = "__main__:" + re.sub(r"\W+", "_", described).strip("_")
    number = 1
    while (name in _things or name in _packed) and not is_mine(name):
        number += 1
        name = f"{first}_{number}"
    return name


def _is_same(known: Any, thing: Any) -> bool:
    """Whether two are one object; a bound method is made anew each time that it is asked for."""
    return known is thing or (isinstance(known, MethodType) and isinstance(thing, MethodType) and known == thing)


def parcels(names: Iterable[str]) -> tuple[Parcel, ...]:
    """What other processes need in order to find these names. Raises UsageError for what cannot travel."""
    made = []
    for name in dict.fromkeys(names):
        if name in _things:
            made.append(Parcel(name, _pack(name, _things[name])))
        elif name in _packed:
            made.append(Parcel(name, _packed[name]))
    return tuple(made)


def known_here(name: str, program: str) -> str:
    """What this program calls the thing that `program` handed over as `__main__:attribute`.

    Another program's is a class or function of the same name in this one's main module. Raises UsageError if there is
    none.
    """
    if program == PROGRAM and (name in _things or name in _packed):
        return name
    attribute, main = name.partition(":")[2], sys.modules["__main__"]
    thing = getattr(main, attribute, None)
    if isinstance(thing, type | FunctionType) and "asyncrl" not in (main.__package__, thing.__module__.split(".")[0]):
        return name_for(thing)
    raise UsageError(f"{name} was passed by another program or notebook, and this program has no {attribute}")


def find(name: str) -> Callable[..., Any]:
    """What `module:attribute` names. Raises UsageError, which says what is wrong, if there is no such function."""
    module, _, attribute = name.partition(":")
    if name not in _things and name in _packed:
        _things[name] = _unpack(name, _packed.pop(name))
    thing = _things[name] if name in _things else _imported(name, module, attribute)
    if not callable(thing):
        raise UsageError(f"{name}: {attribute} is a {type(thing).__name__}, not a function that makes one")
    return thing  # type: ignore[no-any-return]


def _pack(name: str, thing: Any) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:
        raise UsageError(
            f"{name} cannot be passed to other processes: {type(error).__name__}: {error}; put it into a module"
        ) from error


def _unpack(name: str, content: bytes) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(content)
    except Exception as error:
        raise UsageError(f"{name} could not be read in another process: {type(error).__name__}: {error}") from error


def _imported(name: str, module: str, attribute: str) -> Any:
    if not module.strip() or module.startswith("."):
        raise UsageError(f"{name} names no module: write module:{attribute}, such as my_package.my_module:{attribute}")
    try:
        thing = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module == missing or module.startswith(f"{missing}.")):
            raise UsageError(f"{name}: there is no module {module} here; install it or set PYTHONPATH") from error
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(f"{name}: importing {module} failed: {what}") from error
    if thing is None and module == "__main__":
        raise UsageError(
            f"{name} was defined in a program or a notebook: use the run from there, or move it into a module"
        )
    if thing is None:
        raise UsageError(f"{name}: the module {module} has no {attribute}")
    return thing
