"""A thousand updates of every algorithm whose experience goes to a learner: each is counted, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.experience.batches import Batches
from asyncrl.runtime.run import Run
from asyncrl.storage.records import read_records
from tests.seams.running import learnt, train
from tests.support import make_run, status_of

SMALL: dict[str, Any] = {"workers": 2, "envs_per_worker": 1, "t_max": 5, "evaluation_interval_steps": 0}
REPLAY = {"warmup_steps": 200, "replay_ratio": 0.5, "minibatch": 16, "memory_steps": 1_000}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {"total_steps": 10_500},
    "ppo": {"total_steps": 1_500, "t_max": 10, "epochs": 4, "minibatches": 4},
    "impala": {"total_steps": 11_000},
    "gorila": {"total_steps": 2_300, **REPLAY},
    "apex": {"total_steps": 2_300, **REPLAY},
    "apex_dpg": {"total_steps": 2_300, **REPLAY},
    "sac": {"total_steps": 2_300, **REPLAY},
}
CONTROL = ("apex_dpg", "sac")
CASES = [
    *(
        (algorithm, env_id)
        for algorithm in ALGORITHMS
        if algorithm not in CONTROL
        for env_id in ("Catch", "CartPole-v1")
    ),
    *((algorithm, "Pendulum-v1") for algorithm in CONTROL),
]


def run_of(folder: Path, algorithm: str, backend: str, **settings: Any) -> Run:
    return make_run(folder, algorithm, **(SMALL | ALGORITHMS[algorithm] | {"backend": backend} | settings))


def rows_of(run: Run, pattern: str) -> list[dict[str, Any]]:
    files = sorted(run.spec.folder.path.glob(pattern))
    return [row for file in files for row in read_records(file) if "time" in row]


def check_counters(run: Run) -> None:
    """Rows, counters, status and checkpoint agree; what actors put was learnt from, but for the last moment's."""
    status, config = status_of(run.spec.folder.path), run.spec.config
    learner, actors = rows_of(run, "learner.jsonl"), rows_of(run, "worker-*.jsonl")
    assert sum(row["updates"] for row in learner) == run.handles.store.updates == status["updates"] >= 1000
    assert run.handles.store.counts().dropped_gradients == 0
    assert learnt(run)["counters"] == (status["steps"], status["updates"])
    assert sum(row["worker_steps"] for row in actors) == status["steps"] == sum(status["worker_steps"])
    if "warmup_steps" in vars(config):
        # In processes the learner may have left when an actor puts the rollout that it was making.
        underway = config.workers * config.t_max if run.spec.config.backend == "local" else 0
        assert (status["steps"] - underway - 200) // 2 <= status["updates"] <= (status["steps"] - 200) // 2
        assert 0.3 < learner[-1]["replay"]["memory_fill"] <= 1.0
    else:
        put = status["steps"] // (config.t_max * config.envs_per_worker)
        # A row of a moment in which no batch was begun has no ages.
        taken = sum(sum(row.get("rollout_age_counts", {}).values()) for row in learner)
        assert put - config.workers <= taken <= put
    assert not any(status["unrecorded"].values())
    assert status["learner_restarts"] == 0


@pytest.mark.parametrize(("algorithm", "env_id"), CASES)
def test_a_thousand_updates_in_turns_repeat_to_the_bit(tmp_path: Path, algorithm: str, env_id: str) -> None:
    """Parameters, statistics, target, moments and evaluations of two runs."""
    runs = [run_of(tmp_path / name, algorithm, "serial", env_id=env_id) for name in ("first", "second")]
    for run in runs:
        train(run)

    check_counters(runs[0])
    assert learnt(runs[0]) == learnt(runs[1])


@pytest.mark.parametrize(("algorithm", "env_id"), CASES)
def test_a_thousand_updates_in_processes(tmp_path: Path, algorithm: str, env_id: str) -> None:
    """Actors, learner and evaluator, each a process."""
    run = run_of(tmp_path, algorithm, "local", env_id=env_id)

    train(run)

    check_counters(run)


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala"])
def test_memory_and_several_environments_go_through_the_seam(tmp_path: Path, algorithm: str) -> None:
    """LSTM, 3 environments per actor, normalised: the state in which rollouts begin travels with them."""
    settings = {"lstm_cells": 8, "envs_per_worker": 3, "normalize_observations": True, "normalize_returns": True}
    settings |= {"minibatches": 3} if algorithm == "ppo" else {}
    runs = [run_of(tmp_path / name, algorithm, "serial", total_steps=1500, **settings) for name in ("first", "second")]
    for run in runs:
        train(run)

    assert learnt(runs[0]) == learnt(runs[1])
    assert learnt(runs[0])["counters"][1] >= 40


@pytest.mark.parametrize(("algorithm", "updates"), [("a2c", 1), ("ppo", 16)])
def test_with_overlap_what_is_learnt_from_is_one_batch_old(tmp_path: Path, algorithm: str, updates: int) -> None:
    """In updates; the first batch was acted with theta as it began."""
    run = run_of(tmp_path, algorithm, "serial", workers=3, total_steps=600, overlap=True)

    train(run)

    ages = [age for row in rows_of(run, "learner.jsonl") for age in row.get("rollout_age_counts", {}).items()]
    counts: dict[int, int] = {}
    for age, count in ages:
        counts[int(age)] = counts.get(int(age), 0) + count
    assert counts.pop(0) == 3
    assert list(counts) == [updates]
    assert counts[updates] >= 3 * 18


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_in_step_a_batch_is_the_next_rollout_of_every_actor(tmp_path: Path, algorithm: str) -> None:
    """Everything that is put is taken exactly once, in order, and acted with what the batch before has taught."""
    run = run_of(tmp_path, algorithm, "serial", workers=3, total_steps=600)
    put: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    taken: list[torch.Tensor] = []
    ages: list[int] = []
    experience = run.handles.experience
    assert isinstance(experience, Batches)
    put_rollout, take = experience.put, experience.take

    def watched_put(actor: int, rollout: Any, version: int) -> Any:
        put[actor].append(rollout.observations[:, 0].clone())
        return put_rollout(actor, rollout, version)

    def watched_take(learner: int) -> Any:
        batch = take(learner)
        if batch is not None:
            taken.append(batch.rollout.observations.clone())
            ages.extend(run.handles.store.updates - version for version in batch.versions)
            assert (batch.missing, batch.waiting) == (0, 0)
        return batch

    experience.put, experience.take = watched_put, watched_take  # type: ignore[method-assign]
    train(replace(run, handles=replace(run.handles, experience=experience)))

    assert len(taken) >= 20
    assert set(ages) == {0}
    for i, batch in enumerate(taken):
        for actor, rollouts in put.items():
            assert torch.equal(batch[:, actor], rollouts[i])
    assert all(len(rollouts) == len(taken) for rollouts in put.values())
