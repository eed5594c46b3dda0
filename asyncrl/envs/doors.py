"""Doors: a toy in which only some actions are valid, and only the action mask says which.

It is an ordinary Gymnasium environment: `--env-id asyncrl.envs.doors:Doors --action-masks`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Doors(gymnasium.Env[Any, Any]):
    """A row of rooms, each with some doors to the next one, of which half are open, a new half in every episode.

    Observation: the number of the room. Actions: the doors. Door d of room r pays ((d + r) mod doors) / (doors - 1),
    divided by the number of rooms. A locked door costs 1 and ends the episode, as the last room does. The best door of
    a room is locked in half of all episodes, so an agent that cannot see which doors are open loses on average.
    """

    OPTIMUM = 14 / 18
    """Expected return of the best policy that knows the open doors, with 4 doors: the mean of the better of two."""
    RANDOM = 0.5
    """Expected return of a random agent that knows the open doors."""
    UNSEEN = -0.775
    """Expected return of the best agent that does not, with 4 doors and 5 rooms."""

    def __init__(self, rooms: int = 5, doors: int = 4, strict: bool = False) -> None:
        """`strict`: a locked door raises ValueError."""
        self._rooms, self._doors, self._strict = rooms, doors, strict
        self.observation_space = spaces.Discrete(rooms)
        self.action_space = spaces.Discrete(doors)
        self._room = 0
        self._open = np.zeros(doors, np.int8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Go back to the first room."""
        super().reset(seed=seed, options=options)
        self._room = 0
        return 0, self._unlock()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Try a door; raises ValueError for a locked one if the doors are strict."""
        if not self._open[action]:
            if self._strict:
                raise ValueError(f"door {action} is locked")
            return self._room, -1.0, True, False, {}
        reward = (action + self._room) % self._doors / (self._doors - 1) / self._rooms
        if self._room == self._rooms - 1:
            return self._room, reward, True, False, {}
        self._room += 1
        return self._room, reward, False, False, self._unlock()

    def _unlock(self) -> dict[str, Any]:
        """Open half of the room's doors; returns what `info` says of them."""
        self._open[:] = self.np_random.permutation(self._doors) < self._doors // 2
        return {"action_mask": self._open.copy()}
