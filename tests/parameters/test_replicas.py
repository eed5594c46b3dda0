"""Replicas that are kept equal by a sum: N ranks of one environment are one worker with N environments."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.backends.collective.ranks import share
from asyncrl.core.flat import gradient_of
from asyncrl.core.rollout import Rollout
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.parameters.replicas import Replicas, ReplicasDiffer
from asyncrl.runtime.agreement import NOTHING, OVER, Agreement
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.protocols import UNDER_WAY, Receipt, Update
from asyncrl.runtime.roles import build_agent
from asyncrl.runtime.run import Run
from tests.support import make_run
from tests.together import Together, rollouts_of

ROUNDING = 2e-6
"""Of theta after 30 updates: sums of four gradients in another order, each in float32."""


def of_environment(rollout: Rollout, e: int) -> Rollout:
    """What one environment saw; no episode was truncated."""
    assert rollout.final_observations is None
    one = slice(e, e + 1)
    return replace(
        rollout,
        observations=rollout.observations[:, one],
        actions=rollout.actions[:, one],
        rewards=rollout.rewards[:, one],
        discounts=rollout.discounts[:, one],
        last=rollout.last[:, one],
        next_actions=None if rollout.next_actions is None else rollout.next_actions[:, one],
        lengths=None if rollout.lengths is None else rollout.lengths[one],
    )


def learn(run: Run, worker: int, rollouts: list[Rollout]) -> list[tuple[Tensor, Tensor, int, float]]:
    """theta, statistics, T and the learning rate after each update by these rollouts."""
    agent, replica = build_agent(run, worker)
    store, parameters, course = run.handles.store, list(agent.network.parameters()), []
    gradient = torch.empty_like(replica.theta)
    for rollout in rollouts:
        version = replica.pull(store)
        loss, _ = agent.loss(rollout)
        gradient_of(loss, parameters, gradient)
        rate = store.push(Update(worker, gradient, version, rollout.steps, loss.detach())).learning_rate
        rate += float(store.state()["target"].sum()) if "target" in store.state() else 0.0
        course.append((store.snapshot(), store.state()["statistics"], run.handles.clock.steps, rate))
    return course


def rank_of(run: Run, rank: int, together: Together, ranks: int) -> Run:
    """A rank of a run like `run`, with one environment."""
    config = replace(run.spec.config, workers=ranks, envs_per_worker=1, backend="collective")
    spec = replace(run.spec, config=config)
    handles = share(spec, run.handles.store.snapshot(), rank=rank)
    store = handles.store
    assert isinstance(store, Replicas)
    store.connect(together.reduce(rank))
    return Run(spec, handles)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("a3c", {"optimizer": "adam"}),
        ("a3c", {"optimizer": "rmsprop", "optimizer_epsilon": 0.1, "max_gradient_norm": 0.1}),
        ("n_step_q", {"target_interval_steps": 100}),
        ("one_step_sarsa", {"target_interval_steps": 100}),
        ("reinforce", {"normalize_advantages": False, "t_max": 20}),
    ],
)
def test_ranks_of_one_environment_equal_one_worker_with_all_of_them(
    tmp_path: Path, algorithm: str, settings: dict[str, Any]
) -> None:
    """Update by update, on the same rollouts: theta, statistics, T, learning rate and theta^-."""
    plain = {"normalize_observations": False, "normalize_returns": False, "t_max": 5} | settings
    alone = {"workers": 1, "envs_per_worker": 4, "total_steps": 10_000} | plain
    run = make_run(tmp_path, algorithm, **alone)
    rollouts = rollouts_of(run, 0, 30)
    together = Together(4)
    ranks = [rank_of(run, rank, together, 4) for rank in range(4)]

    one = learn(run, 0, rollouts)
    four = together.run(lambda rank: learn(ranks[rank], rank, [of_environment(rollout, rank) for rollout in rollouts]))

    assert len(one) == 30
    assert not torch.equal(one[0][0], one[-1][0])
    for k, (theta, statistics, steps, rate) in enumerate(one):
        for course in four:
            torch.testing.assert_close(course[k][0], theta, atol=ROUNDING, rtol=0)
            torch.testing.assert_close(course[k][1], statistics, atol=ROUNDING, rtol=1e-3)
            assert course[k][2] == steps
            assert course[k][3] == pytest.approx(rate, abs=1e-4)
            assert torch.equal(course[k][0], four[0][k][0])


def replicas(together: Together, check: int = 0, total_steps: int = 10**6) -> list[Replicas]:
    """Of three parameters."""
    descent = Descent(UpdateRule("adam"), 1e-2, max_gradient_norm=1.0)
    stores = []
    for rank in range(together.ranks):
        store = Replicas(
            torch.zeros(3), descent, together.ranks, rank, Clock(together.ranks, total_steps), Agreement(), check
        )
        store.connect(together.reduce(rank))
        stores.append(store)
    return stores


def test_replicas_are_the_same_to_the_bit_after_a_thousand_updates() -> None:
    """Whatever the gradients; compared at each update on the way."""
    together = Together(3)
    stores = replicas(together, check=1)

    def work(rank: int) -> None:
        random = torch.Generator().manual_seed(rank)
        for _ in range(1000):
            stores[rank].push(Update(rank, torch.randn(3, generator=random), stores[rank].updates, 5))

    together.run(work)

    assert [store.updates for store in stores] == [1000] * 3
    assert all(torch.equal(store.theta, stores[0].theta) for store in stores)
    assert all(torch.equal(store.statistics, stores[0].statistics) for store in stores)
    assert stores[0].theta.abs().sum() > 0
    assert together.exchanges == 1000


def test_a_replica_that_differs_is_found() -> None:
    """At the next comparison, and named."""
    together = Together(3)
    stores = replicas(together, check=10)

    def work(rank: int) -> None:
        for k in range(11):
            if (rank, k) == (2, 3):
                stores[rank].theta[0] += 1e-6
            stores[rank].push(Update(rank, torch.ones(3), k, 5))

    with pytest.raises(ReplicasDiffer, match="after 10 updates the parameters of rank 2 differ from those of rank 0"):
        together.run(work)


def test_a_gradient_that_is_not_finite_drops_the_update_for_all() -> None:
    """Nobody's theta moves, everybody counts it, and the steps count all the same."""
    together = Together(2)
    stores = replicas(together)
    receipts = together.run(
        lambda rank: stores[rank].push(Update(rank, torch.full((3,), [1.0, float("nan")][rank]), 0, 4 + rank))
    )

    assert [(receipt.applied, receipt.reason) for receipt in receipts] == [(False, "not finite")] * 2
    assert [store._clock.steps for store in stores] == [9, 9]
    assert all(torch.equal(store.theta, torch.zeros(3)) for store in stores)
    assert [(store.counts(), store.counts(0), store.counts(1)) for store in stores] == [((0, 1, 0, 0),) * 3] * 2


