"""A replay memory in processes of its own, between hosts and a learner: no cluster, and calls that get lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.backends.ray import memory as memories_of
from asyncrl.backends.ray import to_learner
from asyncrl.backends.ray.arrivals import Delivery, Rollouts
from asyncrl.backends.ray.host import Host
from asyncrl.backends.ray.learner import LearnerHost
from asyncrl.backends.ray.member import Member, build
from asyncrl.backends.ray.memory import Draw, Drew, Feedback, RemoteReplay, ReplayHost
from asyncrl.backends.ray.to_learner import ToLearner
from asyncrl.backends.replay_plans import memory_plan_of_host
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.experience.replay import Replay
from asyncrl.runtime import link
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.hosts import on_one_host
from asyncrl.runtime.link import Answer, Call, Callee, Empty
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.run import Handles, Run
from tests.backends.test_host import beginning_of
from tests.backends.test_learner import Driving, ThreadWire, fill, run_of, steps_of

T, E = 5, 2
MEMORY = {
    "envs_per_worker": E, "t_max": T, "memory_steps": 400, "warmup_steps": 40, "minibatch": 4, "replay_ratio": 0.5,
    "n_step": 1, "normalize_observations": False, "seed": 7,
}  # fmt: skip


def two_memories(folder: Path, **settings: Any) -> Run:
    """A run of Ape-X on two hosts of one worker each, whose steps go to a replay host each."""
    return run_of(folder, "apex", 2, replay_hosts=2, **(MEMORY | settings))


def begun(run: Run, number: int, times: int = 1) -> ReplayHost:
    """A replay host that has begun."""
    memory = ReplayHost(run.spec, number)
    assert memory.begin(memory.who()[0], times, {})
    return memory


def replay_of(memory: ReplayHost) -> Replay:
    """What it stores."""
    assert memory._arrivals is not None
    assert isinstance(memory._arrivals.experience, Replay)
    return memory._arrivals.experience


def rollout(number: float) -> Rollout:
    """One that can be told from others by its rewards; without the end of any episode."""
    return Rollout(
        observations=torch.full((T + 1, E, 50), number),
        actions=torch.zeros(T, E, dtype=torch.int64),
        rewards=torch.full((T, E), number),
        discounts=torch.ones(T, E),
        last=torch.zeros(T, E, dtype=torch.bool),
        truncated=(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
        final_observations=None,
        extras={name: torch.zeros(T, E) for name in ("action_value", "state_value")},
    )


def stored(memory: ReplayHost) -> list[float]:
    """The numbers of the rollouts whose steps are stored, in order; each is stored once and whole."""
    steps = replay_of(memory).steps
    each = []
    for stream in range(steps.streams):
        written = int(steps.written[stream])
        assert written <= steps.capacity
        each.append(steps.rows["rewards"][steps.place(np.full(written, stream), np.arange(written))])
    assert all((one == each[0]).all() for one in each)
    assert (each[0].reshape(-1, T) == each[0][::T, None]).all()
    return [float(number) for number in each[0][::T]]


def feed(memory: ReplayHost, rollouts: int) -> None:
    """Store so many rollouts of its first actor, as if they had come from its host."""
    for number in range(rollouts):
        replay_of(memory).steps.add(0, rollout(number))


class LossyWire:
    """Calls are carried out at once. Some are lost, or their answers, and some arrive once more, much later."""

    def __init__(self, *servers: Any, losing: float = 0.3, seed: int = 0) -> None:
        self.servers, self.losing = list(servers), losing
        self._random = random.Random(seed)
        self._past: list[tuple[int, Any]] = []
        self._lock = threading.Lock()

    def replace(self, server: int, another: Any) -> None:
        """Another takes a server's place, and what was on its way is lost."""
        with self._lock:
            self.servers[server], self._past = another, []

    def _carry_out(self, server: int, call: Any) -> Any:
        try:
            return self.servers[server].exchange(call)
        except Empty:
            return None

    def send(self, server: int, call: Any) -> Any:
        with self._lock:
            call = replace(call, load=replace(call.load, seconds=0.0))
            chance = self._random.random()
            if self._past and self._random.random() < self.losing / 3:
                self._carry_out(*self._random.choice(self._past))
            self._past = [*self._past[-5:], (server, call)]
            if chance < self.losing / 2:
                return _Handle(None)
            answer = self._carry_out(server, call)
            return _Handle(None if chance < self.losing else answer)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        time.sleep(0.0005)
        return [(call, call.answer) for call in calls]


