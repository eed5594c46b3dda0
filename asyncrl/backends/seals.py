"""Who may speak in a group of ranks: messages carry a seal that only those can make who know the run's secret."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from torch._C._distributed_c10d import Store

from asyncrl.core.errors import UsageError

SECRET = "ASYNCRL_SECRET"
"""The environment variable in which the ranks of a launcher find their secret."""
SHORTEST_SECRET = 16
SEAL_BYTES = 32
ABSENT = "\0absent"
"""Never a value: it has no seal."""


class Sealed:
    """The values in a store that carry a seal made with `secret`. Whatever else is there counts as absent.

    Anybody who reaches the store's port can write to it. Values are plain data, sent as JSON. The seal is an HMAC of
    key and value, so no value can be moved to another key.
    """

    def __init__(self, store: Store, secret: bytes, warn: Callable[[str], None] = lambda key: None) -> None:
        """`warn` is called with each key whose value was ignored."""
        self._store, self._secret, self._warn = store, secret, warn

    def put(self, key: str, value: Any) -> None:
        """Write a value that JSON can hold; None counts as absent."""
        text = json.dumps(value).encode()
        self._store.set(key, cast(str, self._seal(key, text) + text))  # typed as str, but it accepts bytes

    def get(self, key: str) -> Any:
        """A value; None if there is none, or one without a valid seal."""
        found = self._store.compare_set(key, ABSENT, ABSENT)  # `get` would wait for a key that does not exist
        if found == ABSENT.encode():
            return None
        seal, text = found[:SEAL_BYTES], found[SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(key, text)):
            self._warn(key)
            return None
        return json.loads(text)

    def take(self, key: str) -> Any:
        """Read a value and delete it; None if there is none."""
        value = self.get(key)
        if value is not None:
            self._store.delete_key(key)
        return value

    def _seal(self, key: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, key.encode() + b"\0" + text, "sha256")


def given_secret(text: str) -> bytes:
    """The secret in an environment variable's text; empty if it is. Raises UsageError if it is easy to guess."""
    if text and len(text) < SHORTEST_SECRET:
        raise UsageError(f"{SECRET} must have at least {SHORTEST_SECRET} characters: openssl rand -hex 16 makes some")
    return text.encode()


def own_secret() -> bytes:
    """A secret of this user on this machine, made at the first call. Raises UsageError if it cannot be kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "asyncrl" / "secret"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_secret(path)
        about = path.stat()
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise UsageError(f"{path} must belong to you, with mode 0600: delete it, or set {SECRET}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot keep a secret in {path} ({error.strerror}): set {SECRET} for all ranks") from None


def _make_secret(path: Path) -> None:
    """Of several processes at once one makes it."""
    draft = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_hex(32).encode())
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)  # whole, or not at all
    draft.unlink()
