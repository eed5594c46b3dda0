"""Runs that were killed go on: from a valid checkpoint, not from one that somebody else is writing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from asyncrl.commands.train import main
from asyncrl.runtime import monitor
from asyncrl.storage.checkpoints import find, load, load_newest
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from tests.faults.running import SECONDS, gone, running, training
from tests.storage.test_tensorboard import points
from tests.support import evaluations_of, status_of, the_run

pytestmark = pytest.mark.faults

SHORT = ("--env-id", "Catch", "--backend", "serial", "--workers", "2", "--quiet", "--evaluation-episodes", "1")


def test_a_run_that_is_still_alive_is_not_resumed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2, and the run goes on undisturbed. Once it was killed it can be resumed."""
    with training(tmp_path) as run:
        folder = run.folder
        for words in (("--resume", str(folder)), ("--resume", "auto", "--run-name", folder.name)):
            assert main("asyncrl.a3c", [*words, "--env-id", "Catch", "--runs-dir", str(tmp_path)]) == 2
            assert (
                capfd.readouterr().err == f"asyncrl a3c: error: {folder} is in use: another process is training there\n"
            )
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "more steps")
        everyone = run.everyone()
        run.process.kill()
        run.process.wait()
        assert gone(everyone)

    assert main("asyncrl.a3c", ["--resume", str(folder), "--max-seconds", "1e-3"]) == 0


def test_a_second_start_takes_nothing_away_from_the_first(tmp_path: Path) -> None:
    """What the first is about to save looks like what a killed save has left."""
    folder = RunFolder.create(tmp_path, "a3c", "Catch", "job")
    saving = folder.checkpoints / ".saving-step"
    with folder.occupied():
        saving.mkdir()
        assert main("asyncrl.a3c", [*SHORT, "--runs-dir", str(tmp_path), "--resume", "auto", "--run-name", "job"]) == 2
        assert saving.exists()


@pytest.mark.parametrize("backend", ["serial", "local"])
def test_a_run_that_was_killed_in_its_last_evaluation_makes_it_when_it_goes_on(tmp_path: Path, backend: str) -> None:
    """All steps are made, and a checkpoint says so; the run is not finished before the evaluation is."""
    words = [*SHORT, "--runs-dir", str(tmp_path), "--resume", "auto", "--run-name", "job", "--backend", backend]
    words += ["--evaluation-interval-steps", "0", "--total-steps", "500"]
    assert main("asyncrl.a3c", words) == 0
    run = the_run(tmp_path)
    steps = status_of(run)["steps"]
    (run / "status.json").write_text('{"state": "running"}')
    (run / "evaluator.jsonl").write_text("")

    assert main("asyncrl.a3c", words) == 0

    assert [row["steps"] for row in evaluations_of(run)] == [steps]
    assert (status_of(run)["state"], status_of(run)["steps"]) == ("finished", steps)
    assert main("asyncrl.a3c", ["--resume", str(run)]) == 2


