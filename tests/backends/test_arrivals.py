"""Rollouts from hosts in the rings of a learner, without any process."""

from __future__ import annotations

import itertools
import threading
import time

import torch

from asyncrl.backends.ray.arrivals import Arrivals, Delivery, Rollouts
from asyncrl.core.rollout import Rollout
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import RolloutShape, copied, packed
from asyncrl.experience.replay import Replay
from asyncrl.runtime.clock import RUNNING, Clock
from asyncrl.runtime.link import Call, Callee, Caller
from tests.support import COUNTING

SHAPE = RolloutShape(steps=2, environments=1, spaces=COUNTING)


def rollout(number: float, truncated: bool = False) -> Rollout:
    """One that can be told from others by its rewards; maybe with a truncated episode."""
    cut = torch.tensor([[0], [0]]) if truncated else torch.zeros(2, 0, dtype=torch.int64)
    return Rollout(
        observations=torch.full((3, 1, 1), number),
        actions=torch.zeros(2, 1, dtype=torch.int64),
        rewards=torch.full((2, 1), number),
        discounts=torch.ones(2, 1),
        last=torch.zeros(2, 1, dtype=torch.bool),
        truncated=(cut[0], cut[1]),
        final_observations=torch.full((1, 1), 7.0) if truncated else None,
    )


def arrivals(in_step: bool = False, hosts: int = 2, workers: int = 1) -> Arrivals:
    clock = Clock(hosts * workers, 10**9, learners=1)
    for worker in range(hosts * workers):
        clock.enter(worker, RUNNING)
    batches = Batches(SHAPE, hosts * workers, clock, in_step, capacity=2)
    return Arrivals(batches, SHAPE, hosts, workers, Callee(hosts, 1))


def hear(
    place: Arrivals, number: int, *rewards: float, host: int = 0, incarnation: int = 1, seconds: float = 0.0
) -> tuple[int, Delivery, bool]:
    """A call with rollouts of the host's first worker arrives; what is taken of the host's calls, and its news."""
    messages = [(0, packed(SHAPE, rollout(reward), 5, 0).numpy()) for reward in rewards]
    call = Call(host, incarnation, 1, number, 1, Rollouts(messages, seconds=seconds))
    answer, newest = place.hear(call)
    return answer.taken, answer.news, newest


def rewards_of(place: Arrivals) -> list[float]:
    batch = place.take()
    assert batch is not None
    assert set(batch.versions) == {5}
    assert isinstance(batch.rollout, Rollout)
    return batch.rollout.rewards[0].tolist()


def test_a_rollout_crosses_the_wire_unchanged_with_its_truncated_episodes() -> None:
    """Out of a block with room for all, into a message with room for one, into such a block again."""
    ring = Batches(SHAPE, 1, Clock(1, 10), False)
    ring.put(0, rollout(3.0, truncated=True), 5)
    block = ring.rings[0].block(0)
    assert block is not None
    place = arrivals()
    place.hear(Call(0, 1, 1, 1, 1, Rollouts([(0, copied(SHAPE, block).numpy())])))

    batch = place.take()
    assert batch is not None
    got = batch.rollout
    assert isinstance(got, Rollout)
    assert got.rewards.tolist() == [[3.0], [3.0]]
    assert [part.tolist() for part in got.truncated] == [[0], [0]]
    assert got.final_observations is not None
    assert got.final_observations.tolist() == [[7.0]]


def test_a_host_hears_what_the_learner_is_done_with_only_after_the_batch() -> None:
    """Until then the rollouts keep their places in the host's ring."""
    place = arrivals()
    taken, heard, _ = hear(place, 1, 1.0, 2.0)
    assert (taken, heard.done, heard.news) == (1, [0], 0)
    assert rewards_of(place) == [1.0, 2.0]
    assert place.done(0, 1) == [0]
    place.release()

    _, heard, _ = hear(place, 2)
    assert (heard.done, place.done(1, 1), heard.news) == ([2], [0], 1)


