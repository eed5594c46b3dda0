"""Lines for the terminal. Whatever this package prints goes through here, since much of it is other people's text."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TextIO

_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # the others, except for the end of a line and tabs
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # that which turns the direction of reading around
)


def clean(text: str) -> str:
    """The text without anything that would make a terminal do something else than show it."""
    return _CONTROLS.sub("", text)


def print_line(text: object = "", to: TextIO | None = None, error: bool = False) -> None:
    """Print a line at once, to stdout, or to stderr if it is an `error`, or to another stream.

    The text and its newline are one write, even without a buffer: other processes write to the same terminal.
    """
    print(f"{clean(str(text))}\n", end="", file=to or (sys.stderr if error else sys.stdout), flush=True)


@contextlib.contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """For a whole command: once nobody reads its output, as after `| head -1`, it ends without a word."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more as it ends
        raise SystemExit(128 + 13) from None  # as by SIGPIPE, which Windows does not have


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as people write them; "-" for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Typed(str):
    """A line with something to be typed or copied, which is never broken."""


def fitted(line: str, indent: int = 2) -> str:
    """A line broken between words, with further lines indented; as it is in logs, in pipes, and if it is `Typed`."""
    if isinstance(line, Typed) or not getattr(sys.stdout, "isatty", bool)():  # a program may have no stdout
        return line
    return textwrap.fill(
        line, shutil.get_terminal_size().columns, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
