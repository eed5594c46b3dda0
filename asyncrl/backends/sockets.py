"""Where the fork server's socket lies: its path may have little more than a hundred characters."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from multiprocessing import process, util

from asyncrl.core.errors import UsageError
from asyncrl.storage.temporary import PREFIX, temporary_folder

LONGEST_PATH = 100
"""Characters in the path of a socket; systems allow 103 to 107."""
NAME = "listener-12345678"
"""A name as multiprocessing gives it."""


def short_folders(longest: int) -> list[str]:
    """Folders for temporary files with paths of at most `longest` bytes: that of TMPDIR first, if it is one of them."""
    found = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp", "/dev/shm"]
    return [folder for folder in dict.fromkeys(found) if folder and len(os.fsencode(folder)) <= longest]


def make_place() -> None:
    """Make a folder for this process's sockets that nobody else may enter, unless there is one.

    It is below TMPDIR, or elsewhere if paths there would be too long. Raises UsageError if no folder has a short path
    and can be written to.
    """
    settings = process.current_process()._config  # type: ignore[attr-defined]
    made, longest = settings.get("tempdir"), LONGEST_PATH - len(f"/{NAME}")
    if sys.platform != "linux" or (made is not None and len(os.fsencode(made)) <= longest and os.path.isdir(made)):
        return  # there is no fork server, or this folder will do
    prefix = _prefix(os.getpid())
    for place in short_folders(longest - len(f"/{prefix}12345678")):
        with contextlib.suppress(OSError):
            settings["tempdir"] = folder = temporary_folder(prefix, place)
            # After everything else that multiprocessing has to end or remove.
            util.Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-100)
            return
    raise UsageError(
        "there is no folder for a socket: TMPDIR, /tmp, /var/tmp and /dev/shm are not writable, or their paths are too "
        "long; set TMPDIR to a writable folder with a short path"
    )


def remove_place() -> None:
    """Remove the folder that the parent has made: for a child whose parent has been killed."""
    place, parent = process.current_process()._config.get("tempdir"), multiprocessing.parent_process()  # type: ignore[attr-defined]
    if place is not None and parent is not None and os.path.basename(place).startswith(_prefix(parent.pid)):
        shutil.rmtree(place, ignore_errors=True)


def _prefix(pid: int | None) -> str:
    return f"{PREFIX}{pid}-"
