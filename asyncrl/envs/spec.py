"""`EnvSpec`: which environment to train on, as plain data, and the small contract every environment keeps.

A spec is frozen and picklable, so it can cross a process border; each process then makes its own environments with
`make`. The parent calls `probe` once before any process starts, so that a mistake of the user is reported as one line.

Importing this module costs nothing: the emulator, OpenCV and Gymnasium are imported only when an environment is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncrl.config.arguments import parse_argument
from asyncrl.config.groups import EnvironmentSettings
from asyncrl.core.errors import UsageError
from asyncrl.core.errors import one_line as one_line
from asyncrl.core.named import Handed
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import changed

if TYPE_CHECKING:
    from asyncrl.envs.atari import AtariEnvironment
    from asyncrl.envs.gymnasium_env import GymnasiumEnvironment
    from asyncrl.envs.preprocessed import Preprocessed
    from asyncrl.envs.toy import Catch, Chain

    AnyEnvironment: TypeAlias = AtariEnvironment | Chain | Catch | GymnasiumEnvironment | Preprocessed

ATARI_FRAME_CAP = 108_000
"""Longest Atari episode in frames: half an hour of play, whatever the frame skip."""
ATARI_FRAME_SKIP, ATARI_FRAME_STACK = 4, 4
# A quarter of the paper's pixels: half the time per step in the network, and enough to see the ball.
ATARI_IMAGE_SIZE = 42
NOOP_MAX = EnvironmentSettings.noop_max

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32, where a larger one would become infinite."""
LONGEST_EPISODE = 100_000
"""Steps after which an episode is cut by default. A deterministic policy may walk into the same wall for ever, and an
environment without a time limit would let it."""

_ATARI_ID = re.compile(r"(?:ale_py:)?(?:ALE/.*|\w+(?:NoFrameskip|Deterministic)-v\d+|\w+-ram\w*-v\d+)")
TOYS = ("Chain", "Catch")


class EnvironmentNotice(UserWarning):
    """Gymnasium's warning about an id, for example that there is a newer version."""


class BadEnvironment(RuntimeError):
    """The environment raised or broke its contract: a wrong shape, a NaN, a step without five values. Names the id."""


class Environment(Protocol):
    """One environment, in which one agent acts.

    The array returned by `reset` and `step` may be overwritten by the next call: copy it at once. They are called in
    torch's inference mode; an environment that learns something itself leaves it with `torch.inference_mode(False)`.
    """

    def reset(self) -> NDArray[Any]:
        """Begin a new episode and return its first observation."""
        ...

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Act once: (observation, raw reward, terminated, truncated, life lost).

        After `terminated` or `truncated` the observation is the last one of the ended episode and the caller must call
        `reset`. `life lost` is to be treated as a termination (discount 0), but the game goes on: no reset.
        """
        ...

    def close(self) -> None:
        """Release what the environment holds; it is not used afterwards."""
        ...


def state_of(environment: Environment) -> dict[str, Any] | None:
    """Everything an environment's future depends on, as plain data, arrays and bytes; None if it cannot return it."""
    state: dict[str, Any] | None = getattr(environment, "state", lambda: None)()
    return state


def restore(environment: Environment, state: dict[str, Any]) -> None:
    """Restore what `state_of` an environment of the same spec returned."""
    environment.restore(state)  # type: ignore[attr-defined]


def close_all(environments: Iterable[Environment]) -> None:
    """Close environments, ignoring their exceptions."""
    for environment in environments:
        with contextlib.suppress(Exception, SystemExit):
            environment.close()


@contextlib.contextmanager
def closed_on_error(environments: Sequence[Environment]) -> Iterator[None]:
    """Close environments if the block raises: many have processes of their own."""
    try:
        yield
    except BaseException:
        close_all(environments)
        raise


def states_of(environments: Sequence[Environment]) -> list[dict[str, Any]] | None:
    """The state of each environment; None if one of them cannot return it."""
    states = [state for environment in environments if (state := state_of(environment)) is not None]
    return states if len(states) == len(environments) else None


def restore_all(environments: Sequence[Environment], states: Sequence[dict[str, Any]]) -> None:
    """Restore what `states_of` returned."""
    for environment, state in zip(environments, states, strict=True):
        restore(environment, state)


