"""Bookkeeping that ends no run: what cannot be written now is kept, and written later in its order.

Records, TensorBoard, status.json and trackers all go through a `Backlog`. A full disk, an I/O error or a tracker that
does not answer costs nothing but time; what is still missing at the end is known by number. Checkpoints do not: a run
that cannot save itself must end, but only after several tries (`with_patience`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from asyncrl.storage.files import append_whole

TRIES = 3
PAUSE_SECONDS = 1.5
"""Between two tries of what must not wait for a later occasion: a checkpoint, or the end of a run."""
REMOTE_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 600.0
"""Pause after the first failure of a tracker, doubled after each further one, and the longest pause."""
MOST = 10_000
"""Pieces that are kept; with more, the oldest ones are given up."""

PieceT = TypeVar("PieceT")
ResultT = TypeVar("ResultT")


def with_patience(write: Callable[[], ResultT]) -> ResultT:
    """Call `write`, up to TRIES times with pauses as long as it raises OSError. Raises the last one."""
    for _ in range(TRIES - 1):
        try:
            return write()
        except OSError:
            time.sleep(PAUSE_SECONDS)
    return write()


class Backlog(Generic[PieceT]):
    """Pieces in the order in which `write` is to be called with them. After a failure the rest waits for the next put.

    A file: every OSError is a failure. With `remote` something that is reached over a network, through code of others:
    every Exception is a failure, pauses between tries grow, and a piece that failed TRIES times is given up, since it
    may be that piece which is refused.
    """

    def __init__(self, write: Callable[[PieceT], object], most: int = MOST, remote: bool = False) -> None:
        self.trouble = ""
        """The newest failure, in words; empty while there was none."""
        self._write, self._most, self._remote = write, most, remote
        self._waiting: deque[PieceT] = deque()
        self._given_up = self._failures = 0
        self._due = 0.0

    @property
    def missing(self) -> int:
        """Number of pieces that have not been written."""
        return self._given_up + len(self._waiting)

    def put(self, piece: PieceT) -> None:
        """Write a piece, after those that wait; keep what cannot be written now."""
        if len(self._waiting) == self._most:
            self._give_up()
        self._waiting.append(piece)
        self.retry()

    def retry(self) -> bool:
        """Write what waits; False if some of it still does."""
        while self._waiting and time.monotonic() >= self._due:
            try:
                self._write(self._waiting[0])
            except Exception as error:
                if not (self._remote or isinstance(error, OSError)):
                    raise
                self._note(error)
                return False
            self._waiting.popleft()
            self._failures = 0
        return not self._waiting

    def insist(self) -> bool:
        """Write what waits at the end of the run, in several tries, something remote in one; False as `retry`."""
        self._due = 0.0
        for _ in range(0 if self._remote else TRIES - 1):
            if self.retry():
                return True
            time.sleep(PAUSE_SECONDS)
        return self.retry()

    def _note(self, error: Exception) -> None:
        strerror = error.strerror if isinstance(error, OSError) and not self._remote else None
        self.trouble = strerror or f"{type(error).__name__}: {error}"
        self._failures += 1
        if self._remote:
            pause = min(LONGEST_PAUSE_SECONDS, REMOTE_PAUSE_SECONDS * 2 ** (self._failures - 1))
            self._due = time.monotonic() + pause
            if self._failures >= TRIES:
                self._give_up()

    def _give_up(self) -> None:
        self._waiting.popleft()
        self._given_up += 1


class Growing:
    """The file at `path`, to which whole pieces are appended; an existing file is continued. One writer per file.

    `join` is written first where an existing file ends with something else: with a newline, a line that a kill has torn
    cannot spoil the next one. Nothing here raises OSError: `backlog` tells what is missing.
    """

    def __init__(self, path: Path, join: bytes = b"") -> None:
        self.backlog = Backlog(self._append)
        self._path, self._join = path, join
        self._file: FileIO | None = None
        self._end: int | None = None
        """Bytes of the file that are whole pieces."""
        with contextlib.suppress(OSError):
            self._file = self._open()

    def append(self, content: bytes) -> None:
        """Append a piece, at once visible to readers if it can be written now."""
        self.backlog.put(content)

    def close(self) -> None:
        """Write what waits, in several tries, and close the file; closing twice is harmless."""
        self.backlog.insist()
        self._release()

    def _append(self, content: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._open()
            append_whole(self._file, content)
        except OSError:
            self._release()  # a handle that has become stale stays so: the next try opens the file anew
            raise
        self._end = (self._end or 0) + len(content)

    def _open(self) -> FileIO:
        file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 (closed by _release)
        try:
            size = file.seek(0, os.SEEK_END)
            if self._end is not None and size > self._end:  # part of a piece that failed, and could not be cut off
                file.truncate(self._end)
            elif self._end is None and size and self._join:
                file.seek(-len(self._join), os.SEEK_END)
                if file.read(len(self._join)) != self._join:
                    append_whole(file, self._join)
            self._end = file.seek(0, os.SEEK_END)
        except OSError:
            file.close()
            raise
        return file

    def _release(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
