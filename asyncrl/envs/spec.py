"""`EnvSpec`: which environment to train on, as plain data.

A spec is frozen and picklable, so it can cross a process border; each process then makes its own environments with
`make`. The parent calls `probe` once before any process starts, so that a mistake of the user is reported as one line.

Importing this module costs nothing: the emulator, OpenCV and Gymnasium are imported only when an environment is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncrl.config.groups import EnvironmentSettings
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import changed
from asyncrl.envs.environment import BadEnvironment, Environment, closed_on_error

ATARI_FRAME_CAP = 108_000
"""Longest Atari episode in frames: half an hour of play, whatever the frame skip."""
ATARI_FRAME_SKIP, ATARI_FRAME_STACK = 4, 4
# A quarter of the paper's pixels: half the time per step in the network, and enough to see the ball.
ATARI_IMAGE_SIZE = 42
NOOP_MAX = EnvironmentSettings.noop_max

LONGEST_EPISODE = 100_000
"""Steps after which an episode is cut by default. A deterministic policy may walk into the same wall for ever, and an
environment without a time limit would let it."""

_ATARI_ID = re.compile(r"(?:ale_py:)?(?:ALE/.*|\w+(?:NoFrameskip|Deterministic)-v\d+|\w+-ram\w*-v\d+)")
TOYS = ("Chain", "Catch")


class EnvironmentNotice(UserWarning):
    """Gymnasium's warning about an id, for example that there is a newer version."""


