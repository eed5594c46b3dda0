"""What cannot be written now is written later; what is given up is counted."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path

import pytest

from asyncrl.storage import files
from asyncrl.storage.files import AppendedFile, Backlog, append_whole, disk_trouble


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_pieces_that_fail_come_later_in_their_order(number: int) -> None:
    """Every second write fails."""
    written, calls = [], 0

    def write(piece: int) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise failure(number)
        written.append(piece)

    book = Backlog[int](write)
    for piece in range(20):
        book.put(piece)
    book.insist()
    assert (written, book.missing, book.trouble) == (list(range(20)), 0, os.strerror(number))


def test_the_end_of_a_run_gives_each_piece_its_tries() -> None:
    """Many wait when a disk comes back that still fails now and then; one that fails for good gets three tries."""
    written, calls, broken = [], 0, True

    def write(piece: int) -> None:
        nonlocal calls
        calls += 1
        if broken or calls % 2:
            raise failure(errno.EIO)
        written.append(piece)

    book = Backlog[int](write)
    for piece in range(9):
        book.put(piece)
    calls = 0
    assert not book.insist()
    assert calls == 3

    broken = False
    assert book.insist()
    assert written == list(range(9))


def test_too_many_pieces_cost_the_oldest() -> None:
    """A process that writes a row per update on a disk that stays full must not fill the memory instead."""

    def write(piece: int) -> None:
        raise failure(errno.ENOSPC)

    book = Backlog[int](write, most=3)
    for piece in range(10):
        book.put(piece)
    book.insist()
    assert book.missing == 10


def test_a_mistake_of_ours_is_raised() -> None:
    """It is not the disk's."""
    with pytest.raises(ZeroDivisionError):
        Backlog[int](lambda piece: 1 // piece).put(0)


def test_a_handle_that_has_become_stale_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the file server: the old handle fails for ever."""
    file = AppendedFile(tmp_path / "rows")
    file.put(b"1\n")
    stale = file._file

    def append(handle: FileIO, content: bytes) -> None:
        if handle is stale:
            raise failure(errno.ESTALE)
        append_whole(handle, content)

    monkeypatch.setattr(files, "append_whole", append)
    file.put(b"2\n")
    assert file.missing == 1
    file.put(b"3\n")
    file.close()
    assert (tmp_path / "rows").read_bytes() == b"1\n2\n3\n"


def test_part_of_a_piece_never_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the disk fails in the middle of it and does not let it be cut off then."""
    file = AppendedFile(tmp_path / "rows")
    file.put(b"1\n")
    fails = True

    def append(handle: FileIO, content: bytes) -> None:
        if fails:
            handle.write(content[: len(content) // 2])
            raise failure(errno.EIO)
        append_whole(handle, content)

    monkeypatch.setattr(files, "append_whole", append)
    file.put(b"two\n")
    file.put(b"three\n")
    fails = False
    file.put(b"4\n")
    file.close()
    assert (tmp_path / "rows").read_bytes() == b"1\ntwo\nthree\n4\n"


def test_a_failing_write_is_cut_off(tmp_path: Path) -> None:
    """By `append_whole` itself, where the disk lets it."""

    class Half(FileIO):
        def write(self, content: bytes) -> int:  # type: ignore[override]
            super().write(content[:2])
            raise failure(errno.EIO)

    with Half(tmp_path / "rows", "a") as file, pytest.raises(OSError, match="Input/output error"):
        append_whole(file, b"12345")
    assert (tmp_path / "rows").read_bytes() == b""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (failure(errno.ENOSPC), "the disk is full"),
        (failure(errno.EDQUOT), "the disk is full"),
        (failure(errno.EIO), "the disk is failing"),
        (failure(errno.ESTALE), "the disk is failing"),
        (failure(errno.ENOENT), None),
        (ValueError(), None),
    ],
)
def test_what_an_error_says_about_the_disk(error: Exception, said: str | None) -> None:
    """A mistake of ours is not its fault."""
    assert disk_trouble(error) == said
