"""Rows survive the death of the process that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.storage.records import RecordReader, RecordWriter, read_records
from tests.storage.limits import no_file_beyond


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-00.jsonl"


def write(path: Path, *rows: dict[str, Any]) -> None:
    with RecordWriter(path) as writer:
        for row in rows:
            writer.write(row)


def test_rows_come_back_in_order(path: Path) -> None:
    write(path, {"steps": 1, "return": -21.0}, {"steps": 2, "text": "two\nlines \u2028 and ü"})
    assert read_records(path) == [{"steps": 1, "return": -21.0}, {"steps": 2, "text": "two\nlines \u2028 and ü"}]
    assert path.read_bytes().count(b"\n") == 2


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
    with RecordWriter(path) as writer:
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


def test_a_full_disk_tears_no_row(path: Path) -> None:
    """The part of a row that still fits is taken away again, and writing goes on once there is room."""
    with RecordWriter(path) as writer:
        writer.write({"steps": 1})
        with no_file_beyond(20), pytest.raises(OSError, match=r"worker-00\.jsonl|File too large"):
            writer.write({"text": "x" * 100})
        assert path.read_bytes() == b'{"steps":1}\n'
        writer.write({"steps": 2})
    assert read_records(path) == [{"steps": 1}, {"steps": 2}]


def test_a_folder_that_does_not_exist_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "absent" / "worker-00.jsonl")
