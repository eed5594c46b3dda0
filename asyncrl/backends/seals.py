"""Who may speak in a group of ranks: messages carry a seal that only those can make who know the run's secret."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from typing import Any, cast

from torch._C._distributed_c10d import Store

from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import user_key

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
    """The secret of this user's ranks on this machine. Raises UsageError if it cannot be kept."""
    try:
        return hmac.digest(user_key(), b"ranks", "sha256")
    except OSError as error:
        raise UsageError(
            f"there is no secret for ranks ({error.strerror}{f', {error.filename}' if error.filename else ''}): "
            f"set {SECRET} for all of them"
        ) from None
