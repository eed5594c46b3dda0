"""Settings by name, from a program, a file or a command line: names of other libraries, values as fields take them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asyncrl.config.groups import Settings, default_workers, listed
from asyncrl.core.errors import UsageError

ALIASES = {
    "lr": "learning_rate",
    "env": "env_id",
    "total_timesteps": "total_steps",
    "timesteps": "total_steps",
    "max_steps": "total_steps",
    "num_workers": "workers",
    "async_update_interval": "t_max",
    "wandb_project_name": "track_project",
    "num_envs": "n_envs",
}
"""Other names of settings: those of Stable-Baselines3, CleanRL and RLlib; the pseudo-code of the one-step methods calls
t_max I_AsyncUpdate."""
ALL_ENVIRONMENTS = "n_envs"
"""All environments together, instead of `workers` and `envs_per_worker`."""
OWN = ("env_id", "network", "exploration")
"""Settings that may be a class or a function."""


def settings_for(cls: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the fields of `cls` take them: lists become tuples, paths text, and ints floats where needed.

    `env_kwargs` may be a dictionary; `env_id`, `network` and `exploration` may be a class or a function; text is read
    as on a command line. Raises UsageError for an unknown name or a value that does not fit.
    """
    hints = get_type_hints(cls)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(cls)} | {ALL_ENVIRONMENTS: int}
    fitting: dict[str, Any] = {}
    for name, value in own_names(given).items():
        if name not in kinds:
            from asyncrl.config.foreign import suggestion

            raise UsageError(f"there is no setting {name}{suggestion(name, kinds)}")
        if name in ("learning_rate", "entropy_weights", "epsilons"):
            from asyncrl.config.functions import sampled

            if found := sampled(name, value, given):
                fitting |= found
                continue
        fitting[name] = _fitting(name, kinds[name], value)
    return share_environments(fitting)


def own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with names of other libraries replaced by ours. Raises UsageError."""
    named = {}
    for name, value in given.items():
        own = ALIASES.get(name, name)
        if own in named or (own != name and own in given):
            raise UsageError(f"{own} is given twice, once as {name}")
        named[own] = value
    return named


def share_environments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the number of all environments as workers and environments of each.

    If neither is given: as many workers as divide it, up to two per core. Raises UsageError.
    """
    settings = dict(given)
    if (total := settings.pop(ALL_ENVIRONMENTS, None)) is None:
        return settings
    counts = {name: given[name] for name in ("workers", "envs_per_worker") if name in given}
    if len(counts) == 2 or total < 1:
        raise UsageError("--n-envs is --workers times --envs-per-worker: give one or two of the three, of at least 1")
    if not counts:
        counts["workers"] = max(n for n in range(1, min(total, default_workers()) + 1) if total % n == 0)
    ((name, count),) = counts.items()
    if count < 1 or total % count:
        raise UsageError(f"--n-envs {total} cannot be divided by --{name.replace('_', '-')} {count}")
    return settings | {name: count, "workers" if name == "envs_per_worker" else "envs_per_worker": total // count}


def parse_integer(text: str) -> int:
    """A whole number as people write them: 10000000, 10_000_000 or 1e7. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError, OverflowError):
        number = float(text)
        if number == int(number):
            return int(number)
    raise ValueError(f"takes a whole number, got {text!r}")


def parse_number(text: str) -> float:
    """A finite number: JSON cannot hold others, and no setting needs them. Raises ValueError otherwise."""
    with contextlib.suppress(ValueError):
        number = float(text)
        if math.isfinite(number):
            return number
    raise ValueError(f"takes a number, got {text!r}")


def parse_integer_or_auto(text: str) -> int | str:
    """A whole number, or "auto". Raises ValueError otherwise."""
    if text.lower() == "auto":
        return "auto"
    try:
        return parse_integer(text)
    except ValueError:
        raise ValueError(f"takes a whole number or auto, got {text!r}") from None


def parse_choice(choices: Sequence[Any], given: Any) -> Any:
    """One of the choices, which is given as it is or as text. Raises ValueError otherwise."""
    for choice in choices:
        if given in (choice, str(choice)):
            return choice
    raise ValueError(f"takes {listed(list(map(str, choices)), 'or')}, got {given!r}")


READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (parse_integer, "INT"),
    float: (parse_number, "FLOAT"),
    float | None: (lambda text: None if text.lower() == "none" else parse_number(text), "FLOAT"),
    int | Literal["auto"]: (parse_integer_or_auto, "INT|auto"),
    str: (str, "TEXT"),
    Path: (Path, "PATH"),
}
"""How text is read for each type, and the type's name in the help. A reader raises ValueError with the text that
follows the setting's name in the message."""


def reader_of(kind: Any) -> tuple[Callable[[str], Any], str] | None:
    """How text is read for a type, and the type's name in the help; None for types that are not read from text."""
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return partial(parse_choice, choices), "{" + ",".join(map(str, choices)) + "}"
    return READERS.get(kind)


def _fitting(name: str, kind: Any, value: Any) -> Any:
    """The value converted to a field's type. Raises UsageError."""
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            from asyncrl.config.arguments import write_argument

            value = [write_argument(key, item, hands_over=True) for key, item in value.items()]
        if not isinstance(value, list | tuple):
            raise UsageError(f"{name} takes several values, got {value!r}")
        kinds = arguments[:1] * len(value) if arguments[1:] == (Ellipsis,) else arguments
        if len(value) != len(kinds):
            raise UsageError(f"{name} takes {len(kinds)} values, got {len(value)}")
        return tuple(_fitting(name, one, item) for one, item in zip(kinds, value, strict=True))
    if value is None and type(None) in arguments:
        return None
    if kind not in READERS and get_origin(kind) in (Union, UnionType) and any(map(get_args, arguments)):
        *others, last = (one for one in arguments if one is not type(None))  # such as choices or none
        for one in others:
            with contextlib.suppress(UsageError):
                return _fitting(name, one, value)
        return _fitting(name, last, value)
    if name in OWN and callable(value) and (isinstance(value, type) or not hasattr(value, "state_dict")):
        from asyncrl.core.named import name_for

        return name_for(value)
    if name in OWN and not isinstance(value, str | os.PathLike):
        from asyncrl.config.foreign import to_pass

        raise UsageError(f"{name} takes {to_pass(name, value)}")
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    found = reader_of(kind)
    if found is not None and (isinstance(value, str) or get_origin(kind) is Literal):
        try:
            return found[0](value)
        except ValueError as error:
            raise UsageError(f"{name} {error}") from None
    return _number(name, arguments or (kind,), value)


def _number(name: str, kinds: tuple[Any, ...], value: Any) -> Any:
    """A number, or True or False, of one of these kinds. Raises UsageError."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a scalar of numpy
        value = value.item()
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UsageError(f"{name} takes float, got a number of more than 300 digits") from None
    if int in kinds and isinstance(value, float) and value.is_integer():  # 1e6
        return int(value)
    if type(value) not in kinds:
        words = " or ".join(
            "None" if kind is type(None) else str((*get_args(kind), kind.__name__)[0]) for kind in kinds
        )
        raise UsageError(f"{name} takes {words}, got {value!r}")
    return value
