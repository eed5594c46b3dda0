"""Whole runs on Catch, through the command: what they leave, what they repeat, how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.commands.train import main
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.support import evaluations_of, status_of, the_run

CATCH = ("--env-id", "Catch", "--quiet", "--evaluation-interval-steps", "1000", "--evaluation-episodes", "4")


def train(runs_dir: Path, *words: str) -> Path:
    """A run in this process (serial backend); returns its folder."""
    assert main("asyncrl.a3c", [*CATCH, "--runs-dir", str(runs_dir), *words]) == 0
    return the_run(runs_dir)


def what_was_learnt(run: Path) -> dict[str, Any]:
    """Final parameters, statistics, and what was seen on the way."""
    checkpoint, _ = load_newest(run / "checkpoints")
    rows = [row for file in sorted(run.glob("worker-*.jsonl")) for row in read_records(file)]
    return {
        "parameters": {name: tensor.tolist() for name, tensor in checkpoint.parameters.items()},
        "statistics": checkpoint.tensors["statistics"].tolist(),
        "steps": checkpoint.steps,
        "episodes": [episode for row in rows for episode in row.get("episodes", [])],
    }


@pytest.mark.parametrize("schedule", [(), ("--schedule", "random"), ("--delays", "1", "2.5")])
def test_the_serial_backend_repeats_itself_bit_by_bit(tmp_path: Path, schedule: tuple[str, ...]) -> None:
    """Two runs with three workers: equal parameters, statistics, episodes and evaluations."""
    words = ("--backend", "serial", "--workers", "3", "--total-steps", "3000", *schedule)

    first, second = (train(tmp_path / name, *words) for name in ("first", "second"))

    assert what_was_learnt(first) == what_was_learnt(second)
    assert [row["returns"] for row in evaluations_of(first)] == [row["returns"] for row in evaluations_of(second)]


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    """So that the test above proves something."""
    words = ("--backend", "serial", "--workers", "2", "--total-steps", "2000")

    first, second = (train(tmp_path / seed, *words, "--seed", seed) for seed in ("1", "2"))

    assert what_was_learnt(first)["parameters"] != what_was_learnt(second)["parameters"]


def test_a_local_run_with_one_worker_equals_the_serial_one(tmp_path: Path) -> None:
    """The processes run the same loop: bit-identical parameters and episodes for the same seed."""
    words = ("--workers", "1", "--total-steps", "3000", "--seed", "5")

    serial = train(tmp_path / "serial", *words, "--backend", "serial")
    local = train(tmp_path / "local", *words, "--backend", "local")

    assert what_was_learnt(serial) == what_was_learnt(local)


@pytest.mark.parametrize("backend", ["serial", "local"])
@pytest.mark.parametrize("update", ["hogwild", "locked"])
@pytest.mark.parametrize("statistics", ["shared", "per-worker"])
def test_every_way_to_update_runs(tmp_path: Path, backend: str, update: str, statistics: str) -> None:
    """Two workers, all four combinations, both backends: finished, T within one rollout per worker of its end."""
    words = ("--backend", backend, "--workers", "2", "--total-steps", "2000")
    run = train(tmp_path, *words, "--update", update, "--statistics", statistics)

    status = status_of(run)
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    assert 2000 <= status["steps"] < 2000 + 2 * 64
    assert status["updates"] * 64 == status["steps"] == sum(status["worker_steps"])


def test_the_run_folder_holds_what_the_documentation_says(tmp_path: Path) -> None:
    """Configuration, host, status, records of everybody, checkpoints, TensorBoard."""
    run = train(tmp_path, "--workers", "2", "--total-steps", "3000", "--run-name", "here")

    assert run == tmp_path / "a3c" / "Catch" / "here"
    assert {path.name for path in run.iterdir()} == {
        "config.json", "config.signature", "host.json", "status.json", "supervisor.jsonl", "evaluator.jsonl",
        "worker-00.jsonl", "worker-01.jsonl", "checkpoints", "tb", "run.lock",
    }  # fmt: skip
    status = status_of(run)
    assert {"state", "reason", "steps", "updates", "seconds", "best_score", "exit_code", "dropped_gradients"} <= set(
        status
    )
    assert json.loads((run / "config.json").read_text())["config"]["total_steps"] == 3000
    host = json.loads((run / "host.json").read_text())
    assert host["torch_kernels"] == torch.backends.cpu.get_cpu_capability()
    assert {"cpu", "cpu_instructions", "versions"} <= set(host)
    for row in evaluations_of(run):
        assert {"steps", "frames", "seconds", "returns", "mean"} <= set(row)
        assert row["mean"] == pytest.approx(sum(row["returns"]) / len(row["returns"]))
    assert evaluations_of(run)[-1]["steps"] == status["steps"]
    assert list((run / "tb").glob("events.out.tfevents.*"))
    checkpoint, skipped = load_newest(run / "checkpoints")
    assert (checkpoint.steps, skipped) == (status["steps"], [])


def test_a_score_that_is_reached_ends_the_run(tmp_path: Path) -> None:
    """-1 is reached by the first evaluation, long before total_steps."""
    words = ("--workers", "2", "--total-steps", "1e7", "--stop-at-score", "-1")
    run = train(tmp_path, *words, "--backend", "serial")

    status = status_of(run)
    assert status["steps"] < 2000
    assert status["reason"] == "an evaluation reached -1.0"


def test_time_that_is_up_ends_the_run(tmp_path: Path) -> None:
    """One second of training out of very many."""
    run = train(tmp_path, "--workers", "2", "--total-steps", "1e9", "--max-seconds", "1")

    assert status_of(run)["reason"] == "max_seconds reached"


@pytest.mark.parametrize("backend", ["serial", "local"])
def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path, backend: str) -> None:
    """Steps, updates, seconds, best score and statistics continue; records and checkpoints are added to."""
    run = train(tmp_path, "--backend", backend, "--workers", "2", "--total-steps", "2000")
    before, evaluations = status_of(run), len(evaluations_of(run))
    checkpoint, _ = load_newest(run / "checkpoints")

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "4000"]) == 0

    after = status_of(run)
    assert after["part"] == 1
    assert 4000 <= after["steps"] < 4000 + 2 * 64
    assert after["updates"] * 64 == after["steps"]
    assert after["seconds"] > before["seconds"]
    assert after["best_score"] >= before["best_score"]
    assert len(evaluations_of(run)) > evaluations
    resumed, _ = load_newest(run / "checkpoints")
    assert resumed.steps == after["steps"] > checkpoint.steps


def test_resuming_says_what_changes_and_what_cannot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A changed flag is printed; another network, a finished run and a folder that is no run are refused."""
    run = train(tmp_path, "--backend", "serial", "--workers", "2", "--total-steps", "1000")
    capfd.readouterr()

    def resume(*words: str, path: Path = run) -> tuple[int, str]:
        code = main("asyncrl.a3c", ["--resume", str(path), *words])
        out, error = capfd.readouterr()
        return code, out + error

    assert resume()[0] == 2
    code, text = resume("--total-steps", "3000", "--hidden-sizes", "8")
    assert (code, "different layers" in text) == (2, True)
    code, text = resume("--total-steps", "3000", path=tmp_path / "nowhere")
    assert (code, text.count("\n")) == (2, 1)
    code, text = resume("--total-steps", "2000", "--learning-rate", "1e-4", "--no-quiet")
    assert code == 0
    assert "changed on resume: --learning-rate 0.0005 -> 0.0001" in text
    assert "environments begin new episodes" in text


def test_an_exception_in_a_worker_ends_the_run_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the terminal and in status.json."""
    (tmp_path / "broken.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Wrapper):\n"
        "    made = 0\n"
        "    def step(self, action):\n"
        "        Broken.made += 1\n"
        "        if Broken.made > 100: raise RuntimeError('the wheels came off')\n"
        "        return super().step(action)\n"
        "def make(): return Broken(gymnasium.make('CartPole-v1'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    code = main("asyncrl.a3c", ["--env-id", "broken:make", "--workers", "2", "--runs-dir", str(tmp_path / "runs")])

    assert code == 1
    assert "the wheels came off" in capfd.readouterr().err
    status = status_of(the_run(tmp_path / "runs"))
    assert status["state"] == "failed"
    assert "RuntimeError: the wheels came off" in status["traceback"]
    assert load_newest(the_run(tmp_path / "runs") / "checkpoints")[0].steps == status["steps"]
