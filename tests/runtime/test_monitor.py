"""The supervisor's bookkeeping: sums over workers' rows, when to save, when a run is over."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.parameters.shared import BEGUN, UPDATES
from asyncrl.runtime import clock as clock_module
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.monitor import Monitor, Rate, Summary, in_words
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, name_of
from asyncrl.runtime.run import Run
from asyncrl.runtime.telemetry import mean, summed_up, time_shares
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import Checkpoint, find, load, load_newest
from asyncrl.storage.files import read_json
from asyncrl.storage.records import RecordWriter, read_records
from tests.storage.test_tensorboard import points
from tests.support import make_run, push

NO_DROPS = {"stale_gradients": 0, "outlier_gradients": 0}


def row(**fields: Any) -> dict[str, Any]:
    """A worker's row."""
    return {
        "worker": 0,
        "worker_steps": 100,
        "updates": 1,
        "dropped_gradients": 0,
        "episodes": [],
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "metrics": {},
        "time": {},
        **fields,
    }


def evaluation(mean: float | None, steps: int = 10) -> dict[str, Any]:
    """An evaluator's row."""
    return {"steps": steps, "mean": mean, "lengths": [3, 5], "cpu_share": 0.1}


def write(file: Path, *rows: dict[str, Any]) -> None:
    """Append rows to somebody's records."""
    with closing(RecordWriter(file)) as writer:
        for one in rows:
            writer.write(one)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds on the clock, in a list of one, for the test to set."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Clock, "seconds_of_this_part", property(lambda _: now[0] - 1000.0))
    return now


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two workers on Catch, checkpoints every 1000 steps."""
    return make_run(tmp_path, total_steps=100_000, checkpoint_interval_steps=1000, checkpoints_kept=9)


@pytest.fixture
def monitor(run: Run, clock: list[float]) -> Iterator[Monitor]:
    """A monitor at the start of the run's run."""
    monitor = Monitor(run)
    monitor.begin()
    yield monitor
    monitor.end()


def test_a_mean_over_workers_counts_each_update_once() -> None:
    """(2 x 3 + 8 x 1) / 4."""
    rows = [{"updates": 3, "staleness_mean": 2.0}, {"updates": 1, "staleness_mean": 8.0}]

    assert summed_up(rows) == {"async/staleness_mean": 3.5}


def test_a_value_that_was_not_finite_is_left_out_of_the_mean() -> None:
    """Records hold null for it."""
    rows = [{"updates": 3, "gradient_norm": None}, {"updates": 1, "gradient_norm": 8.0}]

    assert summed_up(rows) == {"train/gradient_norm": 8.0}
    assert summed_up(rows[:1]) == {}
    assert mean([]) == 0.0


def test_shares_of_time_add_up_to_one() -> None:
    """Over all workers: 2 + 4 seconds in the environment, 1 + 1 in the loss."""
    rows = [{"time": {"environment": 2.0, "loss": 1.0}}, {"time": {"environment": 4.0, "loss": 1.0}}]

    assert time_shares(rows, "async/time_share") == {
        "async/time_share_environment": 0.75,
        "async/time_share_loss": 0.25,
    }


def test_there_are_no_shares_of_no_time() -> None:
    """Nor is there a division by zero."""
    assert time_shares([], "async/time_share") == {}
    assert time_shares([{"time": {"loss": 0.0}}], "async/time_share") == {}


def test_the_time_left_follows_from_the_speed() -> None:
    """600 steps at 20 a second; unknown while nothing moves, none beyond the end."""
    assert Summary(steps=400, total_steps=1000, steps_per_second=20.0).seconds_left == 30.0
    assert Summary(steps=400, total_steps=1000).seconds_left is None
    assert Summary(steps=1010, total_steps=1000, steps_per_second=20.0).seconds_left == 0.0


@pytest.mark.parametrize(("speed", "left"), [(20.0, 12.0), (600.0, 1.0), (0.0, 12.0)])
def test_the_time_left_ends_with_the_limit_of_time(speed: float, left: float) -> None:
    """600 steps would take 30 seconds, or one, or nobody knows; the limit is in 12."""
    summary = Summary(steps=400, total_steps=1000, steps_per_second=speed, seconds_to_limit=12.0)

    assert summary.seconds_left == left


