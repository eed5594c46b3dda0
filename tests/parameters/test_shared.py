"""The shared parameters: what is pushed arrives once, everywhere, and nothing else does."""

from __future__ import annotations

import multiprocessing
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from asyncrl.backends.processes import start
from asyncrl.core.errors import UsageError
from asyncrl.core.outliers import SPREAD_OVER
from asyncrl.core.updates import UpdateRule
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import ENDED, READY, Clock
from asyncrl.runtime.protocols import EVALUATOR, LEARNER, NOT_FINITE, OUTLIER, STALE, Counts, Receipt, Update
from tests.support import push, shared_store

PLAIN_SGD = UpdateRule("momentum-sgd", decay=0.0)
"""m = d, theta <- theta - eta d: what is applied is the gradient itself."""


def in_processes(target: object, arguments: list[tuple[object, ...]]) -> None:
    """Run the target once per tuple, all at the same time, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=target, args=args) for args in arguments]
    for process in processes:
        start(process)
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_memory_is_shared_from_the_start() -> None:
    """theta and all statistics, before any update."""
    store = shared_store(torch.zeros(3), UpdateRule("adam"), workers=2)

    assert store.theta.is_shared()
    assert store.statistics.is_shared()
    assert store.statistics.shape == (1, 2, 3)


def test_three_pushes_of_two_workers_apply_exactly_their_gradients() -> None:
    """theta = theta_0 - eta (sum of all six), one more after each push; a running sum would give more."""
    store = shared_store(torch.tensor([10.0, -10.0]), PLAIN_SGD, workers=2, learning_rate=0.1)
    local = torch.empty(2)
    expected = torch.tensor([10.0, -10.0])

    for update in range(3):
        for worker in range(2):
            version = store.pull(local)
            torch.testing.assert_close(local, expected)
            gradient = torch.tensor([1.0 + update, 10.0 * (worker + 1)])
            expected = expected - 0.1 * gradient
            push(store, worker, gradient.clone(), version)
            torch.testing.assert_close(store.theta, expected)

    assert store.updates == 6


def push_some(store: SharedStore, worker: int, times: int) -> None:
    local = torch.empty(store.theta.numel())
    for _ in range(times):
        version = store.pull(local)
        gradient = torch.zeros(store.theta.numel())
        gradient[worker] = 1.0
        push(store, worker, gradient, version)


def test_two_processes_apply_their_gradients_exactly_once() -> None:
    """Each moves an element of its own 200 times by 1 at the same time: each update is counted, none is applied twice.

    All of theta is written each time, so that without a lock a few may be lost to what the other had read before.
    """
    settings = {"workers": 2, "learning_rate": 1.0}
    with tempfile.NamedTemporaryFile() as lock:
        stores = [shared_store(torch.zeros(2), PLAIN_SGD, **settings, lock_file=file) for file in (None, lock.name)]
        for store in stores:
            in_processes(push_some, [(store, 0, 200), (store, 1, 200)])

    racing, locked = stores
    assert racing.updates == locked.updates == 400
    assert -200.0 <= float(racing.theta.min()) <= float(racing.theta.max()) <= 0.0
    assert locked.theta.tolist() == [-200.0, -200.0]


def test_statistics_move_in_all_processes() -> None:
    """RMSProp's g of element k is moved by worker k's process and seen here."""
    store = shared_store(torch.zeros(2), UpdateRule("rmsprop", decay=0.5), workers=2)

    in_processes(push_some, [(store, 0, 5), (store, 1, 5)])

    assert (store.statistics[0, 0] > 0).all()


def test_a_lock_serialises_and_loses_nothing() -> None:
    """With --update locked two processes may even push to the same element."""
    with tempfile.NamedTemporaryFile() as lock:
        store = shared_store(torch.zeros(1), PLAIN_SGD, workers=2, lock_file=lock.name, learning_rate=1.0)
        in_processes(push_to_first, [(store, 0), (store, 1)])

    assert store.theta.item() == -600.0


def push_to_first(store: SharedStore, worker: int) -> None:
    for _ in range(300):
        push(store, worker, torch.ones(1), 0)


@pytest.mark.parametrize("tries", [1, 5])
def test_with_a_lock_a_copy_has_the_updates_that_its_counts_say(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though somebody else has made an update until the moment at which the lock is free."""
    with tempfile.NamedTemporaryFile() as lock:
        store = shared_store(torch.zeros(1), PLAIN_SGD, lock_file=lock.name, learning_rate=1.0)
        exclusive = store.exclusive

        def after_an_update() -> AbstractContextManager[None]:
            with monkeypatch.context() as patch:
                patch.setattr(store, "exclusive", exclusive)
                push(store, 0, torch.ones(1), 0)
            return exclusive()

        monkeypatch.setattr(store, "exclusive", after_an_update)
        for _ in range(3):
            theta, counts = store.counted_copy(tries=tries)

            assert theta.item() == -counts.updates

    assert store.updates == 3