def test_auto_begins_then_goes_on_then_has_nothing_to_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same words each time, as a cluster starts a job again; with more steps to make it goes on."""
    words = [*SHORT, "--runs-dir", str(tmp_path), "--resume", "auto", "--run-name", "job"]

    assert main("asyncrl.a3c", [*words, "--total-steps", "2000", "--max-seconds", "1e-9"]) == 0
    run = the_run(tmp_path)
    first = status_of(run)
    assert first["reason"] == "max_seconds reached"
    assert main("asyncrl.a3c", [*words, "--total-steps", "2000", "--max-seconds", "0"]) == 0
    second = status_of(run)
    assert (second["part"], second["reason"]) == (1, "total_steps reached")
    assert second["steps"] > first["steps"]
    capfd.readouterr()

    assert main("asyncrl.a3c", [*words, "--total-steps", "2000", "--max-seconds", "0"]) == 0
    assert capfd.readouterr().out == f"{run} is finished; there is nothing to do\n"
    assert status_of(run) == second
    assert main("asyncrl.a3c", [*words, "--total-steps", "3000", "--max-seconds", "0"]) == 0
    assert status_of(run)["part"] == 2


def test_auto_goes_on_with_a_run_that_only_its_time_has_ended(tmp_path: Path) -> None:
    """The same words each time: every job of a chain trains as long as it may, until the steps are made."""
    words = [*SHORT, "--runs-dir", str(tmp_path), "--resume", "auto", "--run-name", "job", "--max-seconds", "1e-9"]
    steps = [0]
    for part in range(3):
        assert main("asyncrl.a3c", [*words, "--total-steps", "1e6"]) == 0
        status = status_of(the_run(tmp_path))
        assert (status["part"], status["state"], status["reason"]) == (part, "finished", "max_seconds reached")
        steps.append(status["steps"])

    assert sorted(set(steps)) == steps


def test_auto_without_a_name_takes_the_newest_of_those_it_would_have_named(tmp_path: Path) -> None:
    """Not that of another seed, number of workers or environment."""
    words = [*SHORT, "--runs-dir", str(tmp_path), "--total-steps", "500", "--max-seconds", "1e-9"]
    for name in ("w2-s1-20200101-000000", "w2-s1-20210101-000000", "w2-s10-20220101-000000", "mine"):
        assert main("asyncrl.a3c", [*words, "--run-name", name]) == 0

    assert main("asyncrl.a3c", [*words, "--resume", "auto", "--max-seconds", "0"]) == 0

    parts = {status.parent.name: status_of(status.parent)["part"] for status in tmp_path.glob("*/*/*/status.json")}
    assert parts == {"w2-s1-20200101-000000": 0, "w2-s1-20210101-000000": 1, "w2-s10-20220101-000000": 0, "mine": 0}


def test_auto_begins_again_where_a_start_was_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    """There is a folder of that name, with or without settings, and nothing to go on from."""
    (tmp_path / "a3c" / "Catch" / "job" / "checkpoints").mkdir(parents=True)
    words = [*SHORT, "--runs-dir", str(tmp_path), "--total-steps", "500", "--run-name", "job"]

    assert main("asyncrl.a3c", words) == 2
    assert main("asyncrl.a3c", [*words, "--resume", "auto"]) == 0
    assert status_of(the_run(tmp_path))["part"] == 0


def test_tensorboard_hides_what_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written after the checkpoint from which a run goes on is no longer shown."""
    monkeypatch.setattr(monitor, "INTERVAL_SECONDS", 1e9)  # a row at the end of each part, and none on the way
    words = [*SHORT, "--runs-dir", str(tmp_path), "--checkpoint-interval-steps", "400"]
    assert main("asyncrl.a3c", [*words, "--total-steps", "1000"]) == 0
    run = the_run(tmp_path)
    ((end, _),) = points(run / "tb", "workers/worker_restarts")
    *_, checkpoint, last = find(run / "checkpoints")
    shutil.rmtree(last)
    steps = load(checkpoint).steps
    assert steps < end

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 0

    assert min(step for step, _ in points(run / "tb", "workers/worker_restarts")) > end
    assert min(step for step, _ in points(run / "tb", "time/time_elapsed")) > end


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_that_is_killed_50_times_always_resumes_and_reaches_its_score(tmp_path: Path) -> None:
    """The whole process group: every second time after a random number of steps, else while a checkpoint is written.

    Ten kills at least find a save half made, however many it takes.
    """
    interval = 4_000
    words = ("--env-id", "CartPole-v1", "--workers", "2", "--total-steps", "1e8", "--quiet", "--resume", "auto",
             "--run-name", "job", "--checkpoint-interval-steps", str(interval), "--evaluation-interval-steps", "20_000",
             "--evaluation-episodes", "20", "--record-interval-seconds", "0")  # fmt: skip
    folder = tmp_path / "a3c" / "CartPole-v1" / "job"
    moments = random.Random(1)
    lost: list[int] = []
    during_a_save, steps = 0, 0
    while len(lost) < 50 or during_a_save < 10:
        with running(tmp_path, *words) as run:
            run.until(lambda: starts_of(folder) == len(lost) + 1, "it trains")
            everyone = run.everyone()
            if len(lost) % 2:
                wait_for_a_save(folder / "checkpoints")
            else:
                moment = steps + moments.uniform(0, 1.5 * interval)
                run.until(lambda: last_steps(folder) >= moment, "steps")  # noqa: B023
            os.killpg(run.process.pid, signal.SIGKILL)
            assert gone(everyone)
        during_a_save += any((folder / "checkpoints").glob(".saving-*"))
        checkpoint, skipped = load_newest(folder / "checkpoints")
        assert skipped == []
        steps = checkpoint.steps
        lost.append(last_steps(folder) - steps)

    with running(tmp_path, *words, "--stop-at-score", "475") as run:
        run.process.wait(timeout=900)
        assert run.process.returncode == 0
    status = status_of(folder)
    assert (status["state"], starts_of(folder)) == ("finished", len(lost) + 1)
    assert status["best_score"] >= 475
    print(f"{len(lost)} kills, {during_a_save} of them during a save; up to {max(lost)} steps lost, "
          f"{statistics.median(lost)} in the median; {status['steps']} steps, "
          f"{status['part']} parts left a checkpoint")  # fmt: skip


def wait_for_a_save(folder: Path) -> None:
    """Until a checkpoint is being written, which takes some hundredths of a second."""
    deadline = time.monotonic() + SECONDS
    while not any(folder.glob(".saving-*")):
        assert time.monotonic() < deadline, "in vain: a save"
        time.sleep(0.001)


def last_steps(folder: Path) -> int:
    """T as a worker knew it at its last update: it writes a row for each."""
    return max(last_row(file).get("steps", 0) for file in folder.glob("worker-*.jsonl"))


def last_row(file: Path) -> dict[str, Any]:
    """The last whole row of records that may be long, and may be going on."""
    with open(file, "rb") as records:
        records.seek(max(0, file.stat().st_size - 100_000))
        whole, _, _ = records.read().rpartition(b"\n")
    row: dict[str, Any] = json.loads(whole.rpartition(b"\n")[2])
    return row


def starts_of(folder: Path) -> int:
    """How often training began in a run's folder."""
    rows = read_records(folder / "supervisor.jsonl") if folder.exists() else []
    return sum(row.get("event") in ("started", "resumed") for row in rows)
