"""The replay memory: what is drawn how often, who waits for whom, what its state is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Transitions
from asyncrl.experience import steps as steps_module
from asyncrl.experience.replay import Replay, ReplayPlan
from asyncrl.experience.steps import Steps, StepShape
from asyncrl.experience.transitions import Numbers
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.normalize import Normalizer, RunMoments
from asyncrl.runtime.protocols import LEARNER, Batch
from tests.experience.streams import GOES_ON, TERMINATES, TRUNCATES, Written, collector_of, spaces_of

T = 5
PLAN = ReplayPlan(
    StepShape(spaces_of(1), 1, 1),
    actors=2,
    environments=2,
    t_max=T,
    capacity=120,
    warmup_steps=20,
    minibatch=8,
    ratio=0.5,
)
BY_PRIORITY = replace(
    PLAN, shape=StepShape(spaces_of(1), 1, 1, priorities=True), priority_exponent=0.5, importance_exponent=0.5
)


class World:
    """A memory and what fills it."""

    def __init__(self, plan: ReplayPlan, kinds: list[int] | None = None, normalizer: Normalizer | None = None) -> None:
        self.clock = Clock(plan.actors, 10**9, learners=1)
        self.memory = Replay(plan, self.clock, lambda: normalizer)
        self.collectors = [self.collector(actor, kinds or [GOES_ON]) for actor in range(plan.actors)]

    def collector(self, actor: int, kinds: list[int]) -> Collector:
        plan = self.memory.plan
        environments = [Written(kinds, plan.shape.stack, 20 * (10 * actor + e)) for e in range(plan.environments)]
        return collector_of(environments, plan.shape.stack, plan.t_max)

    def put(self, *actors: int) -> None:
        for actor in actors:
            self.memory.put(actor, next(self.collectors[actor]), 0)

    def take(self) -> tuple[Batch, Transitions]:
        batch = self.memory.take()
        assert batch is not None
        assert isinstance(batch.rollout, Transitions)
        return batch, batch.rollout

    def draw(self, times: int) -> torch.Tensor:
        """The numbers of the images drawn so many times, whatever the replay ratio says."""
        drawn = []
        for _ in range(times):
            self.memory._learnt.zero_()
            drawn.append(self.take()[1].observations[:, 0, 0, 0])
        return torch.cat(drawn)


def test_every_step_of_every_ring_is_drawn_equally_often() -> None:
    """Though one actor has put three times as much; a last observation at a time limit is no step."""
    world = World(replace(PLAN, capacity=400), [GOES_ON, GOES_ON, TRUNCATES, GOES_ON, TERMINATES])
    world.put(0, 0, 0, 1)
    numbers = world.draw(1000)

    steps = world.memory.steps
    begins, ends = steps.drawable()
    expected = []
    for stream in range(4):
        rows = np.arange(begins[stream], ends[stream])
        streams = np.full(len(rows), stream)
        usable = steps.read(streams, rows).usable
        expected.append(steps.rows["frames"][steps.place(streams, rows)][usable, 0, 0, 0])
    there, wanted = np.unique(np.concatenate(expected), return_counts=True)
    found, counts = np.unique(numbers.numpy(), return_counts=True)
    assert found.tolist() == there.tolist()
    share = wanted / wanted.sum()
    assert np.square(counts / 8000 - share).sum() * 8000 / share.mean() < 2.5 * len(share)


def test_the_learner_waits_for_the_warm_up_and_for_steps_and_actors_for_updates() -> None:
    """One update for two steps; both may be ahead, but not far, and never wait for each other."""
    world = World(PLAN)
    memory = world.memory
    assert memory.take() is None
    world.put(0)
    assert memory.take() is None  # 10 steps, of 20
    world.put(1)
    assert memory.take() is None  # nothing is due for steps of the warm-up
    updates = 0
    for _ in range(50):
        for actor in (0, 1):
            if memory.has_room(actor):
                world.put(actor)
    assert not memory.has_room(0)
    assert not memory.has_room(1)
    waiting = int(memory.steps.put.sum()) - 20
    assert waiting <= 2 + 4 * (T + 2) + 2 * 10
    while (batch := memory.take()) is not None:
        assert batch.facts["replay_ratio"] <= 0.5
        memory.release()
        updates += 1
    assert updates == waiting // 2 == memory.learnt()
    assert memory.has_room(0)
    assert world.clock.steps == waiting + 20


@pytest.mark.parametrize("step", ["read", "_intact"])
def test_what_is_overwritten_while_it_is_read_is_drawn_again(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The writer goes round once more before it, or between the copies and the check.

    Nothing comes between these deterministically where they are compiled; test_replay_processes.py has many tries.
    """
    world = World(replace(PLAN, ratio=10.0))
    for _ in range(6):
        world.put(0, 1)
    if step == "_intact":
        monkeypatch.setattr(steps_module, "_READ", None)
    do, calls = getattr(Steps, step), 0

    def overwritten(self: Steps, streams: Numbers, rows: Numbers) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            world.put(0, 0)
        return do(self, streams, rows)

    monkeypatch.setattr(Steps, step, overwritten)
    _, transitions = world.take()

    assert calls == 2
    begins, _ = world.memory.steps.drawable()
    oldest = world.memory.steps.rows["frames"][begins[0] % 30, 0, 0, 0]
    from_first = transitions.observations[:, 0, 0, 0]
    assert (from_first[from_first < 60] >= oldest).all()


