"""Gorila's two rules in whole runs: what is dropped is counted everywhere and ends nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import asyncrl
from asyncrl import a3c
from asyncrl.core.errors import UsageError
from asyncrl.runtime.protocols import name_of
from asyncrl.runtime.telemetry import MOST_DROPPED
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.seams.running import train
from tests.seams.stable_a3c import Stable
from tests.support import make_run, status_of

ALGORITHM = "tests.seams.stable_a3c"
EACH = ("updates", "dropped_gradients", "stale_gradients", "outlier_gradients")


def trained(folder: Path, **settings: Any) -> dict[str, Any]:
    """The status of a run of four workers in turns; its rows, its status and its checkpoint tell the same."""
    words = {"workers": 4, "envs_per_worker": 4, "t_max": 5, "total_steps": 8000, "evaluation_interval_steps": 0}
    run = make_run(folder, ALGORITHM, **(words | settings))
    train(run)
    status = status_of(run.spec.folder.path)
    files = [run.spec.folder.records_file(name_of(worker)) for worker in range(run.spec.config.workers)]
    rows = [row for file in files for row in read_records(file) if "updates" in row]
    assert {name: sum(row[name] for row in rows) for name in EACH} == {name: status[name] for name in EACH}
    checkpoint, _ = load_newest(run.spec.folder.checkpoints)
    assert {name: checkpoint.facts[name] for name in EACH[1:]} == {name: status[name] for name in EACH[1:]}
    (newest,) = [row for row in read_records(run.spec.folder.supervisor_file) if "async/stale_gradients" in row][-1:]
    assert newest["async/stale_gradients"] == status["stale_gradients"]
    assert newest["async/outlier_gradients"] == status["outlier_gradients"]
    assert max(row["staleness_max"] for row in rows) <= (settings.get("max_staleness") or 3)
    return status


def test_in_turns_only_what_is_fresh_enough_is_applied(tmp_path: Path) -> None:
    """Before each gradient of four workers three others were pushed: with at most 1 of them applied, half are.

    Those that are dropped make nobody older: it goes applied, applied, dropped, dropped, and so on.
    """
    status = trained(tmp_path, max_staleness=1)

    pushes = status["steps"] // 20
    assert [status[name] for name in EACH] == [pushes // 2 + pushes % 2, 0, pushes // 2, 0]


def test_a_worker_whose_gradients_are_all_dropped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the 200th on every loss is ten times the one before: 30 outliers in a row, and T reaches its end."""
    losses = 0
    loss_of = a3c.A3C.loss

    def growing(self: a3c.A3C, rollout: Any) -> Any:
        nonlocal losses
        losses += 1
        loss, metrics = loss_of(self, rollout)
        return loss + 10.0 ** max(0, losses - 200) if losses > 200 else loss, metrics

    monkeypatch.setattr(a3c.A3C, "loss", growing)
    status = trained(tmp_path, workers=1, total_steps=20 * 230, max_loss_deviations=4.0)

    assert status["outlier_gradients"] >= 25 > MOST_DROPPED
    assert status["updates"] + status["outlier_gradients"] == 230


@pytest.mark.parametrize("name", ["max_staleness", "max_loss_deviations"])
def test_ranks_in_step_refuse_them(name: str, tmp_path: Path) -> None:
    """One rank would drop what the others apply."""
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} is not for --backend collective"):
        asyncrl.train(ALGORITHM, env_id="Catch", backend="collective", workers=2, runs_dir=tmp_path, **{name: 3})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"max_staleness": -1}, "--max-staleness must be at least 0, got -1"),
        ({"max_loss_deviations": -0.5}, "--max-loss-deviations must be at least 0, got -0.5"),
        ({"max_loss_deviations": torch.inf}, "--max-loss-deviations must be a number, got inf"),
    ],
)
def test_impossible_limits_are_refused(setting: dict[str, Any], line: str) -> None:
    """One line with the flag."""
    with pytest.raises(UsageError, match=line):
        Stable.Config(**setting)
