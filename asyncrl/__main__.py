"""`asyncrl` and `python -m asyncrl`: lists the commands and runs the one that is named."""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.catalog import ALGORITHMS, module_of, name_of
from asyncrl.core.errors import UsageError
from asyncrl.core.output import ending_with_its_reader, fitted, print_line
from asyncrl.runtime.threads import request_one_thread

COMMANDS = {
    "train": "train with any algorithm, including your own: asyncrl train my_package.my_algorithm",
    "list": "list the algorithms, where each sends its experience, and which backends can run it",
    "plot": "draw learning curves of runs in one figure",
    "evaluate": "play evaluation episodes with the agent of a run",
    "watch": "film an agent with its policy and values, or show a live view of a run",
    "enjoy": "the same as watch",
    "report": "compare runs on a single HTML page",
    "export": "export an agent as an ONNX model, a torch program or weights",
    "doctor": "check that learning works on this machine and with your environment",
    "speedup": "measure the speed-up with more workers in throughput, data and time",
    "race": "compare parallel designs on a problem: time, data and cores to a score",
    "sweep": "train with many settings: lists, grids, random samples or a search",
    "completion": "print a completion script for bash or zsh",
}
ALIASES = {"enjoy": "watch"}
"""Other names of commands, for those who come from elsewhere: RL Zoo calls it so."""


def main(words: Sequence[str] | None = None) -> int:
    """Run `asyncrl <command> ...`; returns the exit code."""
    request_one_thread()  # before numpy and torch are loaded
    with ending_with_its_reader():
        return run(sys.argv[1:] if words is None else words)


def run(words: Sequence[str]) -> int:
    """The same for words that are given."""
    if not words or words[0] in ("-h", "--help"):
        print_line("usage: asyncrl COMMAND [OPTIONS]\n\ncommands:")
        for name, text in (ALGORITHMS | COMMANDS).items():
            print_line(fitted(f"  {name:16}{text}", 18))
        print_line()
        print_line(
            fitted("`asyncrl COMMAND --help` lists the options; `python -m asyncrl COMMAND` is the same command.", 0)
        )
        print_line("`asyncrl --version` prints the version.")
        return 0
    if words[0] == "--version":
        from asyncrl.commands.program import version

        print_line(version())
        return 0
    if words[0] not in ALGORITHMS | COMMANDS:
        near = difflib.get_close_matches(words[0].lower(), ALGORITHMS | COMMANDS, n=1)
        remedy = f"perhaps you meant {near[0]}" if near else f"the commands are {', '.join(ALGORITHMS | COMMANDS)}"
        print_line(f"asyncrl: error: there is no command {words[0]!r}; {remedy}", error=True)
        return 2
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while the command is imported, as in asyncrl/__init__.py
    if words[0] == "train":
        words = words[1:]
        if words[:1] in (["-h"], ["--help"]):
            print_line("usage: asyncrl train ALGORITHM [OPTIONS]\n\nalgorithms, or your own module:")
            for name, text in ALGORITHMS.items():
                print_line(fitted(f"  {name:16}{text}", 18))
            print_line("\n`asyncrl train ALGORITHM --help` lists the options.")
            return 0
        if not words or words[0].startswith("-"):
            try:
                words = [algorithm_in_config(words), *words]
            except UsageError as error:
                print_line(f"asyncrl train: error: {error.shell}", error=True)
                return 2
    elif words[0] in COMMANDS:
        module = ALIASES.get(words[0], words[0])
        return int(importlib.import_module(f"asyncrl.commands.{module}").main(words[1:]))
    from asyncrl.commands.train import main as train

    return train(module_of(words[0]), words[1:])


def algorithm_in_config(words: Sequence[str]) -> str:
    """The algorithm of the file behind `--config`, or of the run behind `--resume`, where the command line names none.

    Raises UsageError.
    """
    from asyncrl.config.commandline import TRUST, value_of
    from asyncrl.config.files import read_settings
    from asyncrl.storage.stored import Permission

    algorithm = ""
    if file := value_of("--config", words):
        stored = read_settings(Path(file))
        algorithm = stored.algorithm and name_of(stored.usable_algorithm(Permission(trust=TRUST in words)))
    elif resume := value_of("--resume", words):
        from asyncrl.api.resume import algorithm_in

        algorithm = "" if resume == "auto" else name_of(algorithm_in(resume, Permission(trust=TRUST in words)))
    if not algorithm:
        here = f", or in {file}" if file else ""
        raise UsageError(f"name an algorithm first{here}: {', '.join(ALGORITHMS)}, or your own module")
    return algorithm


if __name__ == "__main__":
    raise SystemExit(main())
