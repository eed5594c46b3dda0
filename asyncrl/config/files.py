"""Settings in files: a run's config.json, or TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.config.settings import ALL_ENVIRONMENTS
from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import Stored, read_stored

NOT_TAKEN = ("resume", "run_name", "runs_dir", "quiet")
"""Of a run's settings, those that another run does not take from its config.json."""


def told_otherwise(given: Mapping[str, Any], kept: Mapping[str, Any]) -> set[str]:
    """The settings of a file that a call's settings replace under other names: functions or points also set schedules,
    and of n_envs, workers and their environments two set the third."""
    from asyncrl.config.functions import SCHEDULES, sampled

    said = {other for name in SCHEDULES if name in given for other in sampled(name, given[name], {})}
    both = {"workers", "envs_per_worker"}
    if ALL_ENVIRONMENTS in given:
        return said | both
    return said | ({ALL_ENVIRONMENTS} if both & given.keys() and both <= given.keys() | kept.keys() else set())


def read_settings(path: Path) -> Stored:
    """The algorithm that a file names ("" if none) and its settings: a run's config.json, or TOML. Raises UsageError.

    In TOML, settings are top-level keys or in tables, whose names are ignored; `env_kwargs` may be a table. A TOML file
    is written by hand and may name any code; code that a config.json names must be allowed.
    """
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        try:
            stored = read_stored(path, flat=True)
        except UsageError as error:
            raise UsageError(f"--config {error}") from None
        return replace(stored, config={name: value for name, value in stored.config.items() if name not in NOT_TAKEN})
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config {path} cannot be read: {type(error).__name__}: {error}") from None
    algorithm = str(data.pop("algorithm", ""))
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= value if isinstance(value, dict) and name.replace("-", "_") != "env_kwargs" else {name: value}
    settings = {name.replace("-", "_"): value for name, value in flat.items()}
    if isinstance(settings.get("env_kwargs"), dict):
        from asyncrl.config.arguments import write_argument

        settings["env_kwargs"] = [write_argument(key, item) for key, item in settings["env_kwargs"].items()]
    return Stored(path, algorithm, settings, {}, program="", is_own=True)
