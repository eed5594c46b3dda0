"""Runs with a replay memory: what their checkpoints hold, and what a resumed run says and does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncrl.commands.train import main
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.support import status_of, the_run

WORDS = (
    "--env-id", "CartPole-v1", "--workers", "2", "--total-steps", "1500", "--evaluation-interval-steps", "0",
    "--evaluation-episodes", "1", "--warmup-steps", "500", "--memory-steps", "1000", "--minibatch", "8",
)  # fmt: skip


def train(folder: Path, page: str, *words: str) -> Path:
    assert main(f"asyncrl.{page}", [*WORDS, "--runs-dir", str(folder), *words]) == 0
    return the_run(folder)


ROLLOUT = 16
"""Steps: 4 environments, t_max 4."""


def possible_updates(status: dict[str, Any], parts: int = 1, learners: int = 1) -> range:
    """What a run in processes may end with. `parts` of the memory are learnt from on their own.

    When T is reached, learners take what is due and leave; an actor may still put the rollout that it was making. Two
    learners may both take the last update that is due.
    """
    beyond = status["steps"] - 500
    underway = len(status["worker_steps"]) * ROLLOUT
    return range((beyond - underway) // 4 - (parts - 1), beyond // 4 + learners)


def learners_rows(run: Path, file: str = "learner.jsonl") -> list[dict[str, object]]:
    return [row for row in read_records(run / file) if "batches" in row]


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
    assert ("the memory is filled again: nothing is learnt before it holds 500 steps" in said) == (not kept)
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
    run = train(tmp_path, "gorila", "--backend", "local", *words)

    status = status_of(run)
    rows = [learners_rows(run, file) for file in files]
    assert all(sum(int(str(row["updates"])) for row in own) > 0 for own in rows)
    assert sum(int(str(row["updates"])) for own in rows for row in own) == status["updates"]
    parts, learners = (2, 1) if "bundled" in words else (1, 2)
    assert status["updates"] in possible_updates(status, parts, learners)
    assert sum(status["worker_steps"]) == status["steps"]
