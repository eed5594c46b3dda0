"""Loads what a run has learnt and plays it, for the commands and the API."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl import catalog
from asyncrl.algorithm import Algorithm, load
from asyncrl.api.resume import stored_config
from asyncrl.backends.handles import shared
from asyncrl.backends.restoring import check_fits, flat_parameters, restore
from asyncrl.config.run_config import RunConfig
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import user_code, watched
from asyncrl.doctor.room import check_shared_memory, demand, shared_bytes
from asyncrl.envs.environment import BadEnvironment, Environment, close_all
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.collect import Episode
from asyncrl.runtime.evaluator import play, side_by_side
from asyncrl.runtime.normalize import Normalizer, make_normalizer
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_agent, build_environments
from asyncrl.runtime.run import Run, RunSpec, initial_parameters
from asyncrl.runtime.seeding import NO_PART
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import BadCheckpoint, Checkpoint
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.stored import NONE_GIVEN, Permission, read_stored


@dataclass(frozen=True)
class Loaded:
    """A run opened for reading, with the agent of one of its checkpoints."""

    run: Run
    checkpoint: Checkpoint
    path: Path
    """The run's folder, as given."""
    name: str
    """The checkpoint's name, as given."""
    agent: Algorithm
    """Acts as in the run's evaluations, unless another policy was asked for."""
    normalizer: Normalizer | None
    """Normalises observations for the agent; None: it takes them as they are."""


@dataclass(frozen=True)
class Result:
    """The results of whole episodes."""

    run: str
    algorithm: str
    env_id: str
    checkpoint: str
    steps: int
    """Agent steps for which the checkpoint had been trained."""
    policy: str
    seed: int
    returns: list[float]
    """Raw return of each episode."""
    lengths: list[int]
    """Steps of each episode."""
    cut: int
    """Number of episodes that were cut because they did not end within the step limit of evaluations."""

    def summary(self) -> dict[str, float]:
        """Mean, standard deviation (of these episodes, not of the mean), minimum and maximum return; mean length."""
        return {
            "mean": float(np.mean(self.returns)),
            "std": float(np.std(self.returns)),
            "min": min(self.returns),
            "max": max(self.returns),
            "mean_length": float(np.mean(self.lengths)),
        }


def load_run(
    path: Path,
    checkpoint: str = "best",
    seed: int = 0,
    greedy: bool | None = None,
    change: Callable[[EnvSpec], EnvSpec] = lambda spec: spec,
    permission: Permission = NONE_GIVEN,
) -> Loaded:
    """Load the run in a folder; `checkpoint` is "best", "newest" or a checkpoint's name.

    `greedy` None means as in the run's own evaluations; `change` may replace the environment; `permission` has the
    settings that replace the run's, and says what its folder may import.
    Raises UsageError when the run, its checkpoint or its environment cannot be used.
    """
    seed = settings_for(RunConfig, {"seed": seed})["seed"]
    if greedy not in (None, True, False):
        raise UsageError(f"greedy must be True, False or None, got {greedy!r}")
    folder = RunFolder.open(path)
    stored = read_stored(folder.config_file)
    algorithm = stored.usable_algorithm(permission)
    try:
        load(algorithm)
    except UsageError as error:
        raise UsageError(f"{stored.path.parent} is a run of {algorithm!r}, which cannot be used: {error}") from None
    settings = stored_config(algorithm, stored, permission, trains=False)
    policy: dict[str, Any] = {} if greedy is None else {"evaluation_policy": "greedy" if greedy else "sampled"}
    settings = dataclasses.replace(settings, **permission.given, **policy, seed=seed)
    with watched(settings.hang_seconds):
        environment = change(EnvSpec.of(settings))
        spaces = environment.probe()
        plan = Plan(algorithm, settings, environment, spaces)
        with user_code(f"{algorithm}'s network"):
            _, layout = initial_parameters(plan)
    found = load_checkpoint(folder, checkpoint)
    env_id = stored.config.get("env_id", settings.env_id)  # the same environment, if it is called otherwise here
    check_fits(found, algorithm, env_id, settings.optimizer, layout)
    theta = flat_parameters(found, layout)
    needed = shared_bytes(plan, theta.numel(), experience=0)  # nobody learns
    demand([check_shared_memory(needed)])
    spec = RunSpec(algorithm, settings, environment, spaces, folder, layout, NO_PART)
    handles = shared(spec, theta, found.steps, found.seconds, trains=False)
    restore(handles, theta, found)
    run = Run(spec, handles)
    agent, replica = build_agent(run, EVALUATOR)
    replica.pull(run.handles.store)
    return Loaded(run, found, path, checkpoint, agent, make_normalizer(run.handles.moments, EVALUATOR, run.spec))


