"""Frame skip, sticky actions, image size and frame stack for environments that do not have them built in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.envs.encoders import check_size
from asyncrl.envs.environment import LARGEST_REWARD, BadEnvironment, Wrapper
from asyncrl.envs.gymnasium_env import GymnasiumEnvironment

_STICKY = 1
"""Separates the random stream of sticky actions from the environment's own, which has the same seed."""


class Preprocessed(Wrapper):
    """An environment whose step holds an action for several frames, and whose observation stacks the latest images.

    Rewards of the frames are summed; the end of an episode cuts the step short. Sticky actions are sampled per frame,
    so an action may take effect late; the first action of an episode always takes effect. Images are shrunk to a grey
    square and stacked along their channels, vectors concatenated, oldest first; an episode begins with zeros.
    """

    environment: GymnasiumEnvironment

    def __init__(
        self,
        environment: GymnasiumEnvironment,
        seed: int,
        *,
        frame_skip: int = 1,
        sticky_actions: float = 0.0,
        image_size: int = 0,
        frame_stack: int = 1,
    ) -> None:
        """Raises `UsageError` if `image_size`, their height and width, is not 0 and there are no such images, or if
        actions would be repeated that an action mask may no longer allow.
        """
        super().__init__(environment)
        self._frame_skip = frame_skip
        self._sticky_actions = sticky_actions
        self._pixels = image_size
        self._random = np.random.default_rng((seed, _STICKY))
        self._held: Any = None
        inner = environment.spaces
        if inner.masked and (frame_skip > 1 or sticky_actions > 0):
            raise UsageError(
                "--action-masks cannot be used with --frame-skip or --sticky-actions: a repeated action may be invalid"
            )
        if image_size and not (inner.kind == "screen" and inner.observation_shape[0] in (1, 3)):
            what = "several parts" if inner.parts else f"a {inner.kind} {list(inner.observation_shape)}"
            raise UsageError(
                f"--image-size is for grey and colour images of at least 36 rows; {environment.env_id} observes {what}"
            )
        single = (1, image_size, image_size) if image_size else inner.observation_shape
        self._one = single[0]
        self._stack = np.zeros((frame_stack * single[0], *single[1:]), inner.observation_dtype)
        check_size((*self._stack.shape, 1) if inner.parts else self._stack.shape, environment.env_id)
        self.spaces = replace(inner, observation_shape=self._stack.shape)

    def reset(self) -> NDArray[Any]:
        """Begin a new episode, with zeros in the stack before its first image."""
        self._held = None
        self._stack.fill(0)
        return self._observe(self.environment.reset())

    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Hold the action for all frames of a step; raises what the environment raises."""
        total = 0.0
        for _ in range(self._frame_skip):
            sticks = self._sticky_actions > 0 and self._random.random() < self._sticky_actions
            if self._held is None or not sticks:
                self._held = np.array(action) if isinstance(action, np.ndarray) else action
            observation, reward, terminated, truncated, _ = self.environment.step(self._held)
            total += reward
            if terminated or truncated:
                break
        if abs(total) > LARGEST_REWARD:
            raise BadEnvironment(f"{self.environment.env_id}: the rewards of one step add up to {total:g}")
        return self._observe(observation), total, terminated, truncated, False

    def state(self) -> dict[str, Any] | None:
        """Everything the future depends on, as plain data; None if the environment cannot return its own state."""
        inner = self.environment.state()
        if inner is None:
            return None
        return {
            "environment": inner,
            "random": self._random.bit_generator.state,
            "held": self._held,
            "stack": self._stack.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` of an environment of the same spec returned."""
        self.environment.restore(state["environment"])
        self._random.bit_generator.state = state["random"]
        self._held = state["held"]
        self._stack[:] = state["stack"]

    def see(self, seen: NDArray[Any], observation: Any) -> None:
        """Append a native observation to the stack `seen`. Raises ValueError for one that is not in the space."""
        self._push(seen, self.environment.encode(observation))

    def _observe(self, observation: NDArray[Any]) -> NDArray[Any]:
        self._push(self._stack, observation)
        return self._stack

    def _push(self, stack: NDArray[Any], observation: NDArray[Any]) -> None:
        """Append an observation of the environment below to a stack, and drop the oldest."""
        newest = _shrunk(observation, self._pixels) if self._pixels else observation
        stack[: -self._one] = stack[self._one :]
        stack[-self._one :] = newest


def _shrunk(image: NDArray[Any], pixels: int) -> NDArray[Any]:
    """Shrink a grey or colour image [C, H, W] to a grey square [pixels, pixels], by the mean over areas."""
    import cv2  # a slow import, needed only here

    cv2.setNumThreads(1)  # a pool of OpenCV's own in every worker would fight over the cores
    last = np.ascontiguousarray(image.transpose(1, 2, 0))
    grey = last if len(image) == 1 else cv2.cvtColor(last, cv2.COLOR_RGB2GRAY)
    return cv2.resize(grey, (pixels, pixels), interpolation=cv2.INTER_AREA)
