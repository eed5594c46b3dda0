"""The command: what it refuses, and that being killed changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.commands.speedup import main
from asyncrl.studies.study import Study

SMALL = (
    "--env-ids", "Catch", "--algorithms", "one_step_q", "--workers", "1", "2", "4", "--seeds", "1",
    "--backend", "serial", "--total-steps", "1000", "--evaluation-episodes", "5",
)  # fmt: skip
"""Three runs of a few seconds."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "2", "4"], "--workers must be positive and include 1"),
        (["--workers", "0", "1"], "--workers must be positive and include 1"),
        (["--total-steps", "0"], "--total-steps must be at least 1"),
        (["--evaluation-episodes", "0"], "--evaluation-episodes must be at least 1"),
        (["--price-per-core-hour", "-3"], "--price-per-core-hour must not be negative"),
        (["--max-seconds", "-1"], "--max-seconds must not be negative"),
        (["--", "--num-workers", "3"], "--workers is set by the study itself"),
        (["--algorithms", "a4c"], "--algorithms: there is no algorithm 'a4c'"),
        (
            ["--env-ids", "Catch", "Chain", "--total-steps", "1", "2", "3"],
            "--total-steps takes one value, or one for",
        ),
        (["--reference-score", "high"], "--reference-score takes numbers or auto, got high"),
        (["--reference-score", "nan"], "--reference-score takes numbers or auto, got nan"),
        (["--", "--seed", "7"], "--seed is set by the study itself"),
        (["--", "--total_steps=7"], "--total_steps is set by the study itself"),
        (["--ablation", "lock", "--", "--update", "locked"], "--update is set by the study itself"),
        (["--reference-fraction", "1.5"], "--reference-fraction must lie in (0, 1]"),
        (["--reference-evaluations", "0"], "--reference-evaluations must be at least 1"),
        (["--reference-evaluations", "3", "--stop-at-reference"], "it requires --reference-evaluations 1"),
        (["--backend", "serial", "--ablation", "lock"], "needs --backend local"),
        (["--backend", "collective", "--ablation", "lock"], "needs --backend local"),
        (["--backend", "collective", "--ablation", "staleness"], "needs --backend serial"),
        (["--ablation", "staleness"], "needs --backend serial"),
        (["--ablation", "exploration"], "leave a3c out"),
        (["--ablation", "exploration", "--algorithms", "n_step_q", "ppo"], "leave ppo out"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--env-ids", "Catch", "--", "--no-such-flag"], "there is no --no-such-flag"),
        (["--env-ids", "Nowhere-v0"], "Nowhere"),
        (["--report-only"], "contains no study to report on"),
    ],
)
def test_mistakes_are_one_line_before_any_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Exit code 2, and no run has been made."""
    assert main(["--runs-dir", str(tmp_path / "study"), *words]) == 2

    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("study/*/*/*"))


def test_a_study_refuses_cells_that_could_not_be_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Other steps, other flags, another reference score or another ablation in the same folder."""
    place = ["--runs-dir", str(tmp_path)]
    finished = tmp_path / "study.json"
    finished.write_text(
        json.dumps(
            {
                "ablation": "",
                "commands": [],
                "environments": {
                    "Catch": {
                        "max_steps": 1000, "max_seconds": 0.0, "evaluation_interval_steps": 10,
                        "evaluation_episodes": 20, "stop_at_reference": False, "words": [],
                    }
                },
                "references": [{"env_id": "Catch", "algorithm": "a3c", "score": 0.5, "how": "given"}],
                "cells": [],
            }
        )
    )  # fmt: skip
    before = finished.read_text()

    for words, message in (
        (["--total-steps", "2000", "--evaluation-interval-steps", "10"], "max_steps 1000, not 2000"),
        (["--total-steps", "1000", "--", "--t-max", "5"], "words (), not ('--t-max', '5')"),
        (["--total-steps", "1000", "--reference-score", "0.9"], "reference score 0.5 for Catch a3c"),
        (["--total-steps", "1000", "--ablation", "lock"], "another --runs-dir"),
    ):
        assert main([*place, "--env-ids", "Catch", "--algorithms", "a3c", *words]) == 2
        assert message in capfd.readouterr().err
    assert finished.read_text() == before


@pytest.mark.parametrize("content", [{"cells": [{"newer": 1}]}, [3], {"ablation": "unheard of"}, {"cells": 7}])
def test_a_study_of_another_version_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: object
) -> None:
    """Or of something else."""
    (tmp_path / "study.json").write_text(json.dumps(content))

    assert main(["--runs-dir", str(tmp_path), "--report-only"]) == 2

    assert re.match(r"asyncrl speedup: error: \S+/study\.json cannot be used \(\w+Error: ", capfd.readouterr().err)


def test_a_slip_of_the_finger_is_not_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The corrected line is not compared with it."""
    words = ["--runs-dir", str(tmp_path), *SMALL, "--workers", "1", "--total-steps", "10"]

    assert main([*words, "--", "--learning-rat", "0.1"]) == 2
    assert not (tmp_path / "study.json").exists()
    assert main([*words, "--", "--learning-rate", "0.1"]) == 0


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_study_that_was_killed_ends_with_the_table_of_an_unbroken_one(tmp_path: Path) -> None:
    """SIGKILL when one of three runs is there; the run that is going is waited for, finished ones are not repeated."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = [sys.executable, "-m", "asyncrl", "speedup", *SMALL, "--jobs", "1", "--runs-dir"]
    subprocess.run([*command, str(whole)], check=True, capture_output=True, timeout=900)

    with subprocess.Popen([*command, str(broken)], stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: finished_runs(broken))
        os.kill(process.pid, signal.SIGKILL)
    ended = {path: path.stat().st_mtime_ns for path in finished_runs(broken)}
    assert 1 <= len(ended) < 3
    subprocess.run([*command, str(broken)], check=True, capture_output=True, timeout=900)

    assert len(finished_runs(broken)) == 3
    assert {path: path.stat().st_mtime_ns for path in ended} == ended
    for name in ("table.csv", "runs.csv"):
        assert (broken / "report" / name).read_text() == (whole / "report" / name).read_text()
    assert Study(broken, "speedup").references == Study(whole, "speedup").references


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_signal_stops_the_runs_of_a_study(tmp_path: Path) -> None:
    """SIGTERM to the study alone ends it as Ctrl-C does, and the run that was going says that it was stopped."""
    words = ["--env-ids", "Catch", "--algorithms", "a3c", "--workers", "1", "--seeds", "1", "--backend", "serial"]
    command = [sys.executable, "-m", "asyncrl", "speedup", *words, "--total-steps", "1_000_000_000"]
    with subprocess.Popen([*command, "--runs-dir", str(tmp_path)], start_new_session=True) as process:
        (status,) = wait_for(lambda: list(tmp_path.glob("*/*/*/status.json")))
        wait_for(lambda: json.loads(status.read_text())["state"] == "running")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 130

    assert json.loads(status.read_text())["state"] == "stopped"


def finished_runs(runs_dir: Path) -> list[Path]:
    """The status files of finished runs."""
    files = runs_dir.glob("*/*/*/status.json")
    return [file for file in files if json.loads(file.read_text())["state"] == "finished"]


def wait_for(condition: Callable[[], Any]) -> Any:
    """What the condition gives, once that is true."""
    deadline = time.monotonic() + 400
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value
