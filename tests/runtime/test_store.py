"""The shared parameters: what is pushed arrives once, everywhere, and nothing else does."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

from asyncrl.backends.processes import no_main_module
from asyncrl.core.errors import UsageError
from asyncrl.core.updates import UpdateRule
from asyncrl.runtime.progress import ENDED, READY, Progress
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.store import SharedStore

PLAIN_SGD = UpdateRule("momentum-sgd", decay=0.0)
"""m = d, theta <- theta - eta d: what is applied is the gradient itself."""


def in_processes(target: object, arguments: list[tuple[object, ...]]) -> None:
    """Run the target once per tuple, all at the same time, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    with no_main_module():
        processes = [context.Process(target=target, args=args) for args in arguments]
        for process in processes:
            process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_memory_is_shared_from_the_start() -> None:
    """theta and all statistics, before any update."""
    store = SharedStore(torch.zeros(3), UpdateRule("adam"), workers=2)

    assert store.theta.is_shared()
    assert store.statistics.is_shared()
    assert store.statistics.shape == (1, 2, 3)


def test_three_pushes_of_two_workers_apply_exactly_their_gradients() -> None:
    """theta = theta_0 - eta (sum of all six), one more after each push; a running sum would give more."""
    store = SharedStore(torch.tensor([10.0, -10.0]), PLAIN_SGD, workers=2)
    local = torch.empty(2)
    expected = torch.tensor([10.0, -10.0])

    for update in range(3):
        for worker in range(2):
            version = store.pull(local)
            torch.testing.assert_close(local, expected)
            gradient = torch.tensor([1.0 + update, 10.0 * (worker + 1)])
            expected = expected - 0.1 * gradient
            store.push(worker, gradient.clone(), 0.1, version)
            torch.testing.assert_close(store.theta, expected)

    assert store.updates == 6


def push_some(store: SharedStore, worker: int, times: int) -> None:
    local = torch.empty(store.theta.numel())
    for _ in range(times):
        version = store.pull(local)
        gradient = torch.zeros(store.theta.numel())
        gradient[worker] = 1.0
        store.push(worker, gradient, 1.0, version)


def test_two_processes_apply_their_gradients_exactly_once() -> None:
    """Each moves an element of its own 200 times by 1 at the same time: no update is lost, none is applied twice."""
    store = SharedStore(torch.zeros(2), UpdateRule("momentum-sgd", decay=0.0), workers=2, per_worker_statistics=True)

    in_processes(push_some, [(store, 0, 200), (store, 1, 200)])

    assert store.theta.tolist() == [-200.0, -200.0]
    assert store.updates == 400


def test_statistics_move_in_all_processes() -> None:
    """RMSProp's g of element k is moved by worker k's process and seen here."""
    store = SharedStore(torch.zeros(2), UpdateRule("rmsprop", decay=0.5), workers=2)

    in_processes(push_some, [(store, 0, 5), (store, 1, 5)])

    assert (store.statistics[0, 0] > 0).all()


def test_a_lock_serialises_and_loses_nothing() -> None:
    """With --update locked two processes may even push to the same element."""
    import tempfile

    with tempfile.NamedTemporaryFile() as lock:
        store = SharedStore(torch.zeros(1), PLAIN_SGD, workers=2, lock_file=lock.name)
        in_processes(push_to_first, [(store, 0), (store, 1)])

    assert store.theta.item() == -600.0


def push_to_first(store: SharedStore, worker: int) -> None:
    for _ in range(300):
        store.push(worker, torch.ones(1), 1.0, 0)


def test_per_worker_statistics_are_apart() -> None:
    """Worker 1's update leaves worker 0's statistics alone."""
    store = SharedStore(torch.zeros(2), UpdateRule("rmsprop"), workers=2, per_worker_statistics=True)

    store.push(1, torch.ones(2), 0.1, 0)

    assert store.statistics[0].abs().sum() == 0
    assert (store.statistics[1] > 0).all()


def test_staleness_counts_the_updates_of_others_since_the_pull() -> None:
    """Worker 0 pulls, worker 1 pushes twice, worker 0 pushes: 2; right after its next pull: 0."""
    store = SharedStore(torch.zeros(1), PLAIN_SGD, workers=2)
    local = torch.empty(1)
    version = store.pull(local)
    store.push(1, torch.ones(1), 0.1, version)
    store.push(1, torch.ones(1), 0.1, version)

    assert store.push(0, torch.ones(1), 0.1, version).staleness == 2
    assert store.push(0, torch.ones(1), 0.1, store.pull(local)).staleness == 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_is_dropped_and_counted(poison: float) -> None:
    """Nothing of it reaches theta or the statistics."""
    store = SharedStore(torch.ones(3), UpdateRule("rmsprop"), workers=1, max_gradient_norm=1.0)

    push = store.push(0, torch.tensor([1.0, poison, 1.0]), 0.1, 0)

    assert not push.applied
    assert (store.dropped, store.updates) == (1, 0)
    assert store.theta.tolist() == [1.0, 1.0, 1.0]
    assert store.statistics.abs().sum() == 0