class _Handle:
    """Of a call, with its answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class HalfDeaf(LossyWire):
    """Calls without an answer are still pending, as are all to a server that is not there."""

    def send(self, server: int, call: Any) -> Any:
        return super().send(server, call) if server < len(self.servers) else _Handle(None)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        return [(call, call.answer) for call in calls if call.answer is not None]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that failed are repeated at once."""
    monkeypatch.setattr(link, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(to_learner, "GATHER_SECONDS", 0.001)
    monkeypatch.setattr(to_learner, "THETA_SECONDS", 0.001)


# ----------------------------------------------------------------------------------------------------------- one memory


def draw(memory: ReplayHost, number: int, learner: int = 1, epoch: int = 1, **what: Any) -> Answer:
    """The answer to a draw of a learner."""
    return memory.exchange(Call(0, learner, epoch, number, number, Draw(**({"steps": 0, "seconds": 0.0} | what))))


def test_memory_and_warm_up_are_divided_as_the_hosts_are(tmp_path: Path) -> None:
    """Three hosts in two parts: two thirds and a third, and every environment has as many rows as in one memory."""
    run = run_of(tmp_path, "apex", 3, replay_hosts=2, **(MEMORY | {"memory_steps": 1200, "warmup_steps": 90}))
    spec = run.spec
    plans = [memory_plan_of_host(spec, number, (0, number)) for number in (0, 1)]

    assert [plan.actors for plan in plans] == [2, 1]
    assert [plan.capacity for plan in plans] == [800, 400]
    assert [plan.warmup_steps for plan in plans] == [60, 30]
    assert {plan.rows for plan in plans} == {200}
    assert {plan.ratio for plan in plans} == {0.5}


def test_a_memory_gives_what_is_due_and_a_repeated_call_gets_the_same(tmp_path: Path) -> None:
    """Nothing during the warm-up; then by the replay ratio of its own steps; an earlier learner gets nothing."""
    memory = begun(two_memories(tmp_path), 0)
    feed(memory, 2)
    assert draw(memory, 1).receipt is None  # 20 steps are the warm-up
    feed(memory, 1)  # 10 more are 5 updates
    first = draw(memory, 2, steps=1000).receipt
    assert isinstance(first, Drew)
    assert draw(memory, 2, steps=1000).receipt is first
    assert first.facts["sample_age"] == 1000
    further = [draw(memory, number).receipt for number in (3, 4, 5, 6, 7)]

    assert [one is None for one in further] == [False] * 4 + [True]
    assert replay_of(memory).learnt() == 5
    feed(memory, 1)
    assert isinstance(draw(memory, 1, learner=2).receipt, Drew)  # of the learner's successor
    assert draw(memory, 8).retired
    assert replay_of(memory).learnt() == 6


def test_errors_change_priorities_only_in_the_memory_they_are_of(tmp_path: Path) -> None:
    """Its successor ignores them: the same keys are other steps there."""
    run = two_memories(tmp_path)
    before, after = begun(run, 0), begun(run, 0, times=2)
    for memory in (before, after):
        feed(memory, 4)
    drew = draw(before, 1).receipt
    assert isinstance(drew, Drew)
    assert drew.keys is not None
    assert isinstance(draw(after, 1, epoch=2).receipt, Drew)
    feedback = Feedback(1, drew.keys, np.full(len(drew.keys), 100.0, np.float32))

    for memory, epoch, changed in ((before, 1, True), (after, 2, False)):
        draw(memory, 2, epoch=epoch, feedback=feedback)
        steps = replay_of(memory).steps
        rows, streams = np.divmod(drew.keys, steps.streams)
        assert bool((steps.rows["priorities"][steps.place(streams, rows)] > 10).all()) is changed


def test_a_draw_waits_until_a_call_brings_what_is_missing(tmp_path: Path) -> None:
    """The learner need not ask again and again."""
    memory = begun(two_memories(tmp_path), 0)
    feed(memory, 2)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(draw(memory, 1, seconds=200.0)))
    asking.start()
    assert memory._arrivals is not None
    with memory._arrivals.lock:
        feed(memory, 1)
        memory._arrivals.stored.notify_all()
    asking.join(timeout=200)

    assert isinstance(answers[0].receipt, Drew)


