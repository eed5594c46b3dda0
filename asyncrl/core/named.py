"""A user's own classes and functions: named `module:attribute`, or handed over by a program.

What a program hands over may be written in a script or in a cell of a notebook, where no other process can import it.
Then it is called `__main__:attribute`, and travels to the processes of a run as bytes made by cloudpickle. These are
never written to a file.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asyncrl.core.errors import UsageError

_things: dict[str, Any] = {}
"""What this process was handed, by name."""
_arrived: dict[str, bytes] = {}
"""What came from another process and has not been asked for yet."""


@dataclass(frozen=True)
class Parcel:
    """Something of a user's own on its way to another process, which knows it by its name once this has arrived."""

    name: str
    content: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self.name, self.content)


def _receive(name: str, content: bytes) -> Parcel:
    _things.pop(name, None)
    _arrived[name] = content
    return Parcel(name, content)


def is_name(text: str) -> bool:
    """Whether this is `module:attribute`. Gymnasium has ids with a colon too, which are no Python names."""
    return text.partition(":")[2].isidentifier()


def name_for(thing: Callable[..., Any]) -> str:
    """The name under which all processes of a run find a class or a function.

    It is remembered here unless other processes can import it.
    """
    module, attribute = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", type(thing).__name__)
    importable = module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is not None
    if importable and attribute.isidentifier() and getattr(sys.modules[module], attribute, None) is thing:
        return f"{module}:{attribute}"
    name = first = "__main__:" + re.sub(r"\W+", "_", attribute).strip("_")
    if not attribute.isidentifier():  # there may be several lambdas at a time; of a cell's class the newest counts
        number = 1
        while _things.get(name, thing) is not thing:
            name, number = f"{first}_{number + 1}", number + 1
    _things[name] = thing
    return name


def parcels(names: Iterable[str]) -> tuple[Parcel, ...]:
    """What other processes need in order to find these names. Raises UsageError for what cannot travel."""
    made = []
    for name in dict.fromkeys(names):
        if name in _things:
            import cloudpickle

            try:
                made.append(Parcel(name, cloudpickle.dumps(_things[name])))
            except Exception as error:
                raise UsageError(
                    f"{name} cannot be handed to other processes: {type(error).__name__}: {error}; put it into a module"
                ) from error
    return tuple(made)


def find(name: str) -> Callable[..., Any]:
    """What `module:attribute` names. Raises UsageError, which says what is wrong, if there is no such function."""
    module, _, attribute = name.partition(":")
    if name in _arrived:
        _things[name] = _unpack(name)
    thing = _things[name] if name in _things else _imported(name, module, attribute)
    if not callable(thing):
        raise UsageError(f"{name}: {attribute} is a {type(thing).__name__}, not a function that makes one")
    return thing  # type: ignore[no-any-return]


def _unpack(name: str) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(_arrived.pop(name))
    except Exception as error:
        raise UsageError(f"{name} could not be read in another process: {type(error).__name__}: {error}") from error


def _imported(name: str, module: str, attribute: str) -> Any:
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