@pytest.mark.parametrize(
    ("wishes", "decided"),
    [
        ([NOTHING, NOTHING], NOTHING),
        ([OVER, NOTHING], OVER),
        ([NOTHING, signal.SIGTERM], signal.SIGTERM),
        ([OVER, signal.SIGTERM], signal.SIGTERM),
        ([signal.SIGINT, signal.SIGTERM], signal.SIGINT),
    ],
)
def test_all_leave_after_the_same_update(wishes: list[int], decided: int) -> None:
    """What one rank wishes is everybody's decision one update later, and a signal goes before the end."""
    together = Together(2)
    stores = replicas(together)

    def work(rank: int) -> tuple[bool, int, int]:
        store = stores[rank]
        store.push(Update(rank, torch.ones(3), 0, 5))
        assert not store._clock.finished()
        store._agreement.wish = wishes[rank]
        store.push(Update(rank, torch.ones(3), 1, 5))
        return store._clock.finished(), store._agreement.decided, store.updates

    assert together.run(work) == [(decided != NOTHING, decided, 2)] * 2


def test_all_finish_at_the_same_steps() -> None:
    """T is the sum of what all made, though each made another number."""
    together = Together(3)
    stores = replicas(together, total_steps=60)

    def work(rank: int) -> list[int]:
        seen = []
        while not stores[rank]._clock.finished():
            stores[rank].push(Update(rank, torch.ones(3), 0, 5 * (rank + 1)))
            seen.append(stores[rank]._clock.steps)
        return seen

    assert together.run(work) == [[30, 60]] * 3


def test_waiting_is_told_from_communicating() -> None:
    """The shortest is what the exchange itself takes."""
    agreement = Agreement()

    agreement.book([0.5, 0.125, 0.25], rank=0)
    agreement.book([0.125, 0.125, 0.125], rank=0)

    assert agreement.spent() == {"wait_for_ranks": 0.375, "communicate": 0.25}
    assert agreement.spent() == {}


def test_with_overlap_each_gradient_is_one_update_old_and_none_is_lost() -> None:
    """theta is what the gradients of all give in their order, each taken where theta was an update before."""
    together = Together(2)
    descent = Descent(UpdateRule("momentum-sgd", decay=0.0), 0.125)
    stores = [
        Replicas(torch.zeros(1), descent, 2, rank, Clock(2, 40), Agreement(), check_interval=1, overlap=True)
        for rank in range(2)
    ]

    def work(rank: int) -> tuple[list[Receipt], list[int]]:
        store, receipts, steps = stores[rank], list[Receipt](), list[int]()
        store.connect(together.reduce(rank))
        theta = torch.zeros(1)
        while not store._clock.finished():
            version = store.pull(theta)
            receipts.append(store.push(Update(rank, theta + rank + 1, version, 5)))
            steps.append(store._clock.steps)
        return receipts, steps

    (first, steps), (_, others) = together.run(work)

    assert [receipt.reason for receipt in first] == [UNDER_WAY, "", "", "", ""]
    assert [receipt.staleness for receipt in first] == [0, 0, 1, 1, 1]
    assert steps == others == [0, 10, 20, 30, 50]
    assert first[-1].earlier is not None
    # Gradients theta + 1 and theta + 2, with theta of an update before: 0, 0, -3/16, ...
    expected, seen = 0.0, [0.0, 0.0]
    for _ in range(5):
        expected -= 0.125 * (seen[-2] + 1.5)
        seen.append(expected)
    assert [float(store.theta) for store in stores] == [expected] * 2
    assert [store.updates for store in stores] == [5, 5]
