"""Searches by Optuna: what is proposed, stopped early, gone on with and reported."""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.commands.sweep import main, understand
from asyncrl.core.errors import UsageError
from asyncrl.core.extras import to_install
from asyncrl.studies import jobs
from asyncrl.studies import search as searching
from asyncrl.studies.jobs import Job, RunningJobs
from asyncrl.studies.search import Search, importances
from asyncrl.studies.study import Study

optuna = pytest.importorskip("optuna")
RATE = ("--learning-rate", "log-uniform", "1e-5", "1e-1")
WORDS = ("--env-ids", "Catch", "--total-steps", "1000", "--jobs", "1", *RATE)


def rate_of(job: Job) -> float:
    """The learning rate of a run, by its words."""
    return float(job.words[job.words.index("--learning-rate") + 1])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Runs are made up: five evaluations whose mean is best at a learning rate of 1e-3; lists what was asked for."""
    made: list[Job] = []

    def run(self: RunningJobs, job: Job, enough: Callable[[], bool] | None = None) -> str:
        made.append(job)
        folder = job.folder(self._runs_dir)
        folder.mkdir(parents=True)
        score = -abs(math.log10(rate_of(job)) + 3)
        state = "finished"
        with open(folder / "evaluator.jsonl", "a") as file:
            for number in range(1, 6):
                file.write(json.dumps({"steps": 200 * number, "mean": score - 5 + number}) + "\n")
                file.flush()
                if enough is not None and enough():
                    state = "stopped"
                    break
        (folder / "status.json").write_text(json.dumps({"state": state, "steps": 200 * number}))
        return ""

    monkeypatch.setattr(jobs.RunningJobs, "run", run)
    return made


def table(folder: Path) -> list[dict[str, str]]:
    """The rows of the report."""
    with open(folder / "report" / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_search_proposes_from_lists_and_bounds_and_finds_the_best(
    tmp_path: Path, runs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole numbers stay whole; the best rows are said, first in the table, and marked."""
    words = [*WORDS, "--t-max", "uniform", "5", "20", "--optimizer", "adam", "rmsprop", "--trials", "12"]
    assert main([*words, "--runs-dir", str(tmp_path)]) == 0

    said = capsys.readouterr().out
    rows = table(tmp_path)
    assert (len(runs), len(rows)) == (12, 12)
    rates = [float(row["learning_rate"]) for row in rows]
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)
    assert all(row["t_max"] in map(str, range(5, 21)) for row in rows)
    assert {row["optimizer"] for row in rows} == {"adam", "rmsprop"}
    scores = [float(row["best"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert "best of 12 runs in Catch:\n" in said
    assert f"learning_rate {rows[0]['learning_rate']}, t_max {rows[0]['t_max']}, optimizer " in said
    report = (tmp_path / "report" / "report.md").read_text()
    assert report.count("| **a3c** | **Catch** |") == 1
    assert "parallel.png" in report
    assert "importance.png" in report


def test_a_search_that_was_killed_goes_on_with_what_it_was_at(tmp_path: Path, runs: list[Job]) -> None:
    """The same line makes what is left, and the run that was interrupted with its own settings."""
    line = [*WORDS, "--trials", "4", "--runs-dir", str(tmp_path)]
    assert main(line) == 0
    _, axes = understand(line, "asyncrl sweep")
    killed = Search(Study(tmp_path, "sweep"), "", "a3c", "Catch", axes, (), 4, 1, False, 1).optuna().ask()
    rate = killed.suggest_float("learning_rate", 1e-5, 1e-1, log=True)

    assert main([*WORDS, "--trials", "6", "--runs-dir", str(tmp_path)]) == 0

    assert rate_of(runs[4]) == pytest.approx(rate, rel=1e-5)
    assert (len(runs), len({rate_of(job) for job in runs})) == (6, 6)
    assert main([*WORDS, "--trials", "6", "--runs-dir", str(tmp_path)]) == 0
    assert len(runs) == 6


def test_bad_runs_are_stopped_early(tmp_path: Path, runs: list[Job], capsys: pytest.CaptureFixture[str]) -> None:
    """Below the median of the others; they stay in the table, and are made with one seed only."""
    words = [*WORDS, "--trials", "15", "--prune", "--seeds", "2"]
    assert main([*words, "--runs-dir", str(tmp_path)]) == 0

    rows = table(tmp_path)
    pruned = [row for row in rows if row["state"] == "stopped"]
    assert pruned
    assert {row["seed"] for row in pruned} == {"1"}
    assert len(rows) == len(runs) == 30 - len(pruned)
    assert capsys.readouterr().out.count(": stopped early") == len(pruned)


def test_a_run_that_failed_is_told_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts as a trial."""
    asked: list[Job] = []
    monkeypatch.setattr(RunningJobs, "run", lambda self, job, enough: (asked.append(job), "ended with code 1")[1])
    line = [*WORDS, "--trials", "2", "--runs-dir", str(tmp_path)]

    assert main(line) == 1
    assert "failed: a3c Catch " in capsys.readouterr().err
    assert main(line) == 0
    assert len(asked) == 2


def test_settings_that_are_impossible_together_are_a_trial_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """The search goes on; but not if the machine has no room for any."""
    made_up, asked, full = RunningJobs.run, [], True

    def run(self: RunningJobs, job: Job, enough: Callable[[], bool] | None) -> str:
        asked.append(job)
        if full:
            raise UsageError(f"{job}: the disk is full")
        if {"900", "800"} <= {*job.words}:
            raise UsageError(f"{job}: --warmup-steps must be at most --memory-steps, got 900")
        return made_up(self, job, enough)

    monkeypatch.setattr(RunningJobs, "run", run)
    words = ["--algorithms", "gorila", "--warmup-steps", "60", "900", "--memory-steps", "800", "1000"]
    line = [*WORDS, *words, "--workers", "1", "--envs-per-worker", "1", "--trials", "12", "--runs-dir", str(tmp_path)]

    assert main(line) == 2
    assert "the disk is full" in capsys.readouterr().err
    full = False
    assert main(line) == 1
    told = capsys.readouterr().err
    assert told.count("got 900") == sum({"900", "800"} <= {*job.words} for job in asked[1:]) > 0
    assert main(line) == 0


def test_trials_of_the_same_settings_share_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if they begin at the same time."""
    made: list[str] = []

    def run(self: RunningJobs, job: Job, enough: Callable[[], bool] | None) -> str:
        folder = job.folder(self._runs_dir)
        folder.mkdir(parents=True)
        made.append(job.name)
        time.sleep(0.1)
        (folder / "evaluator.jsonl").write_text(json.dumps({"steps": 1000, "mean": 3.0}) + "\n")
        (folder / "status.json").write_text(json.dumps({"state": "finished", "steps": 1000}))
        return ""

    monkeypatch.setattr(RunningJobs, "run", run)
    words = ["--env-ids", "Catch", "--total-steps", "1000", "--jobs", "4", "--gamma", "0.9", "0.99", "--trials", "8"]

    assert main([*words, "--runs-dir", str(tmp_path)]) == 0

    assert len(made) == len(set(made)) <= 2


def test_a_search_among_other_values_is_another_one(
    tmp_path: Path, runs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and the one that is there can be continued."""
    line = [*WORDS, "--runs-dir", str(tmp_path), "--gamma", "0.9", "0.99"]
    assert main([*line, "--trials", "1"]) == 0

    assert main([*line, "0.95", "--trials", "2"]) == 2
    refusal = f"{tmp_path} has a search of a3c Catch among other settings: choose another --runs-dir"
    assert refusal in capsys.readouterr().err.splitlines()[-1]
    assert main([*line, "--trials", "2"]) == 0
    assert len(runs) == 2


@pytest.mark.parametrize(
    "other",
    [
        ["--total-steps", "2000", *RATE],
        ["--total-steps", "1000", "--t-max", "8", *RATE],
        ["--total-steps", "1000", "--learning-rate", "log-uniform", "1e-4", "1e-1"],
        ["--total-steps", "1000", "--seeds", "2", *RATE],
    ],
)
def test_the_trials_of_another_search_are_not_counted(
    tmp_path: Path, runs: list[Job], capsys: pytest.CaptureFixture[str], other: list[str]
) -> None:
    """It is refused before the first run, also of another environment, for which there is no search yet."""
    assert main([*WORDS, "--trials", "2", "--runs-dir", str(tmp_path)]) == 0

    for env_ids in (["Catch"], ["Chain", "Catch"]):
        assert main(["--env-ids", *env_ids, *other, "--trials", "2", "--runs-dir", str(tmp_path)]) == 2
        assert "has a search of a3c Catch among other settings" in capsys.readouterr().err
    assert len(runs) == 2
    line = ["--env-ids", "Chain", *WORDS[2:], "--trials", "2", "--runs-dir", str(tmp_path)]
    assert main(line) == 0
    assert len(runs) == 4


def test_the_last_trials_get_the_cores_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[Job]
) -> None:
    """With more of them they would have more workers by default."""
    asked: list[tuple[int, int]] = []

    def run_tasks(tasks: Any, runs_dir: Path, slots: int, lock: int, say: Any) -> list[str]:
        asked.append((len(tasks), slots))
        return jobs.run_tasks(tasks, runs_dir, slots, lock, say)

    monkeypatch.setattr(searching, "run_tasks", run_tasks)
    line = ["--env-ids", "Catch", "--total-steps", "1000", "--jobs", "4", *RATE, "--runs-dir", str(tmp_path)]
    assert main([*line, "--trials", "4"]) == 0
    assert main([*line, "--trials", "5"]) == 0

    assert asked == [(4, 4), (1, 4)]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--trials", "3", "--learning-rate", "5", "log-uniform", "1e-5", "1e-1"], "a search takes no number of draws"),
        (["--learning-rate", "log-uniform", "1e-5", "1e-1"], "give one, or --trials for a search"),
        (["--trials", "3", "--learning-rate", "log-uniform", "0", "1e-1"], "LOW below HIGH, above 0"),
        (["--trials", "3", "--t-max", "uniform", "-4", "5"], "--t-max must be at least 1"),
        (["--prune"], "--prune is for a search: give --trials"),
        (["--trials", "3", "--print-jobs"], "--print-jobs is for sweeps without --trials"),
        (["--trials", "-1"], "--trials must not be negative"),
    ],
)
def test_mistakes_are_one_line_before_any_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    """Exit code 2."""
    assert main(["--env-ids", "Catch", *words, "--runs-dir", str(tmp_path)]) == 2

    error = capfd.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_nothing_to_collect_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped folder is not made."""
    place = tmp_path / "mistyped"

    assert main([*WORDS, "--trials", "2", "--report-only", "--runs-dir", str(place)]) == 2

    assert f"{place} contains no study to report on" in capsys.readouterr().err
    assert not place.exists()


def test_a_search_without_optuna_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And other sweeps do without it."""
    monkeypatch.setitem(sys.modules, "optuna", None)

    assert main([*WORDS, "--trials", "3", "--runs-dir", str(tmp_path)]) == 2
    assert f"a search needs Optuna: {to_install('search')}" in capfd.readouterr().err
    assert importances([({"a": str(i)}, float(i)) for i in range(20)], ["a"]) == {}


def test_what_decides_is_important() -> None:
    """Of two settings one makes the score; too few runs tell nothing."""
    rows: list[Any] = [({"rate": f"{i / 40}", "width": f"{i * 7 % 40}"}, i / 40) for i in range(40)]
    found = importances(rows, ["rate", "width"])

    assert found["rate"] > 0.6
    assert sum(found.values()) == pytest.approx(1.0)
    assert importances(rows[:4], ["rate", "width"]) == {}


def test_another_command_adds_to_the_sweep(tmp_path: Path, runs: list[Job]) -> None:
    """The report has the runs of both, and the settings in which they differ; "" is the default."""
    place = ["--env-ids", "Catch", "--total-steps", "1000", "--runs-dir", str(tmp_path)]
    assert main([*place, "--learning-rates", "1e-3", "1e-2"]) == 0
    assert main([*place, "--learning-rate", "1e-3", "--t-max", "8"]) == 0

    rows = table(tmp_path)
    settings = {(row["learning_rate"], row["t_max"]) for row in rows}
    assert len(runs) == len(rows) == 3
    assert settings == {("1e-3", ""), ("1e-2", ""), ("1e-3", "8")}
    assert len(Study(tmp_path, "sweep").commands) == 2


def test_small_environments_get_a_core_each(
    tmp_path: Path, runs: list[Job], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the line says how many at a time, or how many workers."""
    import asyncrl.commands.study as command

    monkeypatch.setattr(command, "usable_cores", lambda: [0, 1, 2])
    asked: list[int] = []
    monkeypatch.setattr(command, "run_jobs", lambda jobs, runs_dir, slots, lock, say: asked.append(slots) or [])
    place = ["--env-ids", "Catch", "--total-steps", "1000", "--runs-dir", str(tmp_path)]

    for words in ([], ["--jobs", "2"], ["--workers", "4"], ["--backend", "serial"], ["--seeds", "2"]):
        assert main([*place, *words]) == 0

    assert asked == [3, 2, 1, 3, 3]
    assert "small environments: 3 runs at a time, one core each" in capsys.readouterr().out
