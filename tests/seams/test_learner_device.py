"""A learner that computes on a device of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncrl.core.devices import require_device
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Rollout, on_device
from asyncrl.runtime.protocols import LEARNER
from asyncrl.runtime.roles import build_learner
from asyncrl.runtime.run import Run
from asyncrl.storage.checkpoints import load_newest
from tests.seams.running import train
from tests.support import make_run

MEMORY = {"memory_steps": 1000, "warmup_steps": 40, "minibatch": 8, "replay_ratio": 0.05}
ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("a2c", {"max_episode_steps": 5}),
    ("ppo", {"t_max": 20, "epochs": 2, "minibatches": 2}),
    ("ppo", {"t_max": 20, "epochs": 1, "minibatches": 2, "env_id": "Pendulum-v1"}),
    ("gorila", {**MEMORY, "dueling": False, "learners": 2}),
    ("apex", {**MEMORY, "dueling": False}),
    ("apex_dpg", {**MEMORY, "env_id": "Pendulum-v1"}),
]
SPLITTING: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"t_max": 20, "lstm_cells": 8, "epochs": 2, "minibatches": 2}),
    ("impala", {"normalize_returns": True}),
    ("apex", MEMORY),
    ("sac", {**MEMORY, "env_id": "Pendulum-v1"}),
]
"""Torch's lazy device cannot compute with the parts of a tensor that was split."""


@cache
def begin_to_be_lazy() -> None:
    """Torch allows it once per process."""
    pytest.importorskip("torch._lazy.ts_backend", reason="this build of torch has no lazy device").init()


@pytest.fixture(params=["lazy", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """A device with memory of its own: torch's lazy one computes on any processor, but mixes with no other."""
    name = str(request.param)
    if name == "lazy":
        begin_to_be_lazy()
    else:
        try:
            require_device(name)
        except UsageError:
            pytest.skip("there is no CUDA device")
    return name


def run_of(folder: Path, algorithm: str, settings: dict[str, Any]) -> Run:
    """A short run in turns."""
    plain = {"envs_per_worker": 2, "t_max": 5, "total_steps": 120, "evaluation_interval_steps": 0}
    return make_run(folder, algorithm, **(plain | settings))


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "settings"), [*ALGORITHMS, *SPLITTING])
def test_a_learner_on_another_device_learns_the_same(
    tmp_path: Path, device: str, algorithm: str, settings: dict[str, Any]
) -> None:
    """All that a loss touches is there, and theta in host memory is what it would be without."""
    if device == "lazy" and (algorithm, settings) in SPLITTING:
        pytest.skip("torch's lazy device cannot split a tensor")
    found = []
    for name in ("cpu", device):
        run = run_of(tmp_path / name, algorithm, settings | {"learner_device": name})
        with torch.random.fork_rng(devices=[]):
            train(run)
        found.append(load_newest(run.spec.folder.checkpoints)[0])

    there, here = found
    assert (here.steps, here.updates) == (there.steps, there.updates)
    assert here.updates > 3
    for name, tensor in there.parameters.items():
        torch.testing.assert_close(here.parameters[name], tensor, atol=1e-4, rtol=1e-3)


def test_all_of_a_rollout_is_moved() -> None:
    """The recurrent state, what `act` returned and the places of truncated episodes, too."""
    zeros = torch.zeros(3, 2)
    places = (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    rollout = Rollout(
        zeros, zeros, zeros, zeros, zeros.bool(), places, zeros, (zeros, zeros), zeros[0], extras={"q": zeros}
    )
    moved = on_device(rollout, torch.device("meta"))

    assert moved.state is not None
    tensors = [value for value in moved.as_dict().values() if isinstance(value, torch.Tensor)]
    tensors += [*moved.state, *moved.truncated, *moved.extras.values()]
    assert len(tensors) == 12
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert on_device(rollout, torch.device("cpu")) is rollout


@pytest.mark.slow
def test_only_the_learner_computes_there(tmp_path: Path, device: str) -> None:
    """Its theta' is a copy on the device, theta stays in host memory."""
    run = run_of(tmp_path, "impala", {"learner_device": device})
    role = build_learner(run)
    assert {parameter.device.type for parameter in role.agent.network.parameters()} == {device}
    assert run.handles.store.snapshot().device.type == "cpu"
    assert list(run.handles.clock.learners) == [LEARNER]
    role.close()
