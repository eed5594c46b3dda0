"""An environment that is replaced by another one of its kind when it breaks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.spec import BadEnvironment, Environment, EpisodeLost, restore, state_of

MOST_BREAKS = 10
"""So often in a row, without the end of an episode in between, an environment may break."""


class Rebuilding:
    """What it wraps, made anew whenever that raises `BadEnvironment`.

    In training the episode in which it broke is cut like one at a time limit: what the step would have paid is not
    known and counts as 0, the observation is the last one that was seen. In evaluation `EpisodeLost` is raised instead,
    since nobody knows its score. Raises `BadEnvironment` after `MOST_BREAKS` in a row.
    """

    def __init__(self, make: Callable[[int], Environment], evaluation: bool, say: Callable[[str], None]) -> None:
        """`make(n)` makes the n-th, from 0; `say` is told of each that has been replaced."""
        self._make, self._evaluation, self._say = make, evaluation, say
        self._made = self._breaks = 0
        self._inner = make(0)
        self._first: NDArray[Any] | None = None
        """The first observation of an environment that has been made anew and not yet been asked for one."""
        self._seen: NDArray[Any] = np.empty(0)

    def reset(self) -> NDArray[Any]:
        """As the environment does, or as the one that replaces it."""
        observation, self._first = self._first, None
        if observation is None:
            try:
                observation = self._inner.reset()
            except BadEnvironment as error:
                observation = self._replace(error)
        self._seen = np.array(observation)
        return observation

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment does; where it breaks the episode is truncated, or lost."""
        try:
            result = self._inner.step(action)
        except BadEnvironment as error:
            self._first = self._replace(error)
            if self._evaluation:
                raise EpisodeLost from error
            return self._seen, 0.0, False, True, False
        self._seen = np.array(result[0])
        if result[2] or result[3]:
            self._breaks = 0
        return result

    def picture(self) -> NDArray[np.uint8]:
        """As the environment does, if it has pictures."""
        picture: NDArray[np.uint8] = self._inner.picture()  # type: ignore[attr-defined]
        return picture

    def close(self) -> None:
        """As the environment does."""
        self._inner.close()

    def state(self) -> dict[str, Any] | None:
        """As the environment's, with what has become of it; None where that cannot be told."""
        inner = state_of(self._inner)
        if inner is None:
            return None
        return {"inner": inner, "made": self._made, "breaks": self._breaks, "first": self._first, "seen": self._seen}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state taken by `state`."""
        restore(self._inner, state["inner"])
        self._made, self._breaks = state["made"], state["breaks"]
        self._first, self._seen = state["first"], state["seen"]

    def _replace(self, error: BadEnvironment) -> NDArray[Any]:
        """Another environment in place of the one that broke; returns its first observation."""
        while True:
            self._breaks += 1
            if self._breaks > MOST_BREAKS:
                raise error
            with contextlib.suppress(Exception):  # it is broken; what it says now is of no interest
                self._inner.close()
            self._made += 1
            self._inner = self._make(self._made)
            self._say(f"made anew: {error}")
            try:
                return np.array(self._inner.reset())
            except BadEnvironment as again:
                error = again