def test_a_large_gradient_is_clipped_before_it_is_applied() -> None:
    """(30, 40) with a limit of 5 becomes (3, 4); the norm reported is the one before."""
    store = SharedStore(torch.zeros(2), PLAIN_SGD, workers=1, max_gradient_norm=5.0)

    push = store.push(0, torch.tensor([30.0, 40.0]), 1.0, 0)

    torch.testing.assert_close(store.theta, torch.tensor([-3.0, -4.0]))
    assert push.norm == pytest.approx(50.0)


def test_a_snapshot_stays_as_it_was() -> None:
    """Later updates do not reach it."""
    store = SharedStore(torch.zeros(1), PLAIN_SGD, workers=1)
    snapshot = store.snapshot()

    store.push(0, torch.ones(1), 1.0, 0)

    assert snapshot.item() == 0.0
    assert not snapshot.is_shared()


def test_restoring_something_of_another_shape_is_refused() -> None:
    """Rather than broadcast into place."""
    store = SharedStore(torch.zeros(2), PLAIN_SGD, workers=1)

    with pytest.raises(UsageError, match="another size"):
        store.restore(torch.zeros(1), store.state(), 0, 0)


def count_some(progress: Progress, worker: int) -> None:
    for _ in range(1000):
        progress.count(worker, 3)


def test_t_is_exact_under_four_workers() -> None:
    """4 processes count 1000 times 3 steps at the same time: 12 000 and not one less."""
    progress = Progress(4, total_steps=10**9)

    in_processes(count_some, [(progress, worker) for worker in range(4)])

    assert progress.steps == 12_000
    assert progress.worker_steps() == [3000] * 4


def test_a_resumed_run_counts_on() -> None:
    """T and the clock begin where the checkpoint stood."""
    progress = Progress(2, total_steps=100, base_steps=90, base_seconds=12.5)

    progress.count(0, 6)

    assert progress.steps == 96
    assert progress.seconds == 12.5
    assert not progress.finished()
    progress.count(1, 4)
    assert progress.finished()


def test_phases_of_workers_do_not_mix_with_the_evaluator() -> None:
    """The evaluator has a row of its own."""
    progress = Progress(2, total_steps=100)

    progress.enter(EVALUATOR, ENDED)
    progress.enter(0, READY)

    assert progress.phases() == [READY, 0]


def test_the_target_is_renewed_when_t_crosses_a_multiple_and_not_between() -> None:
    """Period 100: T = 95 keeps it, 105 renews, 199 keeps, 310 renews although 200 and 300 were jumped over."""
    store = SharedStore(torch.zeros(1), PLAIN_SGD, workers=1, target=True)
    assert store.target is not None
    assert store.target.is_shared()
    seen = []

    for steps in (95, 105, 199, 310):
        store.push(0, torch.tensor([-1.0]), 1.0, 0)
        store.refresh_target(steps, 100)
        seen.append(store.target.item())

    assert seen == [0.0, 2.0, 2.0, 4.0]


def test_a_restored_store_goes_on_as_if_nothing_had_happened() -> None:
    """theta, target, statistics and Adam's count of updates: the next push moves both stores alike."""
    stores = [SharedStore(torch.zeros(2), UpdateRule("adam"), 2, per_worker_statistics=True, target=True) for _ in "ab"]
    for worker in (0, 0, 1):
        stores[0].push(worker, torch.tensor([1.0, -2.0]), 0.1, 0)
    stores[0].refresh_target(130, 100)

    stores[1].restore(stores[0].theta, stores[0].state(), stores[0].updates, 5)
    for store in stores:
        store.push(1, torch.tensor([3.0, 3.0]), 0.1, 0)
        assert not store.refresh_target(150, 100)

    torch.testing.assert_close(stores[1].theta, stores[0].theta)
    torch.testing.assert_close(stores[1].statistics, stores[0].statistics)
    torch.testing.assert_close(stores[1].target, stores[0].target)
    assert (stores[1].updates, stores[1].dropped) == (4, 5)
