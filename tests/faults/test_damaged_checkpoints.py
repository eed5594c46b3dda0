"""Checkpoints that were damaged or are another's: skipped or refused by name, none loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncrl.storage import checkpoints
from asyncrl.train import main
from tests.support import status_of, the_run

pytestmark = pytest.mark.faults

WORDS = ("--backend", "serial", "--workers", "2", "--quiet", "--evaluation-episodes", "1", "--total-steps", "1000")
CATCH = ("--env-id", "Catch", *WORDS, "--checkpoint-interval-steps", "300")


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip_a_bit,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
    "another's": lambda file: file.write_bytes(b"{}"),
}


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str, name: str
) -> None:
    """The one before it is taken; when all are damaged the run is refused, with each of them named."""
    assert main("asyncrl.a3c", [*CATCH, "--runs-dir", str(tmp_path)]) == 0
    run = the_run(tmp_path)
    *others, newest = checkpoints.find(run / "checkpoints")
    assert others
    DAMAGES[damage](newest / name)
    kept = tmp_path / "kept"
    shutil.copytree(run, kept)
    capfd.readouterr()

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 0
    error = capfd.readouterr().err
    assert error.startswith(f"skipped a checkpoint: {newest / name}: ")
    assert error.count("\n") == 1
    assert status_of(run)["part"] == 1

    for path in checkpoints.find(kept / "checkpoints"):
        if path.name != newest.name:
            DAMAGES[damage](path / name)
    assert main("asyncrl.a3c", ["--resume", str(kept), "--total-steps", "2000"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert all(str(path / name) in error for path in checkpoints.find(kept / "checkpoints"))


@pytest.mark.parametrize(
    ("page", "words", "complaint"),
    [
        ("n_step_q", (), "is a run of a3c; resume it with that command"),
        ("a3c", ("--hidden-sizes", "7"), "the checkpoint's network has other layers than this run's"),
        ("a3c", ("--env-id", "Chain"), "the checkpoint's env_id is Catch, this run's is Chain"),
        ("a3c", ("--optimizer", "rmsprop"), "the checkpoint's optimizer is adam, this run's is rmsprop"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], page: str, words: tuple[str, ...], complaint: str
) -> None:
    """Another page, network, environment, optimiser: one line each."""
    assert main("asyncrl.a3c", [*CATCH, "--runs-dir", str(tmp_path)]) == 0
    run = the_run(tmp_path)
    capfd.readouterr()

    assert main(f"asyncrl.{page}", ["--resume", str(run), "--total-steps", "2000", *words]) == 2
    error = capfd.readouterr().err
    assert (complaint in error, error.count("\n")) == (True, 1)
