"""How optional packages are installed."""

from __future__ import annotations

import importlib
import os
import shlex
from pathlib import Path
from typing import Any

from asyncrl.core.errors import UsageError

CLONE = Path(__file__).parents[2]
"""The folder around this package."""


def imported(module: str, need: str, extra: str = "", package: str = "") -> Any:
    """A module of an optional package. Raises UsageError, which says who has the `need`, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(f"{need}: {to_install(extra, package)}") from None


def to_install(extra: str, package: str = "") -> str:
    """The command that installs an extra of this package, or only one `package`.

    In a clone it takes the versions with which the tests ran, as the documents do.
    """
    pins = CLONE / "constraints.txt"
    if not (pins.is_file() and (CLONE / "setup.cfg").is_file()):
        return f"pip install {package}" if package else f'pip install "asyncrl[{extra}]"'
    is_here = Path.cwd() == CLONE
    what = package or (f'-e ".[{extra}]"' if is_here else f"-e {shlex.quote(f'{CLONE}[{extra}]')}")
    return f"pip install -c {pins.name if is_here else shlex.quote(os.fspath(pins))} {what}"