def test_per_worker_statistics_are_apart() -> None:
    """Worker 1's update leaves worker 0's statistics alone."""
    store = shared_store(torch.zeros(2), UpdateRule("rmsprop"), workers=2, per_worker_statistics=True)

    push(store, 1, torch.ones(2), 0)

    assert store.statistics[0].abs().sum() == 0
    assert (store.statistics[1] > 0).all()


def test_staleness_counts_the_updates_of_others_since_the_pull() -> None:
    """Worker 0 pulls, worker 1 pushes twice, worker 0 pushes: 2; right after its next pull: 0."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, workers=2)
    local = torch.empty(1)
    version = store.pull(local)
    push(store, 1, torch.ones(1), version)
    push(store, 1, torch.ones(1), version)

    assert push(store, 0, torch.ones(1), version).staleness == 2
    assert push(store, 0, torch.ones(1), store.pull(local)).staleness == 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_is_dropped_and_counted(poison: float) -> None:
    """Nothing of it reaches theta or the statistics."""
    store = shared_store(torch.ones(3), UpdateRule("rmsprop"), workers=1, max_gradient_norm=1.0)

    receipt = push(store, 0, torch.tensor([1.0, poison, 1.0]), 0)

    assert not receipt.applied
    assert store.counts() == Counts(updates=0, dropped_gradients=1)
    assert store.theta.tolist() == [1.0, 1.0, 1.0]
    assert store.statistics.abs().sum() == 0


def seen(store: SharedStore) -> list[list[float]]:
    """All that a dropped gradient must not touch."""
    return [store.theta.tolist(), store.statistics.flatten().tolist(), cast(Tensor, store.target_view()).tolist()]


def push_loss(store: SharedStore, loss: float, worker: int = 0, steps: int = 0) -> Receipt:
    """Push a gradient of 1 of a certain loss, fresh."""
    return store.push(Update(worker, torch.ones(1), store.updates, steps, torch.tensor(loss)))


def test_a_gradient_that_is_too_old_is_dropped_and_counted_by_itself() -> None:
    """With a limit of 2 a staleness of 2 is applied and one of 3 is not; the worker's next, of a fresh pull, is."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, workers=2, learning_rate=1.0, max_staleness=2)
    for _ in range(2):
        push(store, 1, torch.ones(1), store.updates)
    receipts = [push(store, 0, torch.ones(1), version=0) for _ in range(2)]
    receipts.append(push(store, 0, torch.ones(1), store.updates))

    assert [receipt.staleness for receipt in receipts] == [2, 3, 0]
    assert [receipt.reason for receipt in receipts] == ["", STALE, ""]
    assert [receipt.applied for receipt in receipts] == [True, False, True]
    assert store.theta.item() == -4.0
    assert store.counts(0) == Counts(updates=2, stale_gradients=1)
    assert store.counts() == Counts(updates=4, stale_gradients=1)


