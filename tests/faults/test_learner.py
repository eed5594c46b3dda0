"""The learner is killed, crashes, or loses an actor: the run goes on from what is in shared memory, or says why not."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch import Tensor

from asyncrl.backends.supervisor import Supervisor
from asyncrl.core.updates import UpdateRule
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import RUNNING
from asyncrl.runtime.protocols import LEARNER
from asyncrl.runtime.run import Run
from asyncrl.storage.checkpoints import find, load_newest
from asyncrl.storage.records import read_records
from tests.faults.running import CATCH, Running, gone, running, training, writes
from tests.seams.running import outcome_of
from tests.support import make_run, status_of

pytestmark = pytest.mark.faults


def learner_of(run: Running) -> psutil.Process | None:
    """The one that has the learner's records open."""
    return next((child for child in run.everyone()[1:] if writes(child, r"learner\.jsonl")), None)


def updates_in(folder: Path) -> int:
    """Of all rows of the learner."""
    return sum(row.get("updates", 0) for row in read_records(folder / "learner.jsonl") if "time" in row)


@pytest.mark.parametrize(
    "algorithm", ["impala", *(pytest.param(algorithm, marks=pytest.mark.slow) for algorithm in ("a2c", "ppo", "apex"))]
)
def test_a_killed_learner_and_a_killed_actor_are_replaced(tmp_path: Path, algorithm: str) -> None:
    """The learner's updates stay counted, in rows and in what was found missing; the actor costs its rollout."""
    words = ("--warmup-steps", "500") if algorithm == "apex" else ()
    with training(tmp_path, *words, algorithm=algorithm) as run:
        run.until(lambda: run.status["updates"] > 20, "updates")
        learner = learner_of(run)
        assert learner is not None
        learner.kill()
        run.until(lambda: run.status["learner_restarts"] == 1, "a restart of the learner")
        updates = run.status["updates"]
        assert updates > 20
        run.until(lambda: run.status["updates"] > updates + 20, "updates of its successor")
        assert run.status["worker_restarts"] == [0, 0]

        run.workers()[0].kill()
        run.until(lambda: run.restarts == 1, "a restart of the actor")
        run.until(lambda: len(run.workers()) == 2, "two actors")
        updates = run.status["updates"]
        run.until(lambda: run.status["updates"] > updates + 20, "updates after it")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        first, second = [event for event in run.events if event["event"] == "restarted"]
        assert (first["who"], second["who"] in (0, 1)) == ("learner", True)
        assert first["cause"].startswith("was killed by SIGKILL")
        assert second["cause"] == "was killed by SIGKILL"
        status = run.status
        # A learner that is killed within an update takes those since the newest checkpoint with it.
        made = updates_in(run.folder) + status["unrecorded"]["updates"]
        assert made == status["updates"] + status["updates_lost"]
        assert status["steps"] == sum(status["worker_steps"])
        assert load_newest(run.folder / "checkpoints")[0].updates == status["updates"]


@pytest.mark.slow
def test_a_batch_in_step_goes_on_without_an_actor_that_is_gone_for_good(tmp_path: Path) -> None:
    """Nobody waits for it, and what was missing is counted from then on."""
    with training(tmp_path, "--worker-restarts", "0", "--record-interval-seconds", "1", algorithm="a2c") as run:
        run.workers()[0].kill()
        run.until(lambda: len(run.status["workers_gone"]) == 1, "the loss")
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps + 5000, "batches without it")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        rows = [row for row in read_records(run.folder / "learner.jsonl") if "batches" in row]
        missing = sum(row["rollouts_missing"] for row in rows)
        config = json.loads((run.folder / "config.json").read_text())["config"]
        assert missing > 5000 // (config["t_max"] * config["envs_per_worker"]) - 3  # some are on their way
        assert (
            sum(sum(row.get("rollout_age_counts", {}).values()) for row in rows)
            == 2 * sum(row.get("batches", 0) for row in rows) - missing
        )


