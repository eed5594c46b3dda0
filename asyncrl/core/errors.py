"""Exceptions used by the whole package."""

from __future__ import annotations


class UsageError(Exception):
    """A user's mistake: the command prints its message, or `shell` if given, as one line and exits with code 2."""

    def __init__(self, message: str = "", shell: str = "") -> None:
        super().__init__(message)
        self.shell = shell or message


class NotFinite(ValueError):
    """A NaN or an infinity after which training cannot continue. The message is one line that names the place."""


def one_line(error: BaseException) -> str:
    """The type and message of an exception on one line, shortened for a terminal."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else text[:297] + "..."
