"""Files that are either whole or absent, also after a kill, a full disk or a power cut.

The rule behind `write_json`: write under a temporary name in the same folder, fsync, rename over the real name,
fsync the folder. Without the first fsync a power cut can leave an empty file behind a finished rename; without the
second the rename itself can be lost. Files that grow go through `append_whole`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any


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
    return "the disk fails" if isinstance(error, OSError) and error.errno in failing else None


def write_json(path: Path, data: Any) -> None:
    """Replace the file at `path` by `data` as JSON (see `plain`), as `replace_file` does."""
    replace_file(path, (json.dumps(plain(data), indent=2, allow_nan=False) + "\n").encode())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file: readers see the old content or the new, never a mix.

    One writer per file. On an OSError the old file is untouched and nothing else is left behind.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
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


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
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
    """Wait until the disk has the names in a folder (Windows has no such call, and needs none)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
