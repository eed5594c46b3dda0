"""From actors to a learner: who waits for whom, and in which order what is put is taken."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import pytest
import torch

from asyncrl.backends.processes import start
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Rollout
from asyncrl.experience import batches
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import RolloutShape
from asyncrl.runtime.clock import BUILDING, ENDED, FINISH, READY, RUNNING, Clock, Watch
from asyncrl.runtime.protocols import Batch
from tests.experience.test_blocks import VECTOR, rollout_of

SHAPE = RolloutShape(2, 2, VECTOR)


def batches_of(actors: int, in_step: bool = True, capacity: int = 0, most: int = 0, **settings: bool) -> Batches:
    return Batches(SHAPE, actors, clock_of(actors), in_step, capacity or (1 if in_step else 2), most, **settings)


def clock_of(actors: int) -> Clock:
    """All of them at work."""
    clock = Clock(actors, total_steps=10**6)
    for actor in range(actors):
        clock.enter(actor, RUNNING)
    return clock


def numbered(number: float) -> Rollout:
    """A rollout that can be told from others by its rewards."""
    rollout = rollout_of(SHAPE)
    rollout.rewards.fill_(number)
    return rollout


def numbers_in(batch: Batch | None) -> list[int]:
    """Of the rollouts in a batch, in their order."""
    assert batch is not None
    return [int(number) for number in batch.rollout.rewards[0, :: SHAPE.environments]]


class Time:
    """A clock that goes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(batches, "time", time)
    monkeypatch.setattr(batches, "Watch", lambda: Watch(now=time.monotonic))
    return time


def wait(experience: Batches, time: Time, seconds: float) -> Batch | None:
    """Ask for a batch several times a second, for so long: the first one that there is."""
    until = time.now + seconds
    while (batch := experience.take()) is None and time.now < until:
        time.now += 0.1
    return batch


def test_in_step_a_batch_is_one_rollout_of_each_actor() -> None:
    """In the order of the actors, whoever was first; not before the last has put."""
    experience = batches_of(3)
    for actor in (2, 0):
        experience.put(actor, numbered(actor), version=7)
        assert experience.take() is None
    experience.put(1, numbered(1), version=8)

    batch = experience.take()

    assert batch is not None
    assert numbers_in(batch) == [0, 1, 2]
    assert (batch.versions, batch.waiting, batch.missing) == ([7, 8, 7], 0, 0)
    assert batch.rollout.rewards.shape == (2, 6)


def test_in_step_an_actor_has_room_when_the_learner_has_done_with_its_rollout() -> None:
    """Not when it is taken: then it would act with what the batch has not taught yet."""
    experience = batches_of(1)
    assert experience.has_room(0)
    experience.put(0, numbered(0), 0)
    assert not experience.has_room(0)
    experience.take()
    assert not experience.has_room(0)

    experience.release()

    assert experience.has_room(0)


def test_with_overlap_an_actor_makes_one_rollout_while_the_learner_learns() -> None:
    """And no second one: what is learnt from is one batch old, never two. A batch is still one rollout of each."""
    experience = batches_of(2, capacity=2)
    for actor in range(2):
        experience.put(actor, numbered(actor), 0)
    assert numbers_in(experience.take()) == [0, 1]

    assert experience.has_room(0)
    experience.put(0, numbered(10), 0)
    assert not experience.has_room(0)
    experience.release()

    assert experience.has_room(0)
    assert experience.take() is None
    experience.put(0, numbered(20), 1)
    experience.put(1, numbered(11), 0)
    assert numbers_in(experience.take()) == [10, 11]


def test_in_turns_overlap_waits_for_what_is_made_meanwhile() -> None:
    """Else the learner's turn would always come before the actors' next one, and nothing would ever be older."""
    experience = batches_of(2, capacity=2, in_turns=True)
    for actor in range(2):
        experience.put(actor, numbered(actor), 0)
    assert experience.take() is None
    experience.put(0, numbered(10), 0)
    assert experience.take() is None
    experience.put(1, numbered(11), 0)

    assert numbers_in(experience.take()) == [0, 1]
    experience.release()
    assert experience.take() is None


