"""The kernel's own counts of processes that it has killed for lack of memory."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import pytest

from asyncrl.backends import processes
from asyncrl.backends.processes import Kills

GIB = 2**30


def write(root: Path, **files: str) -> None:
    """Files below `root`; a double underscore in a name is a folder's end, a single one a dot."""
    for name, text in files.items():
        file = root / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def machine(root: Path, kills: int) -> None:
    """A machine without control groups."""
    write(root, proc__vmstat=f"nr_free_algorithms 17\noom_kill {kills}\n")


def version_2(root: Path, kills: int) -> None:
    """A control group with a limit."""
    write(root, proc__self__cgroup="0::/job\n", sys__fs__cgroup__job__memory_DOT_max=f"{4 * GIB}\n")
    write(root, sys__fs__cgroup__job__memory_DOT_peak=f"{int(3.9 * GIB)}\n")
    write(root, sys__fs__cgroup__job__memory_DOT_events=f"low 0\noom 7\noom_kill {kills}\noom_group_kill 0\n")
    machine(root, 100 + 3 * kills)  # other containers' too


def container(root: Path, kills: int) -> None:
    """The same where the group's own path is not to be seen."""
    version_2(root, kills)
    write(root, proc__self__cgroup="0::/docker/a\n")
    for file in (root / "sys/fs/cgroup/job").iterdir():
        file.rename(root / "sys/fs/cgroup" / file.name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (machine, ""),
        (version_2, "3.9 GiB of 4.0 GiB were used"),
        (container, "3.9 GiB of 4.0 GiB were used"),
    ],
)
def test_each_kill_is_claimed_once(tmp_path: Path, make: Any, said: str) -> None:
    """Earlier ones, of whoever, are not."""
    make(tmp_path, 5)
    kills = Kills(tmp_path)
    assert kills.claim() is None

    make(tmp_path, 7)

    assert [kills.claim() for _ in range(3)] == [said, said, None]


def test_a_kill_of_long_ago_explains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's, in the same container: whoever is killed later was killed by hand."""
    machine(tmp_path, 0)
    kills = Kills(tmp_path)
    machine(tmp_path, 1)
    kills.look()
    monkeypatch.setattr(processes, "RECENT_SECONDS", 0.0)

    assert kills.claim() is None


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """Neither a count nor the memory in use; a limit may be `max`."""
    assert Kills(tmp_path).claim() is None

    version_2(tmp_path, 0)
    write(tmp_path, sys__fs__cgroup__job__memory_DOT_max="max\n")
    kills = Kills(tmp_path)
    version = "low 0\noom_kill 1\n"
    write(tmp_path, sys__fs__cgroup__job__memory_DOT_events=version)

    assert kills.claim() == ""


def test_only_a_process_that_sigkill_ended_was_killed_for_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory is told with it."""

    class Ended:
        exitcode = -signal.SIGSEGV
        pid = None

    version_2(tmp_path, 0)
    monkeypatch.setattr(processes, "KILLS", Kills(tmp_path))
    version_2(tmp_path, 1)

    assert processes.how_it_died(cast(Any, Ended())) == "was killed by SIGSEGV"
    Ended.exitcode = -signal.SIGKILL
    told = "was killed, probably for lack of memory (3.9 GiB of 4.0 GiB were used)"
    assert processes.how_it_died(cast(Any, Ended())) == told
    assert processes.how_it_died(cast(Any, Ended())) == "was killed by SIGKILL"
