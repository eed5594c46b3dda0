"""`asyncrl completion bash`: tyro's own script that lets the shell complete commands and flags."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from asyncrl import catalog
from asyncrl.algorithm import algorithm_of
from asyncrl.commands.program import run_command
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line

SHELLS = ("bash", "zsh")
USAGE = """usage: asyncrl completion {bash,zsh}

bash: asyncrl completion bash > ~/.local/share/bash-completion/completions/asyncrl
zsh:  asyncrl completion zsh > _asyncrl, in a folder on your fpath

Generating the script takes a few seconds: do it once, and again after each update."""


def main(words: Sequence[str]) -> int:
    """Print the script; returns the exit code."""

    def completion() -> int:
        if {"-h", "--help"} & set(words):
            print_line(USAGE)
            return 0
        if len(words) != 1 or words[0] not in SHELLS:
            raise UsageError(f"name a shell: {' or '.join(SHELLS)}")
        script = io.StringIO()
        with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
            tyro.cli(every_command(), prog="asyncrl", args=["--tyro-print-completion", words[0]])
        print_line(script.getvalue())
        if words[0] == "bash":
            print_line("complete -o default -F _tyro_asyncrl asyncrl")  # files too
        return 0

    return run_command("asyncrl completion", completion)


def every_command() -> Any:
    """A type from which tyro reads the command line of `asyncrl` as a whole."""
    from asyncrl.__main__ import ALIASES, COMMANDS

    common = [("config", Path, Path()), ("trust", bool, False), ("version", bool, False)]
    algorithms: dict[str, type] = {}
    for name in catalog.ALGORITHMS:
        config = algorithm_of(catalog.module_of(name)).Config
        algorithms[name] = make_dataclass("Config", common, bases=(config,), frozen=True)
    commands: dict[str, type] = {}
    for name in COMMANDS:
        module = importlib.import_module(f"asyncrl.commands.{ALIASES.get(name, name)}")
        commands[name] = getattr(module, "Config", make_dataclass("Config", []))
    without_prefix: Any = tyro.conf.OmitArgPrefixes
    commands["train"] = make_dataclass("Config", [("algorithm", without_prefix[_one_of(algorithms)])])
    return _one_of(algorithms | commands)


def _one_of(commands: Mapping[str, type]) -> Any:
    named = [Annotated[cls, tyro.conf.subcommand(name, prefix_name=False)] for name, cls in commands.items()]
    return Union[tuple(named)]  # noqa: UP007 - their number is not known here
