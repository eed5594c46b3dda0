"""Theta counts its own updates: whatever a run reports is compared with that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.commands.train import main
from asyncrl.storage.records import read_records
from tests.counting import STEP, updates_in, updates_saved
from tests.seams.running import train
from tests.support import make_run, status_of, the_run


def counted(folder: Path, algorithm: str, **settings: Any) -> tuple[list[int], dict[str, Any], int]:
    """What theta counts at the end of a run, its status, and the updates in all records."""
    run = make_run(folder, f"tests.counting.{algorithm}", evaluation_interval_steps=0, **settings)
    train(run)
    path = run.spec.folder.path
    files = [*path.glob("worker-*.jsonl"), *path.glob("learner*.jsonl")]
    recorded = sum(row.get("updates", 0) for file in files for row in read_records(file))
    in_theta, in_manifest = updates_saved(path)
    status = status_of(path)
    assert in_manifest == status["updates"]
    return in_theta, status, recorded


@pytest.mark.parametrize("algorithm", ["counting_a3c", "counting_impala"])
def test_the_serial_backend_applies_each_update_once(tmp_path: Path, algorithm: str) -> None:
    """Theta, status, manifest and records have the same number."""
    in_theta, status, recorded = counted(tmp_path, algorithm)

    assert in_theta == [status["updates"]] == [recorded]
    assert status["updates"] >= 100


@pytest.mark.parametrize("algorithm", ["counting_a3c", "counting_impala"])
def test_one_writer_in_shared_memory_applies_each_update_once(tmp_path: Path, algorithm: str) -> None:
    """A worker, or the learner, in a process of its own."""
    in_theta, status, recorded = counted(tmp_path, algorithm, backend="local", workers=1)

    assert in_theta == [status["updates"]] == [recorded]


def test_without_a_lock_workers_may_overwrite_each_other_but_add_nothing_twice(tmp_path: Path) -> None:
    """Hogwild: theta has at most what was pushed. With a lock it has exactly that.

    Each worker has its own statistics: in shared ones the gradients of two workers may be added up, and both applied.
    """
    alone = {"statistics": "per-worker", "total_steps": 10_000}
    in_theta, status, _ = counted(tmp_path / "hogwild", "counting_a3c", backend="local", **alone)
    assert in_theta[-1] <= status["updates"]

    in_theta, status, _ = counted(tmp_path / "locked", "counting_a3c", backend="local", update="locked")
    assert in_theta == [status["updates"]]


@pytest.mark.slow
def test_ranks_apply_each_update_once(tmp_path: Path) -> None:
    """The mean of the ranks' gradients is one update, on every rank."""
    settings = ["--env-id", "Catch", "--workers", "2", "--total-steps", "3000", "--evaluation-interval-steps", "0"]
    more = ["--backend", "collective", "--quiet", "--runs-dir", str(tmp_path)]
    assert main("tests.counting.counting_a3c", [*settings, *more]) == 0

    run = the_run(tmp_path)
    in_theta, in_manifest = updates_saved(run)
    assert in_theta == [in_manifest] == [status_of(run)["updates"]]
    assert in_manifest > 100


def test_what_is_no_multiple_of_an_update_is_noticed() -> None:
    """The check would else pass anything."""
    assert updates_in(STEP * torch.tensor([3.0, 2.0, 3.0])) == [2, 3]
    with pytest.raises(AssertionError, match="in part"):
        updates_in(STEP * torch.tensor([1.5]))