def test_exploration_is_told_in_words() -> None:
    """Three digits are enough to tell workers apart."""
    assert in_words({"entropy_weight": 0.0123456, "epsilon": 0.5}) == "entropy weight 0.0123, epsilon 0.5"


def test_a_row_sums_up_what_happened_since_the_one_before(run: Run, monitor: Monitor, clock: list[float]) -> None:
    """Speeds from the counters, means from the workers' rows."""
    write(
        run.spec.folder.records_file("worker-00"),
        row(updates=3, staleness_mean=2.0, staleness_max=4, metrics={"entropy": 1.0}, episodes=[[1.0, 9], [3.0, 9]]),
    )
    write(
        run.spec.folder.records_file("worker-01"),
        row(updates=1, staleness_mean=8.0, staleness_max=9, metrics={"entropy": 3.0}, learning_rate=5e-4),
    )
    run.handles.clock.count(0, 300)
    run.handles.clock.count(1, 100)
    gradient = torch.ones_like(run.handles.store.theta)
    push(run.handles.store, 0, gradient, 0)
    push(run.handles.store, 1, gradient, 0)
    push(run.handles.store, 1, gradient * math.nan, 0)
    clock[0] += 4.0

    assert monitor.look()

    written = read_records(run.spec.folder.supervisor_file)[-1]
    assert written["steps"] == 400
    assert written["updates"] == 2
    assert written["time/fps"] == 100.0
    assert written["async/updates_per_second"] == 0.5
    assert written["async/dropped_gradients"] == 1
    assert written["async/staleness_mean"] == 3.5
    assert written["async/staleness_max"] == 9
    assert written["train/learning_rate"] == 5e-4
    assert written["train/entropy"] == 2.0
    assert (written["rollout/ep_rew_mean"], written["rollout/ep_len_mean"]) == (2.0, 9.0)
    assert len(monitor.summary.worker_silence) == 2


def test_what_a_lost_worker_counted_and_never_wrote_is_in_the_event_and_in_the_status(
    run: Run, monitor: Monitor
) -> None:
    """Of its 5 updates 3 are in its rows, then those of its successor in none; the supervisor's row has all rows."""
    gradient = torch.ones_like(run.handles.store.theta)
    for _ in range(5):
        push(run.handles.store, 1, gradient, 0)
        run.handles.clock.count(1, 100)
    push(run.handles.store, 1, gradient * math.nan, 0)
    write(run.spec.folder.records_file("worker-01"), row(worker=1, worker_steps=300, updates=3, staleness_mean=2.0))
    monitor.note_loss("restarted", 1, "was killed by SIGKILL")
    push(run.handles.store, 1, gradient, 0)  # killed before it counted the steps
    monitor.note_loss("gone", 1, "was killed by SIGKILL")
    monitor.look(now=True)

    losses = [one for one in read_records(run.spec.folder.supervisor_file) if one.get("who") == 1]
    assert [loss["unrecorded"] for loss in losses] == [
        {"steps": 200, "updates": 2, "dropped_gradients": 1, **NO_DROPS},
        {"steps": 0, "updates": 1, "dropped_gradients": 0, **NO_DROPS},
    ]
    status = read_json(run.spec.folder.status_file)
    assert status["unrecorded"] == {"steps": 200, "updates": 3, "dropped_gradients": 1, **NO_DROPS}
    assert read_records(run.spec.folder.supervisor_file)[-1]["async/staleness_mean"] == 2.0


