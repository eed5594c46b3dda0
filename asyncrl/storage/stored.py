"""config.json of a run as data: who wrote it, and which code it may make this process import.

A run's folder may come from anybody. So config.json is signed with a key that only this user has on this machine: what
it names is imported if the signature is right, if the call at hand names it itself, or if the user says that the folder
is to be trusted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.catalog import ALGORITHMS, module_of
from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import is_name
from asyncrl.storage.files import plain, replace_file

SIGNATURE = "config.signature"
REGISTRARS = ("ale_py", "gymnasium", "minigrid", "minatar")
"""Modules that only register environments with Gymnasium: `ale_py:ALE/Pong-v5` needs nobody's word."""
OWN_ALGORITHMS = frozenset(map(module_of, ALGORITHMS))
LOADED = ("env_id", "network")
"""Settings that name code which a run needs in order to be played."""
CODE = (*LOADED, "exploration")
"""The same for a run that is to train."""
PLACES = ("address", "init_method")
"""Settings that name processes to connect to, whose messages are code as well (docs/ray.md)."""
TRAINED = (*CODE, *PLACES)
"""Code and places that a run needs in order to train."""
KEY_BYTES = 32
_OF_THIS_PROCESS = secrets.token_bytes(KEY_BYTES)


@dataclass(frozen=True)
class Permission:
    """What a call says itself about the code that it needs."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """Its own settings, which replace a folder's, and `algorithm`. Their modules may be imported."""
    trust: bool = False
    """Whether everything that the folder names may be imported."""

    def modules(self) -> set[str]:
        """The modules that the call names, other than asyncrl's own algorithms."""
        given = {name: text for name, text in self.given.items() if isinstance(text, str)}
        code = {text.partition(":")[0] for name, text in given.items() if name in CODE and ":" in text}
        return code | ({given.get("algorithm", "").partition(":")[0]} - OWN_ALGORITHMS)


NONE_GIVEN = Permission()


@dataclass(frozen=True)
class Stored:
    """What a run's config.json holds. Nothing that it names has been imported."""

    path: Path
    algorithm: str
    config: dict[str, Any]
    environment: dict[str, Any]
    program: str
    """Who handed over what is called `__main__:attribute`."""
    is_own: bool
    """Whether this user has written it on this machine."""

    def usable_algorithm(self, permission: Permission) -> str:
        """The name of the algorithm, which may be imported. Raises UsageError."""
        algorithm = module_of(self.algorithm)
        if algorithm.startswith("__main__:"):
            from asyncrl.core.named import known_here

            return known_here(algorithm, self.program)
        self._require_trust([] if algorithm in OWN_ALGORITHMS else [("algorithm", algorithm)], permission)
        return algorithm

    def usable_config(self, permission: Permission, trains: bool) -> dict[str, Any]:
        """The settings, of which everything they name may be imported; what a program handed over has its name here.

        Raises UsageError, with one line that says what would be imported and how to allow it. Settings that the call
        gives are left as they are.
        """
        from asyncrl.core.named import PROGRAM, known_here

        named = [(name, self.config.get(name)) for name in (TRAINED if trains else LOADED)]
        kept = [(name, text) for name, text in named if isinstance(text, str) and name not in permission.given]
        foreign = [(name, text) for name, text in kept if _is_foreign(name, text)]
        if trains and (track := self.config.get("track")) and "track" not in permission.given:
            foreign.append(("track", " and ".join(map(str, track)) if isinstance(track, list) else str(track)))
        self._require_trust(foreign, permission)
        config = self.config | {
            name: known_here(text, self.program) for name, text in kept if text.startswith("__main__:")
        }
        words = () if "env_kwargs" in permission.given else config.get("env_kwargs")
        for word in words if isinstance(words, list | tuple) else ():
            key, _, text = str(word).partition("=@")
            if text.startswith("__main__:") and self.program != PROGRAM:
                raise UsageError(f"{self.path}: the program passed env_kwargs {key}: give env_kwargs again")
        return config

    def _require_trust(self, foreign: list[tuple[str, str]], permission: Permission) -> None:
        named = permission.modules()
        refused = [_told(name, text) for name, text in foreign if text.partition(":")[0] not in named]
        if refused and not permission.trust and not self.is_own:
            trouble = _key()[1]
            raise UsageError(
                f"{self.path.parent} was created by somebody else or on another machine, and would {', '.join(refused)}"
                f": if you trust it, add --trust (in Python trust=True), or name it in this call"
                f"{f' ({trouble})' if trouble else ''}"
            )


def _is_foreign(name: str, text: str) -> bool:
    """Whether a setting names code that neither asyncrl nor Gymnasium knows, or a place to connect to."""
    if name in PLACES:
        return text not in ("", "auto")
    module, colon, _ = text.partition(":")
    return bool(colon) and (is_name(text) or module not in REGISTRARS)


def _told(name: str, text: str) -> str:
    verb = "log to" if name == "track" else "connect to" if name in PLACES else "import"
    return f"{verb} {text} ({name})"


def read_stored(file: Path, flat: bool = False) -> Stored:
    """Read a run's config.json; `flat`: the settings may also stand by themselves. Raises UsageError if it cannot."""
    try:
        content = file.read_bytes()
        data = json.loads(content)
        if flat and not isinstance(data.get("config"), dict):
            data = {"algorithm": data.pop("algorithm", ""), "config": data}
        algorithm, config, environment = data["algorithm"], dict(data["config"]), dict(data.get("environment") or {})
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {type(error).__name__}: {error}") from None
    return Stored(file, str(algorithm), config, environment, str(data.get("program", "")), _is_signed(file, content))


def write_stored(file: Path, algorithm: str, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    """Write and sign a run's config.json.

    The signatures of the old file and of the new one are written first, so that no kill leaves a file without its own.
    """
    data = {"algorithm": algorithm, "config": config, "environment": environment}
    if "__main__:" in f"{algorithm} {config}":
        from asyncrl.core.named import PROGRAM

        data["program"] = PROGRAM
    content = (json.dumps(plain(data), indent=2, allow_nan=False) + "\n").encode()
    signatures = [_signature(content)]
    with contextlib.suppress(OSError):
        before = file.read_bytes()
        signatures += [_signature(before)] if _is_signed(file, before) else []
    replace_file(file.with_name(SIGNATURE), b"\n".join(dict.fromkeys(signatures)) + b"\n")
    replace_file(file, content)


def _is_signed(file: Path, content: bytes) -> bool:
    try:
        signatures = file.with_name(SIGNATURE).read_bytes().split()
    except OSError:
        return False
    return any(hmac.compare_digest(_signature(content), signature) for signature in signatures)


def _signature(content: bytes) -> bytes:
    return hmac.new(_key()[0], content, hashlib.sha256).hexdigest().encode()


def _key() -> tuple[bytes, str]:
    """The user's key and ""; or a key of this process alone, and why none can be kept."""
    try:
        return user_key(), ""
    except OSError as error:
        where = f", {error.filename}" if error.filename else ""
        return _OF_THIS_PROCESS, f"your own runs are not recognised either: {error.strerror}{where}"


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
