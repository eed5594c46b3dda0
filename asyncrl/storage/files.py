"""Files that are either whole or absent, also after a kill, a full disk or a power cut; and what waits for the disk.

The rule behind `write_json`: write under a temporary name in the same folder, fsync, rename over the real name,
fsync the folder. Without the first fsync a power cut can leave an empty file behind a finished rename; without the
second the rename itself can be lost. Files that grow do so by whole pieces (`AppendedFile`).

Bookkeeping ends no run. Records, TensorBoard, status.json and trackers all go through a `Backlog`: what cannot be
written now, because a disk is full or a tracker does not answer, is kept and written later in its order, and what is
still missing at the end is known by number. Checkpoints do not: a run that cannot save itself must end, but only after
several tries (`with_patience`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Generic, TypeVar

TRIES = 3
PAUSE_SECONDS = 1.5
"""Between two tries of what must not wait for a later occasion: a checkpoint, or the end of a run."""
MOST = 10_000
"""Pieces that are kept; with more, the oldest ones are given up."""

PieceT = TypeVar("PieceT")
ResultT = TypeVar("ResultT")


def plain(value: Any) -> Any:
    """Return `value` as plain JSON data: None, bool, int, float, str, list and dict with string keys.

    A number that is not finite becomes None, because JSON has no word for it. Tuples become lists, scalars of numpy and
    torch become Python numbers, paths become strings. Anything else raises TypeError.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if getattr(value, "ndim", None) == 0:
        return plain(value.item())
    raise TypeError(f"not plain data for a JSON file: {value!r} of type {type(value).__name__}")


def disk_is_full(error: BaseException) -> bool:
    """Whether the error says that there is no room: on the disk, in the user's quota, or below a limit on files."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def disk_trouble(error: BaseException) -> str | None:
    """What an error says about the disk, or about the file server: that it is full or fails; None if nothing."""
    if disk_is_full(error):
        return "the disk is full"
    failing = (errno.EIO, errno.ESTALE, errno.EROFS, errno.ETIMEDOUT, errno.ENXIO)
    return "the disk is failing" if isinstance(error, OSError) and error.errno in failing else None


def write_json(path: Path, data: Any) -> None:
    """Replace the file at `path` by `data` as JSON (see `plain`), as `replace_file` does."""
    replace_file(path, (json.dumps(plain(data), indent=2, allow_nan=False) + "\n").encode())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file: readers see the old content or the new, never a mix.

    One writer per file. On an OSError the old file is untouched and nothing else is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if temporary.is_symlink():
            temporary.unlink()
        write_synced(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises FileNotFoundError, or ValueError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def read_facts(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if it is missing, cannot be read, is a link, or is none."""
    try:
        with open(path, encoding="utf-8", opener=unlinked) as file:
            return dict(json.load(file))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def unlinked(path: str | Path, flags: int) -> int:
    """An `opener` for files in a run's folder, which may be somebody else's: through a symbolic link none is opened."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb", opener=unlinked) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_whole(file: FileIO, content: bytes) -> None:
    """Append to an unbuffered file with one system call, as a whole or, with an OSError, not at all.

    A disk that fills up, or fails, may take a part first. That part is cut off again, which needs no space.
    """
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
    except OSError:
        file.truncate(end)
        raise


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder. Windows and some file systems have no such call."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def with_patience(write: Callable[[], ResultT]) -> ResultT:
    """Call `write`, up to TRIES times with pauses as long as it raises OSError. Raises the last one."""
    for _ in range(TRIES - 1):
        try:
            return write()
        except OSError:
            time.sleep(PAUSE_SECONDS)
    return write()


class Backlog(Generic[PieceT]):
    """Pieces in the order in which `write` is to be called with them. After a failure they wait for the next put."""

    failures: type[Exception] = OSError
    """What `write` raises when it could not; everything else is a mistake in the program."""

    def __init__(self, write: Callable[[PieceT], object], most: int = MOST) -> None:
        self.trouble = ""
        """The newest failure, in words; empty while there was none."""
        self._write, self._most = write, most
        self._waiting: deque[PieceT] = deque()
        self._given_up = self._failed = 0

    @property
    def missing(self) -> int:
        """Number of pieces that have not been written."""
        return self._given_up + len(self._waiting)

    def put(self, piece: PieceT) -> None:
        """Write a piece, after those that wait; keep what cannot be written now."""
        if len(self._waiting) == self._most:
            self._give_up()
        self._waiting.append(piece)
        self._retry()

    def insist(self) -> bool:
        """Write what waits at the end of the run, in several tries for each piece; False if some is left."""
        self._failed = 0
        self._retry()
        while self._waiting and self._failed < TRIES:
            time.sleep(PAUSE_SECONDS)
            self._retry()
        return not self._waiting

    def _retry(self) -> None:
        while self._waiting:
            try:
                self._write(self._waiting[0])
            except self.failures as error:
                self._fail(error)
                return
            self._waiting.popleft()
            self._failed = 0

    def _fail(self, error: Exception) -> None:
        strerror = error.strerror if isinstance(error, OSError) else None
        self.trouble = strerror or f"{type(error).__name__}: {error}"
        self._failed += 1

    def _give_up(self) -> None:
        self._waiting.popleft()
        self._given_up += 1


class AppendedFile(Backlog[bytes]):
    """The file at `path`, to which whole pieces are appended; an existing file is continued. One writer per file.

    A newline is written first where an existing file does not end with one: a line that a kill has torn cannot spoil
    the next one. A piece is visible to readers at once if it can be written now. Nothing here raises OSError.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(self._append)
        self._path = path
        self._file: FileIO | None = None
        self._end: int | None = None
        """Bytes of the file that are whole pieces."""
        with contextlib.suppress(OSError):
            self._file = self._open()

    def close(self) -> None:
        """Write what waits, in several tries, and close the file; closing twice is harmless."""
        self.insist()
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
        file = open(self._path, "a+b", buffering=0, opener=unlinked)  # noqa: SIM115 (closed by _release)
        try:
            size = file.seek(0, os.SEEK_END)
            if self._end is not None and size > self._end:  # part of a piece that failed, and could not be cut off
                file.truncate(self._end)
            elif self._end is None and size:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    append_whole(file, b"\n")
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
