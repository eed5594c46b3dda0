"""The names of algorithms: the package's own are the modules beside this one that are commands; nothing is registered.

Your own algorithm is named by its module, my_package.my_module, or by module and class, my_package.my_module:Mine.
"""

from __future__ import annotations

import re
from pathlib import Path


def _look() -> dict[str, str]:
    """Modules beside this one that are commands, each with what its first line says."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        text = file.read_text(encoding="utf-8")
        if f'main("asyncrl.{file.stem}")' in text:
            found[file.stem] = text.partition("\n")[0].strip('".')
    return found


ALGORITHMS = _look()
"""The package's own algorithms, with what each is."""
GRADIENT_METHODS = ("a3c", "one_step_q", "one_step_sarsa", "n_step_q")
"""The methods that the paper compares: their workers learn themselves."""


def module_of(name: str) -> str:
    """The module of an algorithm: "a3c" is asyncrl.a3c, any other name is itself a module (my_package.my_algorithm)."""
    return f"asyncrl.{name}" if name in ALGORITHMS else name


def name_of(module: str) -> str:
    """The name by which commands find an algorithm: for the package's own algorithms without the package."""
    name = module.removeprefix("asyncrl.")
    return name if name in ALGORITHMS else module


def short(module: str) -> str:
    """The algorithm's name in folders and titles: its class if that is named, or the last part of its module."""
    return re.split("[.:]", module)[-1]


def command_of(module: str) -> str:
    """How its command calls itself: `asyncrl a3c`, `asyncrl train my_package.my_algorithm`."""
    return f"asyncrl {name_of(module)}" if name_of(module) in ALGORITHMS else f"asyncrl train {module}"
