"""Resolves the settings that a program or a command line gives into a run that can be started."""

from __future__ import annotations

import os
from dataclasses import MISSING, asdict, dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from asyncrl import catalog
from asyncrl.algorithm import Algorithm, algorithm_of, load, name_of_class
from asyncrl.backends.probing import probe
from asyncrl.config.groups import AUTO, LONG_STEPS, Settings
from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.config.settings import own_names, settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import user_code
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.plan import Plan
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.stored import Permission, read_stored

File = str | os.PathLike[str]
"""A run's config.json, the folder of a run, or a TOML file."""


@dataclass(frozen=True)
class ResolvedRun(Plan):
    """A run that can be made, before anything is created or started."""

    changes: list[str]
    """A line for each setting that differs in a resumed run."""
    facts: dict[str, Any]
    """What config.json says about the environment."""


@dataclass(frozen=True)
class Request:
    """The run that a program or a command line asks for."""

    algorithm: str
    """Name of the algorithm's module."""
    config: RunConfig | None
    """A complete Config; None: only `settings` are given."""
    settings: dict[str, Any]
    trust: bool = False
    """Whether everything may be imported that the folder of a resumed run names."""

    @property
    def resume(self) -> str:
        """The run to resume; "" for a new run."""
        return str(self.settings.get("resume", "") if self.config is None else self.config.resume)

    def resolved(self) -> ResolvedRun:
        """The run with all settings resolved: that in `resume`, the newest one, or a new one. Raises UsageError."""
        if self.resume != AUTO:
            return self._resolved(self.resume)
        from asyncrl.api.resume import newest

        resolved = self._resolved("")
        path = newest(self.algorithm, resolved.config)
        return resolved if path is None else self._resolved(str(path))

    def has_nothing_to_do(self, resolved: ResolvedRun) -> bool:
        """Whether the newest run was to be resumed, but has reached its end already."""
        if self.resume != AUTO or not resolved.config.is_resumed or resolved.changes:
            return False
        from asyncrl.api.resume import is_finished

        return is_finished(Path(resolved.config.resume))

    def _resolved(self, resume: str) -> ResolvedRun:
        algorithm, method = self.algorithm, algorithm_of(self.algorithm)
        changes: list[str] = []
        if resume:
            from asyncrl.api.resume import check_place, differences, stored_config

            given = {} if self.config is None else to_plain(self.config)
            permission = Permission({"algorithm": algorithm} | given | self.settings, self.trust)
            stored = read_stored(RunFolder.open(Path(resume)).config_file)
            check_place(Path(resume), {"run_name": given.get("run_name", "")} | self.settings)
            before = stored_config(algorithm, stored, permission, trains=True)
            config = replace(self._on(self.config or before), resume=resume)
            changes = differences(before, config)
        else:
            first = self._on(self.config) if self.config else draft(method.Config, self.settings)
            spec, spaces = look_at(algorithm, first)  # the preset depends on it
            with user_code(f"{algorithm}'s preset()"):
                name = self._preset(method, first, spaces)
                preset = method.preset(name, spaces) | {"preset": name}
            with user_code(f"{algorithm}'s Config"):
                config = self._on(self.config) if self.config else method.Config(**preset | self.settings)
        if resume or EnvSpec.of(config) != spec:
            spec, spaces = look_at(algorithm, config)
        # Described from the probed spaces: describing must not create another environment.
        facts = {"id": config.env_id, "description": spec.describe(spaces), **asdict(spaces)}
        resolved = ResolvedRun(algorithm, config, spec, spaces, changes, facts)
        resolved.check()
        if config.track:
            from asyncrl.storage.tracking import require

            require(config.track)
        backend_of(config).refuse(resolved)
        return resolved

    def _preset(self, method: type[Algorithm], first: RunConfig, spaces: Spaces) -> str:
        """The preset that was given, or "long" for a run that is meant to be so. Raises UsageError."""
        has_long = method.table("long", spaces) is not None
        if first.preset == "long" and not has_long:
            raise UsageError(f"{catalog.name_of(self.algorithm)} has no preset long for {first.env_id}")
        given = self.settings
        open_end = "preset" not in given and first.stop_at_score is None and not first.max_seconds
        return "long" if has_long and open_end and given.get("total_steps", 0) >= LONG_STEPS else first.preset

    def _on(self, others: RunConfig) -> RunConfig:
        """The given settings, and the others."""
        config: RunConfig = replace(others, **self.settings)
        return config


