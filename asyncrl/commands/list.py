"""`asyncrl list`: the package's algorithms, where the experience of each goes, and which backends run it here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args, get_type_hints

from asyncrl.algorithm import Algorithm, algorithm_of
from asyncrl.api.request import backend_of
from asyncrl.catalog import ALGORITHMS, module_of
from asyncrl.commands.program import run_command
from asyncrl.core.errors import UsageError
from asyncrl.core.output import fitted, print_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.plan import Plan

ROW, WIDTH = "{:16}{:12}{:36}{}", 16
"""A line of the list, and the width of its first column."""
HEADER = ("name", "experience", "backends that run it here", "algorithm")


def main(words: Sequence[str]) -> int:
    """Print the list; returns the exit code."""

    def show() -> int:
        if {"-h", "--help"} & set(words):
            print_line(f"usage: asyncrl list\n\n{__doc__.strip()}")
            return 0
        if words:
            raise UsageError(f"unexpected word {words[0]!r}")
        print_line(fitted(ROW.format(*HEADER), WIDTH))
        for name, text in ALGORITHMS.items():
            method = algorithm_of(module_of(name))
            line = ROW.format(name, method.experience, ", ".join(backends_of(name, method)), text)
            print_line(fitted(line, WIDTH))
        return 0

    return run_command("asyncrl list", show)


def backends_of(name: str, method: type[Algorithm]) -> list[str]:
    """The backends that run an algorithm on this machine, each asked by its own rule."""
    found = []
    for backend in get_args(get_type_hints(method.Config)["backend"]):
        config = method.Config(backend=backend)
        try:
            backend_of(config).refuse(Plan(module_of(name), config, EnvSpec.of(config), Spaces((1,), "float32", 2)))
        except UsageError:
            continue
        found.append(backend)
    return found
