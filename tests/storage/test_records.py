"""Rows survive the death of the process that writes them."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.storage import files
from asyncrl.storage.records import RecordReader, RecordWriter, read_records
from asyncrl.storage.rows import made_last
from tests.storage.limits import no_file_beyond


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-00.jsonl"


def write(path: Path, *rows: dict[str, Any]) -> None:
    with closing(RecordWriter(path)) as writer:
        for row in rows:
            writer.write(row)


def test_rows_come_back_in_order(path: Path) -> None:
    write(path, {"steps": 1, "return": -21.0}, {"steps": 2, "text": "two\nlines \u2028 and ü"})
    assert read_records(path) == [{"steps": 1, "return": -21.0}, {"steps": 2, "text": "two\nlines \u2028 and ü"}]
    assert path.read_bytes().count(b"\n") == 2


def test_what_a_run_made_anew_takes_the_place_of_what_it_had_made() -> None:
    """Resumed twice; rows without steps stay where they are."""

    def made(*steps: int) -> list[int]:
        rows = made_last([{"steps": at} if at else {"event": "ready"} for at in steps])
        return [row.get("steps", 0) for row in rows]

    assert made(0, 100, 200, 300, 0, 150, 250, 350, 0, 200, 300) == [0, 100, 0, 150, 0, 200, 300]
    assert made(100, 200, 300, 0, 200, 300, 300) == [100, 0, 200, 300, 300]
    assert made(100, 300, 0, 200, 0, 200) == [100, 0, 200, 0, 200]
    assert made() == []


def test_a_row_is_visible_before_the_file_is_closed(path: Path) -> None:
    writer = RecordWriter(path)
    writer.write({"steps": 1})
    assert read_records(path) == [{"steps": 1}]
    writer.close()
    writer.close()


def test_a_number_that_is_not_finite_is_written_as_null(path: Path) -> None:
    write(path, {"nan": float("nan"), "list": [1.5, float("inf")], "numpy": np.float32("-inf")})
    line = path.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"nan": None, "list": [1.5, None], "numpy": None}


def test_a_row_that_is_not_plain_leaves_the_file_as_it_was(path: Path) -> None:
    with closing(RecordWriter(path)) as writer:
        writer.write({"steps": 1})
        with pytest.raises(TypeError, match="not plain data"):
            writer.write({"array": np.zeros(3)})
        writer.write({"steps": 2})
    assert read_records(path) == [{"steps": 1}, {"steps": 2}]


def test_an_existing_file_is_continued(path: Path) -> None:
    write(path, {"part": 0})
    write(path, {"part": 1})
    assert read_records(path) == [{"part": 0}, {"part": 1}]


@pytest.mark.parametrize("torn", [b'{"steps": 2, "ret', b"\x00\x00\x00", b"\xff\xfe", b'{"steps": 2}'[:-1], b"["])
def test_a_torn_last_line_costs_only_itself(path: Path, torn: bytes) -> None:
    """A new writer ends the torn line, so the next row begins on a line of its own."""
    path.write_bytes(b'{"steps": 1}\n' + torn)
    assert read_records(path) == [{"steps": 1}]
    write(path, {"steps": 3})
    assert read_records(path) == [{"steps": 1}, {"steps": 3}]


@pytest.mark.parametrize("line", [b"", b"null", b"3", b'["a"]', b"{'a': 1}", b"\x80", b"[" * 100_000])
def test_a_line_that_holds_no_row_is_skipped_and_counted(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"b": 2}\n')
    reader = RecordReader(path)
    assert reader.new() == [{"a": 1}, {"b": 2}]
    assert reader.skipped == 1


def test_a_reader_returns_each_row_once(path: Path) -> None:
    reader = RecordReader(path)
    assert reader.new() == []  # the file does not exist yet
    writer = RecordWriter(path)
    assert reader.new() == []
    writer.write({"steps": 1})
    writer.write({"steps": 2})
    assert reader.new() == [{"steps": 1}, {"steps": 2}]
    assert reader.new() == []
    writer.write({"steps": 3})
    assert reader.new() == [{"steps": 3}]
    writer.close()


def test_a_reader_waits_for_the_end_of_a_line(path: Path) -> None:
    line = b'{"name": "\xc3\xbc"}\n'
    reader = RecordReader(path)
    for end in range(len(line)):
        path.write_bytes(line[:end])
        assert reader.new() == []
    path.write_bytes(line)
    assert reader.new() == [{"name": "ü"}]


def test_a_reader_goes_on_behind_a_torn_line_that_was_ended(path: Path) -> None:
    path.write_bytes(b'{"steps": 1}\n{"ste')
    reader = RecordReader(path)
    assert reader.new() == [{"steps": 1}]
    write(path, {"steps": 3})
    assert reader.new() == [{"steps": 3}]
    assert reader.skipped == 1


def test_a_reader_opens_no_file_while_nothing_is_new(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, {"steps": 1})
    reader = RecordReader(path)
    reader.new()
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("opened"))
    assert reader.new() == []


def test_a_reader_starts_again_with_a_file_that_was_replaced(path: Path) -> None:
    write(path, {"steps": 1}, {"steps": 2})
    reader = RecordReader(path)
    reader.new()
    path.unlink()
    write(path, {"new": 1})
    assert reader.new() == [{"new": 1}]


def test_a_full_disk_tears_no_row_and_costs_none(path: Path) -> None:
    """The part of a row that still fits is taken away again. Once there is room, all rows are there, in order."""
    with closing(RecordWriter(path)) as writer:
        writer.write({"steps": 1})
        with no_file_beyond(20):
            writer.write({"text": "x" * 100})
            writer.write({"steps": 2})
            assert path.read_bytes() == b'{"steps":1}\n'
            assert (writer.missing, writer.trouble) == (2, "No space left on device")
        writer.write({"steps": 3})
        assert writer.missing == 0
    assert read_records(path) == [{"steps": 1}, {"text": "x" * 100}, {"steps": 2}, {"steps": 3}]


def test_a_folder_that_does_not_exist_loses_rows_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has deleted it: whoever supervises the run says so, once, instead of every process with a traceback."""
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    with closing(RecordWriter(tmp_path / "absent" / "worker-00.jsonl")) as writer:
        writer.write({"steps": 1})
    assert (writer.missing, os.listdir(tmp_path)) == (1, [])


def test_a_reader_that_follows_waits_for_a_file_that_cannot_be_read_now(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads a file once is told."""
    write(path, {"steps": 1})
    reader = RecordReader(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fails := Failing(errno.ESTALE))
        assert reader.new() == []
        with pytest.raises(OSError, match="Stale file handle"):
            read_records(path)
        assert fails.calls == 2
    assert reader.new() == [{"steps": 1}]


class Failing:
    """A call that raises an OSError."""

    def __init__(self, number: int) -> None:
        self.number, self.calls = number, 0

    def __call__(self, *_: object) -> Any:
        self.calls += 1
        raise OSError(self.number, os.strerror(self.number))
