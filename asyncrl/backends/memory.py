"""Whether the kernel has killed processes for lack of memory, by its own count."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

RECENT_SECONDS = 60.0
"""A process that was killed has ended by then, however much memory it had."""
NO_LIMIT = 2**60
"""Version 1 of control groups has a number near 2**63 for no limit."""
GIB = 2**30


@dataclass(frozen=True)
class Files:
    """The names of a control group's files, in one version of control groups."""

    kills: str
    used: str
    limit: str


NEW = Files("memory.events", "memory.peak", "memory.max")
OLD = Files("memory.oom_control", "memory.max_usage_in_bytes", "memory.limit_in_bytes")


class Kills:
    """Counts processes that the kernel has killed for lack of memory: in this control group, or on this machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        counting = (group for group in _groups(root) if _number(group[0] / group[1].kills, "oom_kill") is not None)
        self._group = next(counting, None)
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
        return self._memory()

    def _read(self) -> int:
        """The count of this process's control group; without one, the machine's."""
        if self._group is None:
            return _number(self._root / "proc/vmstat", "oom_kill") or 0
        folder, files = self._group
        return _number(folder / files.kills, "oom_kill") or 0

    def _memory(self) -> str:
        """The most memory that the group has used, and its limit; else the machine's; empty if nobody says."""
        if self._group is not None:
            folder, files = self._group
            used, limit = _number(folder / files.used), _number(folder / files.limit)
            if used is not None and limit is not None and limit < NO_LIMIT:
                return f"{used / GIB:.1f} GiB of {limit / GIB:.1f} GiB were used"
        facts = self._root / "proc/meminfo"
        total, available = _number(facts, "MemTotal:"), _number(facts, "MemAvailable:")
        if total is None or available is None:
            return ""
        return f"{(total - available) * 1024 / GIB:.1f} GiB of {total * 1024 / GIB:.1f} GiB are still used"


def _groups(root: Path) -> list[tuple[Path, Files]]:
    """Folders in which this process's control group may be.

    In a container the group's own path need not exist, since the group is mounted as the root.
    """
    places: list[tuple[Path, Files]] = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                tops, files = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"], NEW
            elif "memory" in controllers.split(","):
                tops, files = [root / "sys/fs/cgroup/memory"], OLD
            else:
                continue
            places += [(folder, files) for top in tops for folder in (top / path.lstrip("/"), top)]
    return places


def _number(file: Path, word: str = "") -> int | None:
    """The number after `word` in a file, or the only one in it; None if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if not word:
            return int(file.read_text())
        for line in file.read_text().splitlines():
            if line.split()[0] == word:
                return int(line.split()[1])
    return None
