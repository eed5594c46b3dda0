"""Atari 2600 games on the Arcade Learning Environment, preprocessed as in Mnih et al. 2015.

Each action is held for `frame_skip` frames; the last two frames, in grey, are merged by their maximum (sprites flicker
on odd and even frames) and shrunk to 84 x 84, and the latest 4 such images make an observation. An episode begins with
1 to 30 frames without action. For the same seed and actions the observations equal, pixel for pixel, those of
Gymnasium's `AtariPreprocessing` and `FrameStackObservation(4, padding_type="zero")`, which a test checks. Two things
differ: a lost life is reported without restarting the game, and the step limit counts agent steps.

The emulator takes most of a step's time, so the rest is kept small: the screen is read only for the two frames that
count, into arrays that are reused, and only the rows that changed are shrunk again (`screens.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ale_py
import cv2
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.envs.environment import NOT_RUNNING, Untranslated, did_you_mean
from asyncrl.envs.screens import make_screens

NOOP = 0
_ID = re.compile(
    r"(?:ale_py:)?(?P<ale>ALE/)?(?P<name>\w+?)(?P<ram>-ram)?(?P<kind>NoFrameskip|Deterministic)?-v(?P<version>\d+)"
)
_OURS = {
    "frameskip": "frame_skip",
    "repeat_action_probability": "sticky_actions",
    "full_action_space": "full_action_space",
    "max_num_frames_per_episode": "max_episode_steps",
}
"""Our settings for arguments of ale-py's own environment."""
_MULTI_PLAYER_ONLY = frozenset({"combat", "joust", "maze_craze", "warlords"})
_RING_STACKS = 4
"""Length of the ring of images, in stacks. At its end the newest images are copied to its start, so that the latest
`frame_stack` images are always adjacent and an observation is a view. Short enough to stay in the cache."""


