"""From an environment's own observations and actions to those of an agent and back, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import Environment


@dataclass(frozen=True)
class Translation:
    """How an agent sees what an environment shows to others, and what its actions are there."""

    space: gymnasium.Space[Any]
    """The environment's own observations."""
    observe: Callable[[NDArray[Any], Any], None]
    """`observe(seen, observation)` brings an array of what an agent has seen, in the shape of its observations and with
    zeros at the beginning of an episode, up to date. Raises ValueError, with the reason, for an observation that is not
    in the space."""
    act: Callable[[Any], Any]
    """The environment's action for an agent's. Raises ValueError for one outside the space."""


def translation_of(environment: Environment, spaces: Spaces) -> Translation:
    """The translation of an environment with these `spaces`. Atari and the toys show what an agent sees."""
    own: Translation | None = getattr(environment, "translation", None)
    if own is not None:
        return own
    return Translation(gymnasium.spaces.Box(-np.inf, np.inf, spaces.observation_shape), _copy, lambda action: action)


def _copy(seen: NDArray[Any], observation: Any) -> None:
    seen[...] = observation
