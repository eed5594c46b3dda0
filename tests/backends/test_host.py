"""A host's part of a run, its shards being objects of the test: no cluster, but real workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.backends.ray.host import Host
from asyncrl.backends.ray.member import Beginning, build
from asyncrl.backends.ray.reports import KINDS, LEFT, Seen
from asyncrl.config.run_config import RunConfig
from asyncrl.parameters.shards import Account, Change, Ledger, Shard, State, beginning, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import ENDED, FINISH, GO_ON, READY
from asyncrl.runtime.hosts import on_one_host
from asyncrl.runtime.link import Answer, Call
from asyncrl.runtime.run import Run
from tests.counting import updates_in
from tests.support import make_run


class DirectWire:
    """Calls reach shards at once, but for each `faulty`-th, which is carried out and its answer lost."""

    def __init__(self, shards: list[Shard], faulty: int = 0) -> None:
        self.shards, self.faulty = shards, faulty
        self.answers: list[Answer | None] = []

    def send(self, shard: int, call: Call[Change]) -> int:
        with self.shards[shard].lock:  # hosts are threads here; an actor takes one call after another
            answer = self.shards[shard].exchange(call)
        lost = self.faulty and (len(self.answers) + 1) % self.faulty == 0
        self.answers.append(None if lost else answer)
        return len(self.answers) - 1

    def receive(self, calls: Sequence[int], seconds: float) -> list[tuple[int, Answer | None]]:
        return [(call, self.answers[call]) for call in calls]


def test_the_optimiser_of_a_host_remembers_as_many_updates_of_the_run(tmp_path: Path) -> None:
    """It sees one update in so many. Unknown with `--hosts auto`; a learner sees all of them."""
    settings = {"backend": "ray", "optimizer_momentum": 0.9, "optimizer_decay": 0.99}

    def of_host(algorithm: str, hosts: int | str) -> RunConfig:
        folder = tmp_path / f"{algorithm}-{hosts}"
        return on_one_host(make_run(folder, algorithm, hosts=hosts, **settings).spec).config

    on_two, on_some = of_host("a3c", 2), of_host("a3c", "auto")

    assert (on_two.optimizer_momentum, on_two.optimizer_decay) == (pytest.approx(0.81), pytest.approx(0.9801))
    assert (on_some.optimizer_momentum, on_some.optimizer_decay) == (0.9, 0.99)
    assert of_host("impala", 2).optimizer_momentum == 0.9


def test_a_host_warms_up_its_memory_with_its_share_of_the_steps(tmp_path: Path) -> None:
    """With one step at least."""
    for steps, share in ((1000, 125), (3, 1)):
        settings = {"backend": "ray", "hosts": 8, "memory_steps": 80_000, "layout": "bundled"}
        config: Any = on_one_host(make_run(tmp_path / str(steps), "gorila", warmup_steps=steps, **settings).spec).config
        assert (config.memory_steps, config.warmup_steps) == (10_000, share)


def shards_of(run: Run, count: int, hosts: int) -> list[Shard]:
    """Shards that hold the run's theta."""
    theta = run.handles.store.snapshot().numpy()
    sizes = tuple(len(row) for row in run.handles.moments.of_workers())
    found = []
    for number, part in enumerate(slices(len(theta), count)):
        config = run.spec.config
        writers = config.workers + run.spec.learners // hosts
        ledger = Ledger(hosts, writers, KINDS, sizes) if number == 0 else None
        pushed = config.push == "every-update"
        shard = Shard(hosts, ledger, descent=config.descent if pushed else None)
        statistics = np.zeros((config.update_rule.statistics, part.stop - part.start), np.float32)
        shard.begin(shard.who()[0], 1, beginning(theta[part], statistics if pushed else None))
        found.append(shard)
    return found