@contextlib.contextmanager
def notices_told(tell: Callable[[str], None]) -> Iterator[None]:
    """During the block, `tell` is called with each EnvironmentNotice; other warnings are shown as before."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, EnvironmentNotice):
            tell(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = note
    try:
        yield
    finally:
        warnings.showwarning = show


@dataclass(frozen=True)
class EnvSpec(EnvironmentSettings):
    """An environment: its settings, what they come to, and how it is made. Impossible ones raise `UsageError`."""

    @classmethod
    def of(cls, settings: EnvironmentSettings) -> EnvSpec:
        """The environment that a run's settings describe."""
        return cls(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(cls)})

    def check(self) -> None:
        """Raise UsageError for the first impossible value, and for one that means nothing in this environment."""
        super().check()
        self._given()
        self._refuse_meaningless_settings()

    def _refuse_meaningless_settings(self) -> None:
        given = {"action-masks": self.action_masks and (self.is_atari or self.env_id in TOYS)}
        if not self.is_atari:
            given |= {
                "life-loss": self.life_loss,
                "full-action-space": self.full_action_space,
                "noop-max": self.noop_max != NOOP_MAX,
            }
        if self.env_id in TOYS:
            given |= {
                "frame-skip": self.frame_skip > 1,
                "frame-stack": self.frame_stack > 1,
                "image-size": self.image_size > 0,
                "sticky-actions": self.sticky_actions > 0,
            }
        for name, is_given in given.items():
            if is_given:
                raise UsageError(f"--{name} has no effect in {self.env_id}: leave it out")

    @property
    def own_names(self) -> list[str]:
        """The names of what a program may have handed over: the factory, and arguments for it."""
        return [self.env_id, *(word.partition("=@")[2] for word in self.env_kwargs)]

    @property
    def is_atari(self) -> bool:
        """Whether the id looks like that of an Atari game."""
        return _ATARI_ID.fullmatch(self.env_id) is not None

    @property
    def step_cap(self) -> int:
        """Our own step limit of an episode, in agent steps; 0 if there is none."""
        cap = max(1, ATARI_FRAME_CAP // self.frames_per_step) if self.is_atari else 0
        return self.max_episode_steps or cap

    @property
    def frames_per_step(self) -> int:
        """Frames for which an action is held."""
        return self.frame_skip or (ATARI_FRAME_SKIP if self.is_atari else 1)

    @property
    def frames_per_observation(self) -> int:
        """How many of the latest images or vectors make an observation."""
        return self.frame_stack or (ATARI_FRAME_STACK if self.is_atari else 1)

    @property
    def pixels(self) -> int:
        """Height and width of a grey image; 0 for the environment's own images."""
        return self.image_size or (ATARI_IMAGE_SIZE if self.is_atari else 0)

    @property
    def evaluation_step_cap(self) -> int:
        """Step limit of an evaluation episode in agent steps; there always is one."""
        return max(LONGEST_EPISODE, self.step_cap)

    @property
    def arguments(self) -> dict[str, Any]:
        """`env_kwargs` for one environment, with a copy of each value that a program has handed over."""
        given = self._given()
        if given:
            from asyncrl.core.named import Handed

            given = {key: value.copy() if isinstance(value, Handed) else value for key, value in given.items()}
        return given

    def _given(self) -> dict[str, Any]:
        if not self.env_kwargs:
            return {}
        from asyncrl.config.arguments import parse_argument

        return dict(parse_argument(word) for word in self.env_kwargs)

    def make(self, seed: int, evaluation: bool) -> Environment:
        """Make one environment. Equal seeds and actions give equal episodes.

        In evaluation lost lives are not reported: the score is that of the whole game. Raises `UsageError` if the
        environment cannot be made.
        """
        shown: dict[str, Any] = {
            "frame_skip": self.frames_per_step,
            "sticky_actions": self.sticky_actions,
            "image_size": self.pixels,
            "frame_stack": self.frames_per_observation,
        }
        if self.is_atari:
            from asyncrl.envs.atari import AtariEnvironment

            return AtariEnvironment(
                self.env_id, seed, self.arguments, noop_max=self.noop_max, life_loss=self.life_loss and not evaluation,
                full_action_space=self.full_action_space, max_episode_steps=self.step_cap, **shown,
            )  # fmt: skip
        if self.env_id in TOYS:
            from asyncrl.envs.toy import make_toy

            return make_toy(self.env_id, seed, self.arguments, self.max_episode_steps)
        from asyncrl.envs.gymnasium_env import make_gymnasium

        # An evaluation cuts endless episodes itself, and counts them. The environment counts frames.
        limit = (self.step_cap or (0 if evaluation else LONGEST_EPISODE)) * self.frames_per_step
        environment = make_gymnasium(self.env_id, seed, self.arguments, limit, self.action_masks)
        if list(shown.values()) == [1, 0.0, 0, 1]:
            return environment
        from asyncrl.envs.preprocessed import Preprocessed

        with closed_on_error([environment]):
            return Preprocessed(environment, seed, **shown)

    def probe(self, steps: bool = True) -> Spaces:
        """Make an environment, reset it and take one step if it `steps`, close it, and return its spaces.

        Raises `UsageError` with one line that says what is wrong and what to do. Warnings about the id (a newer version
        exists) are shown only here, so that they appear once and not once per worker.
        """
        before = changed()
        environment: Any = self.make(seed=0, evaluation=False)
        spaces: Spaces = environment.spaces
        try:
            for notice in getattr(environment, "notices", ()):
                warnings.warn(notice, EnvironmentNotice, stacklevel=2)
            if steps:
                self._try_out(environment, spaces)
        finally:
            environment.close()
        for switch in sorted(changed() - before):
            notice = f"{self.env_id} changes {switch} for its whole process; asyncrl restores it outside of its code"
            warnings.warn(notice, EnvironmentNotice, stacklevel=2)
        return spaces

    def describe(self, spaces: Spaces | None = None) -> str:
        """One line about the environment, for the start of a run; probes it if `spaces` is None.

        Of an Atari game it states every setting, of others what changes them.
        """
        spaces = self.probe() if spaces is None else spaces
        actions = f"{len(spaces.action_low)} continuous" if spaces.is_continuous else str(spaces.actions)
        atari, skip, steps = self.is_atari, self.frames_per_step, self.step_cap
        size = f"images {self.pixels}x{self.pixels}"
        seen = (f"{one.observation_dtype} {list(one.observation_shape)}" for one in spaces.parts or (spaces,))
        parts = {
            f"observation {' and '.join(seen)}": True,
            "action masks": spaces.masked,
            ("full" if self.full_action_space else "minimal") + " action set": atari,
            f"frame skip {skip}" + (" (maximum of the last 2)" if atari and skip > 1 else ""): atari or skip > 1,
            f"sticky actions {self.sticky_actions:g}": atari or self.sticky_actions > 0,
            f"1 to {self.noop_max} no-ops" if self.noop_max else "no no-ops": atari,
            "a lost life ends " + ("the training episode" if self.life_loss else "nothing"): atari,
            (size if atari else f"grey {size}"): self.pixels > 0,
            f"stack {self.frames_per_observation}": atari or self.frames_per_observation > 1,
            f"at most {steps} steps" + (f" = {steps * skip} frames" if atari else ""): steps > 0,
            " ".join(self.env_kwargs): bool(self.env_kwargs),
        }
        return f"{self.env_id}: {actions} actions, " + ", ".join(part for part, is_told in parts.items() if is_told)

    def _try_out(self, environment: Environment, spaces: Spaces) -> None:
        action: Any = 0
        if spaces.is_continuous:
            action = np.clip(0.0, spaces.action_low, spaces.action_high).astype(np.float32)
        try:
            first = environment.reset()
            action = int(first[-spaces.actions :].argmax()) if spaces.masked else action
            observations = [first, environment.step(action)[0]]
        except BadEnvironment as error:
            raise UsageError(str(error)) from error
        except Exception as error:
            raise UsageError(f"{self.env_id} failed in its first reset or step: {one_line(error)}") from error
        for observation in observations:
            if (observation.shape, observation.dtype.name) != (spaces.observation_shape, spaces.observation_dtype):
                raise UsageError(
                    f"{self.env_id} declares {spaces.observation_dtype} {list(spaces.observation_shape)} but returns "
                    f"{observation.dtype.name} {list(observation.shape)}: correct its observation_space"
                )
