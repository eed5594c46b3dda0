"""The worker's loop: the order of calls, and what reaches the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.loops import Pending, Replica, actor_learner
from asyncrl.runtime.protocols import Receipt, Update
from asyncrl.runtime.roles import build_agent, build_environments
from asyncrl.runtime.telemetry import Telemetry
from asyncrl.storage.records import RecordWriter, read_records
from tests.support import COUNTING, Counting, FixedAgent, make_run


class TapedStore(SharedStore):
    """Writes down what is asked of it, and the gradients."""

    def __init__(self, tape: list[str], clock: Clock) -> None:
        descent = Descent(UpdateRule("momentum-sgd", decay=0.0), learning_rate=0.25)
        super().__init__(torch.tensor([1.0]), descent, clock.workers, clock)
        self.tape = tape
        self.gradients: list[float] = []

    def pull(self, into: Tensor) -> int:
        self.tape.append("pull")
        return super().pull(into)

    def push(self, update: Update) -> Receipt:
        self.tape.append(f"push {update.worker}")
        self.gradients.append(update.gradient.item())
        return super().push(update)


class TapedAgent(FixedAgent):
    """Its loss is theta' squared, so that its gradient tells at which theta' it was computed."""

    def __init__(self, tape: list[str]) -> None:
        super().__init__()
        self.tape = tape

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        self.tape.append("loss")
        weight = next(self.network.parameters())
        return weight.square().sum(), lambda: {"weight": weight.detach().sum()}


def worker_of(
    tape: list[str], store: TapedStore, clock: Clock, rank: int, folder: Path, private_copy: bool = True
) -> Iterator[bool]:
    """A worker with its own copy of theta, or one whose network lies on theta itself."""
    agent = TapedAgent(tape)
    replica = Replica(store, agent.network, None, private_copy)
    collector = Collector([Counting(100, False)], agent, COUNTING, t_max=5, gamma=0.9, clock=clock)

    def rollouts() -> Iterator[Rollout]:
        for rollout in collector:
            tape.append("rollout")
            yield rollout

    with closing(RecordWriter(folder / f"{rank}.jsonl")) as writer:
        telemetry = Telemetry(rank, clock, writer, 1e9, collector, private_copy)
        turn = Pending(torch.empty_like(replica.theta), private_copy)
        yield from actor_learner(rank, agent, replica, rollouts(), store, clock, telemetry, turn)


@pytest.mark.parametrize("number", [1.5, float("nan"), float("inf")])
def test_a_pending_gradient_is_kept_as_it_is(number: float) -> None:
    """Also one that is not finite, which only the push drops: a checkpoint holds finite numbers and bytes."""
    pending, again = (Pending(torch.zeros(2)) for _ in range(2))
    pending.gradient[1], pending.steps = number, 5

    state = pending.state()
    again.restore(state)

    assert torch.isfinite(state["pending"]).all()
    assert torch.equal(again.gradient.view(torch.uint8), pending.gradient.view(torch.uint8))
    assert (again.steps, again.waiting) == (5, True)


def test_the_loop_is_the_pseudo_code(tmp_path: Path) -> None:
    """Pull, act, differentiate, push; again until T has reached its end; T counts every step."""
    tape: list[str] = []
    clock = Clock(1, total_steps=12)
    store = TapedStore(tape, clock)

    for _ in worker_of(tape, store, clock, 0, tmp_path):
        pass

    assert tape == ["pull", "rollout", "loss", "push 0"] * 3
    assert clock.steps == 15


def test_the_gradient_is_that_of_the_fresh_copy_every_time(tmp_path: Path) -> None:
    """theta = 1, 0.5, 0.25 (eta = 1/4, gradient 2 theta): the local copy is renewed before each rollout."""
    clock = Clock(1, total_steps=15)
    store = TapedStore([], clock)

    for _ in worker_of([], store, clock, 0, tmp_path):
        pass

    assert store.gradients == [2.0, 1.0, 0.5]
    assert store.theta.item() == 0.125


def test_two_workers_in_turns_push_what_they_computed_from_what_they_pulled(tmp_path: Path) -> None:
    """Both pull theta = 1 and push gradient 2; only then does each see what the other did. Staleness is 1."""
    clock = Clock(2, total_steps=15)
    store = TapedStore([], clock)
    workers = [worker_of([], store, clock, rank, tmp_path) for rank in range(2)]

    for _ in range(2):
        for worker in workers:
            next(worker)

    # theta: 1 -> (worker 0 pushes 2) 0.5 -> (worker 1 pushes 2, stale by one) 0
    assert store.gradients == [2.0, 2.0]
    assert store.theta.item() == 0.0


def test_a_worker_on_theta_itself_differentiates_at_theta_as_it_is_when_it_pushes(tmp_path: Path) -> None:
    """Both act at theta = 1. Worker 0 pushes its gradient 2 at once; worker 1 takes its own at 0.5, not at 1.

    The gradients are new, the rollouts are not: the second began one update earlier.
    """
    clock = Clock(2, total_steps=5)
    store = TapedStore([], clock)
    workers = [worker_of([], store, clock, rank, tmp_path, private_copy=False) for rank in range(2)]

    for worker in workers:
        next(worker)
    for worker in workers:
        for _ in worker:
            pass

    assert store.gradients == [2.0, 1.0]
    (row,) = (row for row in read_records(tmp_path / "1.jsonl") if "updates" in row)
    assert row["staleness_counts"] == {"0": 1}
    assert row["pull_age_counts"] == {"1": 1}


def test_the_records_hold_every_update(tmp_path: Path) -> None:
    """Steps and updates of the rows add up to what was done."""
    clock = Clock(1, total_steps=25)

    for _ in worker_of([], TapedStore([], clock), clock, 0, tmp_path):
        pass

    rows = read_records(tmp_path / "0.jsonl")
    assert sum(row["updates"] for row in rows) == 5
    assert sum(row["worker_steps"] for row in rows) == clock.steps == 25
    assert rows[-1]["staleness_counts"] == {"0": 5}
    assert np.isfinite(rows[-1]["metrics"]["weight"])


def test_successors_and_later_parts_draw_random_numbers_of_their_own(tmp_path: Path) -> None:
    """Actions and environments: otherwise a worker that a stroke of bad luck has killed would meet it again."""
    run = make_run(tmp_path, env_id="CartPole-v1")
    seeds, beginnings = set(), set()
    for part in range(2):
        for incarnation in range(3):
            for worker in range(2):
                its_run = replace(run, spec=replace(run.spec, part=part, incarnation=incarnation))
                seeds.add(build_agent(its_run, worker)[0].generator.initial_seed())
                for environment in build_environments(its_run, worker, 2, evaluation=False):
                    beginnings.add(environment.reset().tobytes())

    assert (len(seeds), len(beginnings)) == (12, 24)
