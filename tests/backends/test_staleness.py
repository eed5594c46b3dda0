"""How old gradients are in the serial backend, beside what processes really do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import SystemRandom
from time import sleep
from typing import Any

import gymnasium
import pytest

from asyncrl.commands.train import main
from asyncrl.storage.records import read_records
from tests.support import the_run


class Irregular(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its steps take between 0 and 2 ms. Two workers whose steps all take the same time fall into step, push at the
    same moment, and neither counts the other's update."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sleep(SystemRandom().uniform(0.0, 0.002))
        return self.env.step(action)


def make() -> gymnasium.Env[Any, Any]:
    """A CartPole whose steps take irregular times."""
    return Irregular(gymnasium.make("CartPole-v1"))


def ages(runs_dir: Path, backend: str, algorithm: str) -> dict[str, float]:
    """Mean ages, in updates, over the updates of two workers while both were at work.

    Rows are rare: a row is written between a push and the next pull, and what the other worker pushes meanwhile is in
    nobody's age.
    """
    words = [
        "--env-id", f"{__name__}:make", "--backend", backend, "--workers", "2", "--t-max", "5", "--total-steps", "3000",
        "--evaluation-interval-steps", "0", "--evaluation-episodes", "1", "--record-interval-seconds", "0.2",
        "--runs-dir", str(runs_dir / backend), "--quiet",
    ]  # fmt: skip
    assert main(f"asyncrl.{algorithm}", words) == 0
    workers = [read_records(file) for file in the_run(runs_dir / backend).glob("worker-*.jsonl")]
    updates = [[row for row in rows if "updates" in row] for rows in workers]
    both_begun, one_over = max(own[0]["steps"] for own in updates), min(own[-1]["steps"] for own in updates)
    rows = [
        row
        for own in updates
        for before, row in pairwise(own)
        if both_begun <= before["steps"] and row["steps"] <= one_over
    ]
    made = sum(row["updates"] for row in rows)
    names = [name for name in ("staleness", "pull_age") if f"{name}_mean" in rows[0]]
    return {name: sum(row[f"{name}_mean"] * row["updates"] for row in rows) / made for name in names}


def test_with_a_private_copy_a_gradient_is_as_old_in_turns_as_in_processes(tmp_path: Path) -> None:
    """Each push of one worker lies between a pull and a push of the other, unless they push at the same time: the mean
    age of N workers is N - 1 in both backends, however the system shares out its cores."""
    serial, local = (ages(tmp_path, backend, "a3c") for backend in ("serial", "local"))

    assert serial == {"staleness": pytest.approx(1, abs=0.02)}
    assert local == {"staleness": pytest.approx(1, abs=0.3)}


def test_on_theta_itself_a_rollout_is_old_and_its_gradient_is_not(tmp_path: Path) -> None:
    """What was acted with is N - 1 updates old at the push in both backends. The gradient is taken at theta as it is by
    then: of age 0 in turns, while in processes others push during the share of the time that the loss takes."""
    serial, local = (ages(tmp_path, backend, "one_step_q") for backend in ("serial", "local"))

    assert serial == {"staleness": 0, "pull_age": pytest.approx(1, abs=0.02)}
    assert local["pull_age"] == pytest.approx(1, abs=0.3)
    assert local["staleness"] < local["pull_age"]