def test_a_gradient_of_an_unusual_loss_is_dropped_and_counted_by_itself() -> None:
    """A hundred losses of 1 and 3 (mean 2, deviation 1) and a limit of 3: 5 is applied, then 9 is not."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, workers=2, learning_rate=1.0, max_loss_deviations=3.0)
    for i in range(SPREAD_OVER):
        assert push_loss(store, 1.0 + 2 * (i % 2)).applied

    assert push_loss(store, 5.0).applied
    receipt = push_loss(store, 9.0)

    assert (receipt.applied, receipt.reason) == (False, OUTLIER)
    assert store.theta.item() == -(SPREAD_OVER + 1)
    assert store.counts() == Counts(updates=SPREAD_OVER + 1, outlier_gradients=1)
    assert push_loss(store, 9.0, worker=1).applied  # who has seen nothing else calls nothing unusual


def test_without_the_rules_nothing_is_too_old_and_no_loss_unusual() -> None:
    """0 stands for never."""
    store = shared_store(torch.zeros(1), PLAIN_SGD)
    for _ in range(SPREAD_OVER + 1):
        push_loss(store, 1.0)

    assert store.push(Update(0, torch.ones(1), 0, 0, torch.tensor(1e9))).applied


@pytest.mark.parametrize("reason", [NOT_FINITE, STALE, OUTLIER])
@pytest.mark.parametrize("writer", [0, LEARNER])
def test_a_dropped_gradient_counts_its_steps_and_changes_nothing_else(reason: str, writer: int) -> None:
    """theta, statistics, theta^- and version stay, and no update is half done."""
    rule = UpdateRule("rmsprop")
    store = shared_store(torch.zeros(1), rule, max_staleness=5, max_loss_deviations=3.0, target_interval_steps=10**6)
    for _ in range(SPREAD_OVER + 1):
        push_loss(store, 1.0, worker=writer)
    before, counts = seen(store), store.counts()

    gradient = torch.tensor([torch.nan]) if reason == NOT_FINITE else torch.ones(1)
    loss = torch.tensor(1e6 if reason == OUTLIER else 1.0)
    version = 0 if reason == STALE else store.updates
    receipt = store.push(Update(writer, gradient, version, 0 if writer == LEARNER else 7, loss))

    assert (receipt.applied, receipt.reason) == (False, reason)
    assert seen(store) == before
    assert store.counts().updates == counts.updates
    assert sum(store.counts()) == sum(counts) + 1
    assert store._clock.steps == (0 if writer == LEARNER else 7)
    assert not store.torn


def test_a_restored_store_knows_which_losses_are_unusual() -> None:
    """With as many workers as before; with more of them everybody begins anew."""
    settings = {"max_loss_deviations": 3.0}
    store = shared_store(torch.zeros(1), PLAIN_SGD, **settings)
    for _ in range(SPREAD_OVER):
        push_loss(store, 1.0)
    same, more = (shared_store(torch.zeros(1), PLAIN_SGD, workers, **settings) for workers in (1, 2))

    for other in (same, more):
        other.restore(store.theta, store.state(), store.counts())

    assert [push_loss(other, 9.0).applied for other in (same, more)] == [False, True]


def test_a_large_gradient_is_clipped_before_it_is_applied() -> None:
    """(30, 40) with a limit of 5 becomes (3, 4); the norm reported is the one before."""
    store = shared_store(torch.zeros(2), PLAIN_SGD, workers=1, max_gradient_norm=5.0, learning_rate=1.0)

    receipt = push(store, 0, torch.tensor([30.0, 40.0]), 0)

    torch.testing.assert_close(store.theta, torch.tensor([-3.0, -4.0]))
    assert receipt.norm == pytest.approx(50.0)


def test_a_snapshot_stays_as_it_was() -> None:
    """Later updates do not reach it."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, workers=1)
    snapshot = store.snapshot()

    push(store, 0, torch.ones(1), 0)

    assert snapshot.item() == 0.0
    assert not snapshot.is_shared()


def test_restoring_something_of_another_shape_is_refused() -> None:
    """Rather than broadcast into place."""
    store = shared_store(torch.zeros(2), PLAIN_SGD, workers=1)

    with pytest.raises(UsageError, match="different size"):
        store.restore(torch.zeros(1), store.state(), Counts())


def count_some(clock: Clock, worker: int) -> None:
    for _ in range(1000):
        clock.count(worker, 3)


