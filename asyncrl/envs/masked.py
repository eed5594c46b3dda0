"""Partially observed environments, which need a memory.

This is an ordinary factory for `--env-id module:factory`, with no special support in the package.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError


class Hidden(gymnasium.ObservationWrapper[NDArray[Any], Any, NDArray[Any]]):
    """An environment whose vector observations lack some components."""

    def __init__(self, environment: gymnasium.Env[Any, Any], components: tuple[int, ...]) -> None:
        super().__init__(environment)
        space = environment.observation_space
        if not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1):
            raise UsageError(f"only components of a vector can be hidden, not of {space}")
        self._kept = np.setdiff1d(np.arange(space.shape[0]), components)
        if len(self._kept) != space.shape[0] - len(set(components)) or not len(self._kept):
            raise UsageError(f"cannot hide {components} of the components 0 to {space.shape[0] - 1}")
        self.observation_space = gymnasium.spaces.Box(
            space.low[self._kept], space.high[self._kept], dtype=space.dtype.type
        )

    def observation(self, observation: NDArray[Any]) -> NDArray[Any]:
        """The visible components, in order."""
        return observation[self._kept]


def hide(env_id: str, components: tuple[int, ...], **arguments: Any) -> Hidden:
    """The registered environment `env_id`, made with `arguments`, without some `components` of its observations.

    In CartPole-v1 components 1 and 3 are the velocities of the cart and of the pole. Raises UsageError if there are no
    such components.
    """
    return Hidden(gymnasium.make(env_id, disable_env_checker=True, **arguments), tuple(components))
