"""The state of a run, as everybody reads it: what its status says, and whether there is still a process behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncrl.storage.files import read_json
from asyncrl.storage.holding import is_held

LOCK, STATUS = "run.lock", "status.json"
"""Names of the files in a run's folder that say who trains there, and how it goes."""
GOING = ("starting", "running")
"""States of a run that a process is working at."""
DIED = "died"
"""The state of a run that was going on when its process came to an end without a word."""


def read_status(folder: Path) -> dict[str, Any]:
    """What status.json in a run's folder says; empty if there is none, or it cannot be read, and no process is there.

    A run that is said to be going on, but that no process holds, is in the state DIED: its command was killed, or its
    machine went down. Nothing is written, so the folder may be read-only.
    """
    status = _read(folder)
    if status.get("state", GOING[0]) not in GOING:
        return status
    if is_held(folder / LOCK):
        return status or {"state": GOING[0]}
    status = _read(folder)  # the run may have ended since
    if status.get("state") not in GOING:
        return status
    return status | {"state": DIED, "reason": "its process is gone: it was killed, or its machine went down"}


def _read(folder: Path) -> dict[str, Any]:
    try:
        return dict(read_json(folder / STATUS))
    except (OSError, ValueError, TypeError):
        return {}