# ---------------------------------------------------------------------------------------------------------- the learner


def learn(remote: RemoteReplay, until: Any) -> list[int]:
    """Take minibatches until none comes any more; which memories they were from."""
    taken: list[int] = []
    deadline = time.monotonic() + 200
    while not until():
        assert time.monotonic() < deadline
        batch = remote.take()
        if batch is None:
            continue
        assert isinstance(batch.rollout, Transitions)
        assert len(batch.rollout.rewards[0]) == MEMORY["minibatch"]
        assert batch.keys is not None
        lane, _ = remote._taken
        taken.append(list(remote.lanes).index(lane))
        remote.feedback(batch.keys, torch.ones(len(batch.keys)))
        remote.release()
    return taken


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", range(5))
def test_every_minibatch_that_is_due_is_learnt_once_and_a_lost_memory_is_done_without(
    tmp_path: Path, seed: int
) -> None:
    """Each memory is drawn from in proportion to its steps, though calls and answers are lost and come late."""
    run = two_memories(tmp_path)
    memories = [begun(run, number) for number in (0, 1)]
    wire = LossyWire(*memories, seed=seed)
    remote = RemoteReplay(wire, 2, 1, Clock(2, 10**9), None)
    feed(memories[0], 6)
    feed(memories[1], 4)
    taken = learn(remote, remote.drained)
    assert [taken.count(number) for number in (0, 1)] == [20, 10]
    assert [replay_of(memory).learnt() for memory in memories] == [20, 10]

    another = ReplayHost(run.spec, 1)
    wire.replace(1, another)  # it has not begun
    remote = RemoteReplay(wire, 2, 2, Clock(2, 10**9), None)  # and another learner
    feed(memories[0], 1)
    taken = learn(remote, lambda: remote.lanes[0].empty > 0)
    assert taken == [0] * 5

    assert another.begin(another.who()[0], 2, {})
    feed(another, 3)  # it warms up again
    taken = learn(remote, remote.drained)
    assert taken == [1] * 5