def test_a_learner_that_is_gone_for_good_ends_the_run(tmp_path: Path) -> None:
    """Failed, with one line and a checkpoint: nobody else can learn."""
    with training(tmp_path, "--worker-restarts", "0", algorithm="impala") as run:
        learner = learner_of(run)
        assert learner is not None
        learner.kill()
        run.ends_with(1)

        status = run.status
        assert status["state"] == "failed"
        assert status["reason"].startswith("the learner failed too often: it was killed by SIGKILL")
        assert "\n" not in status["reason"]
        assert "traceback" not in status
        assert [event["who"] for event in run.events if event["event"] == "gone"] == ["learner"]
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala"])
def test_training_goes_on_while_actors_and_learner_are_killed_every_second(tmp_path: Path, algorithm: str) -> None:
    """Learning does, and what is counted stays true; afterwards all are there again."""
    choose = random.Random(1)
    with training(tmp_path, "--workers", "4", "--worker-restarts", "1000", algorithm=algorithm) as run:
        updates, killed = run.status["updates"], [0, 0]
        while sum(killed) < 10 or 0 in killed:
            time.sleep(1)
            learner = learner_of(run)
            if there := [*run.workers(), *([learner] if learner else [])]:
                victim = choose.choice(there)
                killed[victim == learner] += 1
                victim.kill()
        run.until(lambda: run.status["updates"] > updates, "updates between the kills, or after them")
        run.until(lambda: len(run.workers()) == 4 and learner_of(run) is not None, "all of them")
        updates = run.status["updates"]
        run.until(lambda: run.status["updates"] > updates + 20, "updates after it")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        status = run.status
        # One that was killed before it had begun has been killed as well.
        assert killed[0] <= sum(status["worker_restarts"]) + 4
        assert killed[1] <= status["learner_restarts"] + 1
        # A learner that is killed within an update takes those since the newest checkpoint with it.
        made = updates_in(run.folder) + status["unrecorded"]["updates"]
        assert made == status["updates"] + status["updates_lost"]
        assert status["steps"] == sum(status["worker_steps"])
        assert half_written(run.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala"])
def test_a_run_whose_process_group_is_killed_goes_on_from_its_newest_checkpoint(tmp_path: Path, algorithm: str) -> None:
    """Three times, at a random moment; then it finishes, and nothing half written or half alive is left."""
    words = (*CATCH, "--workers", "2", "--resume", "auto", "--run-name", "job")
    endless = ("--total-steps", "100_000_000", "--checkpoint-interval-steps", "1000")  # a kill never comes too late
    moments = random.Random(1)
    everyone, steps = [], 0
    for part in range(3):
        with running(tmp_path, *words, *endless, algorithm=algorithm) as run:
            run.until(lambda: run.status.get("state") == "running" and run.status["part"] >= part, "it trains")  # noqa: B023
            run.until(lambda: newest(run.folder) > steps, "a checkpoint")  # noqa: B023
            time.sleep(moments.uniform(0.0, 1.0))
            everyone += run.everyone()
            os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
            checkpoint, skipped = load_newest(run.folder / "checkpoints")
            assert skipped == []
            assert checkpoint.steps > steps
            steps = checkpoint.steps
    with running(tmp_path, *words, "--total-steps", str(steps + 10_000), algorithm=algorithm) as run:
        run.ends_with(0)
        assert (run.status["state"], run.status["part"]) == ("finished", 3)
        assert half_written(run.folder) == []
    assert gone(everyone)


def newest(folder: Path) -> int:
    """Steps of the newest checkpoint, by its name; -1 without any."""
    return max((int(path.name.split("_")[1].split(".")[0]) for path in find(folder / "checkpoints")), default=-1)


def half_written(folder: Path) -> list[str]:
    """Names that only stand in a run's folder while something is written."""
    return [path.name for path in folder.rglob(".*") if path.name.startswith((".saving", ".deleting"))] + [
        path.name for path in folder.rglob(".*.tmp")
    ]


@dataclass(frozen=True)
class Deadly(UpdateRule):
    """Writes half of the 30th update and does what it was told to, once."""

    mark: str = ""
    trouble: str = ""

    def apply(self, theta: Tensor, gradient: Tensor, statistics: Tensor, learning_rate: float, updates: int) -> None:
        """As any rule, but once."""
        if updates == 30 and not os.path.exists(self.mark):
            open(self.mark, "x").close()
            theta[: len(theta) // 2] = 1e3
            if self.trouble == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the wheels came off")
        super().apply(theta, gradient, statistics, learning_rate, updates)


def deadly_run(folder: Path, trouble: str, **settings: Any) -> Run:
    """An A2C run whose learner gets into trouble within an update."""
    defaults = {"backend": "local", "total_steps": 4000, "evaluation_interval_steps": 0, "envs_per_worker": 1}
    defaults |= {"record_interval_seconds": 1e6}  # no row before the trouble, however slow the machine
    run = make_run(folder, "a2c", **(defaults | settings))
    config = run.spec.config
    rule = Deadly(**vars(config.update_rule), mark=str(folder / "mark"), trouble=trouble)
    descent = replace(config.descent, rule=rule)
    store = SharedStore(run.handles.store.snapshot(), descent, config.workers, run.handles.clock)
    return replace(run, handles=replace(run.handles, store=store))


def test_a_learner_that_died_within_an_update_is_followed_from_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody goes on with half an update, and the supervisor's records say so; nor does the evaluator see it ended."""
    run = deadly_run(tmp_path, "dies")
    restore, phases = Supervisor._restore_if_torn, []

    def note(self: Supervisor) -> str:
        if run.handles.store.torn:
            phases.append(run.handles.clock.phase(LEARNER))
        return restore(self)

    monkeypatch.setattr(Supervisor, "_restore_if_torn", note)

    outcome = outcome_of(run)

    assert outcome.state == "finished", outcome
    assert phases == [RUNNING]
    folder = run.spec.folder.path
    events = [row for row in read_records(folder / "supervisor.jsonl") if row.get("event") == "restarted"]
    assert [(event["who"], event["cause"]) for event in events] == [
        ("learner", "was killed by SIGKILL during an update; the parameters of step 0 are restored")
    ]
    status = status_of(folder)
    assert status["learner_restarts"] == 1
    assert updates_in(folder) + status["unrecorded"]["updates"] == run.handles.store.updates
    assert status["unrecorded"]["updates"] == status["updates_lost"] == 30
    assert status["updates"] == updates_in(folder) == load_newest(run.spec.folder.checkpoints)[0].updates
    assert not run.handles.store.torn
    assert float(run.handles.store.snapshot().abs().max()) < 100


def test_an_end_that_could_not_be_saved_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is half an update in theta, and no checkpoint to go back to."""
    monkeypatch.setattr(SharedStore, "torn", True)

    outcome = outcome_of(make_run(tmp_path, "a2c", backend="serial", total_steps=300))

    assert outcome.state == "failed"
    assert outcome.reason.startswith("could not save the end of the run: the learner is gone")


@pytest.mark.parametrize("trouble", ["dies", "raises"])
def test_a_run_that_ends_with_its_learner_is_saved_as_its_newest_checkpoint_was(tmp_path: Path, trouble: str) -> None:
    """Gone for good, or ended by an exception: what is saved is never half an update."""
    run = deadly_run(tmp_path, trouble, worker_restarts=0)

    outcome = outcome_of(run)

    assert outcome.state == "failed"
    checkpoint, _ = load_newest(run.spec.folder.checkpoints)
    assert (checkpoint.updates, checkpoint.facts["updates_lost"]) == (0, 30)
    assert all(float(tensor.abs().max()) < 100 for tensor in checkpoint.parameters.values())
    if trouble == "dies":
        assert outcome.reason == (
            "the learner failed too often: it was killed by SIGKILL during an update; "
            "the parameters of step 0 are restored"
        )
    else:
        assert outcome.reason == "learner raised RuntimeError: the wheels came off"
        assert "in apply" in (outcome.traceback or "")
