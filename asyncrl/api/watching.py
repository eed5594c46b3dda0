"""An episode step by step: what the agent saw, what it thought, what it did, and its reward."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.api.playing import Loaded
from asyncrl.api.thinking import think
from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import BadEnvironment, Environment, EpisodeLost, close_all
from asyncrl.runtime.collect import for_environments
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import build_agent, build_environments, build_normalizer


@dataclass(frozen=True)
class Packed:
    """A compressed picture: hundreds of uncompressed ones would not fit into memory."""

    shape: tuple[int, ...]
    pixels: bytes

    @classmethod
    def of(cls, picture: NDArray[np.uint8]) -> Packed:
        """Compress a picture."""
        return cls(picture.shape, zlib.compress(picture.tobytes(), 1))

    def unpacked(self) -> NDArray[np.uint8]:
        """The uncompressed picture."""
        return np.frombuffer(zlib.decompress(self.pixels), np.uint8).reshape(self.shape)


@dataclass(frozen=True)
class Moment:
    """One step."""

    picture: Packed | None
    """The environment's picture, uint8 `[H, W, 3]`; None if it has none."""
    observation: NDArray[Any]
    """What the agent saw, before normalisation."""
    thought: dict[str, NDArray[np.float64]]
    """`probabilities` or `q` `[A]`, or `mean` and `deviation` `[n]`; `value` `[]` where there is one."""
    action: int | NDArray[np.float32]
    reward: float
    """The reward of this step."""
    score: float
    """The sum of the rewards before this step."""
    step: int
    """Number of this step in the episode, from 0."""


def watch(loaded: Loaded, steps: int, skip: int = 0, pictures: bool = True) -> Iterator[Moment]:
    """At most `steps` steps of one episode, from step `skip` on, with the policy of the run's own evaluations.

    Raises UsageError for an environment that breaks, and for a network that `think` cannot use.
    """
    run = loaded.run
    agent, replica = build_agent(run, EVALUATOR)
    replica.pull(run.handles.store)
    normalizer = build_normalizer(run, EVALUATOR)
    environments = build_environments(run, EVALUATOR, 1, evaluation=True)
    environment, state, score = environments[0], agent.initial_state(1), 0.0
    try:
        observation, over = environment.reset(), False
        for step in range(skip + steps):
            if over:
                return
            seen = torch.from_numpy(np.array(observation))
            with torch.inference_mode():
                looked_at = seen[None] if normalizer is None else normalizer.observe(seen[None])
                said, _ = think(agent.network, run.spec.spaces, looked_at, state)
                chosen, state, _ = agent.act(looked_at, state, loaded.checkpoint.steps)
            (action,) = for_environments(chosen, run.spec.spaces)
            picture = Packed.of(picture_of(environment)) if pictures and step >= skip else None
            observation, reward, terminated, truncated, _ = environment.step(action)
            if step >= skip:
                thought = {name: values[0].double().numpy() for name, values in said.items() if name != "action"}
                if "logits" in thought:
                    thought["probabilities"] = torch.softmax(said["logits"][0].double(), -1).numpy()
                yield Moment(picture, seen.numpy(), thought, action, reward, score, step)
            score += reward
            over = terminated or truncated
    except (BadEnvironment, EpisodeLost) as error:
        raise UsageError(str(error.__cause__ or error)) from error
    finally:
        close_all(environments)


def picture_of(environment: Environment) -> NDArray[np.uint8]:
    """The environment's current picture, uint8 `[H, W, 3]`."""
    picture: NDArray[np.uint8] = environment.picture()  # type: ignore[attr-defined]
    return picture


def action_names(loaded: Loaded) -> tuple[str, ...]:
    """The environment's names of its actions, or "action 0" and so on."""
    spaces = loaded.run.spec.spaces
    if spaces.is_continuous:
        return tuple(f"action {i}" for i in range(len(spaces.action_low)))
    environment: Any = loaded.run.spec.environment.make(0, evaluation=True)
    environment.close()
    names = getattr(environment, "action_names", ())
    return tuple(names) if len(names) == spaces.actions else tuple(f"action {i}" for i in range(spaces.actions))
