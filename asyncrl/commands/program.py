"""What all commands share: one-line error messages, exit codes, Ctrl-C."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import ending_with_its_reader, print_line
from asyncrl.envs.spec import notices_told
from asyncrl.storage.files import disk_trouble
from asyncrl.storage.run_folder import versions

T = TypeVar("T")


def each_once(folders: Iterable[Path]) -> list[Path]:
    """The folders in their order, without those that are named again. Raises UsageError if there is none."""
    found: dict[str, Path] = {}
    for folder in folders:
        found.setdefault(os.path.realpath(folder), folder)
    if not found:
        raise UsageError("give the folder of at least one run")
    return list(found.values())


def version() -> str:
    """The versions of this package and of what its results depend on most."""
    names = ("asyncrl", "python", "torch", "numpy", "gymnasium", "ale-py")
    return ", ".join(f"{name} {found}" for name in names if (found := versions()[name]))


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """During the block whatever is written to stdout goes to stderr: by Python, by C, and by processes started in it.

    It is for blocks that call user code, where stdout is for the results of a command.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a program may have no stdout
            sys.stdout.flush()
            ours = os.dup(1)
            stack.callback(os.close, ours)
            os.dup2(2, 1)
            stack.callback(os.dup2, ours, 1)
            stack.callback(_flush_c)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _flush_c() -> None:
    """Write what C's own stdout still holds."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no such library on Windows
        ctypes.CDLL(None).fflush(None)


def run_command(program: str, command: Callable[[], int]) -> int:
    """Run a command; a mistake of the user becomes one line on stderr and exit code 2, Ctrl-C exit code 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it is None in a program without output
            stream.reconfigure(errors="backslashreplace")  # a path may hold letters that the terminal has not
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # see asyncrl/__init__.py
    try:
        # What there is to say about an environment's id is one line, without the place in our code that says it.
        with ending_with_its_reader(), notices_told(lambda text: print_line(f"{program}: {text}", error=True)):
            return command()
    except UsageError as error:
        print_line(f"{program}: error: {' '.join(error.shell.splitlines())}", error=True)
        return 2
    except OSError as error:
        if (trouble := disk_trouble(error)) is not None:
            print_line(f"{program}: error: {trouble}: {error}", error=True)
            return 1
        if error.filename is None or not isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
            raise
        print_line(f"{program}: error: {error.filename}: {error.strerror}", error=True)
        return 2
    except KeyboardInterrupt:
        print_line(f"{program}: interrupted", error=True)
        return 130


def run_with(config: type[T], words: Sequence[str], program: str, command: Callable[[T], int]) -> int:
    """Run a command, as `run_command`, with the `config` that `words` describe."""
    return run_command(program, lambda: command(parse(config, words, program)))
