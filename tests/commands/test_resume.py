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


def test_a_preset_is_for_a_new_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its settings are not those of the run, whatever it would be called; the one it has may be given again."""
    words = ["--env-id", "Catch", "--backend", "serial", "--workers", "1", "--evaluation-episodes", "1"]
    assert main("asyncrl.a3c", [*words, "--total-steps", "100", "--runs-dir", str(tmp_path)]) == 0
    again = ["--resume", str(the_run(tmp_path)), "--total-steps", "200"]

    assert main("asyncrl.a3c", [*again, "--preset", "paper"]) == 2
    assert "--preset is for a new run: this one began with default" in capfd.readouterr().err
    assert main("asyncrl.a3c", [*again, "--preset", "default"]) == 0


def test_a_run_stays_in_its_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its own name and place may be given again, also through a link, and after the folder was moved."""
    new = ["--env-id", "Catch", "--backend", "serial", "--workers", "2", "--evaluation-episodes", "1"]
    place = tmp_path / "runs"
    assert main("asyncrl.a3c", [*new, "--total-steps", "100", "--runs-dir", str(place), "--run-name", "one"]) == 0
    run = the_run(place)
    before = (run / "config.json").read_bytes()

    for words in (["--run-name", "other"], ["--runs-dir", str(tmp_path / "elsewhere")]):
        assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "300", *words]) == 2
        assert "a run that is resumed stays in its folder" in capfd.readouterr().err
        assert (run / "config.json").read_bytes() == before

    (tmp_path / "link").symlink_to(place)
    again = ["--resume", str(run), "--run-name", "one"]
    assert main("asyncrl.a3c", [*again, "--total-steps", "300", "--runs-dir", str(tmp_path / "link")]) == 0
    moved = place.rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    run.parent.mkdir(parents=True)
    run.symlink_to(the_run(moved))
    assert main("asyncrl.a3c", [*again, "--total-steps", "500", "--runs-dir", str(place)]) == 0
    assert status_of(the_run(moved))["steps"] >= 500

    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a3c").symlink_to(moved / "a3c")
    auto = ["--resume", "auto", "--run-name", "one", "--runs-dir", str(tmp_path / "linked")]
    assert main("asyncrl.a3c", [*new, *auto, "--total-steps", "700"]) == 0
    assert status_of(the_run(moved))["steps"] >= 700


@pytest.mark.parametrize("backend", ["serial", "local"])
def test_a_score_that_the_last_evaluation_reaches_is_the_reason(
    tmp_path: Path, backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every score in Catch is at least -1. The run has reached its end then, not only its time."""
    words = ["--env-id", "Catch", "--backend", backend, "--workers", "1", "--stop-at-score", "-1", "--run-name", "one"]
    words += ["--evaluation-interval-steps", "1000000", "--runs-dir", str(tmp_path), "--max-seconds", "0.2"]
    assert main("asyncrl.a3c", words) == 0
    status = status_of(the_run(tmp_path))

    assert status["reason"] == "an evaluation reached -1.0"
    assert main("asyncrl.a3c", [*words, "--resume", "auto"]) == 0
    assert status_of(the_run(tmp_path))["steps"] == status["steps"]
    capfd.readouterr()
    assert main("asyncrl.a3c", [*words, "--resume", "auto", "--max-seconds", "0.3"]) == 0
    assert "changed on resume: --max-seconds 0.2 -> 0.3" in capfd.readouterr().out


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
