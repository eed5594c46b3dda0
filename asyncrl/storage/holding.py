"""One process at a time in a folder, on whatever machines and file systems share it.

Whoever holds a folder locks a file in it (flock) and keeps a lease there: a line that it renews every few seconds.

- The lock settles everything between processes of one machine, also after a kill: the kernel takes it back at once.
- Where a file system has no locks, or only such as other machines do not see (NFS with nolock, Lustre with localflock),
  the lease does: whoever wants the folder watches a stranger's lease, and takes it over if it was not renewed for
  STALE_SECONDS by the watcher's own clock. So the clocks of two machines are never compared.

A process that was suspended, or cut off, while another took its folder over learns so from `Hold.lost`, and must end.
A thread renews the lease, because the process itself may be busy for minutes, with an evaluation for example.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from asyncrl.core.errors import UsageError
from asyncrl.storage.files import unlinked

RENEWAL_SECONDS = 5.0
STALE_SECONDS = 30.0
"""A lease that was not renewed for so long is nobody's any more."""
SETTLE_SECONDS = 1.0
"""Without locks two processes may take a folder in the same moment; after this time only one finds its own lease."""
POLL_SECONDS = 0.1
LOCK_TRIES = 10
"""Tries to get the lock, which those who only ask hold for a moment."""


class Held(UsageError):
    """Another process, which is alive, holds the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is in use: another process is training there")


class FolderLost(UsageError):
    """The folder that this process held is no longer its own, or no longer there."""


def lease(machine: str, token: str, beat: int) -> bytes:
    """What a holder writes into the file; `beat` counts the renewals."""
    return f"{machine} {os.getpid()} {token} {beat}\n".encode()


def token_of(content: bytes) -> tuple[str, str]:
    """Machine and token of a lease in a file; empty if it is not whole."""
    words = content.decode(errors="replace").split()
    return (words[0], words[2]) if len(words) == 4 else ("", "")


class Hold:
    """A folder that this process holds."""

    def __init__(self, file: FileIO, path: Path) -> None:
        self._file, self._path = file, path
        self._token = secrets.token_hex(8)
        self._beat = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="folder-lease")

    def fileno(self) -> int:
        """The descriptor that has the lock, for processes that are to share it."""
        return self._file.fileno()

    def lost(self) -> str | None:
        """Why the folder is no longer this process's, in words; None if it is, or if that cannot be seen now."""
        folder = self._path.parent
        try:
            if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                return f"{folder} was replaced by another folder"
            if token_of(self._path.read_bytes())[1] == self._token:
                return None
        except (FileNotFoundError, NotADirectoryError):
            return f"{folder} was deleted" + (f" in part: {self._path.name} is gone" if folder.is_dir() else "")
        except OSError:
            return None
        return f"another process has taken over {folder}, as this one had stopped responding"

    def take(self, settle: bool) -> None:
        """Write the lease, and renew it from now on. With `settle`, for want of a lock, see that nobody else did."""
        self._write()
        if settle:
            time.sleep(SETTLE_SECONDS)
            if self.lost() is not None:
                raise Held(self._path.parent)
        self._thread.start()

    def release(self, shared: bool = False) -> None:
        """Leave the file empty, unless it is another's by now; other processes that `shared` the lock keep it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(RENEWAL_SECONDS)
        with contextlib.suppress(OSError):
            if self.lost() is None:
                self._file.truncate(0)
        if not shared:
            unlock(self.fileno())

    def _renew(self) -> None:
        while not self._over.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError):  # the next renewal may succeed
                if self.lost() is None:
                    self._write()

    def _write(self) -> None:
        self._beat += 1
        self._file.seek(0)
        content = lease(this_machine(), self._token, self._beat)
        self._file.write(content)
        self._file.truncate(len(content))
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def holding(
    path: Path, say: Callable[[str], None], interrupted: Callable[[], bool] | None = None, waits: str = ""
) -> Iterator[Hold]:
    """Hold the folder of the file `path` during the block.

    Raises Held while another process that is alive holds it; or waits for its end, after the line `waits`. After a
    crash on another machine, or without locks, it takes STALE_SECONDS to know that nobody does, which is said; during
    that time KeyboardInterrupt is raised if `interrupted()`. Raises UsageError if the file cannot be opened.
    """
    try:
        file = FileIO(unlinked(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)), "r+")
    except OSError as error:
        raise UsageError(f"cannot write into {path.parent}: {error.strerror}") from error
    with file:
        locked = lock(file.fileno())
        if locked is False:
            if not waits:
                raise Held(path.parent)
            say(waits)
            locked = lock(file.fileno(), wait=True)
        _await_strangers(path, bool(locked), say, interrupted or (lambda: False), waits)
        hold = Hold(file, path)
        hold.take(settle=not locked)
        try:
            yield hold
        finally:
            hold.release(shared=bool(waits))  # the next one waits for runs of a study that go on


def is_held(path: Path) -> bool:
    """Whether a process that is alive holds the folder of the file `path`, as far as can be seen from here.

    Asking takes the lock for a moment only, shared with others who ask, and only if somebody has left a lease there.
    The folder may be read-only.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            if not (content := file.read()):
                return False
            locked = lock(file.fileno(), shared=True)
            age = time.time() - os.fstat(file.fileno()).st_mtime
            unlock(file.fileno())
    except OSError:
        return False
    if locked is False:
        return True
    return age < STALE_SECONDS and not (locked and token_of(content)[0] == this_machine())


def lock(descriptor: int, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock a file: whether that succeeded, None if this system or file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            if shared:
                return False
            time.sleep(POLL_SECONDS)
        except OSError:
            return None
        else:
            return True
    return False


def unlock(descriptor: int) -> None:
    """Give the lock back. Closing does not, if a process was forked meanwhile."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _await_strangers(
    path: Path, locked: bool, say: Callable[[str], None], interrupted: Callable[[], bool], waits: str
) -> None:
    """Return when the lease in the file is nobody's: released, of this machine and not locked, or not renewed."""
    seen, since = path.read_bytes(), time.monotonic()
    if not seen or (locked and token_of(seen)[0] == this_machine()):
        return
    say(f"waiting {STALE_SECONDS:.0f} seconds to see whether another process still works in {path.parent}")
    while time.monotonic() - since < STALE_SECONDS:
        if interrupted():
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)
        content = path.read_bytes()
        if not content:
            return
        if content != seen:
            if not waits:
                raise Held(path.parent)
            seen, since = content, time.monotonic()


def this_machine() -> str:
    """What distinguishes this machine, since its last start, from others; nothing can be read from it."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:16]