def test_steps_are_counted_when_a_rollout_is_put() -> None:
    """Once, for the actor that made them."""
    experience = Batches(SHAPE, 2, clock := Clock(2, total_steps=8), in_step=False, capacity=4)

    experience.put(1, numbered(0), 0)
    assert (clock.steps, clock.finished()) == (4, False)
    experience.put(1, numbered(0), 0)

    assert (clock.worker_steps(), clock.finished()) == ([0, 8], True)


def test_a_queue_holds_what_it_has_room_for_and_gives_it_back_in_order() -> None:
    """Two rollouts of each of two actors; what is released makes room."""
    experience = batches_of(2, in_step=False, capacity=2, most=3)
    for number in range(2):
        for actor in range(2):
            assert experience.has_room(actor)
            experience.put(actor, numbered(10 * actor + number), number)
    assert not any(experience.has_room(actor) for actor in range(2))
    with pytest.raises(RuntimeError, match="full"):
        experience.put(0, numbered(5), 0)

    batch = experience.take()
    assert batch is not None
    assert (numbers_in(batch), batch.versions, batch.waiting) == ([0, 1, 10], [0, 1, 0], 1)
    experience.release()

    assert [experience.has_room(actor) for actor in range(2)] == [True, True]
    assert numbers_in(experience.take()) == [11]


def test_a_queue_waits_for_nobody() -> None:
    """A batch is what is there, one of each in turn, the fullest first; nothing is missing in it."""
    experience = batches_of(3, in_step=False, capacity=3, most=2)
    assert experience.take() is None
    for number in range(3):
        experience.put(1, numbered(number), 0)
    experience.put(2, numbered(20), 0)

    batch = experience.take()
    assert (numbers_in(batch), batch.missing, batch.waiting) == ([0, 20], 0, 2)  # type: ignore[union-attr]
    experience.release()
    assert numbers_in(experience.take()) == [1, 2]


def test_what_was_taken_and_not_released_is_taken_again_by_a_successor() -> None:
    """The learner died: another process attaches to the same rings."""
    experience = batches_of(2, in_step=False)
    experience.put(0, numbered(1), 0)
    assert numbers_in(experience.take()) == [1]

    successor: Batches = pickle.loads(ForkingPickler.dumps(experience))
    assert numbers_in(successor.take()) == [1]
    successor.release()

    assert successor.take() is None
    assert experience.has_room(0)


@pytest.mark.parametrize("in_step", [True, False])
def test_what_a_learner_takes_that_one_before_had_taken_is_counted(in_step: bool) -> None:
    """It may have learnt from it, or not. What has come since is new, and so is all that comes later."""
    experience = batches_of(2, in_step, most=3)
    for actor in range(2):
        experience.put(actor, numbered(actor), 0)
    first = experience.take()
    assert first is not None
    assert first.again == 0
    if not in_step:
        experience.put(1, numbered(5), 0)

    successor: Batches = pickle.loads(ForkingPickler.dumps(experience))
    batch = successor.take()
    assert batch is not None
    assert (numbers_in(batch), batch.again) == ([0, 1] if in_step else [0, 1, 5], 2)
    successor.release()
    for actor in range(2):
        experience.put(actor, numbered(actor), 0)
    batch = successor.take()
    assert batch is not None
    assert batch.again == 0


def test_a_batch_goes_on_without_an_actor_that_was_waited_for(time: Time) -> None:
    """After ten seconds, and it says how many were missing; whoever comes back is in the next batch again."""
    experience = batches_of(3)
    for actor in (0, 2):
        experience.put(actor, numbered(actor), 0)
    assert experience.take() is None
    assert wait(experience, time, 9.8) is None

    batch = wait(experience, time, 0.4)
    assert (numbers_in(batch), batch.missing) == ([0, 2], 1)  # type: ignore[union-attr]
    experience.release()

    for actor in range(3):
        experience.put(actor, numbered(actor + 10), 0)
    assert numbers_in(experience.take()) == [10, 11, 12]


