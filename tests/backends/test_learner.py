"""A learner and the hosts that feed it, without a cluster: real workers, and a wire that loses answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.backends.outcome import failed
from asyncrl.backends.ray.arrivals import Arrivals
from asyncrl.backends.ray.host import Host
from asyncrl.backends.ray.learner import MOMENTS, LearnerHost
from asyncrl.backends.ray.reports import LEFT, Seen
from asyncrl.core.errors import NotFinite
from asyncrl.experience.replay import Replay
from asyncrl.parameters.shards import State, beginning
from asyncrl.runtime.clock import BUILDING, FINISH, GO_ON, READY
from asyncrl.runtime.link import Empty
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.run import Run
from tests.backends.test_host import beginning_of
from tests.support import make_run

SECONDS = 200.0


class ThreadWire:
    """Calls run in threads, as in an actor that takes several at once; every `faulty`-th answer is lost."""

    def __init__(self, *servers: Any, faulty: int = 0) -> None:
        self.servers, self.faulty, self.calls = list(servers), faulty, 0
        self._threads = ThreadPoolExecutor(8)
        self._lock = threading.Lock()

    def send(self, shard: int, call: Any) -> Any:
        return self._threads.submit(self._answer, shard, call)

    def _answer(self, server: int, call: Any) -> Any:
        with self._lock:
            self.calls += 1
            lost = self.faulty and self.calls % self.faulty == 0
        try:
            answer = self.servers[server].exchange(call)
        except Empty:
            return None
        return None if lost else answer

    def receive(self, calls: Sequence[Future[Any]], seconds: float) -> list[tuple[Any, Any]]:
        done, _ = wait(calls, seconds, FIRST_COMPLETED)
        return [(call, call.result()) for call in done]


def run_of(folder: Path, algorithm: str, hosts: int, replay_hosts: int = 0, **settings: Any) -> Run:
    """A run of an algorithm on hosts of one worker each."""
    plain = {"workers": 1, "total_steps": 10**9, "envs_per_worker": 4, "record_interval_seconds": 1e6}
    run = make_run(folder, algorithm, **(plain | settings))
    on_hosts = {"backend": "ray", "hosts": hosts, **({"replay_hosts": replay_hosts} if replay_hosts else {})}
    return Run(replace(run.spec, config=replace(run.spec.config, **on_hosts)), run.handles)


def fill(learner: LearnerHost, run: Run, known: State | None = None, times: int = 1) -> None:
    """Fill a learner with the run's beginning, or with what is known of the one before."""
    store = run.handles.store
    counts = store.counts() if known is None else Counts(*known["counts"].tolist())
    known = known or beginning(store.snapshot().numpy())
    moments = [np.zeros_like(row) for row in run.handles.moments.of_workers()]
    rest = {name: tensor.numpy() for name, tensor in store.state().items()} | dict(zip(MOMENTS, moments, strict=True))
    numbers = {"steps": np.array([0]), "seconds": np.array([0.0]), "counts": np.array(counts, np.int64)}
    assert learner.begin(learner.who()[0], times, {**known, **rest, **numbers, "lost": np.array([0])})


class Driving:
    """Looks at hosts and learner as the driver does."""

    def __init__(self, hosts: list[Host], learner: LearnerHost) -> None:
        self.hosts, self.learner = hosts, learner
        self.seen: list[Seen | None] = [None] * len(hosts)
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.said: list[str] = []
        self.learnt: Seen | None = None

    def left(self) -> bool:
        return all(one is not None and one.outcome is not None for one in self.seen)

    def look(self, order: int = GO_ON) -> None:
        start = all(one is not None and min(one.phases) >= READY for one in self.seen)
        for number, host in enumerate(self.hosts):
            before = self.seen[number]
            self.seen[number] = one = host.look(0 if before is None else before.told, start, order)
            self._note(one)
        phases = [phase for one in self.seen if one is not None for phase in one.phases]
        told = 0 if self.learnt is None else self.learnt.told
        self.learnt = self.learner.look(told, start, order if self.left() else GO_ON, phases)
        self._note(self.learnt)

    def _note(self, seen: Seen) -> None:
        self.rows += [(file, row) for kind, *facts in seen.news if kind == "row" for file, row in [facts]]
        self.said += [facts[0] for kind, *facts in seen.news if kind == "say"]

    def until(self, condition: Callable[[], bool], order: int = GO_ON) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            self.look(order)
            assert time.monotonic() < deadline, (self.seen, self.learnt)
            time.sleep(0.02)

    def finish(self) -> None:
        self.until(lambda: self.left() and self.learnt is not None and self.learnt.outcome is not None, FINISH)
        assert [one.outcome for one in self.seen if one is not None] == [LEFT] * len(self.hosts)
        assert self.learnt is not None
        assert self.learnt.outcome == LEFT
        for host in self.hosts:
            host.close()