def test_an_actor_that_died_in_the_middle_of_a_rollout_leaves_a_memory_that_can_be_drawn_from() -> None:
    """Its successor's steps are not joined to its own."""
    world = World(replace(PLAN, ratio=10.0, actors=1, environments=1, capacity=40))
    world.put(0, 0, 0, 0, 0)
    world.memory.steps._cells[0, 0] += T
    successor = Replay.__new__(Replay)
    successor.__dict__.update(world.memory.__getstate__())
    kind, made_of = world.memory.steps.__reduce__()
    successor.steps = kind(*made_of)
    successor.put(0, next(world.collector(0, [GOES_ON])), 0)

    for _ in range(50):
        _, transitions = world.take()
        assert torch.equal(transitions.following[:, 0, 0, 0], transitions.observations[:, 0, 0, 0] + 1)


def test_a_process_that_writes_for_actors_elsewhere_is_told_when_one_has_a_successor() -> None:
    """Then too the successor's steps are not joined to those before."""
    world = World(replace(PLAN, ratio=10.0, actors=1, environments=1, capacity=40))
    world.put(0, 0, 0, 0, 0)
    world.memory.steps.begin(0)
    world.memory.put(0, next(world.collector(0, [GOES_ON])), 0)

    for _ in range(50):
        _, transitions = world.take()
        assert torch.equal(transitions.following[:, 0, 0, 0], transitions.observations[:, 0, 0, 0] + 1)


def test_transitions_are_drawn_by_priority_and_weighed_by_it() -> None:
    """P = p^a / sum p^a, w = (N P)^-b over the largest; feedback counts from the next draw on."""
    world = World(replace(BY_PRIORITY, actors=1, environments=1, capacity=60, ratio=10.0, warmup_steps=5))
    world.put(0, 0, 0)
    batch, _ = world.take()
    assert batch.keys is not None
    steps, streams, rows = world.memory.steps, np.zeros(14, np.int64), np.arange(14)
    first = steps.rows["priorities"][:14].astype(np.float64)
    # Images are 1, 2, ... plus one, as the rewards; r + g V(s') - Q(s, a) with values and gamma of the tests' own.
    images = steps.rows["frames"][:14, 0, 0, 0]
    assert first == pytest.approx(images + 0.5 * (images + 1) - images / 2 + 1e-6)

    world.memory.feedback(torch.from_numpy(rows), torch.from_numpy(np.arange(14.0)) - 4)
    drawn = world.draw(2000).numpy()
    batch, transitions = world.take()

    priorities = (np.abs(np.arange(14.0) - 4) + 1e-6) ** 0.5
    share = priorities / priorities.sum()
    counts = np.array([(drawn == image).sum() for image in images])
    assert np.abs(counts / len(drawn) - share).max() < 0.01
    chosen = transitions.observations[:, 0, 0, 0].numpy() - images[0]
    weights = (14 * share[chosen]) ** -0.5
    assert transitions.weights.numpy() == pytest.approx(weights / weights.max(), rel=1e-5)
    assert batch.facts["priority_mean"] == pytest.approx(priorities.mean(), rel=1e-4)
    assert torch.equal(transitions.weights, transitions.weights.clamp(0, 1))
    assert steps.read(streams, rows).usable.all()


@pytest.mark.parametrize("resumed", [False, True])
def test_renewed_priorities_outlive_the_learner(resumed: bool) -> None:
    """Its successor in the run, and the first one of a resumed run, draw by them."""
    plan = replace(BY_PRIORITY, actors=1, environments=1, capacity=60, ratio=10.0, warmup_steps=5, kept=True)
    world = World(plan)
    world.put(0, 0, 0)
    world.take()
    world.memory.feedback(torch.arange(14), torch.eye(14)[7] * 1e3)
    state = world.memory.state()
    assert state is not None

    if resumed:
        world = World(plan)
        world.memory.restore(state, exactly=False)
    else:
        world.memory._drawing.clear()
    batch, transitions = world.take()

    assert len(set(transitions.observations[:, 0, 0, 0].tolist())) == 1
    assert batch.facts["priority_max_drawn"] == pytest.approx(1e3**0.5)
    assert batch.facts["priority_mean"] == pytest.approx((1e3**0.5 + 13 * 1e-6**0.5) / 14, rel=1e-3)