def test_what_nobody_wrote_before_the_end_is_told_there(run: Run) -> None:
    """Worker 0 was killed because it did not leave; of worker 1 all is written, and nothing is said."""
    monitor = Monitor(run)
    gradient = torch.ones_like(run.handles.store.theta)
    for worker in range(2):
        push(run.handles.store, worker, gradient, 0)
        run.handles.clock.count(worker, 100)
    write(run.spec.folder.records_file("worker-01"), row(worker=1))

    monitor.end()

    (event,) = [one for one in read_records(run.spec.folder.supervisor_file) if one.get("event") == "unrecorded"]
    assert (event["who"], event["unrecorded"]) == (0, {"steps": 100, "updates": 1, "dropped_gradients": 0, **NO_DROPS})
    monitor.write_status("stopped")
    assert read_json(run.spec.folder.status_file)["unrecorded"] == event["unrecorded"]


def test_rows_that_were_written_before_training_was_announced_count(run: Run, clock: list[float]) -> None:
    """Workers begin as soon as the clock runs, which is before the monitor looks for who is ready."""
    monitor = Monitor(run)
    write(run.spec.folder.records_file("worker-00"), row(episodes=[[3.0, 9]], staleness_mean=2.0))
    monitor.begin()
    monitor.look(now=True)

    assert (monitor.summary.score_mean, monitor.summary.staleness_mean) == (3.0, 2.0)
    monitor.end()


def test_what_becomes_known_late_counts_for_the_whole_time_since_the_last_news(clock: list[float]) -> None:
    """100 per second; for six seconds nothing is heard. A count that falls has no speed."""
    rate, rates = Rate(0), []
    for count in (200, 400, 400, 400, 1000, 900, 1100):
        clock[0] += 2.0
        rates.append(rate.of(count))

    assert rates == [100, 100, 0, 0, 100, 0, 100]


def test_the_start_does_not_count_in_the_speed(run: Run, clock: list[float]) -> None:
    """The monitor is made before the workers; ten seconds pass until they are ready, then two with 100 steps."""
    monitor = Monitor(run)
    clock[0] += 10.0
    monitor.begin()
    run.handles.clock.count(0, 100)
    clock[0] += 2.0

    assert monitor.look()

    assert monitor.summary.steps_per_second == 50.0
    monitor.end()


def test_a_resumed_run_counts_its_own_steps_and_updates_only(run: Run, clock: list[float]) -> None:
    """What earlier parts did is in the totals, not in the speed."""
    run.handles.clock.count(0, 5000)
    push(run.handles.store, 0, torch.ones_like(run.handles.store.theta), 0)
    write(run.spec.folder.records_file("worker-00"), row(episodes=[[50.0, 1]]))
    write(run.spec.folder.evaluator_file, evaluation(7.0))
    monitor = Monitor(run)
    monitor.begin()
    clock[0] += 2.0

    assert monitor.look()

    summary = monitor.summary
    assert (summary.steps, summary.updates, summary.steps_per_second) == (5000, 1, 0.0)
    assert (summary.score_mean, summary.best_score, summary.evaluation) == (None, 7.0, None)
    assert read_records(run.spec.folder.supervisor_file)[-1]["async/updates_per_second"] == 0.0
    monitor.end()


def test_it_writes_every_two_seconds_only(run: Run, monitor: Monitor, clock: list[float]) -> None:
    """However often it looks; `now` is for those who cannot wait."""
    looks = []
    for seconds in (0.1, 1.8, 0.1, 1.9, 0.1):
        clock[0] += seconds
        looks.append(monitor.look())

    assert looks == [False, False, True, False, True]
    assert monitor.look(now=True)


def test_only_the_last_hundred_episodes_count(run: Run, monitor: Monitor, clock: list[float]) -> None:
    """A hundred with 1 after fifty with 100."""
    write(run.spec.folder.records_file("worker-00"), row(episodes=[[100.0, 1]] * 50), row(episodes=[[1.0, 1]] * 100))
    clock[0] += 2.0

    assert monitor.look()

    assert monitor.summary.score_mean == 1.0


