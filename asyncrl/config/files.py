"""Settings in files: a run's config.json, or TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from asyncrl.config.arguments import write_argument
from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import Permission, read_stored

NOT_TAKEN = ("resume", "run_name", "runs_dir", "quiet")
"""Of a run's settings, those that another run does not take from its config.json."""


def settings_in(path: Path, algorithm: str, permission: Permission) -> dict[str, Any]:
    """The settings in a file for the algorithm of module `algorithm` ("": any). Raises UsageError."""
    own, settings = read_file(path, permission)
    if algorithm and own and algorithm not in (own, f"asyncrl.{own}"):
        raise UsageError(
            f"{path} has settings of {own.removeprefix('asyncrl.')}, not of {algorithm.removeprefix('asyncrl.')}"
        )
    return settings


def words_in(path: Path, algorithm: str, permission: Permission) -> list[str]:
    """The settings in a file as words of a command line. Raises UsageError."""
    words: list[str] = []
    for name, value in settings_in(path, algorithm, permission).items():
        if (name, value) == ("track", []):
            continue  # the flag alone says something else
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag.removeprefix("--"))
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif isinstance(value, dict):
            words += [flag, *(write_argument(key, item) for key, item in value.items())]
        else:
            words += [flag, "none" if value is None else str(value)]
    return words


def read_file(path: Path, permission: Permission) -> tuple[str, dict[str, Any]]:
    """The algorithm that a file names ("" if none) and its settings: a run's config.json, or TOML. Raises UsageError.

    In TOML settings stand by themselves or in tables, whose names say nothing; `env_kwargs` may be a table. It is
    written by hand and may name any code; what a config.json names must be allowed.
    """
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        try:
            stored = read_stored(path, flat=True)
            settings = stored.usable_config(permission, trains=True)
            algorithm = stored.algorithm and stored.usable_algorithm(permission)
        except UsageError as error:
            raise UsageError(f"--config {error}") from None
        return algorithm, {name: value for name, value in settings.items() if name not in NOT_TAKEN}
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} cannot be read: {type(error).__name__}: {error}") from None
    algorithm = str(data.pop("algorithm", ""))
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= value if isinstance(value, dict) and name.replace("-", "_") != "env_kwargs" else {name: value}
    return algorithm, {name.replace("-", "_"): value for name, value in flat.items()}
