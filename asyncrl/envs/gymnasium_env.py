"""Any single-agent Gymnasium environment, made by its id or a user's factory, behind the contract of `environment`.

Every step is checked, since a NaN or a wrong shape would poison the shared network for all workers: a violation raises
`BadEnvironment` with the environment's id. The checks are cheap. What goes wrong in making one is told with its remedy.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.extras import to_install
from asyncrl.core.named import find
from asyncrl.core.output import clean
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import Own, announce, is_name, say, user_code, watched
from asyncrl.envs.action_masks import WithMask, with_mask
from asyncrl.envs.encoders import (
    Encoder,
    Encoding,
    actions_of,
    choices_of,
    encoder_of,
    minigrid_encoder,
    refuse_old_gym,
)
from asyncrl.envs.environment import LARGEST_REWARD, NOT_RUNNING, BadEnvironment, did_you_mean

CLOSE_SECONDS = 3.0
"""Seconds after which an environment that does not close is left as it is."""
_hanging: set[str] = set()
"""Those of which one did not close: to wait for each of the others would take minutes."""


class GymnasiumEnvironment:
    """One Gymnasium environment. Raises `UsageError` for spaces that no network here can use."""

    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        env_id: str,
        seed: int,
        max_episode_steps: int = 0,
        notices: tuple[str, ...] = (),
        own: Own | None = None,
    ) -> None:
        """`own`: what making the environment has changed for the whole process, which holds only in its own calls."""
        self.native = environment
        """The Gymnasium environment."""
        self.env_id = env_id
        self._seed: int | None = seed
        self._max_episode_steps = max_episode_steps
        self.notices = (*notices, *_notices_of(environment, env_id))
        """What to tell a user once: Gymnasium's warnings when the environment was made, and our own."""
        encoding = _encoding_of(environment, env_id)
        self.native_space = environment.observation_space
        """The space of Gymnasium's observations, also after the environment has been closed."""
        self._action_space = _space_of(environment, "action_space", env_id)
        self.encode: Encoder
        """Converts a Gymnasium observation to ours, which the next call may overwrite."""
        shape, dtype, self.encode, parts = encoding
        actions, low, high = actions_of(self._action_space, env_id)
        masked = isinstance(environment, WithMask)
        self.spaces = Spaces(shape, dtype, actions, low, high, encoding.kind, parts, masked)
        self._choices = [] if self.spaces.is_continuous else choices_of(self._action_space)
        self._elapsed = 0
        self._running = False
        self._own: Own = {} if own is None else own
        self._trusted = False
        """Whether it need not be looked after: it has changed nothing until the end of its first step."""

    def reset(self) -> NDArray[Any]:
        """Begin a new episode. The seed is passed to the first reset and so determines all episodes."""
        result = self._call("reset()", self.native.reset, seed=self._seed)
        self._seed = None
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self._bad("reset() must return (observation, info)")
        self._elapsed = 0
        self._running = True
        return self._observe(result[0])

    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Act once; raises ValueError for an action outside the space, `BadEnvironment` for a broken promise."""
        if not self._running:
            raise RuntimeError(NOT_RUNNING)
        native = self.native_action(action)
        result = self._call("step()", self.native.step, native)
        self._trusted = self._trusted or not self._own
        if not (isinstance(result, tuple) and len(result) == 5):
            raise self._bad("step() must return (observation, reward, terminated, truncated, info)")
        self._elapsed += 1
        reward = self._reward(result[1])
        try:
            terminated, truncated = bool(result[2]), bool(result[3])
        except Exception:  # torch's tensors of several raise RuntimeError
            raise self._bad("terminated and truncated must be single truth values") from None
        truncated = truncated or (not terminated and self._elapsed == self._max_episode_steps)
        self._running = not (terminated or truncated)
        return self._observe(result[0]), reward, terminated, truncated, False

    def picture(self) -> NDArray[np.uint8]:
        """The environment's picture, uint8 [height, width, 3]. Raises `UsageError` if it has none."""
        from asyncrl.envs.pictures import as_picture

        with user_code(f"{self.env_id}'s render()", self._not_drawn, self._own):
            picture: Any = self.native.render()
        try:
            return as_picture(picture)
        except ValueError as error:
            raise UsageError(f"{self.env_id} cannot be filmed: render() returned {error}") from None

    def close(self) -> None:
        """Close the environment. Nothing depends on it any more: what it raises is ignored, and what hangs is left."""
        _open.pop(id(self.native.unwrapped), None)
        if self.env_id in _hanging:
            return
        self._trusted = False
        try:
            with contextlib.suppress(BadEnvironment), watched(CLOSE_SECONDS):
                self._call("close()", self.native.close)
        except UsageError as error:
            _hanging.add(self.env_id)
            say(f"{error}; this process will close no others")

    def state(self) -> dict[str, Any] | None:
        """Everything the future depends on, as plain data; None if it may be incomplete.

        Only Gymnasium's classic control (CartPole and the like) is known to be complete: its state is a few numbers.
        """
        native, limit = self.native.unwrapped, _time_limit(self.native)
        if not type(native).__module__.startswith("gymnasium.envs.classic_control.") or limit is None:
            return None
        return {
            "numbers": {name: getattr(native, name) for name in _CLASSIC_STATE if hasattr(native, name)},
            "random": native.np_random.bit_generator.state,
            "limit": limit._elapsed_steps,
            "seed": self._seed,
            "elapsed": self._elapsed,
            "running": self._running,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` of an environment of the same spec returned."""
        if state["seed"] is None:
            self.native.reset()  # the wrappers demand one
        native, limit = self.native.unwrapped, _time_limit(self.native)
        assert limit is not None
        for name in state["numbers"].keys() & _CLASSIC_STATE:  # and nothing else that a checkpoint may name
            value = state["numbers"][name]
            setattr(native, name, np.array(value) if isinstance(value, list) else value)
        native.np_random.bit_generator.state = state["random"]
        limit._elapsed_steps = state["limit"]
        self._seed, self._elapsed, self._running = state["seed"], state["elapsed"], state["running"]

    def see(self, seen: NDArray[Any], observation: Any) -> None:
        """Convert a Gymnasium observation into `seen`. Raises ValueError for one that is not in the space."""
        seen[...] = self.encode(observation)

    def wrap_native(self, wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]) -> None:
        """Put a Gymnasium wrapper around the Gymnasium environment; the spaces must stay as they are."""
        self.native = wrap(self.native)

    def native_action(self, action: int | NDArray[Any]) -> Any:
        """Convert an action of ours to Gymnasium's. Raises ValueError for one outside the space."""
        if self.spaces.is_continuous:
            return self._into_box(action)
        if not 0 <= cast(int, action) < self.spaces.actions:
            raise ValueError(f"{self.env_id} has the actions 0 to {self.spaces.actions - 1}, not {action}")
        choice = self._choices[cast(int, action)]
        return choice.copy() if isinstance(choice, np.ndarray) else choice

    @property
    def action_names(self) -> tuple[str, ...]:
        """A name for each discrete action, or for each component of a continuous one."""
        from asyncrl.envs.naming import names_of_actions

        return names_of_actions(self.native, self._choices)

    @property
    def observation_names(self) -> tuple[str, ...]:
        """A name for each number of an observation that is a vector."""
        from asyncrl.envs.naming import names_of_components

        return names_of_components(self.native)

    def _into_box(self, action: int | NDArray[Any]) -> NDArray[Any]:
        """Clip an action to the bounds of the space, which may be finer than the float32 used for clipping before."""
        box = cast(spaces.Box, self._action_space)
        vector = np.asarray(action, np.float64).reshape(box.shape)
        if not np.isfinite(vector).all():
            raise ValueError(f"{self.env_id} was given an action that is not finite: {action}")
        high = box.high
        if box.dtype.kind in "biu":
            vector = np.rint(vector)
        if box.dtype.kind in "iu":  # the largest 64-bit integers have no float64: rounded up, they would be too large
            high = np.minimum(high, np.nextafter(2.0 ** (8 * box.dtype.itemsize - (box.dtype.kind == "i")), 0.0))
        return np.asarray(vector.clip(box.low, high), box.dtype)

    def _reward(self, reward: Any) -> float:
        try:
            # float() would parse a string, and in future no longer accept an array of one element.
            if isinstance(reward, str | bytes):
                raise TypeError
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError, OverflowError):
            raise self._bad(f"the reward is {type(reward).__name__}, not a number") from None
        if not -LARGEST_REWARD <= number <= LARGEST_REWARD:  # nor NaN
            raise self._bad(f"the reward is {number}")
        return number

    def _observe(self, observation: Any) -> NDArray[Any]:
        try:
            return self.encode(observation)
        except ValueError as error:
            raise self._bad(str(error)) from error

    def _call(self, where: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a method of the environment returns. Raises BadEnvironment for whatever it raises."""
        if self._trusted:
            announce(self.env_id, where)
            try:
                return method(*arguments, **named)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise self._raised(where, error) from error
            finally:
                announce(self.env_id, "")
        with user_code(f"{self.env_id}'s {where}", partial(self._raised, where), self._own):
            return method(*arguments, **named)

    def _not_drawn(self, error: BaseException) -> UsageError:
        if isinstance(error, gymnasium.error.DependencyNotInstalled):
            return UsageError(f"{self.env_id} needs a package for drawing: {to_install('video')}")
        return UsageError(f"{self.env_id} cannot be filmed: {one_line(error)}")

    def _raised(self, where: str, error: BaseException) -> BadEnvironment:
        return BadEnvironment(
            f"{self.env_id} failed in {where} after {self._elapsed} steps of an episode: {one_line(error)}"
        )

    def _bad(self, what: str) -> BadEnvironment:
        return BadEnvironment(f"{self.env_id} broke its contract in step {self._elapsed} of an episode: {what}")


def _encoding_of(environment: gymnasium.Env[Any, Any], env_id: str) -> Encoding:
    """How its observations are converted. Raises UsageError if no network can use them."""
    if isinstance(environment, WithMask):
        return with_mask(_encoding_of(environment.env, env_id), environment.actions)
    space = _space_of(environment, "observation_space", env_id)
    return minigrid_encoder(environment, env_id) or encoder_of(space, env_id)


def _space_of(environment: gymnasium.Env[Any, Any], name: str, env_id: str) -> spaces.Space[Any]:
    """A space of an environment. Raises UsageError if it has none."""
    space: spaces.Space[Any] | None = getattr(environment, name, None)
    if space is None:
        raise UsageError(f"{env_id} has no {name}: set it to one of gymnasium.spaces")
    return space


def _notices_of(environment: gymnasium.Env[Any, Any], env_id: str) -> Iterator[str]:
    """A line for each of Gymnasium's wrappers that learn statistics, which no checkpoint holds."""
    while isinstance(environment, gymnasium.Wrapper):
        for wrapper, remedy in _NORMALIZING.items():
            if isinstance(environment, wrapper):
                yield (
                    f"{env_id} uses gymnasium.wrappers.{wrapper.__name__}, whose statistics are separate in every "
                    f"environment, even in evaluations, and are never saved: leave it out and use {remedy} instead"
                )
        environment = environment.env


_NORMALIZING: dict[type[gymnasium.Wrapper[Any, Any, Any, Any]], str] = {
    gymnasium.wrappers.NormalizeObservation: "--normalize-observations",
    gymnasium.wrappers.NormalizeReward: "--normalize-returns",
}
"""Our settings for what Gymnasium's wrappers do."""
_CLASSIC_STATE = ("state", "steps_beyond_terminated", "last_u")
"""The attributes that change during an episode in classic control."""


def _time_limit(environment: gymnasium.Env[Any, Any]) -> gymnasium.wrappers.TimeLimit[Any, Any] | None:
    """The outermost wrapper if it is a TimeLimit with nothing but OrderEnforcing between it and the environment."""
    inner = environment.env if isinstance(environment, gymnasium.wrappers.TimeLimit) else None
    if isinstance(inner, gymnasium.wrappers.OrderEnforcing) and inner.env is inner.unwrapped:
        assert isinstance(environment, gymnasium.wrappers.TimeLimit)
        return environment
    return None


def make_gymnasium(
    env_id: str, seed: int, arguments: dict[str, Any], limit: int, masks: bool = False
) -> GymnasiumEnvironment:
    """Make an environment whose episodes are truncated after `limit` frames (0: never), by its id or factory.

    With `masks` its observations end with the action mask. Raises `UsageError` if it cannot be made.
    """
    notices: tuple[str, ...] = ()
    own: Own = {}
    if is_name(env_id):
        environment = _from_factory(env_id, arguments, own)
    else:
        environment, notices = _from_registry(env_id, arguments, own)
    if id(environment.unwrapped) in _open:
        raise UsageError(f"{env_id} must make a new environment at each call: a run has several")
    try:
        with user_code(f"{env_id}'s spaces", partial(_without_spaces, env_id), own):
            wrapped = WithMask(environment, env_id) if masks else environment
            made = GymnasiumEnvironment(wrapped, env_id, seed, limit, notices, own)
    except BaseException:
        with contextlib.suppress(Exception), user_code(f"{env_id}'s close()", own=own):
            environment.close()
        raise
    _open[id(environment.unwrapped)] = environment.unwrapped
    return made


def _without_spaces(env_id: str, error: BaseException) -> UsageError:
    return error if isinstance(error, UsageError) else UsageError(f"{env_id} has no usable spaces: {one_line(error)}")


_open: weakref.WeakValueDictionary[int, gymnasium.Env[Any, Any]] = weakref.WeakValueDictionary()
"""The environments that have not been closed."""


def _from_factory(env_id: str, arguments: dict[str, Any], own: Own) -> gymnasium.Env[Any, Any]:
    attribute = env_id.partition(":")[2]
    with user_code(f"the import of {env_id}"):
        factory = find(env_id)
    with user_code(
        f"{env_id}: {attribute}()", lambda error: UsageError(f"{env_id}: {attribute}() failed: {one_line(error)}"), own
    ):
        environment = factory(**arguments)
    if not isinstance(environment, gymnasium.Env):
        refuse_old_gym(environment, env_id, "environment")
        raise UsageError(f"{env_id}: {attribute}() returned a {type(environment).__name__}, not a gymnasium.Env")
    return environment


def _from_registry(env_id: str, arguments: dict[str, Any], own: Own) -> tuple[gymnasium.Env[Any, Any], tuple[str, ...]]:
    package = _package_of(env_id)
    if package is not None:
        _register(package, env_id)
    _refuse_raw_atari(env_id)
    with warnings.catch_warnings(record=True) as caught, _mujoco_silenced(env_id):
        warnings.simplefilter("always")
        with user_code(f"the creation of {env_id}", lambda error: _not_made(env_id, error), own):
            environment = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    said = (clean(str(warning.message)).removeprefix("WARN: ") for warning in caught if _is_for_users(warning))
    notices = tuple(dict.fromkeys(said))
    if package == "minigrid" and isinstance(environment.observation_space, spaces.Dict):
        environment = importlib.import_module("minigrid.wrappers").ImgObsWrapper(environment)
    return environment, notices


@contextlib.contextmanager
def _mujoco_silenced(env_id: str) -> Iterator[None]:
    """MuJoCo says on stderr, for each environment, what is deprecated in the models that Gymnasium brings."""
    if _extra_of(env_id) != "mujoco" or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None if "deprecated" in text else warnings.warn(text, stacklevel=2))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _is_for_users(warning: warnings.WarningMessage) -> bool:
    """Whether it is not for the authors of a library, as Python sees it; Gymnasium's own deprecations are of ids."""
    return not issubclass(warning.category, DeprecationWarning) or "WARN: " in str(warning.message)


def _not_made(env_id: str, error: BaseException) -> UsageError:
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        extra = _extra_of(env_id)
        remedy = to_install(extra) if extra else one_line(error)
        return UsageError(f"{env_id} needs an extra: {remedy}")
    if isinstance(error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound):
        known = {known_id.lower(): known_id for known_id in [*gymnasium.registry, "Chain", "Catch"]}
        remedy = did_you_mean(env_id, known) or "is the package that registers it installed? Your own is module:factory"
        return UsageError(f"no environment has the id {env_id}: {remedy}")
    return UsageError(f"{env_id} could not be made: {one_line(error)}")


def _package_of(env_id: str) -> str | None:
    """The package, and so the extra of this one, that registers an id if Gymnasium does not do so itself."""
    packages = {"MinAtar/": "minatar", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
    return next((package for prefix, package in packages.items() if env_id.startswith(prefix)), None)


def _register(package: str, env_id: str) -> None:
    """Import the package that registers an id. Raises UsageError if it is missing."""
    # MinAtar warns on the root logger that seaborn is missing, which only drawing needs.
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        module = importlib.import_module("minatar.gym" if package == "minatar" else package)
    except ImportError as error:
        raise UsageError(f"{env_id} needs an extra: {to_install(package)}") from error
    finally:
        logging.disable(level)
    if package == "minatar" and "MinAtar/Breakout-v1" not in gymnasium.registry:
        module.register_envs()


def _refuse_raw_atari(env_id: str) -> None:
    """Refuse ids like Pong-v4, which would give colour screens with a random frame skip, and name the right id.

    Also those like Pong, of which Gymnasium would make Pong-v4, and Pong-v5, which does not exist.
    """
    form = re.fullmatch(r"(\w+?)(?:NoFrameskip|Deterministic)?(-v\d+)?", env_id)
    registered = gymnasium.registry.get(env_id)
    if form is None or (registered is not None and not str(registered.entry_point).startswith("ale_py")):
        return
    from asyncrl.envs.atari import games

    usual = {game.lower(): f"ALE/{game}-v5" for game in games()}.get(form[1].lower())
    if usual is not None and form[2] in ("-v0", "-v4"):
        raise UsageError(f"{env_id} skips a random number of frames, which is not supported: use {usual}")
    if usual is not None:
        raise UsageError(f"no environment has the id {env_id}: did you mean {usual}?")


def _extra_of(env_id: str) -> str | None:
    """The extra of this package with the dependencies of one of Gymnasium's own environments."""
    registered = gymnasium.registry.get(env_id)
    form = re.match(r"gymnasium\.envs\.(box2d|mujoco)", str(registered.entry_point if registered else ""))
    return form[1] if form else None