@pytest.mark.parametrize("phase", [BUILDING, ENDED])
def test_nobody_waits_for_an_actor_that_was_lost(time: Time, phase: int) -> None:
    """Not while its successor is being built, but then; it may be there before it has had its first look around."""
    clock = clock_of(3)
    experience = Batches(SHAPE, 3, clock, in_step=True)
    for number in range(2):
        for actor in (0, 2):
            experience.put(actor, numbered(actor + 10 * number), 0)
        if number == 0:
            assert experience.take() is None
            clock.enter(1, phase)
        batch = experience.take()
        assert batch is not None
        assert (numbers_in(batch), batch.missing) == ([10 * number, 2 + 10 * number], 1)
        experience.release()

    for later in (READY, RUNNING):
        clock.enter(1, later)
        for actor in (0, 2):
            experience.put(actor, numbered(actor), 0)
        assert experience.take() is None
        experience.put(1, numbered(1), 0)
        assert numbers_in(experience.take()) == [0, 1, 2]
        experience.release()


def test_an_actor_that_hangs_is_waited_for_only_once(time: Time) -> None:
    """Otherwise each batch would take ten seconds; after it has come back, it is waited for again."""
    experience = batches_of(2)
    experience.put(0, numbered(0), 0)
    assert numbers_in(wait(experience, time, 11)) == [0]
    experience.release()

    experience.put(0, numbered(1), 0)
    assert numbers_in(experience.take()) == [1]
    experience.release()

    experience.put(1, numbered(2), 0)
    assert experience.take() is None
    experience.put(0, numbered(3), 0)
    assert numbers_in(experience.take()) == [3, 2]
    experience.release()
    experience.put(0, numbered(4), 0)
    assert experience.take() is None


def test_another_that_is_missing_is_waited_for_all_the_same(time: Time) -> None:
    """The one that was given up does not count for it."""
    experience = batches_of(3)
    experience.put(0, numbered(0), 0)
    experience.put(1, numbered(1), 0)
    assert numbers_in(wait(experience, time, 11)) == [0, 1]
    experience.release()

    experience.put(0, numbered(2), 0)
    assert experience.take() is None


def test_in_turns_time_does_not_matter(time: Time) -> None:
    """A serial run whose evaluation takes a minute is the run it would have been without."""
    experience = batches_of(2, in_turns=True)
    experience.put(0, numbered(0), 0)
    assert experience.take() is None
    assert wait(experience, time, 100) is None


