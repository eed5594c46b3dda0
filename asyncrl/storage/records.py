"""Records: JSON Lines files, one row per line, one writer per file, any number of readers.

The writer appends each row with one system call, so a killed process can tear at most its last line. A row that cannot
be written, for want of space or because the disk fails, is written later, before those after it. Readers follow a file
while it grows and skip what a kill or a power cut spoiled.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from asyncrl.storage.files import AppendedFile, plain


class Rows(Protocol):
    """Where rows go."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""

    def close(self) -> None:
        """No more will come; closing twice is harmless."""

    @property
    def missing(self) -> int:
        """Number of rows that could not be written so far."""


class RecordWriter(AppendedFile):
    """Append rows to a file; an existing one is continued."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row, at once visible to readers. A number that is not finite is written as null.

        Raises no OSError: a row that cannot be written is kept, and tried again with the next one and at the end.
        """
        self.put((json.dumps(plain(row), separators=(",", ":"), allow_nan=False) + "\n").encode())


class RecordReader:
    """Follow the file at `path` while its writer appends to it. The file need not exist yet.

    `skipped` counts the complete lines that held no row.
    """

    def __init__(self, path: Path) -> None:
        self.skipped = 0
        self._path = path
        self._offset = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the rows completed since the last call; one `stat` when there are none.

        A file that cannot be read now is read by a later call.
        """
        try:
            return self.read()
        except OSError:
            return []

    def read(self) -> list[dict[str, Any]]:
        """The same, but raise OSError if the file cannot be read."""
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return []
        if size == self._offset:
            return []
        if size < self._offset:  # the file was replaced by another
            self._offset = 0
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        rows = [_parse(line) for line in complete.split(b"\n")[:-1]]
        self.skipped += rows.count(None)
        return [row for row in rows if row is not None]


def is_score(value: object) -> TypeGuard[float]:
    """Whether it is a finite number: somebody may have edited the records, and JSON in Python knows NaN."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return all complete rows of a file; none when it does not exist. Raises OSError if it cannot be read."""
    return RecordReader(path).read()


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the row on a line, or None when a kill or a power cut spoiled it."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
