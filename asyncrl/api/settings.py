"""Settings as Python values, checked by their types as a command line checks its words, and the run they describe."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from asyncrl import pages
from asyncrl.api.training import Settled, settle
from asyncrl.backends.launch import launched
from asyncrl.config.run_config import RunConfig
from asyncrl.config.words import ALIASES, ENVIRONMENTS, share_environments
from asyncrl.core.errors import UsageError
from asyncrl.core.named import name_for

OWN = ("env_id", "network", "exploration")
"""Settings that may be a class or a function."""


def settings_for(cls: type[RunConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the fields of `cls` have them: lists become tuples, paths text, whole numbers also float.

    `env_kwargs` may be a dictionary; `env_id`, `network` and `exploration` a class or a function. Raises UsageError for
    a name or a value that no field takes.
    """
    given = own_names(given)
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"there is no setting {name}" + (f"; perhaps you meant {near[0]}" if near else ""))
    return {name: _fitting(name, hints[name], value) for name, value in given.items()}


def own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings under our own names where those of other libraries were used. Raises UsageError."""
    named = {}
    for name, value in given.items():
        own = ALIASES.get(name, name)
        if own in named or (own != name and own in given):
            raise UsageError(f"{own} is given twice, once as {name}")
        named[own] = value
    for name in ENVIRONMENTS:
        if name in named:
            total = int(named.pop(name))
            named |= share_environments(
                total, {key: int(named[key]) for key in ("workers", "envs_per_worker") if key in named}
            )
    return named


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
    if name in OWN and callable(value):
        return name_for(value)
    if name == "env_id" and hasattr(value, "reset") and hasattr(value, "step"):
        raise UsageError("env_id takes an id, a class or a function that makes an environment: each worker has its own")
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


def _module_name(page: str | ModuleType) -> str:
    if isinstance(page, str):
        return pages.module_of(page)
    if page.__name__ != "__main__":
        return page.__name__
    if page.__spec__ is None:
        raise UsageError("a page must be a module that workers can import: put it into a file of its own")
    return page.__spec__.name


def settled_by(page: str | ModuleType, config: RunConfig | None, settings: dict[str, Any]) -> Settled:
    """The run that the settings, or the configuration, describe. Raises UsageError."""
    module = _module_name(page)
    cls = pages.load(module).Config
    if config is None:
        given = settings_for(cls, settings)
    elif not isinstance(config, cls):
        raise UsageError(f"config is a {type(config).__module__}.Config, {module} takes a {cls.__module__}.Config")
    elif settings.keys() > {"quiet"}:
        raise UsageError("give the settings one by one or a config, not both")
    else:
        given = {"quiet": settings["quiet"]}

    def read(default: RunConfig | None, resume: str) -> RunConfig:
        made: RunConfig = replace(config or default or cls(), **given | ({"resume": resume} if resume else {}))
        return made

    settled = settle(module, read, resume_of(config, settings))
    if settled.config.backend == "collective" and (launch := launched(os.environ)) is not None:
        raise UsageError(
            f"under {launch.by} use the command, python -m asyncrl.{pages.short(module)} --backend collective: "
            "from Python each of its processes would start ranks of its own"
        )
    return settled


def resume_of(config: RunConfig | None, settings: dict[str, Any]) -> str:
    """What was asked to go on."""
    return str(settings.get("resume", "") if config is None else config.resume)