def beginning_of(run: Run, host: int) -> Beginning:
    """What a host is told."""
    state: State = {name: tensor.numpy() for name, tensor in run.handles.store.state().items()}
    moments = tuple(np.zeros_like(row) for row in run.handles.moments.of_workers())
    return Beginning(run.spec, host, 1, 0, 0.0, moments, state)


def follow(hosts: list[Host], enough: Callable[[], bool], seconds: float = 200.0) -> list[list[tuple[Any, ...]]]:
    """Look at hosts, and let them finish once it is enough, until all have left; the news of each."""
    news: list[list[tuple[Any, ...]]] = [[] for _ in hosts]
    seen: list[Seen | None] = [None] * len(hosts)
    told = [0] * len(hosts)
    deadline = time.monotonic() + seconds
    while not all(one is not None and one.outcome is not None for one in seen):
        start = all(one is not None and min(one.phases) >= READY for one in seen)
        for number, host in enumerate(hosts):
            one = host.look(told[number], start, FINISH if enough() else GO_ON)
            news[number] += one.news
            seen[number], told[number] = one, one.told
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)
    for host in hosts:
        host.close()
    assert [one.outcome for one in seen if one is not None] == [LEFT] * len(hosts)
    assert all(set(one.phases) == {ENDED} for one in seen if one is not None)
    return news


def account_of(shards: list[Shard]) -> tuple[int, int]:
    """Updates in theta, and lost ones."""
    return Account().balance([shard.state() for shard in shards], ended=True)


@pytest.mark.parametrize("push", ["exchange", "every-update"])
def test_workers_of_a_locked_run_wait_for_their_host_and_others_do_not(tmp_path: Path, push: str) -> None:
    """Its exchange holds the lock, which keeps out other threads as it does other processes."""
    for update in ("locked", "hogwild"):
        run = make_run(tmp_path / update, "a3c", workers=1, backend="ray", push=push, update=update)
        own = build(beginning_of(run, 0), on_one_host(run.spec)).store
        assert isinstance(own, SharedStore)
        pull = threading.Thread(target=own.pull, args=(torch.zeros(own.theta.numel()),))
        with own.exclusive():
            pull.start()
            pull.join(timeout=0.3 if update == "locked" else 60.0)
            assert pull.is_alive() == (update == "locked")
        pull.join(timeout=60.0)
        assert not pull.is_alive()


OF_SHARDS = {"parameter_shards": 3, "push": "every-update", "update": "locked", "address": "auto"}


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("a3c", OF_SHARDS), ("gorila", OF_SHARDS), ("impala", {"learner_resource": "big"})]
)
def test_a_host_has_the_settings_of_its_run(tmp_path: Path, algorithm: str, settings: dict[str, Any]) -> None:
    """All but those that say where the parts of the run are, and those of which each host has a share."""
    run = make_run(tmp_path, algorithm, backend="ray", hosts=2, **settings).spec
    of_host = on_one_host(run).config

    changed = {one.name for one in fields(run.config) if getattr(run.config, one.name) != getattr(of_host, one.name)}
    where = {"backend", "hosts", "address", "parameter_shards", "learner_resource", "push", "replay_hosts"}
    shared = {"optimizer_decay", "optimizer_momentum", "memory_steps", "warmup_steps", "statistics"}
    assert changed <= where | shared