def test_the_last_hundred_are_those_of_all_workers(run: Run, monitor: Monitor, clock: list[float]) -> None:
    """Of short episodes each has more than a hundred in a row: one worker's with 0, and one's with 1."""
    for worker, score in enumerate((0.0, 1.0)):
        write(run.spec.folder.records_file(name_of(worker)), row(worker=worker, episodes=[[score, 1]] * 200))
    clock[0] += 2.0

    assert monitor.look()

    assert monitor.summary.score_mean == 0.5

    write(run.spec.folder.records_file("worker-01"), row(worker=1, episodes=[[3.0, 1]] * 100))
    monitor.end()  # what comes with the last rows counts too
    assert monitor.summary.score_mean == 3.0


def test_a_checkpoint_is_saved_when_a_multiple_is_crossed(run: Run, monitor: Monitor) -> None:
    """At 1050 for 1000, not again at 1990, at 4100 once for 2000, 3000 and 4000; the first is at the start."""
    for steps in (990, 60, 940, 2110, 0):
        run.handles.clock.count(0, steps)
        monitor.look()

    saved = [one["steps"] for one in read_records(run.spec.folder.supervisor_file) if one.get("event") == "checkpoint"]
    assert saved == [0, 1050, 4100]
    assert load_newest(run.spec.folder.checkpoints)[0].steps == 4100