def test_a_memory_that_never_answers_does_not_keep_the_learner_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns from the other meanwhile, and at the end it waits only for a while."""
    monkeypatch.setattr(memories_of, "LAST_SECONDS", 0.05)
    memory = begun(two_memories(tmp_path), 0)
    feed(memory, 4)

    remote = RemoteReplay(HalfDeaf(memory, losing=0.0), 2, 1, Clock(2, 10**9), None)
    remote._watch._looked -= 10_000  # the run has taken hours

    assert learn(remote, remote.drained) == [0] * 10


# ------------------------------------------------------------------------------------------------------------- the host


class Bench(Member):
    """A host whose workers are the test."""

    def __init__(self, run: Run, number: int) -> None:
        super().__init__(beginning_of(run, number))
        spec = self.beginning.spec
        self._handles = build(self.beginning, on_one_host(spec))
        self.firsts: list[set[int]] = [{0}]
        self.lines: list[str] = []

    @property
    def handles(self) -> Handles:
        return self._handles

    def say(self, line: str) -> None:
        self.lines.append(line)

    def tell_exchanges(self, row: dict[str, Any] | None) -> None:
        pass


class Theta:
    """A learner that only has theta."""

    def __init__(self, run: Run) -> None:
        self.theta = run.handles.store.snapshot().numpy()
        self.callee = Callee(2, 1)
        self.asked: list[Call[Rollouts]] = []

    def exchange(self, call: Call[Rollouts]) -> Answer:
        assert call.load.rollouts == []
        self.asked.append(call)
        self.callee.admit(call)
        return self.callee.answer(call, Delivery(counts=Counts(len(self.asked)), theta=self.theta))


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("seed", range(3))
def test_a_host_asks_the_learner_for_theta_and_its_replay_host_gets_each_rollout_once(
    tmp_path: Path, seed: int
) -> None:
    """In order, in the memory of its number; after the loss of a memory the next one gets what was not acknowledged."""
    run = two_memories(tmp_path, memory_steps=4000, warmup_steps=4000)
    learner, memories = Theta(run), [begun(run, number) for number in (0, 1)]
    bench = Bench(run, 1)
    wire = LossyWire(learner, *memories, seed=seed)
    forward = ToLearner(bench, wire)
    thread = threading.Thread(target=forward.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 200

    def put(numbers: range) -> None:
        experience = bench.handles.experience
        assert experience is not None
        for number in numbers:
            while not experience.has_room(0):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            experience.put(0, rollout(number), 0)

    put(range(1, 21))
    another = ReplayHost(run.spec, 1)
    wire.replace(2, another)
    before = stored(memories[1])
    assert another.begin(another.who()[0], 2, {})
    put(range(21, 41))
    bench.done.set()
    thread.join(timeout=200)
    assert not thread.is_alive()

    assert before == list(range(1, 1 + len(before)))
    after = stored(another)
    assert after == list(range(int(after[0]), 41))
    assert len(before) >= after[0] - 1  # what is in neither was never acknowledged
    assert stored(memories[0]) == []
    (line,) = bench.lines
    assert line.startswith("there is a new replay host 1; ")
    assert bench.joined.is_set()
    assert bench.handles.store.updates > 0
    assert all(call.host == 1 for call in learner.asked)
    reports = [call.load.report for call in learner.asked if call.load.report is not None]
    assert max(int(report.tallies[0, 0]) for report in reports) == 40 * T * E


# --------------------------------------------------------------------------------------------------------- all together


@pytest.mark.slow
def test_a_learner_goes_on_from_the_other_memory_when_one_is_lost(tmp_path: Path) -> None:
    """With real workers: afterwards both memories have the steps of their hosts, and the replay ratio of each holds."""
    memory = {"memory_steps": 20_000, "warmup_steps": 400, "minibatch": 8, "replay_ratio": 0.05}
    run = run_of(tmp_path, "apex", hosts=2, replay_hosts=2, **memory)
    memories = [begun(run, number) for number in (0, 1)]
    drawn = ThreadWire(*memories, faulty=7)
    learner = LearnerHost(run.spec)
    learner.connect(drawn)
    fill(learner, run)
    wires = [ThreadWire(learner, *memories, faulty=5) for _ in (0, 1)]
    drive = Driving([Host(beginning_of(run, host), wire) for host, wire in enumerate(wires)], learner)
    drive.until(lambda: min(replay_of(memory).learnt() for memory in memories) >= 5)

    lost, another = memories[1], ReplayHost(run.spec, 1)
    drawn.servers[1] = wires[0].servers[2] = wires[1].servers[2] = another
    before = learner.state()["counts"][0]
    drive.until(lambda: learner.state()["counts"][0] >= before + 20)
    assert replay_of(lost).learnt() < before + 20
    assert another.begin(another.who()[0], 2, {})
    drive.until(lambda: replay_of(another).learnt() >= 5)
    drive.finish()

    steps = steps_of(learner)
    each = run.spec.config.envs_per_worker
    assert replay_of(memories[0]).steps.put.tolist() == [steps[0] // each] * each
    assert 0 < replay_of(another).steps.put.sum() < steps[1]
    assert 0 <= replay_of(memories[0]).ahead() < 1
    assert 0 <= replay_of(another).ahead() < 1
    (row,) = [row for file, row in drive.rows if file == "learner.jsonl" and "updates" in row]
    learnt = sum(replay_of(memory).learnt() for memory in (memories[0], lost, another))
    assert learnt - 1 <= row["updates"] == learner.state()["counts"][0] <= learnt  # one may have been lost on its way
    assert row["replay"]["memory_fill"] > 0
    (line,) = [line for line in drive.said if "there is a new" in line]
    assert line.startswith("host 1: there is a new replay host 1; ")
    assert learner._handles is not None
    assert learner._handles.moments.state()["observation_moments"][0] == sum(steps)
    learner.forget()
