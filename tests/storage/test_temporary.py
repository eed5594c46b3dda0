"""Temporary folders: those that killed processes have left are removed, and no others."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.storage.temporary import OWNER, temporary_folder

MAKE = """
import sys
from asyncrl.storage.temporary import temporary_folder
print(temporary_folder(place=sys.argv[1]), flush=True)
sys.stdin.read()
"""
"""A process that makes a folder and waits for its end."""


def test_what_a_killed_process_has_left_is_removed_when_the_next_one_makes_a_folder(tmp_path: Path) -> None:
    """Not while it lives, even if it is stopped."""
    words = [sys.executable, "-c", MAKE, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            folder = Path(other.stdout.readline().strip())
            (folder / "worker-00.jsonl").write_text("{}\n")
            other.send_signal(signal.SIGSTOP)
            first = Path(temporary_folder(place=str(tmp_path)))
            assert {*tmp_path.iterdir()} == {folder, first}
        finally:
            other.kill()

    second = Path(temporary_folder(place=str(tmp_path)))

    assert {*tmp_path.iterdir()} == {first, second}


@pytest.mark.parametrize("content", [None, b"", b"another machine"])
def test_folders_of_others_are_left_alone(tmp_path: Path, content: bytes | None) -> None:
    """Of programs that use such a name too, of a process that has no lock yet, and of those on another machine."""
    folder = tmp_path / "asyncrl-1-abc"
    folder.mkdir()
    if content is not None:
        (folder / OWNER).write_bytes(content)

    temporary_folder(place=str(tmp_path))

    assert folder.exists()


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows who lives."""
    first = temporary_folder(place=str(tmp_path))

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    second = temporary_folder(place=str(tmp_path))
    third = temporary_folder(place=str(tmp_path))

    assert {*map(str, tmp_path.iterdir())} == {first, second, third}
    assert (Path(second) / OWNER).read_bytes() == b""
