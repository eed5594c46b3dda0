"""Numbers that are not finite: dropped, then loud, and never in a checkpoint."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch

from asyncrl import a3c
from asyncrl.commands.train import main
from asyncrl.core.errors import NotFinite
from asyncrl.runtime.evaluator import Evaluator
from asyncrl.runtime.monitor import Monitor
from asyncrl.runtime.roles import build_worker
from asyncrl.storage import checkpoints
from tests.faults.running import CATCH
from tests.support import make_run, status_of, the_run

pytestmark = pytest.mark.faults


def test_ten_gradients_in_a_row_that_are_not_finite_end_the_run_with_the_culprit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the 30th loss on each is NaN: ten are dropped, and what the last came from is kept."""
    losses = 0
    loss_of = a3c.A3C.loss

    def poisoned(self: a3c.A3C, rollout: object) -> object:
        nonlocal losses
        losses += 1
        loss, metrics = loss_of(self, rollout)  # type: ignore[arg-type]
        return (loss * torch.nan, metrics) if losses > 30 else (loss, metrics)

    monkeypatch.setattr(a3c.A3C, "loss", poisoned)
    words = [*CATCH, "--backend", "serial", "--workers", "1", "--runs-dir", str(tmp_path), "--total-steps", "1e6"]

    assert main("asyncrl.a3c", words) == 1

    run = the_run(tmp_path)
    status = status_of(run)
    assert (status["updates"], status["dropped_gradients"]) == (30, 10)
    assert status["reason"].startswith("10 gradients in a row were not finite; in the last policy_gradient_loss was")
    assert status["reason"].endswith("its rollout and parameters are in worker-00.culprit.safetensors")
    culprit = safetensors.torch.load_file(run / "worker-00.culprit.safetensors")
    assert culprit["rollout.observations"].shape == (9, 8, 50)
    assert {"rollout.rewards", "rollout.actions", "rollout.discounts"} < set(culprit)
    checkpoint, _ = checkpoints.load_newest(run / "checkpoints")
    for name, parameter in checkpoint.parameters.items():
        assert torch.equal(culprit[f"parameters.{name}"], parameter)  # nothing was learnt since
    assert checkpoint.steps == status["steps"]


def test_a_snapshot_that_is_not_finite_is_never_saved_nor_evaluated(tmp_path: Path) -> None:
    """The parameter is named; the checkpoints before stay."""
    run = make_run(tmp_path)
    monitor = Monitor(run)
    monitor.begin()
    run.handles.store.theta[0] = torch.inf
    run.handles.clock.count(0, 1000)

    with pytest.raises(NotFinite, match=r"the shared parameters hold numbers that are not finite, in trunk\.\S+$"):
        monitor.save_checkpoint()
    with Evaluator(run) as evaluator, pytest.raises(NotFinite):
        evaluator.evaluate()
    monitor.end()

    assert [path.name for path in checkpoints.find(run.spec.folder.checkpoints)] == ["step_000000000000"]


def test_statistics_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    """They would poison theta after a resume."""
    run = make_run(tmp_path)
    monitor = Monitor(run)
    run.handles.store.statistics[0, 0, 0] = torch.nan

    with pytest.raises(NotFinite, match="statistics"):
        monitor.save_checkpoint()
    monitor.end()


def test_a_nan_in_the_shared_memory_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody wrote it past the check of gradients: found at the next snapshot; the last good one stays."""
    from asyncrl.parameters.shared import SharedStore

    push = SharedStore.push

    def poison(self: SharedStore, *arguments: object) -> object:
        result = push(self, *arguments)  # type: ignore[arg-type]
        if self.updates == 40:
            self.theta[3] = torch.nan
        return result

    monkeypatch.setattr(SharedStore, "push", poison)
    words = [*CATCH, "--backend", "serial", "--workers", "1", "--runs-dir", str(tmp_path)]

    assert main("asyncrl.a3c", [*words, "--total-steps", "1e6", "--checkpoint-interval-steps", "1280"]) == 1
    status = status_of(the_run(tmp_path))
    assert "the shared parameters hold numbers that are not finite" in status["reason"]
    assert "Traceback" not in capfd.readouterr().err
    assert checkpoints.load_newest(the_run(tmp_path) / "checkpoints")[0].steps == 1280


def test_the_dump_is_made_from_what_a_worker_really_has(tmp_path: Path) -> None:
    """Also with several workers: the one whose losses are NaN is named by the file."""
    run = make_run(tmp_path, total_steps=10**6)
    with closing(build_worker(run, 1)) as worker:
        next(worker.loop)
        for parameter in range(len(run.handles.store.theta)):
            run.handles.store.theta[parameter] = torch.nan

        with pytest.raises(NotFinite, match=r"worker-01\.culprit\.safetensors"):
            for _ in worker.loop:
                pass
    assert run.handles.store.counts().dropped_gradients >= 10
