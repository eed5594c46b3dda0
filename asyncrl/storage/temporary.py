"""Temporary folders of processes that may be killed: whoever makes the next one removes those that were left behind.

A file in the folder, with the machine's name in it, is locked while its process lives, however that ends. Folders
without such a file are left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from asyncrl.storage.holding import lock, this_machine

PREFIX, OWNER = "asyncrl-", "owner"
"""What the names of folders begin with, and the file's name."""


def temporary_folder(prefix: str = PREFIX, place: str | None = None) -> str:
    """Make a folder for this process, in `place` or below TMPDIR; `prefix` begins with PREFIX. Raises OSError.

    The process is to remove it at its end.
    """
    place = place or tempfile.gettempdir()
    for file in Path(place).glob(f"{PREFIX}*/{OWNER}"):
        if _is_left(file):
            shutil.rmtree(file.parent, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    with contextlib.suppress(OSError):  # the disk is full: nobody but this process will remove the folder
        own = os.open(Path(folder) / OWNER, os.O_WRONLY | os.O_CREAT, 0o600)  # open until the process ends
        if lock(own):
            os.write(own, this_machine().encode())  # after the lock: until then it is nobody's to remove
    return folder


def _is_left(file: Path) -> bool:
    """Whether the process of this user and this machine that has locked the file is dead."""
    try:
        if os.name != "posix" or file.lstat().st_uid != os.geteuid():
            return False
        with open(file, "rb", buffering=0) as opened:
            return opened.read() == this_machine().encode() and bool(lock(opened.fileno(), shared=True))
    except OSError:
        return False