def arrivals_of(learner: LearnerHost) -> Arrivals:
    """Where rollouts of hosts arrive."""
    assert isinstance(learner._experience, Arrivals)
    return learner._experience


def steps_of(learner: LearnerHost) -> list[int]:
    tallies = learner._ledger.of_workers()
    return [int(steps) for steps in tallies[..., 0].ravel()]


@pytest.mark.parametrize("algorithm", ["impala", pytest.param("a2c", marks=pytest.mark.slow)])
def test_two_hosts_feed_one_learner(tmp_path: Path, algorithm: str) -> None:
    """Every fifth answer is lost: still the learner learns from each rollout once, and T is that of both hosts."""
    run = run_of(tmp_path, algorithm, hosts=2)
    learner = LearnerHost(run.spec)
    fill(learner, run)
    hosts = [Host(beginning_of(run, host), ThreadWire(learner, faulty=5)) for host in (0, 1)]
    drive = Driving(hosts, learner)
    drive.until(lambda: min(steps_of(learner)) >= 1000)
    drive.finish()

    steps, state = steps_of(learner), learner.state()
    of_workers = [row for file, row in drive.rows if "worker_steps" in row]
    assert sum(row["worker_steps"] for row in of_workers) == sum(steps)
    assert {row["worker"] for row in of_workers} == {0, 1}
    (row,) = [row for file, row in drive.rows if file == "learner.jsonl" and "updates" in row]
    assert row["updates"] == state["counts"][0] > 10
    each = run.spec.config.t_max * run.spec.config.envs_per_worker
    rollouts = sum(row["rollout_age_counts"].values())
    assert rollouts * each == sum(steps)
    assert row["rollout_age_mean"] >= 0
    assert not (state["theta"] == run.handles.store.snapshot().numpy()).all()
    rows = [row for file, row in drive.rows if file.startswith("host-")]
    assert sum(row["rollouts"] for row in rows) == rollouts
    learner.forget()