@pytest.mark.parametrize(
    ("push", "update"), [("exchange", "hogwild"), ("exchange", "locked"), ("every-update", "hogwild")]
)
def test_two_hosts_make_one_run_of_shared_parameters(tmp_path: Path, push: str, update: str) -> None:
    """Two shards, and every third answer is lost: the shards have each update once, and T is that of both hosts.

    Theta counts them itself. Without a lock an exchange and a worker's update may overwrite each other.
    """
    settings = {"workers": 1, "total_steps": 10**9, "envs_per_worker": 4, "record_interval_seconds": 1e6}
    run = make_run(tmp_path, "tests.counting.counting_a3c", **settings)
    config = replace(run.spec.config, backend="ray", hosts=2, parameter_shards=2, push=push, update=update)
    run = Run(replace(run.spec, config=config), run.handles)
    shards = shards_of(run, count=2, hosts=2)

    ledger = shards[0].ledger
    assert ledger is not None

    def enough() -> bool:
        """Hosts do not begin at the same moment, and one alone is soon through with a few steps."""
        made = ledger.of_workers()[..., 0]
        return bool(made.sum() >= 1500 and (made > 0).all())

    hosts = [Host(beginning_of(run, host), DirectWire(shards, faulty=3)) for host in (0, 1)]
    news = follow(hosts, enough)

    steps, updates = ledger.of_workers()[..., 0].ravel(), ledger.of_workers()[..., 1].ravel()
    assert [shard.updates for shard in shards] == [updates.sum()] * 2
    assert account_of(shards) == (updates.sum(), 0)
    in_theta = updates_in(torch.from_numpy(np.concatenate([shard.state()["theta"] for shard in shards])))
    assert in_theta[-1] <= updates.sum()
    assert in_theta[0] == updates.sum() or (push, update) == ("exchange", "hogwild")
    rows = [facts[2] for own in news for facts in own if facts[0] == "row"]
    assert {row["worker"] for row in rows if "worker" in row} == {0, 1}
    assert sum(row["worker_steps"] for row in rows if "worker_steps" in row) == steps.sum()
    first, second = (row for row in rows if "exchanges" in row)  # at the end of each host
    assert first["exchanges"] + second["exchanges"] > 4
    assert first["updates_lost"] + second["updates_lost"] == 0
    assert steps[0] < first["steps"] <= steps.sum()
    assert steps[1] < second["steps"] <= steps.sum()
    if push == "every-update":
        told = sum(row["updates"] for row in rows if "updates" in row)
        assert told == updates.sum() == (first["gradients"] + second["gradients"]) / 2  # both shards had each


@pytest.mark.slow
@pytest.mark.parametrize("push", ["exchange", "every-update"])
@pytest.mark.parametrize("kind", [{"layout": "bundled"}, {"learners": 2}], ids=["bundled", "unbundled"])
def test_hosts_learn_from_their_own_memories(tmp_path: Path, kind: dict[str, Any], push: str) -> None:
    """Gorila on two hosts: each update is in the shard once, and each writer's rows have its own number."""
    memory = {"memory_steps": 8000, "warmup_steps": 400, "minibatch": 8, "replay_ratio": 0.1}
    run = make_run(tmp_path, "gorila", workers=2, total_steps=10**9, record_interval_seconds=1e6, **memory, **kind)
    run = Run(replace(run.spec, config=replace(run.spec.config, backend="ray", hosts=2, push=push)), run.handles)
    (shard,) = shards_of(run, count=1, hosts=2)
    ledger = shard.ledger
    assert ledger is not None

    def enough() -> bool:
        """Both have learnt."""
        return bool((ledger.of_workers()[..., 1].sum(1) >= 50).all())

    news = follow([Host(beginning_of(run, host), DirectWire([shard], faulty=3)) for host in (0, 1)], enough)

    counts = ledger.of_workers()
    assert shard.updates == counts[..., 1].sum()
    # Half of the steps before learning are each host's; two writers may find the same update due.
    assert (counts[..., 1].sum(1) <= 0.1 * (counts[..., 0].sum(1) - 200) + 2).all()
    rows = [facts[2] for own in news for facts in own if facts[0] == "row"]
    learners = range(4) if "layout" in kind else ["learner", "learner-01", "learner-02", "learner-03"]
    of_each = [sum(row.get("updates", 0) for row in rows if row.get("worker") == who) for who in learners]
    assert of_each == counts[..., 1][counts[..., 1] > 0].tolist()
    assert sum(row.get("worker_steps", 0) for row in rows) == counts[..., 0].sum()
