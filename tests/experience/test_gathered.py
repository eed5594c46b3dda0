"""Rollouts of all ranks are the batch that a serial run has, and everybody goes on with the learner's theta."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from asyncrl.backends.collective.ranks import share
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience.batches import Batches
from asyncrl.experience.gathered import Gathered
from asyncrl.parameters.replicas import Replicas
from asyncrl.runtime.normalize import RunMoments
from asyncrl.runtime.roles import Role, build_learner
from asyncrl.runtime.run import Run
from asyncrl.storage.run_folder import RunFolder
from tests.support import make_run
from tests.together import Together, rollouts_of

PLAIN: dict[str, Any] = {"workers": 3, "envs_per_worker": 2, "t_max": 8, "total_steps": 10_000}


def rank_of(run: Run, rank: int, together: Together) -> Run:
    spec = replace(run.spec, config=replace(run.spec.config, backend="collective"))
    handles = share(spec, run.handles.store.snapshot(), rank=rank)
    cast(Gathered, handles.experience).connect(together.gather(rank), together.broadcast(rank))
    return Run(spec, handles)


def learn(role: Role) -> None:
    assert next(role.loop)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize(
    ("env_id", "settings"),
    [("Catch", {}), ("CartPole-v1", {"lstm_cells": 4}), ("CartPole-v1", {"max_episode_steps": 9})],
)
def test_gathering_equals_the_serial_backend_to_the_bit(
    tmp_path: Path, algorithm: str, env_id: str, settings: dict[str, Any]
) -> None:
    """Fed the same rollouts, also with memory, normalisation and truncated episodes: theta, statistics, T."""
    run = make_run(tmp_path, algorithm, env_id=env_id, **PLAIN, **settings)
    limited = EnvSpec(env_id, max_episode_steps=settings.get("max_episode_steps", 0))
    run = replace(run, spec=replace(run.spec, environment=limited))
    recorded = [rollouts_of(run, worker, 4) for worker in range(3)]
    truncated = sum(len(rollout.truncated[0]) for own in recorded for rollout in own)
    assert (truncated > 0) == ("max_episode_steps" in settings)
    together = Together(3)
    ranks = [rank_of(run, rank, together) for rank in range(3)]

    serial, experience = build_learner(run), cast(Batches, run.handles.experience)
    for k in range(4):
        for worker in range(3):
            experience.put(worker, recorded[worker][k], run.handles.store.updates)
        learn(serial)
    serial.close()

    def work(rank: int) -> Tensor:
        own, role = ranks[rank].handles, build_learner(ranks[rank]) if rank == 0 else None
        assert own.experience is not None
        for k in range(4):
            assert own.experience.has_room(rank)
            own.experience.put(rank, recorded[rank][k], own.store.updates)
            if role is not None:
                assert not own.experience.has_room(0)
                learn(role)
        if role is not None:
            role.close()
        return own.store.snapshot()

    thetas = together.run(work)

    store = run.handles.store
    assert all(torch.equal(theta, store.snapshot()) for theta in thetas)
    assert torch.equal(ranks[0].handles.store.state()["statistics"], store.state()["statistics"])
    assert [rank.handles.store.updates for rank in ranks] == [store.updates] * 3
    assert [rank.handles.clock.steps for rank in ranks] == [run.handles.clock.steps] * 3
    assert store.updates >= 4


def test_averaging_gradients_of_each_ranks_own_batch_equals_learning_from_all(tmp_path: Path) -> None:
    """A2C, whose loss is a mean: to rounding, with the same steps, learning rate and number of updates."""
    run = make_run(tmp_path, "a2c", **PLAIN)
    recorded = [rollouts_of(run, worker, 6) for worker in range(3)]
    together = Together(3)
    ranks = []
    for rank in range(3):
        spec = replace(run.spec, config=replace(run.spec.config, backend="collective", reduce="gradients"))
        own = share(spec, run.handles.store.snapshot(), rank=rank)
        cast(Replicas, own.store).connect(together.reduce(rank))
        folder = RunFolder.create(tmp_path / str(rank), "a2c", "Catch", "test")
        ranks.append(Run(replace(spec, folder=folder), own))

    serial, experience = build_learner(run), cast(Batches, run.handles.experience)
    for k in range(6):
        for worker in range(3):
            experience.put(worker, recorded[worker][k], run.handles.store.updates)
        learn(serial)
    serial.close()

    def work(rank: int) -> Tensor:
        own, role = ranks[rank].handles, build_learner(ranks[rank])
        assert own.experience is not None
        for k in range(6):
            own.experience.put(rank, recorded[rank][k], own.store.updates)
            learn(role)
        role.close()
        return own.store.snapshot()

    thetas = together.run(work)

    store = run.handles.store
    for theta, rank in zip(thetas, ranks, strict=True):
        torch.testing.assert_close(theta, store.snapshot(), atol=2e-6, rtol=0)
        assert torch.equal(theta, thetas[0])
        assert (rank.handles.clock.steps, rank.handles.store.updates) == (run.handles.clock.steps, store.updates)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_leave_after_the_same_batch(tmp_path: Path, rank: int) -> None:
    """A signal that one rank got travels with its rollout and comes back with theta."""
    run = make_run(tmp_path, "a2c", **PLAIN)
    together = Together(3)
    ranks = [rank_of(run, number, together) for number in range(3)]
    recorded = rollouts_of(run, 0, 1)[0]

    def work(number: int) -> tuple[bool, int]:
        handles = ranks[number].handles
        assert handles.agreement is not None
        assert handles.experience is not None
        if number == rank:
            handles.agreement.wish = signal.SIGTERM
        handles.experience.put(number, recorded, 0)
        if number == 0:
            assert not handles.clock.leaving()  # not before the others know
            assert handles.experience.take() is not None
            handles.experience.release()
        return handles.clock.leaving(), handles.agreement.decided

    assert together.run(work) == [(True, signal.SIGTERM)] * 3


def test_ranks_normalise_by_the_same_moments() -> None:
    """What a rank gathers stays apart until all publish; then all read the moments of everything."""
    ranks, everything = [RunMoments(2, 3, rank=True) for _ in range(2)], RunMoments(2, 3)
    random = torch.Generator().manual_seed(0)
    for rank, moments in enumerate(ranks):
        seen = torch.randn(10 + rank, 3, generator=random, dtype=torch.float64)
        for one in (moments, everything):
            one.observations.add(rank, seen)
            one.returns.add(rank, seen[:, :1])
    assert ranks[0].observations.count == 0

    gathered = [moments.gathered for moments in ranks]
    for moments in ranks:
        moments.publish([part for part in gathered if part is not None])

    for name, expected in everything.state().items():
        assert all(torch.equal(moments.state()[name], expected) for moments in ranks)
    assert ranks[0].observations.count == 21