@pytest.mark.slow
def test_steps_of_two_hosts_are_in_the_learners_memory(tmp_path: Path) -> None:
    """With Ape-X: all of them, in the streams of their workers, and the learner keeps the replay ratio."""
    memory = {"memory_steps": 10_000, "warmup_steps": 500, "minibatch": 8, "replay_ratio": 0.05}
    run = run_of(tmp_path, "apex", hosts=2, **memory)
    learner = LearnerHost(run.spec)
    fill(learner, run)
    hosts = [Host(beginning_of(run, host), ThreadWire(learner, faulty=5)) for host in (0, 1)]
    drive = Driving(hosts, learner)
    drive.until(lambda: min(steps_of(learner)) >= 600)
    drive.finish()

    steps = steps_of(learner)
    replay = arrivals_of(learner).experience
    assert isinstance(replay, Replay)
    each = run.spec.config.envs_per_worker
    assert replay.steps.put.tolist() == [count // each for count in steps for _ in range(each)]
    (row,) = [row for file, row in drive.rows if file == "learner.jsonl" and "updates" in row]
    assert row["updates"] == learner.state()["counts"][0] == replay.learnt()
    assert 0 <= replay.ahead() < 1
    assert learner._handles is not None
    assert learner._handles.moments.state()["observation_moments"][0] == sum(steps)
    learner.forget()


def test_a_learner_that_dies_is_followed_by_one_that_knows_what_was_known(tmp_path: Path) -> None:
    """T and the number of updates go on, each host says what it has lost, and no rollout is older than theta."""
    run = run_of(tmp_path, "impala", hosts=1)
    first = LearnerHost(run.spec)
    fill(first, run)
    wire = ThreadWire(first)
    drive = Driving([Host(beginning_of(run, 0), wire)], first)
    drive.until(lambda: steps_of(first)[0] >= 500)
    known = first.state()

    first.forget()
    drive.look()
    second = LearnerHost(run.spec)
    wire.servers[0] = drive.learner = second  # empty at first
    drive.learnt = None
    drive.until(lambda: drive.seen[0] is not None)
    before = drive.seen[0]
    assert before is not None
    known["counts"][0] = max(known["counts"][0], before.version)
    fill(second, run, known, times=2)
    drive.until(lambda: steps_of(second)[0] >= 1500)
    drive.finish()

    (line,) = [line for line in drive.said if "there is a new learner" in line]
    lost = int(line.split()[7])
    rows = [row for file, row in drive.rows if file == "learner.jsonl" and "updates" in row]
    assert all(int(age) >= 0 for row in rows for age in row["rollout_age_counts"])
    assert second.state()["counts"][0] == known["counts"][0] + rows[-1]["updates"]
    each = run.spec.config.t_max * run.spec.config.envs_per_worker
    learnt = sum(sum(row["rollout_age_counts"].values()) for row in rows)
    assert steps_of(second)[0] // each - lost <= learnt <= steps_of(second)[0] // each
    assert sum(row["worker_steps"] for _, row in drive.rows if "worker_steps" in row) == steps_of(second)[0]


def test_actors_wait_for_a_learner_that_does_not_learn(tmp_path: Path) -> None:
    """There are never more rollouts on their way than the actors' own rings hold."""
    run = run_of(tmp_path, "impala", hosts=1, queue_length=3)
    learner = LearnerHost(run.spec)
    fill(learner, run)
    host = Host(beginning_of(run, 0), ThreadWire(learner))
    drive = Driving([host], learner)
    drive.until(lambda: host.joined.is_set())
    arrivals = arrivals_of(learner)
    arrivals.take = lambda learner: None  # type: ignore[method-assign, assignment, misc]
    drive.until(lambda: host.handles.experience is not None and not host.handles.experience.has_room(0))
    full = host.handles.clock.steps
    waiting: list[int] = []
    drive.until(lambda: len(waiting) > 50 or waiting.append(len(arrivals._queues[0])))  # type: ignore[func-returns-value]

    assert host.handles.clock.steps == full
    assert max(waiting) == 0  # all are in the rings, which have as much room
    del arrivals.take
    drive.until(lambda: host.handles.clock.steps > full)
    drive.finish()
    learner.forget()


def test_gradients_that_are_not_finite_end_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on one machine, without a traceback; the file with the last rollout is sent to the driver."""

    def build(run: Run, **_: Any) -> Any:
        run.spec.folder.culprit_file("learner").write_bytes(b"rollout")
        raise NotFinite("10 gradients in a row were not finite")

    monkeypatch.setattr("asyncrl.backends.ray.learner.build_learner", build)
    run = run_of(tmp_path, "impala", hosts=1)
    learner = LearnerHost(run.spec)
    fill(learner, run)
    learner._thread.join(SECONDS)
    seen = learner.look(0, False, GO_ON, [READY])
    learner.forget()

    assert seen.outcome == failed("learner: 10 gradients in a row were not finite")
    assert [facts[1] for kind, *facts in seen.news if kind == "file"] == [b"rollout"]


def test_a_learner_that_is_still_being_built_tells_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since it was filled, by which the driver sees that it hangs; here until the end of the test."""
    over = threading.Event()

    def build(*_: Any, **__: Any) -> Any:
        over.wait()
        raise SystemExit

    monkeypatch.setattr("asyncrl.backends.ray.learner.build_learner", build)
    run = run_of(tmp_path, "impala", hosts=1)
    learner = LearnerHost(run.spec)
    began = time.monotonic()
    fill(learner, run)
    filled = time.monotonic()
    time.sleep(0.1)
    asked = time.monotonic()
    seen = learner.look(0, False, GO_ON, [READY])
    answered = time.monotonic()
    over.set()
    learner.forget()

    assert seen.phases == [BUILDING]
    assert asked - filled <= seen.silence[0] <= answered - began
