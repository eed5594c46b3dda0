"""A serial run that was interrupted and resumed is, bit by bit, the run that would have been without."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.backends import serial
from asyncrl.backends.outcome import Signals
from asyncrl.catalog import module_of
from asyncrl.commands.train import main
from asyncrl.runtime import evaluator
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.support import evaluations_of, status_of, the_run

STEPS, INTERVAL = 3000, 1000
COMMON = ("--backend", "serial", "--workers", "3", "--quiet", "--evaluation-episodes", "2")


def train(algorithm: str, runs_dir: Path, *words: str) -> Path:
    """A run in this process; returns its folder."""
    assert main(module_of(algorithm), [*COMMON, "--runs-dir", str(runs_dir), *words]) == 0
    return the_run(runs_dir)


def interrupted_at_the_first_checkpoint(run: Path, to: Path) -> Path:
    """A copy of a run as a kill right after its first checkpoint by interval would have left it."""
    shutil.copytree(run, to)
    _, first, *later = checkpoints.find(to / "checkpoints")
    assert later
    for path in later:
        shutil.rmtree(path)
    steps = checkpoints.load(first).steps
    rows = [row for row in evaluations_of(to) if row["steps"] <= steps]
    (to / "evaluator.jsonl").write_text("")
    assert len(rows) < len(evaluations_of(run))
    return to


def state_of(run: Path) -> dict[str, Any]:
    """All of the last checkpoint that learning depends on."""
    checkpoint, skipped = load_newest(run / "checkpoints")
    assert skipped == []
    tensors = {**checkpoint.parameters, **checkpoint.tensors}
    return {"steps": checkpoint.steps, "updates": checkpoint.updates, **tensors}


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert same, name


def recorded(run: Path) -> dict[str, Any]:
    """What the rows of all workers, and of a learner, add up to."""
    workers = [read_records(file) for file in (*sorted(run.glob("worker-*.jsonl")), *run.glob("learner.jsonl"))]
    rows = [row for records in workers for row in records if "time" in row]
    return {
        "steps": sum(row.get("worker_steps", 0) for row in rows),
        "updates": sum(row.get("updates", 0) for row in rows),
        "episodes": [[episode for row in records for episode in row.get("episodes", ())] for records in workers],
    }


MEMORY = ("--checkpoint-replay", "--warmup-steps", "300", "--memory-steps", "1500", "--replay-ratio", "0.1")
CASES = {
    "chain": ("a3c", "--env-id", "Chain"),
    "catch, random schedule": ("a3c", "--env-id", "Catch", "--schedule", "random"),
    "catch, delays": ("a3c", "--env-id", "Catch", "--delays", "1", "2.5"),
    "catch, lstm, normalised": (
        "a3c", "--env-id", "Catch", "--lstm-cells", "8", "--normalize-observations", "--normalize-returns",
    ),
    "catch, own statistics": ("a3c", "--env-id", "Catch", "--statistics", "per-worker"),
    "catch, unusual losses": ("tests.seams.stable_a3c", "--env-id", "Catch", "--max-loss-deviations", "0.5"),
    "cartpole": ("a3c", "--env-id", "CartPole-v1"),
    "cartpole, q": ("n_step_q", "--env-id", "CartPole-v1"),
    "cartpole, sarsa": ("one_step_sarsa", "--env-id", "CartPole-v1"),
    "cartpole, one-step q": ("one_step_q", "--env-id", "CartPole-v1"),
    "pendulum": ("a3c", "--env-id", "Pendulum-v1"),
    "mountain car": ("n_step_q", "--env-id", "MountainCar-v0"),
    "cartpole, a2c": ("a2c", "--env-id", "CartPole-v1"),
    "cartpole, ppo": ("ppo", "--env-id", "CartPole-v1", "--t-max", "16"),
    "cartpole, impala": ("impala", "--env-id", "CartPole-v1", "--delays", "1", "1", "2", "4"),
    "cartpole, gorila": ("gorila", "--env-id", "CartPole-v1", *MEMORY, "--schedule", "random"),
    "cartpole, gorila, its first minibatch later": (
        "gorila", "--env-id", "CartPole-v1", *MEMORY, "--warmup-steps", str(3 * INTERVAL // 2),
    ),
    "cartpole, apex": ("apex", "--env-id", "CartPole-v1", *MEMORY),
    "pendulum, apex_dpg": ("apex_dpg", "--env-id", "Pendulum-v1", *MEMORY, "--minibatch", "32"),
    "pendulum, sac": ("sac", "--env-id", "Pendulum-v1", *MEMORY, "--minibatch", "32"),
    "pendulum, sac by priority": (
        "sac", "--env-id", "Pendulum-v1", *MEMORY, "--minibatch", "32", "--priority-exponent", "0.6",
        "--normalize-observations", "--normalize-returns", "--n-step", "3",
    ),
    "catch, a2c, lstm": ("a2c", "--env-id", "Catch", "--lstm-cells", "8", "--schedule", "random"),
    "catch, ppo, lstm": ("ppo", "--env-id", "Catch", "--lstm-cells", "8", "--t-max", "16", "--minibatches", "3"),
    "catch, impala, lstm": ("impala", "--env-id", "Catch", "--lstm-cells", "8", "--queue-length", "3"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_serial_run_equals_an_unbroken_one(
    tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Parameters, statistics, moments, random streams, target network, and the scores of all later evaluations."""
    algorithm, *words = CASES[case]
    words += ["--total-steps", str(STEPS), "--checkpoint-interval-steps", str(INTERVAL)]
    words += ["--checkpoints-kept", "10", "--evaluation-interval-steps", "700"]
    whole = train(algorithm, tmp_path / "runs", *words)
    broken = interrupted_at_the_first_checkpoint(whole, tmp_path / "broken")

    assert main(module_of(algorithm), ["--resume", str(broken), "--no-quiet"]) == 0

    assert "every worker continues where it was" in capfd.readouterr().out
    assert_equal(state_of(broken), state_of(whole))
    later = evaluations_of(broken)
    assert later
    assert [row["returns"] for row in later] == [row["returns"] for row in evaluations_of(whole)[-len(later) :]]