class AtariEnvironment(Untranslated):
    """One Atari game. Observations are uint8 [frame_stack, image_size, image_size], oldest image first.

    They are views of a ring of images: copy them before the next call. Rewards are the raw change of the score.
    """

    def __init__(
        self,
        env_id: str,
        seed: int,
        arguments: Mapping[str, Any],
        *,
        frame_skip: int,
        noop_max: int,
        sticky_actions: float,
        life_loss: bool,
        full_action_space: bool,
        image_size: int,
        frame_stack: int,
        max_episode_steps: int,
    ) -> None:
        """Load the game. `arguments` may be its mode and difficulty. Raises `UsageError` for what it does not have."""
        cv2.setNumThreads(1)  # OpenCV's thread pools in all workers would fight for the cores
        # Gymnasium's two seeds, so that its episodes and ours are the same: one for the no-ops, one for the emulator.
        noop_seed, emulator_seed = np.random.SeedSequence(seed).generate_state(2)
        self._random = np.random.default_rng(int(noop_seed))
        self._ale = _load(env_id, int(emulator_seed.astype(np.int32)), sticky_actions, arguments)

        action_set = self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet()
        self._actions = tuple(action.value for action in action_set)
        self.action_names = tuple(action.name.lower() for action in action_set)
        """The emulator's names of the actions."""
        self.spaces = Spaces(
            observation_shape=(frame_stack, image_size, image_size),
            observation_dtype="uint8",
            actions=len(self._actions),
            kind="atari",
        )
        self._countdown = range(frame_skip - 1, -1, -1)  # frames left after the current one
        self._noop_max = noop_max
        self._life_loss = life_loss
        self._max_episode_steps = max_episode_steps

        self._ring = np.zeros((_RING_STACKS * frame_stack, image_size, image_size), np.uint8)
        self._screens = make_screens(self._ale, self._ring)
        self._stacks = tuple(self._ring[max(i + 1 - frame_stack, 0) : i + 1] for i in range(len(self._ring)))
        self._frame_stack = frame_stack
        self._newest = frame_stack - 1

        self._lives = self._elapsed = 0
        self._running = False

    def reset(self) -> NDArray[np.uint8]:
        """Start the game again and let a random number of frames pass without action."""
        ale = self._ale
        ale.reset_game()
        for _ in range(self._random.integers(1, self._noop_max + 1) if self._noop_max > 0 else 0):
            ale.act(NOOP)
            if ale.game_over():
                ale.reset_game()
        self._lives = ale.lives()
        self._elapsed = 0
        self._running = True
        self._newest = self._frame_stack - 1
        self._ring[: self._newest] = 0
        self._screens.begin(self._newest)
        return self._stacks[self._newest]

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, bool]:
        """Hold the action for `frame_skip` frames; raises ValueError for one that does not exist."""
        if not self._running:
            raise RuntimeError(NOT_RUNNING)
        if not 0 <= action < len(self._actions):
            raise ValueError(f"this game has the actions 0 to {len(self._actions) - 1}, not {action}")
        ale = self._ale
        pressed = self._actions[action]
        reward = 0
        over = False
        unread = 0
        for left in self._countdown:
            reward += ale.act(pressed)
            if ale.game_over():
                over = True
                unread = left + 1
                break
            if left < 2:
                self._screens.read(left)
        before = self._advance()
        self._screens.show(before, self._newest, unread=unread)

        self._elapsed += 1
        truncated = not over and self._elapsed >= self._max_episode_steps
        self._running = not (over or truncated)
        lives = ale.lives()
        life_lost = self._life_loss and lives < self._lives and not over
        self._lives = lives
        return self._stacks[self._newest], float(reward), over, truncated, life_lost

    def picture(self) -> NDArray[np.uint8]:
        """The newest frame in colour, uint8 [height, width, 3], for people to look at."""
        screen: NDArray[np.uint8] = self._ale.getScreenRGB()
        return screen

    def state(self) -> dict[str, Any]:
        """Everything the future depends on, as plain data: about 80 KB of bytes, arrays, numbers and flags.

        Another environment made from the same spec continues exactly from there, including the emulator's random
        numbers. Qbert and Tetris are exceptions: ale-py 0.12.1 does not save their complete state.
        """
        return {
            "emulator": self._ale.cloneState(include_rng=True).serialize(),
            "random": self._random.bit_generator.state,
            "stack": self._stacks[self._newest].copy(),
            "merged": self._screens.merged.copy(),
            "lives": self._lives,
            "elapsed": self._elapsed,
            "running": self._running,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` of an environment of the same spec returned."""
        self._ale.restoreState(ale_py.ALEState(state["emulator"]))
        self._random.bit_generator.state = state["random"]
        self._newest = self._frame_stack - 1
        self._stacks[self._newest][:] = state["stack"]
        self._screens.restore(state["merged"])
        self._lives, self._elapsed, self._running = state["lives"], state["elapsed"], state["running"]

    def _advance(self) -> int:
        """Make room in the ring for one more image; returns the number of the newest so far."""
        if self._newest + 1 == len(self._ring):
            kept = self._frame_stack - 1
            self._ring[:kept] = self._ring[len(self._ring) - kept :]
            self._newest = kept
            return len(self._ring) - 1
        self._newest += 1
        return self._newest - 1


def _load(env_id: str, seed: int, sticky_actions: float, arguments: Mapping[str, Any]) -> ale_py.ALEInterface:
    """An emulator running a game. Settings come first: they take effect on loading."""
    rom = roms.get_rom_path(find_game(env_id))
    assert rom is not None  # find_game knows only games whose ROM comes with ale-py
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise every process prints a banner
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", sticky_actions)
    ale.loadROM(rom)
    choices = {
        "mode": (ale.getAvailableModes(), ale.setMode),
        "difficulty": (ale.getAvailableDifficulties(), ale.setDifficulty),
    }
    for name, value in arguments.items():
        if name not in choices:
            instead = f"; set {_OURS[name]} instead" if name in _OURS else ""
            raise UsageError(f"{env_id} takes mode and difficulty in env_kwargs, not {name}{instead}")
        available, choose = choices[name]
        if value not in available:
            raise UsageError(f"{rom.stem} has no {name} {value}; it has {', '.join(map(str, available))}")
        choose(value)
    return ale


def find_game(env_id: str) -> str:
    """The name of the ROM for an id: "ALE/Pong-v5" and "PongNoFrameskip-v4" are "pong". `UsageError` for others."""
    form = _ID.fullmatch(env_id)
    name = form["name"] if form else env_id.removeprefix("ALE/")
    rom = games().get(name)
    if form is None or rom is None:
        remedy = did_you_mean(name, {game.lower(): f"ALE/{game}-v5" for game in games()})
        raise UsageError(f"no Atari game for the id {env_id}: {remedy or 'ids are like ALE/Pong-v5'}")
    usual = f"ALE/{name}-v5"
    if form["ram"]:
        raise UsageError(f"{env_id} observes the memory, not the screen, which is not supported: use {usual}")
    if form["kind"] == "Deterministic":
        raise UsageError(f"{env_id} is no longer part of ale-py: use {usual}, which here has no sticky actions")
    if (form["ale"], form["kind"], form["version"]) == (None, "NoFrameskip", "0"):
        raise UsageError(f"{env_id} implies sticky actions: use {usual} with sticky_actions 0.25")
    if (form["ale"], form["kind"], form["version"]) not in {("ALE/", None, "5"), (None, "NoFrameskip", "4")}:
        raise UsageError(f"{env_id} is not supported: use {usual}")
    return rom


def games() -> dict[str, str]:
    """The ROM names of all single-player games, by their names in ids: {"SpaceInvaders": "space_invaders"}."""
    return {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids() if rom not in _MULTI_PLAYER_ONLY}
