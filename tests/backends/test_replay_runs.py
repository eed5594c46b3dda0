"""Runs with a replay memory: what their checkpoints hold, and what a resumed run says and does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from asyncrl.api.request import request_for
from asyncrl.api.training import prepare
from asyncrl.commands.train import main
from asyncrl.experience.replay import Replay
from asyncrl.storage.checkpoints import find, load_newest
from asyncrl.storage.records import read_records
from tests.support import status_of, the_run

WORDS = (
    "--env-id", "CartPole-v1", "--workers", "2", "--total-steps", "1500", "--evaluation-interval-steps", "0",
    "--evaluation-episodes", "1", "--warmup-steps", "500", "--memory-steps", "1000", "--minibatch", "8",
)  # fmt: skip


def train(folder: Path, algorithm: str, *words: str) -> Path:
    assert main(f"asyncrl.{algorithm}", [*WORDS, "--runs-dir", str(folder), *words]) == 0
    return the_run(folder)


ROLLOUT = 16
"""Steps: 4 environments, t_max 4."""


def possible_updates(status: dict[str, Any], learners: int = 1) -> range:
    """What a run in processes may end with.

    When T is reached, learners take what is due and leave; an actor may still put the rollout that it was making. Two
    learners may both take the last update that is due.
    """
    beyond = status["steps"] - 500
    underway = len(status["worker_steps"]) * ROLLOUT
    return range((beyond - underway) // 4, beyond // 4 + learners)


def possible_updates_bundled(status: dict[str, Any]) -> range:
    """The same for learners that each have the memory of their own actor, with half of the warm-up."""
    beyond = [steps - 250 for steps in status["worker_steps"]]
    return range(sum(max(0, own - ROLLOUT) // 4 for own in beyond), sum(max(0, own) // 4 for own in beyond) + 1)


def learners_rows(run: Path, file: str = "learner.jsonl") -> list[dict[str, object]]:
    return [row for row in read_records(run / file) if "batches" in row]


def test_a_memory_in_an_exact_checkpoint_is_taken_by_a_run_that_is_not_exact(tmp_path: Path) -> None:
    """With another setting, and on another backend."""
    words = ("--backend", "serial", "--checkpoint-replay", "--checkpoint-interval-steps", "600")
    run = train(tmp_path, "gorila", *words, "--checkpoints-kept", "9")
    for path in find(run / "checkpoints")[2:]:
        shutil.rmtree(path)
    (steps,) = {one.steps for one in [load_newest(run / "checkpoints")[0]]}
    assert 600 <= steps < 1000

    for given in ({"evaluation_episodes": 2}, {"backend": "local"}):
        resumed = prepare(request_for("gorila", None, {"resume": str(run)} | given).resolved())
        assert isinstance(resumed.handles.experience, Replay)
        assert resumed.handles.experience.steps.put.sum() == steps


@pytest.mark.parametrize("backend", ["serial", "local"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_resumed_run_fills_its_memory_again_unless_the_checkpoint_holds_it(
    tmp_path: Path, backend: str, kept: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """And says so: with the memory it goes on learning at once, without it after the warm-up."""
    run = train(tmp_path, "apex", "--backend", backend, *(["--checkpoint-replay"] if kept else []))
    before = status_of(run)
    if backend == "serial":
        assert before["updates"] == (before["steps"] - 500) // 4
    assert before["updates"] in possible_updates(before)
    checkpoint, _ = load_newest(run / "checkpoints")
    assert any("frames" in name or name.startswith("exact") for name in checkpoint.tensors) == kept

    assert main("asyncrl.apex", ["--resume", str(run), "--total-steps", "1900"]) == 0

    said = capfd.readouterr().out
    assert ("the memory starts empty: learning begins once it holds 500 steps" in said) == (not kept)
    assert "replay memory: 1,000 steps take " in said
    later = status_of(run)
    assert later["updates"] in possible_updates(later) if kept else later["updates"] == before["updates"]


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("--learners", "2"), ["learner.jsonl", "learner-01.jsonl"]),
        (("--layout", "bundled"), ["worker-00.jsonl", "worker-01.jsonl"]),
    ],
    ids=["unbundled", "bundled"],
)
def test_gorilas_learners_share_theta(tmp_path: Path, words: tuple[str, ...], files: list[str]) -> None:
    """In processes: each learns, and its rows tell of it; all keep the replay ratio together."""
    # Long enough for both learners to get to learn, although nothing says that they are equally fast.
    run = train(tmp_path, "gorila", "--backend", "local", *words, "--total-steps", "8000")

    status = status_of(run)
    rows = [learners_rows(run, file) for file in files]
    assert all(sum(int(str(row["updates"])) for row in own) > 0 for own in rows)
    assert sum(int(str(row["updates"])) for own in rows for row in own) == status["updates"]
    bundled = "bundled" in words
    assert status["updates"] in (possible_updates_bundled(status) if bundled else possible_updates(status, learners=2))
    assert sum(status["worker_steps"]) == status["steps"]
