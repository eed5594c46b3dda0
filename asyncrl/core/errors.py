"""The exceptions that the whole package knows."""

from __future__ import annotations


class UsageError(Exception):
    """A user's mistake: the command prints its message as one line and exits with code 2."""


class NotFinite(ValueError):
    """A NaN or an infinity where training cannot go on with one. The message is one line that names the place."""
