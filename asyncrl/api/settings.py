"""Settings given as Python values: checked by their types, as a command line checks the words it reads."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError


def settings_for(cls: type[RunConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the fields of `cls` have them: lists become tuples, paths text, whole numbers also float.

    `env_kwargs` may be a dictionary. Raises UsageError for a name or a value that no field takes.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"there is no setting {name}" + (f"; perhaps you meant {near[0]}" if near else ""))
    return {name: _fitting(name, hints[name], value) for name, value in given.items()}


def _fitting(name: str, kind: Any, value: Any) -> Any:
    """The value as a field of that type takes it. Raises UsageError."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        if value in arguments:
            return value
        raise UsageError(f"{name} takes {', '.join(map(str, arguments))}, got {value!r}")
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            value = [f"{key}={item!r}" for key, item in value.items()]
        if not isinstance(value, list | tuple):
            raise UsageError(f"{name} takes several values, got {value!r}")
        return tuple(_fitting(name, arguments[0], item) for item in value)
    if arguments and value is None and type(None) in arguments:
        return None
    kinds = arguments or (kind,)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a scalar of numpy
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if int in kinds and isinstance(value, float) and value.is_integer():  # 1e6
        return int(value)
    if type(value) not in kinds:
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise UsageError(f"{name} takes {words}, got {value!r}")
    return value