def test_an_interval_that_is_over_when_a_save_ends_is_followed_by_a_save_at_once(
    run: Run, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long one takes: a checkpoint is older than an interval only while the next one is written."""
    save = checkpoints.save

    def slow(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
        run.handles.clock.count(0, 1300)  # training goes on meanwhile
        return save(folder, checkpoint, keep)

    monkeypatch.setattr(checkpoints, "save", slow)
    saved = []
    for steps in (1000, 0, 0, 400):
        run.handles.clock.count(0, steps)
        monitor.look()
        saved.append(load_newest(run.spec.folder.checkpoints)[0].steps)

    assert saved == [1000, 2300, 3600, 5300]


def test_half_an_update_of_a_learner_is_never_saved(tmp_path: Path, clock: list[float]) -> None:
    """Who died in one may not have been missed yet: the save waits for the next look, however many steps are made."""
    run = make_run(tmp_path, "a2c", checkpoint_interval_steps=1000)
    store, counter = run.handles.store, run.handles.clock
    monitor = Monitor(run)
    begun = store._counts[store._row(LEARNER)]

    def saved() -> list[int]:
        return [load(path).steps for path in find(run.spec.folder.checkpoints)]

    begun[BEGUN] += 1
    monitor.begin()
    assert saved() == []
    begun[UPDATES] += 1
    monitor.look()
    assert saved() == [0]

    begun[BEGUN] += 1
    counter.count(0, 1000)
    for _ in range(2):
        monitor.look()
        monitor.save_checkpoint()
        assert saved() == [0]
    counter.count(0, 500)
    store.restore(store.snapshot(), store.state(), store.counts())  # as the supervisor does when the learner is dead
    monitor.look()
    assert saved() == [0, 1500]
    monitor.look()
    assert saved() == [0, 1500]
    monitor.end()


def test_an_update_that_is_begun_while_a_checkpoint_is_taken_is_never_saved(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy may hold half of it."""
    run = make_run(tmp_path, "a2c")
    store = run.handles.store
    monitor = Monitor(run)
    snapshot = store.snapshot

    def late() -> Tensor:
        store._counts[store._row(LEARNER)][BEGUN] += 1
        return snapshot()

    monkeypatch.setattr(store, "snapshot", late)

    assert not monitor.save_checkpoint()
    assert find(run.spec.folder.checkpoints) == []
    monitor.end()


def test_no_interval_means_no_checkpoint_on_the_way(tmp_path: Path, clock: list[float]) -> None:
    """0 is for those at the start and the end only; what has just been saved is not saved again."""
    run = make_run(tmp_path, checkpoint_interval_steps=0)
    monitor = Monitor(run)
    monitor.begin()
    run.handles.clock.count(0, 10**6)
    monitor.look()
    monitor.save_checkpoint()
    monitor.save_checkpoint()

    saved = [one["steps"] for one in read_records(run.spec.folder.supervisor_file) if one.get("event") == "checkpoint"]
    assert saved == [0, 10**6]
    monitor.end()


def test_a_checkpoint_holds_the_best_score(run: Run, monitor: Monitor) -> None:
    """So that a resumed run does not take a worse one for the best."""
    write(run.spec.folder.evaluator_file, evaluation(3.0), evaluation(2.0))
    monitor.look_at_evaluations()
    run.handles.clock.count(0, 1000)
    monitor.look()

    assert load_newest(run.spec.folder.checkpoints)[0].facts["best_score"] == 3.0


def test_a_checkpoint_counts_no_update_that_its_parameters_lack(
    run: Run, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker pushes right after the copy was made; the next checkpoint has it, though T is the same."""
    snapshot = run.handles.store.snapshot

    def then_push() -> torch.Tensor:
        copy = snapshot()
        push(run.handles.store, 0, torch.ones_like(copy), 0)
        return copy

    with monkeypatch.context() as patch:
        patch.setattr(run.handles.store, "snapshot", then_push)
        run.handles.clock.count(0, 1000)
        monitor.look()
    assert load_newest(run.spec.folder.checkpoints)[0].updates == 0

    monitor.save_checkpoint()

    assert load_newest(run.spec.folder.checkpoints)[0].updates == 1


def test_parameters_that_are_not_finite_are_never_saved(run: Run, monitor: Monitor) -> None:
    """The checkpoint before stays the newest."""
    run.handles.store.theta[0] = math.nan
    run.handles.clock.count(0, 1000)

    with pytest.raises(ValueError, match="finite"):
        monitor.look()

    assert load_newest(run.spec.folder.checkpoints)[0].steps == 0


@pytest.mark.parametrize(
    ("settings", "steps", "seconds", "score", "verdict"),
    [
        ({}, 99, 1e9, 5.0, None),
        ({}, 100, 0.0, None, "total_steps reached"),
        ({}, 130, 0.0, None, "total_steps reached"),
        ({"max_seconds": 60.0}, 10, 59.9, None, None),
        ({"max_seconds": 60.0}, 10, 60.0, None, "max_seconds reached"),
        ({"stop_at_score": 18.0}, 10, 0.0, 17.9, None),
        ({"stop_at_score": 18.0}, 10, 0.0, 18.0, "an evaluation reached 18.0"),
        ({"stop_at_score": 18.0}, 100, 0.0, 18.0, "an evaluation reached 18.0"),
        ({"stop_at_score": 0.0}, 10, 0.0, 0.0, "an evaluation reached 0.0"),
        ({"stop_at_score": -20.0}, 10, 0.0, None, None),
    ],
)
def test_when_a_run_is_over(
    settings: dict[str, Any], steps: int, seconds: float, score: float | None, verdict: str | None,
    tmp_path: Path, clock: list[float],
) -> None:  # fmt: skip
    """By steps, by time, by an evaluation's mean; the score is the reason people ask for."""
    run = make_run(tmp_path, **{"total_steps": 100, **settings})
    monitor = Monitor(run)
    run.handles.clock.count(0, steps)
    clock[0] += seconds
    write(run.spec.folder.evaluator_file, evaluation(score))

    monitor.look_at_evaluations()

    assert monitor.verdict() == verdict
    monitor.end()


def test_the_limit_of_time_counts_this_part_of_the_run(tmp_path: Path, clock: list[float]) -> None:
    """20 seconds for a run that has been trained for 30: they are over after 20 more."""
    run = make_run(tmp_path, max_seconds=20.0, total_steps=10**6)
    handles = replace(run.handles, clock=Clock(2, 10**6, base_steps=5000, base_seconds=30.0))
    run = replace(run, spec=replace(run.spec, part=1), handles=handles)
    monitor = Monitor(run)
    clock[0] += 5.0
    run.handles.clock.count(0, 1)
    monitor.look(now=True)

    assert (monitor.summary.seconds, monitor.summary.seconds_left, monitor.verdict()) == (35.0, 15.0, None)
    clock[0] += 15.0
    assert monitor.verdict() == "max_seconds reached"
    monitor.end()


def test_a_score_of_an_earlier_part_does_not_end_a_resumed_run(tmp_path: Path) -> None:
    """It would end at once, and could never be gone on with."""
    run = make_run(tmp_path, stop_at_score=5.0)
    write(run.spec.folder.evaluator_file, evaluation(6.0))
    monitor = Monitor(run)

    monitor.look_at_evaluations()

    assert monitor.verdict() is None
    monitor.end()


def test_the_status_tells_how_the_run_is(run: Run, monitor: Monitor, clock: list[float]) -> None:
    """Its state, its counters, and at the end why and with which traceback."""
    write(run.spec.folder.evaluator_file, evaluation(3.0), evaluation(2.0))
    run.handles.clock.count(0, 300)
    clock[0] += 3.0
    monitor.look()

    status = read_json(run.spec.folder.status_file)
    assert (status["state"], status["reason"], status["exit_code"]) == ("running", "", None)
    assert (status["steps"], status["frames"], status["worker_steps"]) == (300, 300, [300, 0])
    assert (status["seconds"], status["steps_per_second"]) == (3.0, 100.0)
    assert (status["best_score"], status["last_evaluation"]) == (3.0, 2.0)
    assert "traceback" not in status

    monitor.write_status("failed", "it broke", 1, "Traceback: ...")

    status = read_json(run.spec.folder.status_file)
    assert (status["state"], status["reason"], status["exit_code"]) == ("failed", "it broke", 1)
    assert status["traceback"] == "Traceback: ..."


def test_losses_are_told_in_the_status_the_records_and_tensorboard(
    run: Run, monitor: Monitor, clock: list[float]
) -> None:
    """Who, how often and why."""
    monitor.note_loss("restarted", 1, "was killed by SIGKILL")
    monitor.note_loss("restarted", EVALUATOR, "made no progress for 120 seconds")
    monitor.note_loss("gone", 0, "was killed by SIGSEGV")
    run.handles.clock.count(1, 64)
    clock[0] += 3.0
    monitor.look()

    status = read_json(run.spec.folder.status_file)
    assert (status["worker_restarts"], status["workers_gone"]) == ([0, 1], [0])
    assert status["evaluator_restarts"] == 1
    told = [
        (row["event"], row["who"], row["cause"])
        for row in read_records(run.spec.folder.supervisor_file)
        if "who" in row
    ]
    assert told == [
        ("restarted", 1, "was killed by SIGKILL"),
        ("restarted", "evaluator", "made no progress for 120 seconds"),
        ("gone", 0, "was killed by SIGSEGV"),
    ]
    tags = {"worker_restarts": 1.0, "workers_gone": 1.0, "evaluator_restarts": 1.0}
    assert {tag: points(run.spec.folder.tensorboard, f"workers/{tag}") for tag in tags} == {
        tag: [(64, value)] for tag, value in tags.items()
    }


def test_the_clock_stands_still_once_training_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last evaluation takes 100 seconds, which are none of training's 10; the run is resumed with 5 before."""
    now = [1]
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    own = Clock(1, 1000, base_seconds=5.0)
    own.start()
    now[0] += 10 * 10**9
    assert own.seconds == 15.0
    for _ in range(2):
        own.halt()
        now[0] += 50 * 10**9

    assert (own.seconds, own.seconds_of_this_part) == (15.0, 10.0)
    assert pickle.loads(ForkingPickler.dumps(own)).seconds == 15.0


def test_a_learner_that_was_replaced_is_counted_where_there_is_one(tmp_path: Path) -> None:
    """In TensorBoard and in the records; without a learner there is no such number."""
    for algorithm, expected in (("impala", 1), ("a3c", None)):
        own = make_run(tmp_path / algorithm, algorithm)
        monitor = Monitor(own)
        monitor.begin()
        if expected:
            monitor.note_loss("restarted", LEARNER, "was killed by SIGKILL")
        monitor.look(now=True)
        monitor.end()

        rows = [row for row in read_records(own.spec.folder.supervisor_file) if "event" not in row]
        assert rows[-1].get("async/learner_restarts") == expected