def draft(cls: type[RunConfig], settings: dict[str, Any]) -> RunConfig:
    """Settings before the preset, which replaces some: only the limits of numbers are checked. Raises UsageError."""
    config = object.__new__(cls)
    for one in fields(cls):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        object.__setattr__(config, one.name, settings.get(one.name, default))
    Settings.check(config)
    return config


def request_for(
    algorithm: str | type[Algorithm] | None,
    config: RunConfig | File | None,
    settings: dict[str, Any],
    trust: bool = False,
    quiet: bool | None = None,
) -> Request:
    """The run that a program or a command line describes. Its `settings` override those of a file, which may name the
    algorithm.

    `trust`: a folder may name any code; `quiet` replaces that setting. Raises UsageError.
    """
    own = {} if quiet is None else {"quiet": quiet}
    if config is None or isinstance(config, RunConfig):
        resume = settings.get("resume", "")
        if not algorithm and resume not in ("", AUTO):
            from asyncrl.api.resume import algorithm_in

            algorithm = algorithm_in(_file("resume", resume), Permission(settings, trust))
        name = _name(algorithm)
        cls = load(name).Config
        if config is None:
            return Request(name, None, settings_for(cls, settings | own), trust)
        if not isinstance(config, cls):
            raise UsageError(f"config is a {_told(type(config))}, {name} takes a {_told(cls)}")
        if settings:
            raise UsageError("give the settings one by one or a config, not both")
        return Request(name, config, own, trust)
    from asyncrl.config.files import read_settings, told_otherwise

    given, stored = own_names(settings), read_settings(Path(_file("config", config)))
    permission = Permission(given | ({"algorithm": _name(algorithm)} if algorithm else {}), trust)
    there = stored.usable_algorithm(permission) if stored.algorithm else ""
    name = _name(algorithm or there)
    if there not in ("", name):
        raise UsageError(f"{stored.path} has settings for {catalog.name_of(there)}, not for {catalog.name_of(name)}")
    cls = load(name).Config
    kept = own_names(stored.usable_config(permission, trains=True))
    replaced = told_otherwise(given, kept)
    kept = {name: value for name, value in kept.items() if name not in replaced}
    return Request(name, None, settings_for(cls, kept | given | own), trust)


def refuse_launcher(resolved: ResolvedRun) -> None:
    """Raise UsageError in a program that a launcher has started as a rank: each would start ranks of its own."""
    if resolved.config.backend == "collective":
        from asyncrl.backends.collective.launch import launched

        if (launch := launched(os.environ)) is not None:
            raise UsageError(
                f"under {launch.by}, run python -m asyncrl.{catalog.short(resolved.algorithm)} --backend collective "
                "instead: each process of a Python program would start its own ranks"
            )


def backend_of(config: RunConfig) -> Any:
    """The module of the backend, and no other."""
    return import_module(f"asyncrl.backends.{config.backend}")


def look_at(algorithm: str, config: RunConfig) -> tuple[EnvSpec, Spaces]:
    """The environment and its spaces. Raises UsageError if it can't be used, or takes longer than --hang-seconds."""
    spec = EnvSpec.of(config)
    return spec, probe(spec, algorithm, config.hang_seconds, here=config.backend == "serial")


def _file(name: str, given: Any) -> File:
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"{name} takes the path of a file or a run, got {given!r}")
    return given


def _told(config: type[RunConfig]) -> str:
    return f"{config.__module__}.{config.__qualname__}"


def _name(algorithm: str | type[Algorithm] | None) -> str:
    if not algorithm:
        raise UsageError(f"name an algorithm first: {', '.join(catalog.ALGORITHMS)}, or your own")
    if isinstance(algorithm, str):
        return catalog.module_of(algorithm)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return name_of_class(algorithm)
    raise UsageError(f"{algorithm!r} is not an algorithm: give a name, or a class derived from asyncrl.Algorithm")