def test_a_call_waits_for_news_until_the_next_one_of_its_host_arrives() -> None:
    """Or until a batch is done; calls of other hosts change nothing."""
    place, said = arrivals(), list[tuple[Delivery, bool]]()
    for ended in (lambda: hear(place, 2, 1.0), lambda: place.release()):
        first = threading.Thread(target=lambda: said.append(hear(place, 1 + 2 * len(said), seconds=200.0)[1:]))
        first.start()
        while place.callee.taken[0] < 1 + 2 * len(said):
            time.sleep(0.001)
        hear(place, 1 + len(said), host=1)
        first.join(0.05)
        assert first.is_alive()
        if said:
            assert rewards_of(place) == [1.0]
        ended()
        first.join(200)

    assert [(newest, one.news, one.done) for one, newest in said] == [(False, 0, [0]), (True, 1, [1])]


def test_an_answer_that_is_overtaken_by_a_later_one_frees_nothing() -> None:
    """A call waits for news, the next one is answered after the batch; its answer is the first to come."""
    place, caller = arrivals(), Caller[Rollouts](0, 1, credit=3)
    caller.call(Rollouts())
    while caller.waiting:  # the first call only tells it the epoch
        caller.accept(place.hear(caller.waiting[0])[0])
    first, _ = place.hear(caller.call(Rollouts([(0, packed(SHAPE, rollout(1.0), 5, 0).numpy())])))
    assert rewards_of(place) == [1.0]
    place.release()
    second, _ = place.hear(caller.call(Rollouts()))

    assert (first.news.done, second.news.done) == ([0], [1])
    assert caller.accept(second) is not None
    assert caller.accept(first) is None


def test_in_step_a_batch_is_one_rollout_of_every_host() -> None:
    """The other host's is waited for."""
    place = arrivals(in_step=True)
    hear(place, 1, 1.0, 2.0)
    assert place.take() is None
    hear(place, 1, 10.0, host=1)

    assert rewards_of(place) == [1.0, 10.0]
    place.release()
    assert place.done(0, 1) == place.done(1, 1) == [1]


def test_what_a_host_has_left_behind_is_not_taken_for_its_successors() -> None:
    """The successor's rollouts wait for room, and only its own are reported to it."""
    place = arrivals(hosts=1)
    hear(place, 1, 1.0, 2.0)
    assert hear(place, 1, 3.0, incarnation=2)[0] == 1
    hear(place, 2, 9.0)
    assert hear(place, 2, incarnation=2)[0] == 2

    for reward, done in ((1.0, 0), (2.0, 0), (3.0, 1)):
        assert rewards_of(place) == [reward]
        place.release()
        assert place.done(0, 2) == [done]


class Memory(Replay):
    """Has room for one more rollout each time that a test says so, and notes whose it was."""

    def __init__(self) -> None:
        self.room, self.stored = 0, list[int]()
        self.steps = self  # type: ignore[assignment]

    def has_room(self, actor: int) -> bool:
        return self.room > 0

    def add(self, actor: int, rollout: Rollout) -> None:
        self.room -= 1
        self.stored.append(actor)

    def begin(self, actor: int) -> None:
        pass


def test_a_memory_gets_the_rollouts_of_all_hosts_alike() -> None:
    """There is room for one at a time, and every host always has something waiting but the third, which is slower."""
    memory = Memory()
    place = Arrivals(memory, SHAPE, 4, 1, Callee(4, 1))
    calls = [itertools.count(1) for _ in range(4)]
    for turn in range(40):
        for host in (0, 1, 2, 3) if turn % 8 == 0 else (0, 1, 3):
            hear(place, next(calls[host]), float(host), host=host)
        memory.room += 1
        hear(place, next(calls[0]))

    counts = [memory.stored.count(host) for host in range(4)]
    assert sum(counts) == 40
    assert counts[2] == 5
    assert max(counts) - min(counts[0], counts[1], counts[3]) <= 1
