"""Small worlds and plans for the tests."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asyncrl.algorithm import algorithm_of
from asyncrl.core.rollout import Extras, State
from asyncrl.core.spaces import Spaces
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.envs.spec import EnvSpec
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import Receipt, Update
from asyncrl.runtime.run import Run, RunSpec, initial_parameters
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder

COUNTING = Spaces(observation_shape=(1,), observation_dtype="float32", actions=2)


class Counting:
    """Observations are 0, 1, 2, ...; the episode ends after `length` steps, by its end or by a time limit."""

    def __init__(self, length: int, truncates: bool, reward: float = 1.0, start: float = 0.0) -> None:
        self.length, self.truncates, self.reward, self.start = length, truncates, reward, start
        self.at = 0

    def _observation(self) -> np.ndarray:
        return np.array([self.start + self.at], np.float32)

    def reset(self) -> np.ndarray:
        self.at = 0
        return self._observation()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, bool]:
        self.at += 1
        over = self.at == self.length
        return self._observation(), self.reward, over and not self.truncates, over and self.truncates, False

    def close(self) -> None:
        pass


class FixedAgent:
    """Takes action 0; its network is one weight, its loss whatever the test says."""

    def __init__(self) -> None:
        self.network: nn.Module = nn.Linear(1, 1, bias=False)
        self.exploration: dict[str, float] = {}

    def initial_state(self, environments: int) -> State:
        return None

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        return torch.zeros(len(observations), dtype=torch.int64), state, {}


def make_run(folder: Path, algorithm: str = "a3c", **settings: Any) -> Run:
    """A run of an algorithm (its name, or its module) on Catch, with its handles, ready to begin."""
    name = algorithm if "." in algorithm else f"asyncrl.{algorithm}"
    method = algorithm_of(name)
    defaults = {"env_id": "Catch", "workers": 2, "total_steps": 2000, "backend": "serial", "quiet": True}
    config = method.Config(**(method.preset("default", COUNTING) | defaults | settings))
    environment = EnvSpec(config.env_id)
    spaces = environment.probe()
    theta, layout = initial_parameters(Plan(name, config, environment, spaces))
    run_folder = RunFolder.create(folder, algorithm, config.env_id, "test")
    spec = RunSpec(name, config, environment, spaces, run_folder, layout)
    return Run(spec, import_module(f"asyncrl.backends.{config.backend}").share(spec, theta))


def shared_store(
    initial: Tensor, rule: UpdateRule, workers: int = 1, clock: Clock | None = None, **settings: Any
) -> SharedStore:
    """A store whose updates are by `rule` and the settings of `Descent`."""
    lock_file = settings.pop("lock_file", None)
    clock = clock or Clock(workers, total_steps=10**9)
    return SharedStore(initial, Descent(rule, **settings), workers, clock, lock_file)


def push(store: SharedStore, worker: int, gradient: Tensor, version: int, steps: int = 0) -> Receipt:
    """Push a gradient that stands for `steps` steps."""
    return store.push(Update(worker, gradient, version, steps))


def run_command(
    *words: str, timeout: float = 200, algorithm: str = "a3c", **options: Any
) -> subprocess.CompletedProcess[str]:
    """`python -m asyncrl.<algorithm> words...` as a user types it."""
    return subprocess.run(
        [sys.executable, "-m", "asyncrl", algorithm, *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


def the_run(runs_dir: Path) -> Path:
    """The only run folder below `runs_dir`."""
    (config,) = runs_dir.glob("*/*/*/config.json")
    return config.parent


def status_of(run: Path) -> dict[str, Any]:
    """status.json of a run."""
    status: dict[str, Any] = json.loads((run / "status.json").read_text())
    return status


def evaluations_of(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run."""
    return read_records(run / "evaluator.jsonl")


def free_port() -> int:
    """One that nobody listens at, and that the system gives to nobody who does not ask for it."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
