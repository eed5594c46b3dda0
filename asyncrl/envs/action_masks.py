"""Action masks: observations that end with what `info` says of the actions that are valid in them.

As in PettingZoo and Gymnasium, `info["action_mask"]` after reset and every step is an array `[A]` of 0 and 1. Without
it, the environment's method `action_masks()` is asked, as sb3-contrib's MaskablePPO does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.envs.encoders import Encoding

OBSERVATION, MASK = "observation", "action_mask"


class WithMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observation is a Dict of the inner one and the mask. Needs Discrete actions."""

    def __init__(self, environment: gymnasium.Env[Any, Any], env_id: str) -> None:
        """Raises UsageError for actions that are not Discrete."""
        super().__init__(environment)
        space = getattr(environment, "action_space", None)
        if not isinstance(space, spaces.Discrete):
            raise UsageError(
                f"--action-masks is for Discrete actions, but {env_id} has {type(space).__name__}: leave it out, or "
                "wrap the environment to take Discrete"
            )
        self.actions = int(space.n)
        """Number of actions, and length of the mask."""
        seen = getattr(environment, "observation_space", None)
        if seen is not None:
            self.observation_space = spaces.Dict({OBSERVATION: seen, MASK: spaces.MultiBinary(self.actions)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment does, with the mask."""
        observation, info = self.env.reset(seed=seed, **({} if options is None else {"options": options}))
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment does, with the mask. After a terminal state nothing is chosen: its mask may be missing."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info, bool(terminated)), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Any, terminated: bool = False) -> dict[str, Any]:
        mask = info.get(MASK) if isinstance(info, Mapping) else None
        if mask is None and self.env.has_wrapper_attr("action_masks"):  # of the environment, or of a wrapper
            mask = self.env.get_wrapper_attr("action_masks")()
        if terminated and (mask is None or not np.any(mask)):
            mask = np.ones(self.actions, np.int8)
        return {OBSERVATION: observation, MASK: None if mask is None else np.asarray(mask)}


def with_mask(inner: Encoding, actions: int) -> Encoding:
    """The encoding of what `WithMask` observes: the inner one's numbers, and the mask after them."""
    dtype: np.dtype[Any] = np.dtype(inner.dtype)

    def encode(observation: Any) -> NDArray[Any]:
        mask, seen = _checked(observation[MASK], actions), inner.encode(observation[OBSERVATION])
        return np.concatenate([np.ravel(seen), mask], dtype=dtype, casting="unsafe")

    return Encoding((math.prod(inner.shape) + actions,), inner.dtype, encode, inner.spaces)


def _checked(mask: NDArray[Any] | None, actions: int) -> NDArray[Any]:
    """A mask `[A]`. Raises ValueError if it is none, or allows nothing."""
    if mask is None:
        raise ValueError(
            f'info has no "{MASK}", an array of 0 and 1 for each of the {actions} actions: add it, or leave out '
            "--action-masks"
        )
    if mask.shape != (actions,) or mask.dtype.kind not in "biuf" or not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"the action mask is not {actions} numbers, each 0 or 1, but {mask.dtype} {list(mask.shape)}")
    if not mask.any():
        raise ValueError("the action mask allows no action, but the episode has not terminated")
    return mask
