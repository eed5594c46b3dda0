"""Partially observed environments, which need a memory.

This is an ordinary factory for `--env-id module:factory`, with no special support in the package.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from asyncrl.core.errors import UsageError


def hide(env_id: str, components: tuple[int, ...], **arguments: Any) -> gymnasium.Env[Any, Any]:
    """The registered environment `env_id`, made with `arguments`, without some `components` of its observations.

    In CartPole-v1 components 1 and 3 are the velocities of the cart and of the pole. Raises UsageError if there are no
    such components, or if nothing would be left.
    """
    environment = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    space = environment.observation_space
    if not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise UsageError(f"only components of a vector can be hidden, not of {space}")
    kept = np.setdiff1d(np.arange(space.shape[0]), components)
    if len(kept) != space.shape[0] - len(set(components)) or not len(kept):
        raise UsageError(f"cannot hide {components} of the components 0 to {space.shape[0] - 1}")
    left = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(environment, lambda observation: observation[kept], left)
