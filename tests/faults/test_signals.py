"""Signals that ask a run to stop: it saves a checkpoint, says so, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from asyncrl.storage.checkpoints import load_newest
from tests.faults.running import gone, training

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_stops_the_run_in_order(tmp_path: Path, name: str) -> None:
    """Checkpoint of the last step, status stopped, the shell's exit code, nobody left."""
    number = signal.Signals[name]
    with training(tmp_path) as run:
        run.process.send_signal(number)
        run.ends_with(128 + number)

        status = run.status
        assert (status["state"], status["exit_code"]) == ("stopped", 128 + number)
        assert status["reason"] == f"received {name}"
        checkpoint, skipped = load_newest(run.folder / "checkpoints")
        assert (checkpoint.steps, skipped) == (status["steps"], [])


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_to_the_whole_group_stops_the_run_in_order(tmp_path: Path, name: str) -> None:
    """As a terminal or a cluster sends it: helpers and workers get it too, and leave it to the supervisor."""
    number = signal.Signals[name]
    with training(tmp_path) as run:
        os.killpg(run.process.pid, number)
        for worker in run.workers():  # their groups are their own; a cluster asks for all processes of a job
            worker.send_signal(number)
        run.ends_with(128 + number)

        assert "Traceback" not in run.errors()
        status = run.status
        assert (status["state"], status["reason"], status["worker_restarts"]) == ("stopped", f"received {name}", [0, 0])
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"]


def test_nohup_keeps_a_run_from_being_stopped_by_a_closed_terminal(tmp_path: Path) -> None:
    """A SIGHUP that was ignored before stays so."""

    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with training(tmp_path, preexec_fn=ignore_hangup) as run:
        run.process.send_signal(signal.SIGHUP)
        before = run.status["steps"]
        run.until(lambda: run.status["steps"] > before, "steps after the hang-up")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        assert run.status["reason"] == "received SIGTERM"


def test_nobody_survives_the_supervisor(tmp_path: Path) -> None:
    """SIGKILL cannot be caught; the children notice by themselves. Nothing stays in shared memory."""
    with training(tmp_path) as run:
        processes = run.everyone()
        assert len(processes) >= 5

        run.process.kill()
        run.process.wait()

        assert gone(processes)
        assert [name for process in processes for name in os.listdir("/dev/shm") if f"_{process.pid}_" in name] == []
