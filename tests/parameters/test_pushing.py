"""The store of a host that pushes every update: gradients wait there until the shards have judged them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.parameters.pushing import Pushes, PushingStore
from asyncrl.parameters.shards import Exchanged, Judged, Pusher, Shard, beginning, slices
from asyncrl.runtime.clock import LEAVE, Clock
from asyncrl.runtime.link import Caller
from asyncrl.runtime.protocols import LEARNER, NOT_FINITE, STALE, UNDER_WAY, Counts, Receipt, Update
from tests.support import push

DESCENT = Descent(UpdateRule("momentum-sgd", decay=0.0), learning_rate=0.5, max_gradient_norm=5.0, max_staleness=1)


def store_of(shards: int = 2, learners: int = 0) -> tuple[PushingStore, Pushes, Clock]:
    """theta = 0 of two components, with a part for each shard, and two workers."""
    clock = Clock(2, total_steps=1000, learners=learners)
    store = PushingStore(torch.zeros(2), DESCENT, 2, clock, shards)
    return store, Pushes(store, slices(2, shards)), clock


@contextmanager
def pushing(store: PushingStore, *updates: Update) -> Iterator[list[Receipt | None]]:
    """Writers that push at the same time; their receipts, once they have them."""
    receipts: list[Receipt | None] = [None] * len(updates)

    def push_one(place: int) -> None:
        receipts[place] = store.push(updates[place])

    threads = [threading.Thread(target=push_one, args=(place,)) for place in range(len(updates))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while store.pushed.sum() - store.answered.sum() < len(updates):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    yield receipts
    for thread in threads:
        thread.join(60)
    assert all(receipts)


def judged(*applied: bool, staleness: int = 0) -> Judged:
    """What a shard says."""
    return Judged(np.array(applied), np.full(len(applied), staleness))


def test_a_push_is_answered_once_all_shards_have_judged_it() -> None:
    """The gradient (6, 8) is clipped to (3, 4) and cut in two; T counts its steps at once."""
    store, pushes, clock = store_of()
    with pushing(store, Update(1, torch.tensor([6.0, 8.0]), 0, 7)) as receipts:
        assert clock.steps == 7
        assert [pushes.waiting(shard).tolist() for shard in (0, 1)] == [[1], [1]]
        parts = [pushes.gradients(shard) for shard in (0, 1)]
        assert [part and part.values.tolist() for part in parts] == [[[3.0]], [[4.0]]]
        assert [part and part.rates.tolist() for part in parts] == [[0.5], [0.5]]
        pushes.tell(0, judged(True, staleness=1))
        assert pushes.waiting(0).tolist() == []
        assert store.answered.tolist() == [0, 0, 0]
        assert not pushes.idle
        store.see(0, 3)
        pushes.tell(1, judged(True))

    (receipt,) = receipts
    assert receipt == Receipt(True, "", 10.0, 1, 0.5)
    assert pushes.idle
    assert store.counts(1) == Counts(updates=1)
    assert store.updates == 3


def test_a_gradient_that_all_shards_have_found_too_old_is_stale_and_one_that_some_have_is_split() -> None:
    """The latter is in a part of theta, so it is an update."""
    store, pushes, _ = store_of()
    with pushing(store, *(Update(worker, torch.ones(2), 0, 1) for worker in (0, 1))) as receipts:
        assert pushes.gradients(0)
        pushes.tell(0, judged(False, True, staleness=2))
        assert pushes.gradients(1)
        pushes.tell(1, judged(False, False, staleness=3))

    assert [receipt and (receipt.reason, receipt.staleness) for receipt in receipts] == [(STALE, 3), ("", 3)]
    assert [store.counts(worker) for worker in (0, 1)] == [Counts(stale_gradients=1), Counts(updates=1)]
    assert pushes.take_split() == 1


def test_versions_of_a_gradient_are_those_of_its_pull_in_each_part() -> None:
    """What comes between pull and push makes it stale."""
    store, pushes, _ = store_of()
    store.see(0, 4)
    store.see(1, 6)
    assert store.pull(torch.zeros(2)) == 4
    store.see(0, 5)
    with pushing(store, Update(0, torch.ones(2), 4, 1)):
        parts = [pushes.gradients(shard) for shard in (0, 1)]
        assert [part and part.versions.tolist() for part in parts] == [[4], [6]]
        for shard in (0, 1):
            pushes.tell(shard, judged(True))


def test_what_is_not_finite_never_leaves_the_host() -> None:
    """Nobody waits for an answer."""
    store, pushes, clock = store_of()

    receipt = push(store, 0, torch.tensor([float("nan"), 1.0]), 0, steps=3)

    assert (receipt.applied, receipt.reason) == (False, NOT_FINITE)
    assert pushes.waiting(0).tolist() == []
    assert store.counts(0) == Counts(dropped_gradients=1)
    assert clock.steps == 3


def test_who_must_leave_does_not_wait() -> None:
    """And its successor waits for the answer to what it has left before it pushes its own."""
    store, pushes, clock = store_of(shards=1, learners=2)
    clock.stop(LEAVE)
    receipt = push(store, LEARNER - 1, torch.ones(2), 0)

    assert (receipt.applied, receipt.reason) == (False, UNDER_WAY)
    assert pushes.waiting(0).tolist() == [3]
    assert push(store, LEARNER - 1, torch.ones(2), 0).reason == UNDER_WAY
    assert store.pushed.tolist() == [0, 0, 0, 1]


def deliver(server: Shard, pusher: Pusher) -> Exchanged:
    """Deliver the call that waits, until it is settled."""
    while pusher.caller.waiting:
        exchanged = pusher.accept(server.exchange(pusher.caller.waiting[0]))
    assert exchanged is not None
    return exchanged


@pytest.mark.parametrize("shards", [1, 2])
def test_theta_is_what_the_shards_make_of_the_gradients(shards: int) -> None:
    """Two writers' gradients in one call to each shard: theta <- 0 - 0.5 (1, 2) - 0.5 (2, 1)."""
    store, pushes, _ = store_of(shards)
    servers, pushers = [], []
    for part in slices(2, shards):
        server = Shard(1, descent=DESCENT)
        size = part.stop - part.start
        server.begin(server.who()[0], 1, beginning(np.zeros(size, np.float32), np.zeros((1, size), np.float32), 10))
        pusher = Pusher(Caller(0, 1), store.theta.numpy()[part])
        servers.append(server)
        pushers.append(pusher)
        store.see(len(servers) - 1, 10)
        pusher.push()
        deliver(server, pusher)
    store.pull(torch.zeros(2))
    first, second = (Update(worker, torch.tensor(own), 10, 1) for worker, own in ((0, [1.0, 2.0]), (1, [2.0, 1.0])))
    with pushing(store, first, second) as receipts:
        for number, (server, pusher) in enumerate(zip(servers, pushers, strict=True)):
            pusher.push(pushes.gradients(number))
            exchanged = deliver(server, pusher)
            store.see(number, server.updates)
            pushes.tell(number, exchanged.judged)

    assert store.theta.tolist() == [-1.5, -1.5]
    assert [receipt and receipt.staleness for receipt in receipts] == [0, 1]
    assert store.updates == 12