def test_nobody_is_waited_for_when_the_run_is_over() -> None:
    """What is left is learnt from."""
    clock = clock_of(2)
    experience = Batches(SHAPE, 2, clock, in_step=True)
    experience.put(1, numbered(1), 0)
    assert experience.take() is None

    clock.stop(FINISH)

    batch = experience.take()
    assert (numbers_in(batch), batch.missing) == ([1], 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("in_step", [True, False])
def test_what_lies_between_actors_and_learner_can_be_kept_and_put_back(in_step: bool) -> None:
    """A ring half full, another empty; both go on as they would have."""
    before, after = (batches_of(3, in_step, capacity=1 if in_step else 3) for _ in range(2))
    before.put(0, numbered(1), 4)
    before.put(2, numbered(2), 5)

    after.restore(before.state())

    for experience in (before, after):
        assert [experience.has_room(actor) for actor in range(3)] == [not in_step, True, not in_step]
        experience.put(1, numbered(3), 6)
        batch = experience.take()
        assert batch is not None
        assert (numbers_in(batch), batch.versions) == ([1, 3, 2], [4, 6, 5])


def test_what_does_not_fit_is_refused() -> None:
    """Of another number of steps."""
    other = Batches(RolloutShape(3, 2, VECTOR), 2, Clock(2, total_steps=10), in_step=True)

    with pytest.raises(UsageError, match="a different shape from this run's"):
        batches_of(2).restore(other.state())


def test_side_by_side_environments_stay_apart() -> None:
    """Columns in order; places of truncations move with their environments; states and scales are joined."""
    shape = RolloutShape(3, 2, VECTOR, state=((4,),), extras=("value",))
    one, other, third = rollout_of(shape, 1), rollout_of(shape), rollout_of(shape, 3)
    other_scale = Rollout.from_dict(other.as_dict() | {"reward_scale": 4.0, "acted_at": 99_999})

    together = Rollout.side_by_side([one, other_scale, third])

    for i, each in enumerate((one, other, third)):
        columns = slice(2 * i, 2 * i + 2)
        for name in ("observations", "actions", "rewards", "discounts", "last"):
            assert torch.equal(getattr(together, name)[:, columns], getattr(each, name))
        assert torch.equal(together.extras["value"][:, columns], each.extras["value"])
        assert each.state is not None
        assert together.state is not None
        assert torch.equal(together.state[0][columns], each.state[0])
    assert together.truncated[0].tolist() == [0, 0, 0, 1]
    assert together.truncated[1].tolist() == [0, 4, 5, 4]
    assert torch.equal(together.final_observations, torch.cat([one.final_observations, third.final_observations]))  # type: ignore[arg-type, list-item]
    assert torch.as_tensor(together.reward_scale).tolist() == [0.25, 0.25, 4.0, 4.0, 0.25, 0.25]
    assert together.acted_at == 99_999


def put_as_last(batches: Batches, actor: int) -> None:
    """A child's part."""
    batches.put(actor, numbered(7), version=3)


def test_hundreds_of_actors_fit_through_the_door_of_a_child() -> None:
    """A fork server takes 256 file descriptors at most: the rings of all actors are one piece of shared memory."""
    batches = batches_of(300, in_step=False)
    process = multiprocessing.get_context("forkserver").Process(target=put_as_last, args=(batches, 299))
    start(process)
    process.join(200)

    assert process.exitcode == 0
    batch = batches.take()
    assert batch is not None
    assert batch.versions == [3]
    assert numbers_in(batch) == [7]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["0.blocks.numbers"][0, 2].fill_(-1),
        lambda state: state["0.blocks.numbers"][0, 2].fill_(5),
        lambda state: state["0.blocks.truncated"][0, 0, 0].fill_(2),
        lambda state: state["0.blocks.truncated"][0, 1, 0].fill_(-1),
        lambda state: state["0.blocks.actions"][0, 1, 1].fill_(4),
    ],
)
def test_rollouts_of_a_stranger_that_point_out_of_themselves_are_refused(change: Callable[..., object]) -> None:
    """A time, an environment or an action that there is not."""
    before = batches_of(2)
    before.put(0, rollout_of(SHAPE, truncated=2), 0)
    state = before.state()
    change(state)

    with pytest.raises(UsageError, match="its truncations or actions are invalid"):
        batches_of(2).restore(state)


def test_a_learner_that_was_stopped_with_its_actors_waits_for_them(time: Time) -> None:
    """Ctrl-Z for a minute: nobody hangs."""
    experience = batches_of(2)
    experience.put(0, numbered(0), 0)
    assert experience.take() is None
    time.now += 60

    assert experience.take() is None
    assert wait(experience, time, 9.0) is None
    assert numbers_in(wait(experience, time, 2.0)) == [0]


@pytest.mark.parametrize(("actors", "most"), [(4, 1), (5, 2), (3, 7)])
def test_a_learner_that_is_slower_than_its_actors_learns_from_all_of_them_alike(actors: int, most: int) -> None:
    """In every round whoever has room puts a rollout, made with the newest theta, and one batch is taken."""
    experience = batches_of(actors, in_step=False, most=most)
    taken, ages = [0] * actors, []
    for theta in range(60):
        for actor in range(actors):
            if experience.has_room(actor):
                experience.put(actor, numbered(actor), theta)
        batch = experience.take()
        assert batch is not None
        for number in numbers_in(batch):
            taken[number] += 1
        ages += [theta - version for version in batch.versions]
        experience.release()

    assert max(taken) - min(taken) <= 2
    assert max(ages) <= 2 * actors