class EpisodeLost(Exception):
    """The episode cannot be finished; `reset` begins another one."""


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
        if self.is_atari:
            return
        given = {
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
                raise UsageError(f"--{name} means nothing in {self.env_id}: leave it out")

    @property
    def own_names(self) -> list[str]:
        """The names of what a program may have handed over: the factory, and arguments for it."""
        return [self.env_id, *(value.name for value in self._given().values() if isinstance(value, Handed))]

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
    def training_step_cap(self) -> int:
        """Step limit of a training episode in agent steps; there always is one."""
        return self.step_cap or LONGEST_EPISODE

    @property
    def arguments(self) -> dict[str, Any]:
        """`env_kwargs` for one environment, with a copy of each value that a program has handed over."""
        return {key: value.copy() if isinstance(value, Handed) else value for key, value in self._given().items()}

    def _given(self) -> dict[str, Any]:
        return dict(parse_argument(word) for word in self.env_kwargs)

    def make(self, seed: int, evaluation: bool) -> Environment:
        """Make one environment. Equal seeds and actions give equal episodes.

        In evaluation lost lives are not reported: the score is that of the whole game. Raises `UsageError` if the
        environment cannot be made.
        """
        return self._build(seed, evaluation)

    def probe(self, steps: bool = True) -> Spaces:
        """Make an environment, reset it and take one step if it `steps`, close it, and return its spaces.

        Raises `UsageError` with one line that says what is wrong and what to do. Warnings about the id (a newer version
        exists) are shown only here, so that they appear once and not once per worker.
        """
        before = changed()
        environment = self._build(seed=0, evaluation=False)
        try:
            for notice in getattr(environment, "notices", ()):
                warnings.warn(notice, EnvironmentNotice, stacklevel=2)
            if steps:
                self._try_out(environment)
        finally:
            environment.close()
        for switch in sorted(changed() - before):
            notice = f"{self.env_id} changes {switch} for its whole process; outside of its own code that is put back"
            warnings.warn(notice, EnvironmentNotice, stacklevel=2)
        return environment.spaces

    def describe(self, spaces: Spaces | None = None) -> str:
        """One line about the environment, for the start of a run; probes it if `spaces` is None."""
        spaces = self.probe() if spaces is None else spaces
        line = f"{self.env_id}: {_actions_in_words(spaces)}, observation {spaces.observation_dtype} "
        line += str(list(spaces.observation_shape))
        if self.is_atari:
            line += ", " + self._atari_settings()
        else:
            line += "".join(f", {setting}" for setting in self._settings())
        if self.env_kwargs:
            line += ", " + " ".join(self.env_kwargs)
        return line

    def _atari_settings(self) -> str:
        merged = " (maximum of the last 2)" if self.frames_per_step > 1 else ""
        return ", ".join(
            [
                "full action set" if self.full_action_space else "minimal action set",
                f"frame skip {self.frames_per_step}{merged}",
                f"sticky actions {self.sticky_actions:g}",
                f"1 to {self.noop_max} no-ops" if self.noop_max else "no no-ops",
                "a lost life ends learning's episode" if self.life_loss else "a lost life ends nothing",
                f"images {self.pixels}x{self.pixels} stack {self.frames_per_observation}",
                f"at most {self.step_cap} steps = {self.step_cap * self.frames_per_step} frames",
            ]
        )

    def _settings(self) -> list[str]:
        """The preprocessing that changes the environment."""
        settings = {
            f"frame skip {self.frames_per_step}": self.frames_per_step > 1,
            f"sticky actions {self.sticky_actions:g}": self.sticky_actions > 0,
            f"grey images {self.pixels}x{self.pixels}": self.pixels > 0,
            f"stack {self.frames_per_observation}": self.frames_per_observation > 1,
            f"at most {self.step_cap} steps": self.step_cap > 0,
        }
        return [setting for setting, is_made in settings.items() if is_made]

    def _build(self, seed: int, evaluation: bool) -> AnyEnvironment:
        if self.is_atari:
            from asyncrl.envs.atari import make_atari

            return make_atari(self, seed, evaluation)
        if self.env_id in TOYS:
            from asyncrl.envs.toy import make_toy

            return make_toy(self, seed)
        from asyncrl.envs.making import make_gymnasium

        return make_gymnasium(self, seed, evaluation)

    def _try_out(self, environment: AnyEnvironment) -> None:
        spaces = environment.spaces
        action: Any = 0
        if spaces.is_continuous:
            action = np.clip(0.0, spaces.action_low, spaces.action_high).astype(np.float32)
        try:
            observations = [environment.reset(), environment.step(action)[0]]
        except BadEnvironment as error:
            raise UsageError(str(error)) from error
        except Exception as error:
            raise UsageError(f"{self.env_id} failed in its first reset or step: {one_line(error)}") from error
        for observation in observations:
            if (observation.shape, observation.dtype.name) != (spaces.observation_shape, spaces.observation_dtype):
                raise UsageError(
                    f"{self.env_id} promises {spaces.observation_dtype} {list(spaces.observation_shape)} but observes "
                    f"{observation.dtype.name} {list(observation.shape)}: correct its observation_space"
                )


def _actions_in_words(spaces: Spaces) -> str:
    return f"{len(spaces.action_low)} continuous actions" if spaces.is_continuous else f"{spaces.actions} actions"
