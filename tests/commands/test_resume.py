"""A resumed run begins with what it was, not with the defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.commands.train import main
from asyncrl.config.commandline import value_of
from tests.support import status_of, the_run


def test_flags_of_a_resumed_run_are_checked_against_its_own_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """--schedule random fits a serial run only: this one is serial, which the words on resuming need not repeat."""
    words = ["--env-id", "Catch", "--backend", "serial", "--workers", "2", "--evaluation-episodes", "1"]
    assert main("asyncrl.a3c", [*words, "--total-steps", "100", "--runs-dir", str(tmp_path)]) == 0
    run = the_run(tmp_path)
    capfd.readouterr()

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "300", "--schedule", "random"]) == 0

    assert "changed on resume: --schedule round-robin -> random\n" in capfd.readouterr().out
    assert status_of(run)["steps"] >= 300


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], ""),
        (["--resume"], ""),
        (["--resume", "here"], "here"),
        (["--resume=here"], "here"),
        (["--quiet", "--resume", "here", "--seed", "2"], "here"),
        (["--resume", "here", "--resume=there"], "there"),
        (["--resumed", "here"], ""),
    ],
)
def test_one_flag_is_read_before_the_others(words: list[str], value: str) -> None:
    """In both spellings; the last one counts."""
    assert value_of("--resume", words) == value
