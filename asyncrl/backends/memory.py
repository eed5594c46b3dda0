"""Whether the kernel has killed processes for lack of memory, by its own count."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

RECENT_SECONDS = 60.0
"""A process that was killed has ended by then, however much memory it had."""
GIB = 2**30


class Kills:
    """Counts processes that the kernel has killed for lack of memory: in this control group, or on this machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        top, own = root / "sys/fs/cgroup", ""
        with contextlib.suppress(OSError):  # version 2 of control groups has one line, 0::/PATH
            own = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        # In a container the group is mounted as the root, so that its own path need not exist.
        self._group = next((group for group in (top / own, top) if (group / "memory.events").exists()), None)
        self._file = self._group / "memory.events" if self._group else root / "proc/vmstat"
        self._count = self._read()
        self._risen: list[float] = []
        """When each kill that nobody has claimed was seen, by the monotonic clock."""

    def look(self) -> None:
        """Note kills since the last look."""
        now, count = time.monotonic(), self._read()
        self._risen = [moment for moment in self._risen if now - moment < RECENT_SECONDS]
        self._risen += [now] * (count - self._count)
        self._count = count

    def claim(self) -> str | None:
        """If a process that was killed now was probably killed for lack of memory: the memory in use, in words.

        None if there was no such kill. Each kill is claimed once.
        """
        self.look()
        if not self._risen:
            return None
        self._risen.pop(0)
        if self._group is None:
            return ""
        try:
            used, limit = (int((self._group / name).read_text()) / GIB for name in ("memory.peak", "memory.max"))
        except (OSError, ValueError):  # an older kernel, or no limit: `max`
            return ""
        return f"{used:.1f} GiB of {limit:.1f} GiB were used"

    def _read(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split()[:2] for line in self._file.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
        return 0