@pytest.mark.parametrize(("ratio", "learnt"), [(0.1, 2), (0.5, 10), (3.0, 17)])
def test_another_replay_ratio_holds_from_a_resume_on(ratio: float, learnt: int) -> None:
    """20 steps after the warm-up at a ratio of 0.5 are 10 updates; nobody has to catch up with another's count.

    With 0.1 they count as 2. With 3 at most 1 + 3 * (5 + 1 + 1) * 2 = 43 of 60 are due.
    """
    plan = replace(PLAN, actors=1, warmup_steps=10, kept=True)
    world = World(plan)
    world.put(0, 0, 0)
    for _ in range(10):
        world.memory.release()
    state = world.memory.state()
    assert state is not None

    resumed = World(replace(plan, ratio=ratio))
    resumed.memory.restore(state, exactly=False)

    assert resumed.memory.learnt() == learnt
    assert resumed.memory.has_room(0)


@pytest.mark.parametrize(("before", "after", "learnt"), [(10, 18, 6), (10, 50, 0), (50, 10, 2), (50, 18, 0)])
def test_another_warm_up_holds_from_a_resume_on(before: int, after: int, learnt: int) -> None:
    """30 steps at a ratio of 0.5: neither the learner nor the actors wait for the updates of the other warm-up.

    At most 1 + 0.5 * (5 + 1 + 1) * 2 = 8 updates may be due, of (30 - after) / 2.
    """
    plan = replace(PLAN, actors=1, warmup_steps=before, kept=True)
    world = World(plan)
    world.put(0, 0, 0)
    for _ in range(max(0, 30 - before) // 2):
        world.memory.release()
    state = world.memory.state()
    assert state is not None

    resumed = World(replace(plan, warmup_steps=after))
    resumed.memory.restore(state, exactly=False)

    assert resumed.memory.learnt() == learnt
    assert resumed.memory.has_room(0)


def test_feedback_on_what_is_overwritten_leaves_the_first_priority_of_what_came_after() -> None:
    """Also before the learner has looked again."""
    world = World(replace(BY_PRIORITY, actors=1, environments=1, capacity=30, ratio=10.0, warmup_steps=5))
    world.put(0, 0)
    batch, _ = world.take()
    for _ in range(7):
        world.put(0)
    assert batch.keys is not None
    before = world.memory.steps.rows["priorities"].copy()

    world.memory.feedback(batch.keys, torch.full((8,), 1e12))

    assert np.array_equal(world.memory.steps.rows["priorities"], before)
    world.take()
    own = world.memory._drawing[0]
    assert own._tree is not None
    assert own._tree.total < 1e5


def test_feedback_on_what_is_gone_is_ignored() -> None:
    """The row that has its place keeps its own priority; so it is with errors that are no numbers."""
    world = World(replace(BY_PRIORITY, actors=1, environments=1, capacity=30, ratio=10.0, warmup_steps=5))
    world.put(0, 0)
    batch, _ = world.take()
    for _ in range(6):
        world.put(0)
    world.take()
    assert batch.keys is not None

    world.memory.feedback(batch.keys, torch.full((8,), 1e12))
    newest, _ = world.take()
    assert newest.keys is not None
    world.memory.feedback(newest.keys, torch.full((8,), torch.nan))

    own = world.memory._drawing[0]
    assert own._tree is not None
    assert own._tree.total < 1e5


def test_what_is_drawn_is_normalised_by_the_newest_moments() -> None:
    """Kept as it was seen; rewards are scaled by the newest spread of returns."""
    moments = RunMoments(2, 2)
    normalizer = Normalizer(moments, -2, (1, 1, 2), True, 0.5)
    world = World(replace(PLAN, ratio=10.0), normalizer=normalizer)
    world.put(0, 1)
    world.put(0, 1)
    moments.observations.add(0, torch.tensor([[10.0, 10.0], [30.0, 30.0]]))
    moments.returns.add(0, torch.tensor([[0.0], [8.0]]))

    _, transitions = world.take()

    raw = world.memory.steps.rows["frames"]
    assert transitions.observations.dtype == torch.float32
    normal = {round((float(image) - 20) / 10, 3) for image in raw[:, 0, 0, 0]}
    clipped = {min(5.0, value) for value in normal}
    assert {round(float(value), 3) for value in transitions.observations[:, 0, 0, 0]} <= clipped
    assert transitions.reward_scale == pytest.approx(1 / 4, rel=1e-6)
    assert transitions.learning_rewards(3.0).max() == 3.0


@pytest.mark.parametrize("plan", [PLAN, BY_PRIORITY], ids=["uniform", "priorities"])
def test_a_memory_that_goes_on_draws_what_it_would_have_drawn(plan: ReplayPlan) -> None:
    """Steps, counts, random numbers and priorities, after it has gone round."""
    kept = replace(plan, ratio=2.0, kept=True)
    world = World(kept, [GOES_ON, GOES_ON, TRUNCATES])
    for i in range(9):
        world.put(0, 1)
        if i > 2:
            batch, _ = world.take()
            if batch.keys is not None:
                world.memory.feedback(batch.keys, torch.arange(8.0))
            world.memory.release()
    state = world.memory.state()
    assert state is not None
    again = World(kept)
    again.memory.restore({name: tensor.clone() for name, tensor in state.items()})

    assert again.memory.learnt() == world.memory.learnt() == 6
    rollouts = [next(world.collectors[0]) for _ in range(1)]
    for one in (world, again):
        one.memory.put(0, rollouts[0], 0)
    for _ in range(3):
        ours, theirs = world.take()[1], again.take()[1]
        for name in Transitions.__slots__:
            assert torch.equal(torch.as_tensor(getattr(ours, name)), torch.as_tensor(getattr(theirs, name)))
    with pytest.raises(UsageError, match="replay memory"):
        World(replace(kept, capacity=160)).memory.restore(state)
    assert World(plan).memory.state() is None


def test_bundled_each_learner_draws_from_its_own_actors_steps() -> None:
    """With warm-up and replay ratio of their own."""
    world = World(replace(PLAN, bundled=True, learners=2))
    memory = world.memory
    world.put(0, 0, 1)  # 20 and 10 steps, of a warm-up of 10 each
    assert memory.take(1) is None
    while (batch := memory.take(0)) is not None:
        assert isinstance(batch.rollout, Transitions)
        assert batch.rollout.observations.max() < 200
        memory.release(0)
    assert (memory.learnt(0), memory.learnt(1)) == (5, 0)
    world.put(1, 1, 1, 1)
    batch = memory.take(1)
    assert batch is not None
    assert isinstance(batch.rollout, Transitions)
    assert batch.rollout.observations.min() > 200
    while memory.has_room(1):
        world.put(1)
    assert memory.has_room(0)


def test_several_learners_draw_from_all_steps_and_keep_the_ratio_together() -> None:
    """Each by random numbers of its own."""
    world = World(replace(PLAN, learners=2))
    memory = world.memory
    world.put(0, 1, 0, 1)
    first, second = memory.take(LEARNER), memory.take(LEARNER - 1)
    assert first is not None
    assert second is not None
    assert isinstance(first.rollout, Transitions)
    assert isinstance(second.rollout, Transitions)
    assert not torch.equal(first.rollout.observations, second.rollout.observations)
    assert first.rollout.observations.max() > 200 > first.rollout.observations.min()
    for learner in 6 * (LEARNER, LEARNER - 1):
        if memory.take(learner) is not None:
            memory.release(learner)
    assert memory.learnt() == 10


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["drawing.0.priorities"][50].fill_(1.0),  # its row would be before the first
        lambda state: state["drawing.0.priorities"][3].fill_(-1.0),
        lambda state: state["drawing.0.known"].fill_(11),
        lambda state: state["drawing.0.known"].fill_(-1),
        lambda state: state.update({"drawing.0.known": torch.zeros(2, dtype=torch.int64)}),
        lambda state: state["learnt"].fill_(-1),
        lambda state: state.update(learnt=state["learnt"].double()),
        lambda state: state.pop("learnt"),
    ],
)
def test_what_a_stranger_says_of_the_sampling_is_refused(change: Callable[..., object]) -> None:
    """Rows that do not exist would be read."""
    plan = replace(BY_PRIORITY, actors=1, environments=1, capacity=60, ratio=10.0, warmup_steps=5, kept=True)
    world, again = World(plan), World(plan)
    world.put(0, 0)
    world.take()
    state = world.memory.state()
    assert state is not None
    change(state)

    with pytest.raises(UsageError, match="the checkpoint"):
        again.memory.restore(state)


@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_actors_that_take_turns_share_the_room_alike(ratio: float) -> None:
    """In every round each puts a rollout of 10 steps if it may, and one update is made, so there is room for few."""
    world = World(replace(PLAN, actors=4, capacity=2000, ratio=ratio, in_turns=True))
    memory, learnt = world.memory, 0
    for _ in range(200):
        for actor in range(4):
            if memory.has_room(actor):
                world.put(actor)
        if memory.take() is not None:
            memory.release()
            learnt += 1

    put = memory.steps.put.reshape(4, -1).sum(1)
    assert put.max() - put.min() <= 2 * T
    assert learnt > 150
    assert put.sum() >= learnt / ratio
