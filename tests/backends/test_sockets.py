"""Where the fork server's socket lies: paths of sockets are short, TMPDIR need not be."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process
from pathlib import Path
from typing import Any

import pytest

from asyncrl.backends import sockets
from asyncrl.commands import doctor
from asyncrl.commands.train import main

WORDS = ["--env-id", "Catch", "--workers", "2", "--total-steps", "500", "--quiet", "--evaluation-interval-steps", "0"]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Those of multiprocessing in this process, without a folder."""
    found: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(found, "tempdir", None)
    return found


@pytest.mark.parametrize("length", [76, 90, 200])
def test_a_long_temporary_folder_is_not_used(
    tmp_path: Path, length: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is elsewhere, and nobody else may enter it."""
    long = tmp_path / ("x" * max(1, length - len(str(tmp_path)) - 1))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    sockets.make_place()
    place = settings["tempdir"]
    sockets.make_place()

    assert settings["tempdir"] == place  # one is enough
    assert os.stat(place).st_mode & 0o777 == 0o700
    assert len(place) + len("/listener-12345678") < 104
    assert list(long.iterdir()) == [] or len(str(long)) < 76
    shutil.rmtree(place)


def test_a_folder_that_cannot_be_written_to_is_passed_over(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that does not exist."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")

    sockets.make_place()

    assert settings["tempdir"].startswith("/tmp/asyncrl-")
    shutil.rmtree(settings["tempdir"])


@pytest.mark.usefixtures("settings")
def test_without_any_place_a_run_is_refused_before_it_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and exit code 2, from the doctor too; a serial run needs no socket."""
    monkeypatch.setattr(sockets, "LONGEST_PATH", 20)

    assert main("asyncrl.a3c", [*WORDS, "--runs-dir", str(tmp_path / "runs")]) == 2
    assert doctor.main(["--env-id", "Catch"]) == 2

    assert not (tmp_path / "runs").exists()
    first, second = capsys.readouterr().err.splitlines()
    assert "there is no folder for a socket" in first
    assert "there is no folder for a socket" in second
    assert main("asyncrl.a3c", [*WORDS, "--backend", "serial", "--runs-dir", str(tmp_path / "runs")]) == 0


def test_a_child_removes_only_the_folder_that_its_parent_has_made(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have made one, or multiprocessing itself."""

    class Parent:
        pid = 1234

    monkeypatch.setattr(sockets.multiprocessing, "parent_process", Parent)
    for name, is_left in (("asyncrl-1234-abc", False), ("asyncrl-1235-abc", True), ("pymp-abc", True)):
        settings["tempdir"] = str(tmp_path / name)
        (tmp_path / name).mkdir()

        sockets.remove_place()

        assert (tmp_path / name).exists() == is_left


def test_a_child_of_a_parent_without_a_folder_removes_none(settings: dict[str, Any]) -> None:
    """One that did not come from the fork server."""
    sockets.remove_place()

    assert settings["tempdir"] is None
