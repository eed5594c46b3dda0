"""A key that only this user has on this machine, to recognise what the same user has written."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import tempfile
from pathlib import Path

KEY_BYTES = 32


def user_key() -> bytes:
    """The key, made if there is none. Raises OSError if none can be kept, or if others may know it."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        place = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        raise FileNotFoundError(0, "there is no home folder") from None
    return _key_in(place / "asyncrl" / "key")


@functools.cache
def _key_in(file: Path) -> bytes:
    if not file.exists():
        _make_key(file)
    with open(file, "rb") as opened:
        facts, key = os.fstat(opened.fileno()), opened.read()
    if os.name == "posix" and (facts.st_uid != os.geteuid() or facts.st_mode & 0o077):
        raise PermissionError(0, "the key must be yours alone (chmod 600)", str(file))
    if len(key) < KEY_BYTES:
        raise OSError(0, "the key is damaged", str(file))
    return key


def _make_key(file: Path) -> None:
    """Of several processes that make it at once, the first one's counts."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        os.unlink(temporary)
