"""Two toys with a known optimum, at which a random agent fails: Chain and Catch.

A step takes a few microseconds, so a test can find out within seconds whether an algorithm learns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.environment import NOT_RUNNING, Untranslated


class Chain(Untranslated):
    """A row of states. The agent starts at the left end, and its only reward is 1 for reaching the right end.

    Observation: one-hot float32 [length]. Actions: 0 moves left (at the left end: stays), 1 moves right. Reaching the
    right end terminates the episode; `limit` steps truncate it. With 8 states and 12 steps a random agent succeeds in
    250 of 4096 episodes: often enough to start learning, far too rarely to be mistaken for it.

    The chain is deterministic: every seed gives the same episodes.
    """

    action_names = ("left", "right")
    OPTIMUM = 1.0
    """Return of the best policy, in length - 1 = 7 steps."""
    RANDOM = 250 / 4096
    """Expected return of a uniformly random agent (8 states, limit 12)."""
    LIMIT = 12
    """Steps after which an episode is truncated."""

    def __init__(self, seed: int = 0, length: int = 8, limit: int = LIMIT) -> None:
        if length < 2 or limit < 1:
            raise UsageError(f"Chain needs a length of at least 2 and a limit of at least 1, not {length} and {limit}")
        self.spaces = Spaces(observation_shape=(length,), observation_dtype="float32", actions=2)
        self._length = length
        self._limit = limit
        self._observation = np.zeros(length, np.float32)
        self._position = self._elapsed = 0
        self._running = False

    def reset(self) -> NDArray[np.float32]:
        """Go back to the left end."""
        self._position = self._elapsed = 0
        self._running = True
        return self._observe()

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, bool]:
        """Move one state; raises ValueError for an action other than 0 and 1."""
        if not self._running:
            raise RuntimeError(NOT_RUNNING)
        if action not in (0, 1):
            raise ValueError(f"Chain has the actions 0 and 1, not {action}")
        self._position = max(self._position + (1 if action == 1 else -1), 0)
        self._elapsed += 1
        terminated = self._position == self._length - 1
        truncated = not terminated and self._elapsed >= self._limit
        self._running = not (terminated or truncated)
        return self._observe(), float(terminated), terminated, truncated, False

    def picture(self) -> NDArray[np.uint8]:
        """The row of states with the agent in it, and a frame around the goal: uint8 [height, width, 3]."""
        from asyncrl.envs.pictures import BLUE, GREEN, Piece, board

        pieces: dict[tuple[int, int], tuple[Piece, ...]] = {(0, self._length - 1): (Piece("goal", GREEN),)}
        here = (0, self._position)
        return board(1, self._length, pieces | {here: (*pieces.get(here, ()), Piece("ball", BLUE))})

    def state(self) -> dict[str, Any]:
        """Everything the future depends on, as plain data."""
        return {"position": self._position, "elapsed": self._elapsed, "running": self._running}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._position, self._elapsed, self._running = state["position"], state["elapsed"], state["running"]

    def _observe(self) -> NDArray[np.float32]:
        self._observation.fill(0.0)
        self._observation[self._position] = 1.0
        return self._observation


class Catch(Untranslated):
    """A ball falls down a board of 10 rows and 5 columns; the paddle in the bottom row must be under it.

    The game of the behaviour suite (Osband et al. 2020). Observation: the board as a float32 vector [50], row by row,
    1 where the ball and the paddle are. Actions: 0 left, 1 stay, 2 right. The ball starts in a random column of the
    top row, the paddle in the middle; after 9 steps the episode terminates with reward +1 (caught) or -1 (missed).
    """

    action_names = ("left", "stay", "right")
    OPTIMUM = 1.0
    """Return of the best policy."""
    RANDOM = -0.6
    """Expected return of any policy that ignores the ball: it is caught in 1 of 5 episodes."""
    ROWS = 10
    COLUMNS = 5
    LIMIT = ROWS - 1
    """Steps of an episode, which terminates by itself; only a shorter limit truncates it."""

    def __init__(self, seed: int = 0, limit: int = LIMIT) -> None:
        if limit < 1:
            raise UsageError(f"Catch needs a limit of at least 1, not {limit}")
        self.spaces = Spaces(observation_shape=(self.ROWS * self.COLUMNS,), observation_dtype="float32", actions=3)
        self._random = np.random.default_rng(seed)
        self._limit = limit
        self._observation = np.zeros(self.ROWS * self.COLUMNS, np.float32)
        self._column = self._row = self._paddle = 0
        self._running = False

    def reset(self) -> NDArray[np.float32]:
        """Drop a new ball."""
        self._column = int(self._random.integers(self.COLUMNS))
        self._row = 0
        self._paddle = self.COLUMNS // 2
        self._running = True
        return self._observe()

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, bool]:
        """Move the paddle, let the ball fall one row; raises ValueError for an action other than 0, 1 and 2."""
        if not self._running:
            raise RuntimeError(NOT_RUNNING)
        if action not in (0, 1, 2):
            raise ValueError(f"Catch has the actions 0, 1 and 2, not {action}")
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.COLUMNS - 1)
        self._row += 1
        terminated = self._row == self.ROWS - 1
        truncated = not terminated and self._row >= self._limit
        self._running = not (terminated or truncated)
        reward = (1.0 if self._column == self._paddle else -1.0) if terminated else 0.0
        return self._observe(), reward, terminated, truncated, False

    def picture(self) -> NDArray[np.uint8]:
        """The board with the ball, green when it is caught and red when it is missed: uint8 [height, width, 3]."""
        from asyncrl.envs.pictures import BLUE, GREEN, RED, YELLOW, Piece, board

        bottom, caught = self.ROWS - 1, self._column == self._paddle
        ball = YELLOW if self._row < bottom else GREEN if caught else RED
        pieces = {(bottom, self._paddle): (Piece("paddle", BLUE),)}
        here = (self._row, self._column)
        return board(self.ROWS, self.COLUMNS, pieces | {here: (*pieces.get(here, ()), Piece("ball", ball))})

    def state(self) -> dict[str, Any]:
        """Everything the future depends on, as plain data."""
        return {
            "column": self._column,
            "row": self._row,
            "paddle": self._paddle,
            "running": self._running,
            "random": self._random.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._column, self._row, self._paddle = state["column"], state["row"], state["paddle"]
        self._running = state["running"]
        self._random.bit_generator.state = state["random"]

    def _observe(self) -> NDArray[np.float32]:
        self._observation.fill(0.0)
        self._observation[self._row * self.COLUMNS + self._column] = 1.0
        self._observation[(self.ROWS - 1) * self.COLUMNS + self._paddle] = 1.0
        return self._observation


def make_toy(env_id: str, seed: int, arguments: dict[str, Any], max_episode_steps: int) -> Chain | Catch:
    """Make a toy; `max_episode_steps`, if not 0, replaces the toy's own limit if it is shorter."""
    toy: type[Chain | Catch] = Chain if env_id == "Chain" else Catch
    try:
        if max_episode_steps:
            arguments["limit"] = min(arguments.get("limit", toy.LIMIT), max_episode_steps)
        return toy(seed=seed, **arguments)
    except (TypeError, ValueError, MemoryError) as error:
        raise UsageError(f"{env_id} could not be made: {one_line(error)}") from error
