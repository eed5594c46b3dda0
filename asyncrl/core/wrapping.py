"""Lines as they fit a terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap


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