def play_episodes(
    loaded: Loaded,
    episodes: int,
    around: Callable[[Environment], Environment] = lambda environment: environment,
    agent: Any = None,
    interrupted: Callable[[], bool] = lambda: False,
    abreast: int = 0,
) -> list[Episode] | None:
    """Play whole episodes, so many `abreast` (0: up to ten); None if `interrupted()`, asked before each step, is true.

    `around` wraps the first environment; `agent` acts in place of the run's own, on observations that are not
    normalised. Raises UsageError when an environment breaks.
    """
    run = loaded.run
    with watched(run.spec.config.hang_seconds):
        environments = build_environments(run, EVALUATOR, abreast or side_by_side(episodes), evaluation=True)
    try:
        with watched(run.spec.config.hang_seconds):
            return play(
                agent or loaded.agent, [around(environments[0]), *environments[1:]], run.spec.spaces, episodes,
                loaded.checkpoint.steps, interrupted, normalizer=None if agent else loaded.normalizer,
                longest=run.spec.environment.evaluation_step_cap,
            )  # fmt: skip
    except BadEnvironment as error:
        raise UsageError(str(error)) from error
    finally:
        close_all(environments)


def play_run(
    loaded: Loaded, episodes: int, around: Callable[[Environment], Environment] = lambda environment: environment
) -> Result:
    """Play whole episodes; `around` wraps the first environment. Raises UsageError when an environment breaks."""
    spec, played = loaded.run.spec, play_episodes(loaded, episodes, around)
    assert played is not None  # nobody interrupts
    return Result(
        run=str(loaded.path),
        algorithm=catalog.short(spec.algorithm),
        env_id=spec.environment.env_id,
        checkpoint=loaded.name,
        steps=loaded.checkpoint.steps,
        policy=spec.config.evaluation_policy,
        seed=spec.config.seed,
        returns=[episode.score for episode in played],
        lengths=[episode.length for episode in played],
        cut=sum(episode.cut for episode in played),
    )


def outputs_of(network: Any, spaces: Spaces, observations: Tensor, state: State) -> tuple[dict[str, Tensor], State]:
    """The network's outputs for `observations` `[B, *shape]`, preprocessed and normalised, and the next state.

    By name: `action`, the best one, discrete ones counted from 0, int64 `[B]` or float32 `[B, n]`; besides:

        logits                  `[B, A]`, of a policy over discrete actions
        q                       `[B, A]`, of a value-based method
        mean, deviation         `[B, n]`, of a policy over continuous actions, not yet clipped to their bounds
        value                   `[B]`, the expected return, in the units of its loss

    REINFORCE has no `value`: its baseline is one number for all states. Raises UsageError for a user's network without
    the methods of the package's networks.
    """
    if hasattr(network, "values_at"):
        q, state = network.values_at(observations, state)
        return {"action": q.argmax(-1), "q": q, "value": q.amax(-1)}, state
    if not hasattr(network, "policy_at"):
        raise UsageError(f"{type(network).__name__} must define policy_at or values_at to be filmed or exported")
    policy, values, states = network(observations[None], state)
    after = None if states is None else tuple(part[0] for part in states)
    value = {} if hasattr(network.value, "baseline") else {"value": values[0]}  # REINFORCE's is no value of a state
    if not spaces.is_continuous:
        return {"action": policy.logits[0].argmax(-1), "logits": policy.logits[0]} | value, after
    mean = policy.mean[0]
    action = mean.clamp(torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return {"action": action, "mean": mean, "deviation": policy.deviation.expand_as(policy.mean)[0]} | value, after


def load_checkpoint(folder: RunFolder, name: str) -> Checkpoint:
    """The checkpoint of that name; prints lines about damaged ones to stderr. Raises UsageError if there is none."""
    if not isinstance(name, str | os.PathLike):
        raise UsageError(f'checkpoint must be "best", "newest" or the name of one, got {name!r}')
    try:
        if name not in ("best", "newest"):
            return checkpoints.load(folder.checkpoints / name)
        checkpoint, skipped = checkpoints.load_newest(folder.checkpoints, "best" if name == "best" else "step")
    except BadCheckpoint as error:
        if name == "best" and not checkpoints.find(folder.checkpoints, "best") and checkpoints.find(folder.checkpoints):
            none = f"{folder.path} has no best checkpoint because no evaluation has finished; use"
            raise UsageError(f'{none} checkpoint="newest"', f"{none} --checkpoint newest") from None
        there = [path.name for kind in ("step", "best") for path in checkpoints.find(folder.checkpoints, kind)]
        raise UsageError(f"{error}; available: {', '.join(there) or 'none'}") from None
    for line in skipped:
        print_line(line, error=True)
    return checkpoint
