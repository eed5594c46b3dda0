"""Settings as Python values, checked by type like words on a command line, and the run they describe."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from asyncrl import catalog
from asyncrl.algorithm import Algorithm, load, name_of_class
from asyncrl.api.training import Settled, settle
from asyncrl.config.aliases import ALIASES, ENVIRONMENTS, read_count, share_environments
from asyncrl.config.arguments import write_argument
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.named import name_for
from asyncrl.storage.stored import Permission

OWN = ("env_id", "network", "exploration")
"""Settings that may be a class or a function."""
File = str | os.PathLike[str]
"""A run's config.json, the folder of a run, or a TOML file."""


@dataclass(frozen=True)
class Asked:
    """The run that a program asks for."""

    algorithm: str
    """Name of the algorithm."""
    config: RunConfig | None
    """A complete Config; None: `settings` has those that were given."""
    settings: dict[str, Any]
    trust: bool = False
    """Whether everything may be imported that the folder of a resumed run names."""

    @property
    def resume(self) -> str:
        """The run to resume; "" for a new run."""
        return str(self.settings.get("resume", "") if self.config is None else self.config.resume)

    def settled(self) -> Settled:
        """The run with all settings resolved. Raises UsageError."""
        cls = load(self.algorithm).Config
        given = settings_for(cls, self.settings)

        def read(default: RunConfig | None, resume: str) -> RunConfig:
            more = {"resume": resume} if resume else {}
            made: RunConfig = replace(self.config or default or cls(), **given | more)
            return made

        own = {} if self.config is None else to_plain(self.config)
        settled = settle(
            self.algorithm, read, self.resume, Permission({"algorithm": self.algorithm, **own, **given}, self.trust)
        )
        if settled.config.backend == "collective":
            from asyncrl.backends.collective.launch import launched

            if (launch := launched(os.environ)) is not None:
                raise UsageError(
                    f"under {launch.by} use the command, python -m asyncrl.{catalog.short(self.algorithm)} --backend "
                    "collective: from Python each of its processes would start ranks of its own"
                )
        return settled


def asked_for(
    algorithm: str | type[Algorithm] | None,
    config: RunConfig | File | None,
    quiet: bool,
    settings: dict[str, Any],
    trust: bool = False,
) -> Asked:
    """The run that a call of `train` describes. `settings` override those of a file, which may name the algorithm.

    `trust`: a folder may name any code.

    Raises UsageError.
    """
    own = {"quiet": quiet}
    if config is None or isinstance(config, RunConfig):
        name = _name(algorithm)
        cls = load(name).Config
        if config is None:
            return Asked(name, None, settings | own, trust)
        if not isinstance(config, cls):
            raise UsageError(f"config is a {_told(type(config))}, {name} takes a {_told(cls)}")
        if settings:
            raise UsageError("give the settings one by one or a config, not both")
        return Asked(name, config, own, trust)
    from asyncrl.config.files import read_file, settings_in

    file, given = Path(config), own_names(settings)
    named = {"algorithm": _name(algorithm)} if algorithm else {}
    permission = Permission(given | named, trust)
    name = _name(algorithm or read_file(file, permission)[0])
    stored = _from_text(load(name).Config, own_names(settings_in(file, name, permission)))
    return Asked(name, None, stored | given | own, trust)


def _from_text(cls: type[RunConfig], stored: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings, with text parsed as on the command line: TOML has no None, so it is written "none".

    Raises UsageError.
    """
    from asyncrl.config.commandline import read_text

    hints, values = get_type_hints(cls), dict(stored)
    for name, value in stored.items():
        if isinstance(value, str):
            try:
                values[name] = read_text(hints.get(name), value)
            except ValueError as error:
                raise UsageError(f"{name} {error}") from None
    return values


def settings_for(cls: type[RunConfig], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the fields of `cls` take them: lists become tuples, paths text, and ints floats where needed.

    `env_kwargs` may be a dictionary; `env_id`, `network` and `exploration` may be a class or a function. Raises
    UsageError for an unknown name or a value that does not fit.
    """
    given = shared_out(own_names(given))
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"there is no setting {name}" + (f"; perhaps you meant {near[0]}" if near else ""))
    return {name: _fitting(name, hints[name], value) for name, value in given.items()}


def own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with names of other libraries replaced by ours. Raises UsageError."""
    others = ALIASES | dict.fromkeys(ENVIRONMENTS, ENVIRONMENTS[0])
    named = {}
    for name, value in given.items():
        own = others.get(name, name)
        if own in named or (own != name and own in given):
            raise UsageError(f"{own} is given twice, once as {name}")
        named[own] = value
    return named


def shared_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with the total number of environments converted to workers and environments per worker.

    Raises UsageError for what is not a whole number, or does not divide.
    """
    shared = dict(given)
    if ENVIRONMENTS[0] in shared:
        given = {name: read_count(name, str(shared[name])) for name in ("workers", "envs_per_worker") if name in shared}
        shared |= share_environments(read_count(ENVIRONMENTS[0], str(shared.pop(ENVIRONMENTS[0]))), given)
    return shared


def _fitting(name: str, kind: Any, value: Any) -> Any:
    """The value converted to a field's type. Raises UsageError."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        if value in arguments:
            return value
        raise UsageError(f"{name} takes {', '.join(map(str, arguments))}, got {value!r}")
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            value = [write_argument(key, item, hands_over=True) for key, item in value.items()]
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


def _told(config: type[RunConfig]) -> str:
    return f"{config.__module__}.{config.__qualname__}"


def _name(algorithm: str | type[Algorithm] | None) -> str:
    if not algorithm:
        raise UsageError(f"name an algorithm first: {', '.join(catalog.ALGORITHMS)}, or your own")
    if isinstance(algorithm, str):
        return catalog.module_of(algorithm)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return name_of_class(algorithm)
    raise UsageError(f"{algorithm!r} is no algorithm: give a name, or a class derived from asyncrl.Algorithm")
