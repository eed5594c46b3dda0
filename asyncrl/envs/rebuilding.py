"""An environment in place of one that has broken (`--on-env-error rebuild`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.envs.environment import (
    BadEnvironment,
    Environment,
    EpisodeLost,
    Wrapper,
    close_all,
    restore_all,
    states_of,
)

MOST_BREAKS = 10
"""How often an environment may break without finishing an episode in between."""


class Rebuilding(Wrapper):
    """Rebuilds its environment when it raises `BadEnvironment`.

    In training the broken episode is truncated, as by a time limit: the step's reward is unknown and counts as 0, and
    its observation is the last one seen. In evaluation `EpisodeLost` is raised instead, since the episode has no score.
    Raises `BadEnvironment` after `MOST_BREAKS` without a finished episode.
    """

    def __init__(self, make: Callable[[int], Environment], evaluation: bool, say: Callable[[str], None]) -> None:
        """`make(n)` makes the n-th environment, from 0; `say` is called for each that was replaced."""
        self._make, self._evaluation, self._say = make, evaluation, say
        self._made = self._breaks = 0
        super().__init__(make(0))
        self._first: NDArray[Any] | None = None
        """The first observation of a rebuilt environment, until the next `reset` returns it."""
        self._seen: NDArray[Any] = np.empty(0)

    def reset(self) -> NDArray[Any]:
        """Like the environment's, or that of the one which replaces it."""
        observation, self._first = self._first, None
        if observation is None:
            try:
                observation = self.environment.reset()
            except BadEnvironment as error:
                observation = self._replace(error)
        self._seen = np.array(observation)
        return observation

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Like the environment's; if it breaks the episode is truncated, or lost."""
        try:
            result = self.environment.step(action)
        except BadEnvironment as error:
            self._first = self._replace(error)
            if self._evaluation:
                raise EpisodeLost from error
            return self._seen, 0.0, False, True, False
        self._seen = np.array(result[0])
        if result[2] or result[3]:
            self._breaks = 0
        return result

    def state(self) -> dict[str, Any] | None:
        """The environment's state, with the number of replacements; None if it cannot return its state."""
        inner = states_of([self.environment])
        if inner is None:
            return None
        return {"inner": inner[0], "made": self._made, "breaks": self._breaks, "first": self._first, "seen": self._seen}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        restore_all([self.environment], [state["inner"]])
        self._made, self._breaks = state["made"], state["breaks"]
        self._first, self._seen = state["first"], state["seen"]

    def _replace(self, error: Exception) -> NDArray[Any]:
        """Replace the broken environment; returns the first observation of the new one."""
        while True:
            self._breaks += 1
            if self._breaks > MOST_BREAKS:
                raise error
            close_all([self.environment])  # it is broken, so another error does not matter
            self._made += 1
            try:
                self.environment = self._make(self._made)
                self._say(f"rebuilt: {error}")
                return np.array(self.environment.reset())
            except (BadEnvironment, UsageError) as again:  # what it was made of may not be free yet
                error = again
