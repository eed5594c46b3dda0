"""Where the fork server's socket lies: its path may have little more than a hundred characters."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from multiprocessing import process, util

from asyncrl.core.errors import UsageError

LONGEST_PATH = 100
"""Characters in the path of a socket; systems allow 103 to 107."""
NAME = "listener-12345678"
"""A name as multiprocessing gives it."""


def find_place() -> str:
    """The folder of this process's sockets, made if there is none; nobody else may enter it.

    It is below TMPDIR, or elsewhere if the path would be too long. Raises UsageError if no place is short enough and
    can be written to.
    """
    settings = process.current_process()._config  # type: ignore[attr-defined]
    if (there := settings.get("tempdir")) is not None and _fits(there) and os.path.isdir(there):
        return str(there)
    places = [tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp", "/dev/shm"]
    for place in filter(None, places):
        if _fits(os.path.join(place, f"{_prefix(os.getpid())}12345678")):
            try:
                made = tempfile.mkdtemp(prefix=_prefix(os.getpid()), dir=place)
            except OSError:
                continue
            settings["tempdir"] = made
            # By multiprocessing, after all that lies there.
            util.Finalize(None, shutil.rmtree, args=(made,), kwargs={"ignore_errors": True}, exitpriority=-100)
            return made
    raise UsageError(
        f"there is no folder for a socket: none of {', '.join(filter(None, places))} can be written to and has a short "
        "path; set TMPDIR to one that has"
    )


def remove_place() -> None:
    """Remove the folder that the parent has made: for a child whose parent has been killed."""
    place, parent = process.current_process()._config.get("tempdir"), multiprocessing.parent_process()  # type: ignore[attr-defined]
    if place is not None and parent is not None and os.path.basename(place).startswith(_prefix(parent.pid)):
        shutil.rmtree(place, ignore_errors=True)


def _prefix(pid: int | None) -> str:
    return f"asyncrl-{pid}-"


def _fits(folder: str) -> bool:
    return len(os.fsencode(os.path.join(folder, NAME))) <= LONGEST_PATH