def test_t_is_exact_under_four_workers() -> None:
    """4 processes count 1000 times 3 steps at the same time: 12 000 and not one less."""
    clock = Clock(4, total_steps=10**9)

    in_processes(count_some, [(clock, worker) for worker in range(4)])

    assert clock.steps == 12_000
    assert clock.worker_steps() == [3000] * 4


def test_a_resumed_run_counts_on() -> None:
    """T and the clock begin where the checkpoint stood."""
    clock = Clock(2, total_steps=100, base_steps=90, base_seconds=12.5)

    clock.count(0, 6)

    assert clock.steps == 96
    assert clock.seconds == 12.5
    assert not clock.finished()
    clock.count(1, 4)
    assert clock.finished()


def test_phases_of_workers_do_not_mix_with_the_evaluator() -> None:
    """The evaluator has a row of its own."""
    clock = Clock(2, total_steps=100)

    clock.enter(EVALUATOR, ENDED)
    clock.enter(0, READY)

    assert clock.phases() == [READY, 0]


def test_the_target_is_renewed_when_t_crosses_a_multiple_and_not_between() -> None:
    """Period 100: T = 95 keeps it, 105 renews, 199 keeps, 310 renews although 200 and 300 were jumped over."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, learning_rate=1.0, target_interval_steps=100)
    assert cast(Tensor, store.target_view()).is_shared()
    target, seen = torch.empty(1), []

    for steps in (95, 10, 94, 111):
        push(store, 0, torch.tensor([-1.0]), 0, steps)
        store.target(target)
        seen.append(target.item())

    assert seen == [0.0, 2.0, 2.0, 4.0]


def test_the_learning_rate_is_that_of_t_before_the_steps_of_the_update() -> None:
    """From 1 at T = 0 to 0 at T = 100: two updates of 50 steps are applied with 1 and with 0.5."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, learning_rate=1.0, anneal_over=100)

    receipts = [push(store, 0, torch.ones(1), 0, 50) for _ in range(2)]

    assert [receipt.learning_rate for receipt in receipts] == [1.0, 0.5]
    assert store.theta.item() == -1.5


def test_a_learners_updates_count_beside_those_of_the_workers() -> None:
    """They make no steps: the actors' rollouts have counted them."""
    store = shared_store(torch.zeros(1), PLAIN_SGD, clock=(clock := Clock(2, total_steps=100)), workers=2)

    push(store, LEARNER, torch.ones(1), 0)

    assert (clock.steps, store.updates, store.counts(LEARNER), store.counts(1)) == (0, 1, Counts(1), Counts())


def test_a_restored_store_goes_on_as_if_nothing_had_happened() -> None:
    """theta, target, statistics and Adam's count of updates: the next push moves both stores alike."""
    settings = {"per_worker_statistics": True, "learning_rate": 0.1, "target_interval_steps": 100}
    clocks = [Clock(2, 10**6), Clock(2, 10**6, base_steps=130)]
    stores = [shared_store(torch.zeros(2), UpdateRule("adam"), 2, clock, **settings) for clock in clocks]
    for worker, steps in ((0, 60), (0, 40), (1, 30)):
        push(stores[0], worker, torch.tensor([1.0, -2.0]), 0, steps)

    stores[1].restore(stores[0].theta, stores[0].state(), Counts(stores[0].updates, 5, 6, 7))
    for store in stores:
        push(store, 1, torch.tensor([3.0, 3.0]), 0, 20)

    torch.testing.assert_close(stores[1].theta, stores[0].theta)
    for name, tensor in stores[0].state().items():
        torch.testing.assert_close(stores[1].state()[name], tensor)
    assert stores[1].counts() == Counts(4, 5, 6, 7)


@pytest.mark.parametrize("writers", [(0, 0, 1), (LEARNER, LEARNER, LEARNER - 1)])
def test_a_replaced_host_corrects_adams_bias_by_all_updates_that_its_statistics_have_seen(
    writers: tuple[int, ...],
) -> None:
    """It counts its own updates from 0, but the next push moves theta as its predecessor's would have."""
    stores = [
        shared_store(torch.zeros(2), UpdateRule("adam"), 2, Clock(2, 10**6, learners=2), learning_rate=0.1)
        for _ in range(2)
    ]
    for writer in writers:
        push(stores[0], writer, torch.tensor([1.0, -2.0]), 0, 10 if writer >= 0 else 0)

    stores[1].restore(stores[0].theta, stores[0].state(), Counts())
    assert stores[1].updates == 0
    for store in stores:
        push(store, writers[-1], torch.tensor([3.0, 3.0]), 0, 20 if writers[-1] >= 0 else 0)

    torch.testing.assert_close(stores[1].theta, stores[0].theta)
    assert stores[1].updates == 1


