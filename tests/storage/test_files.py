"""A file is its old content or its new content, never anything between."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.storage.files import plain, read_facts, read_json, write_json
from tests.storage.limits import no_file_beyond


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    data = {"steps": 1200, "rate": 0.5, "name": "Größe", "list": [1, None, True], "nested": {"a": "b"}}
    write_json(tmp_path / "status.json", data)
    assert read_json(tmp_path / "status.json") == data


def test_writing_again_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    write_json(tmp_path / "status.json", {"a": 1, "long": "x" * 100})
    write_json(tmp_path / "status.json", {"a": 2})
    assert read_json(tmp_path / "status.json") == {"a": 2}
    assert os.listdir(tmp_path) == ["status.json"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path, number: float) -> None:
    write_json(tmp_path / "status.json", {"score": number, "scores": [1.0, (number,)]})
    text = (tmp_path / "status.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"score": None, "scores": [1.0, [None]]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (torch.tensor(3), 3),
        (torch.tensor(float("inf")), None),
        (True, True),
        (Path("a") / "b", str(Path("a") / "b")),
        ({3: (1, 2)}, {"3": [1, 2]}),
        (2**100, 2**100),
    ],
)
def test_scalars_of_numpy_and_torch_become_python_numbers(value: Any, expected: Any) -> None:
    result = plain(value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(3), torch.zeros(3), b"bytes"])
def test_what_json_cannot_say_is_refused_and_the_old_file_stays(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "status.json", {"old": 1})
    with pytest.raises(TypeError, match="not plain data"):
        write_json(tmp_path / "status.json", {"deep": [value]})
    assert read_json(tmp_path / "status.json") == {"old": 1}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_in_any_phase_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_json(tmp_path / "status.json", {"old": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "status.json", {"new": 2})
    assert read_json(tmp_path / "status.json") == {"old": 1}
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    write_json(tmp_path / "status.json", {"old": 1})
    with no_file_beyond(100), pytest.raises(OSError, match="File too large"):
        write_json(tmp_path / "status.json", {"new": "x" * 1000})
    assert read_json(tmp_path / "status.json") == {"old": 1}
    assert os.listdir(tmp_path) == ["status.json"]


def test_the_content_is_synced_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        tape.append("sync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        tape.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    write_json(tmp_path / "status.json", {})
    assert tape == ["sync file", "rename to status.json", "sync folder"]


@pytest.mark.parametrize(("number", "is_borne"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_folders_that_cannot_be_synced_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_borne: bool
) -> None:
    """Some file systems have no such call; a disk that fails is another matter."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with nullcontext() if is_borne else pytest.raises(OSError, match="Input/output"):
        write_json(tmp_path / "status.json", {"steps": 3})

    assert read_json(tmp_path / "status.json") == {"steps": 3}


def test_reading_something_else_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"torn": ')
    with pytest.raises(ValueError, match=r"status\.json is not valid JSON"):
        read_json(tmp_path / "status.json")
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, '{"a":' * 100_000])
def test_facts_that_cannot_be_read_are_none(tmp_path: Path, content: str) -> None:
    """However deep they are nested."""
    (tmp_path / "status.json").write_text(content)
    assert read_facts(tmp_path / "status.json") == {}


def test_facts_are_not_read_through_a_link(tmp_path: Path) -> None:
    """They may be shown, and a stranger's folder may link to a secret."""
    (tmp_path / "secret.json").write_text('{"key": 1}')
    (tmp_path / "host.json").symlink_to(tmp_path / "secret.json")

    assert read_facts(tmp_path / "secret.json") == {"key": 1}
    assert read_facts(tmp_path / "host.json") == {}