@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_a_resumed_serial_run_of_a_game_equals_an_unbroken_one(tmp_path: Path, game: str) -> None:
    """Screens, emulator and its random numbers (sticky actions) included."""
    words = ["--env-id", f"ALE/{game}-v5", "--workers", "2", "--envs-per-worker", "2", "--t-max", "5"]
    words += ["--sticky-actions", "0.25", "--evaluation-interval-steps", "0", "--max-episode-steps", "60"]
    words += ["--total-steps", "400", "--checkpoint-interval-steps", "120", "--checkpoints-kept", "10"]
    words += ["--evaluation-episodes", "1"]
    whole = train("a3c", tmp_path / "runs", *words)
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    for path in checkpoints.find(broken / "checkpoints")[2:]:
        shutil.rmtree(path)

    assert main("asyncrl.a3c", ["--resume", str(broken)]) == 0

    assert_equal(state_of(broken), state_of(whole))


@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ["a3c", "one_step_sarsa", "a2c", "impala"])
def test_a_stopped_serial_run_goes_on_from_the_very_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """SIGTERM in the middle of anything: nothing is pushed early, nothing is lost, and the records tell of all.

    With a learner it comes when two of three actors have put their rollouts.
    """
    words = ["--env-id", "CartPole-v1", "--total-steps", str(STEPS), "--evaluation-interval-steps", "0"]
    whole = train(algorithm, tmp_path / "whole", *words)
    turns = 0
    turn = serial.Turns.next

    def stop_at_turn_22(self: serial.Turns) -> int:
        nonlocal turns
        turns += 1
        if turns == 22:
            signal.raise_signal(signal.SIGTERM)
        return turn(self)

    monkeypatch.setattr(serial.Turns, "next", stop_at_turn_22)
    assert main(f"asyncrl.{algorithm}", [*COMMON, "--runs-dir", str(tmp_path / "stopped"), *words]) == 143
    stopped = the_run(tmp_path / "stopped")
    assert 0 < load_newest(stopped / "checkpoints")[0].steps < STEPS

    assert main(f"asyncrl.{algorithm}", ["--resume", str(stopped)]) == 0

    assert_equal(state_of(stopped), state_of(whole))
    assert recorded(stopped) == recorded(whole)
    assert recorded(stopped)["steps"] == status_of(stopped)["steps"]
    assert recorded(stopped)["updates"] == status_of(stopped)["updates"]
    assert Signals().first is None


@pytest.mark.faults
@pytest.mark.parametrize("times", [1, 2])
def test_an_evaluation_that_was_broken_off_is_made_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """SIGTERM in the middle of the second one, and of the same when it is repeated: as if nothing had happened."""
    words = ["--env-id", "CartPole-v1", "--total-steps", str(STEPS), "--evaluation-interval-steps", "700"]
    whole = train("a3c", tmp_path / "whole", *words)
    play, calls = evaluator.play, 0

    def stop_in_the_second(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        asked = 0

        def interrupted() -> bool:
            nonlocal asked
            asked += 1
            if 2 <= calls <= 1 + times and asked == 10:
                signal.raise_signal(signal.SIGTERM)
            return bool(arguments[5]())

        return play(*arguments[:5], interrupted, *arguments[6:], **options)

    monkeypatch.setattr(evaluator, "play", stop_in_the_second)
    assert main("asyncrl.a3c", [*COMMON, "--runs-dir", str(tmp_path / "stopped"), *words]) == 143
    stopped = the_run(tmp_path / "stopped")
    for _ in range(times - 1):
        assert main("asyncrl.a3c", ["--resume", str(stopped)]) == 143
    assert len(evaluations_of(stopped)) == 1

    assert main("asyncrl.a3c", ["--resume", str(stopped)]) == 0

    assert_equal(state_of(stopped), state_of(whole))
    told = [[(row["steps"], row["returns"]) for row in evaluations_of(run)] for run in (stopped, whole)]
    assert told[0] == told[1]


def test_other_settings_begin_new_episodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The state of two workers is not that of three."""
    words = ["--env-id", "Catch", "--total-steps", str(STEPS), "--checkpoint-interval-steps", str(INTERVAL)]
    whole = train("a3c", tmp_path / "runs", *words, "--checkpoints-kept", "10", "--evaluation-interval-steps", "700")
    broken = interrupted_at_the_first_checkpoint(whole, tmp_path / "broken")

    assert main("asyncrl.a3c", ["--resume", str(broken), "--workers", "2", "--no-quiet"]) == 0

    assert "environments begin new episodes" in capfd.readouterr().out