class Interrupted(Exception):
    """Stands for a death within an update."""


def test_an_update_that_the_learner_began_and_did_not_end_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a checkpoint is put back; what the learner had counted stays counted."""
    store = shared_store(torch.zeros(2), PLAIN_SGD)
    before, state = store.snapshot(), store.state()
    push(store, LEARNER, torch.ones(2), 0)
    assert not store.torn

    def half(self: UpdateRule, theta: torch.Tensor, *_: object) -> None:
        theta[0] += 1.0
        raise Interrupted

    monkeypatch.setattr(UpdateRule, "apply", half)
    with pytest.raises(Interrupted):
        push(store, LEARNER, torch.ones(2), 1)
    assert store.torn
    assert store.updates == 1

    store.restore(before, state, Counts())

    assert not store.torn
    assert torch.equal(store.snapshot(), before)
    assert (store.updates, store.counts(LEARNER)) == (1, Counts(1))


@pytest.mark.parametrize("before", [0, 3])
def test_adams_bias_is_corrected_without_the_updates_that_were_lost(before: int) -> None:
    """After the checkpoint of update `before` is put back, updates are those of a learner that made no others."""
    clock = Clock(1, 10**6, learners=1)
    one, other = (shared_store(torch.zeros(2), UpdateRule("adam"), 1, clock, learning_rate=0.1) for _ in range(2))
    for store in (one, other):
        for _ in range(before):
            push(store, LEARNER, torch.tensor([1.0, -2.0]), 0)
    theta, state = one.snapshot(), one.state()
    for _ in range(50):
        push(one, LEARNER, torch.tensor([0.5, 0.5]), 0)
    one.lose(50)
    one.restore(theta, state, Counts())

    for store in (one, other):
        for _ in range(4):
            push(store, LEARNER, torch.tensor([3.0, 1.0]), 0)

    torch.testing.assert_close(one.theta, other.theta)
    assert (one.updates, one.lost) == (before + 54, 50)
    assert torch.equal(one.state()["writer_updates"], other.state()["writer_updates"])


@pytest.mark.parametrize(("who", "learners"), [(0, 0), (LEARNER, 2)])
def test_one_of_several_writers_that_dies_within_an_update_tears_nothing(
    monkeypatch: pytest.MonkeyPatch, who: int, learners: int
) -> None:
    """Hogwild lives with it: the others write as well."""
    store = shared_store(torch.zeros(2), PLAIN_SGD, clock=Clock(1, 10**9, learners=learners))

    def half(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr(UpdateRule, "apply", half)
    with pytest.raises(Interrupted):
        push(store, who, torch.ones(2), 0)

    assert not store.torn


@pytest.mark.parametrize("counts", [torch.tensor(3), torch.ones(2), torch.tensor([-1, 0]), torch.zeros(2, 2).long()])
def test_counts_of_a_checkpoint_that_are_none_are_refused(counts: Tensor) -> None:
    """In one line."""
    store = shared_store(torch.zeros(3), PLAIN_SGD, workers=2)

    with pytest.raises(UsageError, match="its writer_updates are not counts"):
        store.restore(torch.zeros(3), store.state() | {"writer_updates": counts}, Counts())


def test_the_lock_is_no_link(tmp_path: Path) -> None:
    """Through which a file would be made in the user's name."""
    (tmp_path / "store.lock").symlink_to(tmp_path / "mine")
    store = shared_store(torch.zeros(1), PLAIN_SGD, lock_file=str(tmp_path / "store.lock"))

    with pytest.raises(OSError, match="symbolic link"), store.exclusive():
        pass
    assert not (tmp_path / "mine").exists()
