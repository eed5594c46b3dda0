"""The one exception that stands for a mistake of the user."""

from __future__ import annotations


class UsageError(Exception):
    """A user's mistake: the command prints its message as one line and exits with code 2."""
