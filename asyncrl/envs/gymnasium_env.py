"""Any single-agent Gymnasium environment, by id or from a user's factory, behind the contract of `envs.spec`.

Conversions: images and planes [rows, columns, channels] become [C, H, W] (uint8 stays uint8, everything else becomes
float32), vectors float32, Discrete, MultiDiscrete and MiniGrid's symbols one-hot float32, and a Dict or Tuple of these
one vector of all its parts. Discrete actions count from 0 whatever the start of the space is; each combination of
MultiDiscrete and MultiBinary actions is an action. Every step is checked, since a NaN or a wrong shape would poison the
shared network for all workers: a violation raises `BadEnvironment` with the environment's id. The checks are cheap.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.core.named import find, is_name
from asyncrl.core.spaces import Kind, Spaces
from asyncrl.envs.preprocessed import Preprocessed
from asyncrl.envs.spec import BadEnvironment, one_line

if TYPE_CHECKING:
    from asyncrl.envs.spec import EnvSpec

SMALLEST_SCREEN = 36
"""Images with fewer rows are boards."""
MOST_COMBINATIONS = 4096
"""Most combinations of the parts of an action: a network has an output for each."""
_LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32, where a larger one would become infinite."""

Encoder = Callable[[Any], NDArray[Any]]
"""Converts a Gymnasium observation to ours. Raises ValueError, with the reason, for one that is not in its space."""


class GymnasiumEnvironment:
    """One Gymnasium environment. Raises `UsageError` for spaces that no network here can use."""

    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        env_id: str,
        seed: int,
        max_episode_steps: int = 0,
        notices: tuple[str, ...] = (),
    ) -> None:
        self.native = environment
        """The Gymnasium environment."""
        self.env_id = env_id
        self._seed: int | None = seed
        self._max_episode_steps = max_episode_steps
        self.notices = notices
        """Gymnasium's warnings when the environment was made."""
        space = environment.observation_space
        self.encode: Encoder
        """Converts a Gymnasium observation to ours, which the next call may overwrite."""
        symbols = _minigrid_encoder(environment)
        shape, dtype, self.encode = symbols or _encoder(space, env_id)
        self._action_space = environment.action_space
        actions, low, high = _actions(self._action_space, env_id)
        self.spaces = Spaces(shape, dtype, actions, low, high, _kind(shape))
        self._choices = [] if self.spaces.is_continuous else _choices(self._action_space)
        self._elapsed = 0
        self._running = False

    def reset(self) -> NDArray[Any]:
        """Begin a new episode. The seed is passed to the first reset and so determines all episodes."""
        try:
            result = self.native.reset(seed=self._seed)
        except Exception as error:
            raise self._raised("reset()", error) from error
        self._seed = None
        if not (isinstance(result, tuple) and len(result) == 2):
            raise self._bad("reset() must return (observation, info)")
        self._elapsed = 0
        self._running = True
        return self._observe(result[0])

    def step(self, action: int | NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Act once; raises ValueError for an action outside the space, `BadEnvironment` for a broken promise."""
        if not self._running:
            raise RuntimeError("step() before reset(): no episode is running")
        native = self.native_action(action)
        try:
            result = self.native.step(native)
        except Exception as error:
            raise self._raised("step()", error) from error
        if not (isinstance(result, tuple) and len(result) == 5):
            raise self._bad("step() must return (observation, reward, terminated, truncated, info)")
        self._elapsed += 1
        reward = self._reward(result[1])
        try:
            terminated, truncated = bool(result[2]), bool(result[3])
        except ValueError:
            raise self._bad("terminated and truncated must be single truth values") from None
        truncated = truncated or (not terminated and self._elapsed == self._max_episode_steps)
        self._running = not (terminated or truncated)
        return self._observe(result[0]), reward, terminated, truncated, False

    def picture(self) -> NDArray[np.uint8]:
        """The environment's picture, uint8 [height, width, 3]. Raises `UsageError` if it has none."""
        try:
            picture: Any = self.native.render()
        except gymnasium.error.DependencyNotInstalled as error:
            remedy = 'pip install "asyncrl[video]"'
            raise UsageError(f"{self.env_id} draws with a package that is missing: {remedy}") from error
        except Exception as error:
            raise UsageError(f"{self.env_id} cannot be filmed: {one_line(error)}") from error
        if isinstance(picture, np.ndarray) and picture.dtype.kind == "f":  # MinAtar's, from 0 to 1
            picture = (255 * picture.clip(0.0, 1.0)).astype(np.uint8)
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            raise UsageError(f"{self.env_id} cannot be filmed: it needs render_mode rgb_array and render() a picture")
        return picture

    def close(self) -> None:
        """Close the environment."""
        self.native.close()

    def state(self) -> dict[str, Any] | None:
        """Everything the future depends on, as plain data; None if it may be incomplete.

        Only Gymnasium's classic control (CartPole and the like) is known to be complete: its state is a few numbers.
        """
        native, limit = self.native.unwrapped, _time_limit(self.native)
        if type(native).__module__.partition(".envs.classic_control")[1] == "" or limit is None:
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
        for name, value in state["numbers"].items():
            setattr(native, name, np.array(value) if isinstance(value, list) else value)
        native.np_random.bit_generator.state = state["random"]
        limit._elapsed_steps = state["limit"]
        self._seed, self._elapsed, self._running = state["seed"], state["elapsed"], state["running"]

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
        """The environment's names of its discrete actions, or else their Gymnasium values."""
        meanings = getattr(self.native.unwrapped, "get_action_meanings", lambda: ())()
        if len(meanings) == len(self._choices):
            return tuple(str(meaning).lower() for meaning in meanings)
        return tuple(
            " ".join(map(str, choice.ravel())) if isinstance(choice, np.ndarray) else f"action {choice}"
            for choice in self._choices
        )

    def _into_box(self, action: int | NDArray[Any]) -> NDArray[Any]:
        """Clip an action to the bounds of the space, which may be finer than the float32 used for clipping before."""
        box = cast(spaces.Box, self._action_space)
        vector = np.asarray(action, np.float64).reshape(box.shape)
        if not np.isfinite(vector).all():
            raise ValueError(f"{self.env_id} was given an action that is not finite: {action}")
        if np.issubdtype(box.dtype, np.integer):
            vector = np.rint(vector)
        return vector.clip(box.low, box.high).astype(box.dtype)

    def _reward(self, reward: Any) -> float:
        try:
            # float() would parse a string, and in future no longer accept an array of one element.
            if isinstance(reward, str | bytes):
                raise TypeError
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError, OverflowError):
            raise self._bad(f"the reward is {type(reward).__name__}, not a number") from None
        if not -_LARGEST_REWARD <= number <= _LARGEST_REWARD:  # nor NaN
            raise self._bad(f"the reward is {number}")
        return number

    def _observe(self, observation: Any) -> NDArray[Any]:
        try:
            return self.encode(observation)
        except (TypeError, ValueError) as error:
            raise self._bad(str(error)) from error

    def _raised(self, where: str, error: Exception) -> BadEnvironment:
        return BadEnvironment(
            f"{self.env_id} broke in {where} after {self._elapsed} steps of an episode: {one_line(error)}"
        )

    def _bad(self, what: str) -> BadEnvironment:
        return BadEnvironment(f"{self.env_id} broke its contract in step {self._elapsed} of an episode: {what}")


_CLASSIC_STATE = ("state", "steps_beyond_terminated", "last_u")
"""The attributes that change during an episode in classic control."""


def _time_limit(environment: gymnasium.Env[Any, Any]) -> gymnasium.wrappers.TimeLimit[Any, Any] | None:
    """The outermost wrapper if it is a TimeLimit with nothing but OrderEnforcing between it and the environment."""
    inner = environment.env if isinstance(environment, gymnasium.wrappers.TimeLimit) else None
    if isinstance(inner, gymnasium.wrappers.OrderEnforcing) and inner.env is inner.unwrapped:
        assert isinstance(environment, gymnasium.wrappers.TimeLimit)
        return environment
    return None


def _encoder(space: spaces.Space[Any], env_id: str) -> tuple[tuple[int, ...], str, Encoder]:
    """Shape, dtype and conversion of the observations of a space."""
    if isinstance(space, spaces.Box):
        return _scaled(space, *_box_encoder(space, env_id))
    if isinstance(space, spaces.Discrete):
        # One category is a MultiDiscrete of one: the same one-hot vector.
        return _one_hot_encoder(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot_encoder(space.nvec.ravel(), space.start.ravel())
    if isinstance(space, spaces.MultiBinary):
        return _vector_encoder(space.shape)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _parts_encoder(space, env_id)
    raise UsageError(f"{env_id} observes a {type(space).__name__}, which is not supported: wrap it to observe a Box")


def _box_encoder(space: spaces.Box, env_id: str) -> tuple[tuple[int, ...], str, Encoder]:
    shape = space.shape
    if 0 in shape or len(shape) > 3:
        raise UsageError(f"{env_id} observes an array {list(shape)}: wrap it to observe a vector or an image [H, W, C]")
    if len(shape) < 2:
        return _vector_encoder(shape)
    dtype = np.uint8 if space.dtype == np.uint8 else np.float32
    if len(shape) == 2:
        return (1, *shape), dtype.__name__, lambda image: _array(image, shape, space.dtype, dtype)[np.newaxis]
    # Channels come last in Gymnasium, first after wrappers that stack frames or follow torch.
    if shape[0] < min(shape[1:]):
        return shape, dtype.__name__, lambda image: _array(image, shape, space.dtype, dtype)
    height, width, channels = shape
    return (
        (channels, height, width),
        dtype.__name__,
        lambda image: _array(image, shape, space.dtype, dtype).transpose(2, 0, 1),
    )


def _scaled(
    space: spaces.Box, shape: tuple[int, ...], dtype: str, encode: Encoder
) -> tuple[tuple[int, ...], str, Encoder]:
    """Scale uint8 boards with an upper bound below 255 to 0..1: divided by 255 their symbols would look alike."""
    largest = int(space.high.max()) if dtype == "uint8" and _kind(shape) == "board" else 255
    if not 0 < largest < 255:
        return shape, dtype, encode
    return shape, "float32", lambda board: encode(board) * np.float32(1 / largest)


def _kind(shape: tuple[int, ...]) -> Kind:
    """The kind of observations of this shape."""
    if len(shape) != 3:
        return "vector"
    return "board" if shape[1] < SMALLEST_SCREEN else "screen"


def _array(observation: Any, shape: tuple[int, ...], promised: Any, dtype: type[np.generic]) -> NDArray[Any]:
    array = np.asarray(observation)
    if array.shape != shape:
        raise ValueError(f"the observation has the shape {list(array.shape)}, not {list(shape)}")
    if dtype is np.uint8 and array.dtype != np.uint8:
        # Casting would silently turn an image scaled to 0..1 into zeros.
        raise ValueError(f"the observation is {array.dtype}, not {promised}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("the observation holds a NaN or an infinity")
    return array.astype(dtype, copy=False)


def _vector_encoder(shape: tuple[int, ...]) -> tuple[tuple[int, ...], str, Encoder]:
    size = math.prod(shape)

    def encode(observation: Any) -> NDArray[Any]:
        vector = np.asarray(observation, np.float32)
        if vector.shape != shape:
            raise ValueError(f"the observation has the shape {list(vector.shape)}, not {list(shape)}")
        if not np.isfinite(vector).all():
            raise ValueError("the observation holds a NaN or an infinity")
        return vector.reshape(size)

    return (size,), "float32", encode


def _parts_encoder(space: spaces.Dict | spaces.Tuple[Any], env_id: str) -> tuple[tuple[int, ...], str, Encoder]:
    """Concatenate the parts of a Dict or Tuple, in the order of the space, to one vector."""
    encoders = {}
    size = 0
    for key, part in _parts(space):
        shape, _, encode = _encoder(part, env_id)
        if _kind(shape) == "screen":
            raise UsageError(
                f"{env_id} observes a {type(space).__name__} with an image in {key!r}: give a module:factory that "
                "wraps it to observe the image, or numbers, alone"
            )
        encoders[key] = encode
        size += math.prod(shape)
    if not size:
        raise UsageError(f"{env_id} observes a {type(space).__name__} of no parts: there is nothing to learn from")

    def encode_all(observation: Any) -> NDArray[Any]:
        try:
            parts = [observation[key] for key in encoders]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"the observation lacks some of the parts {', '.join(map(str, encoders))}") from None
        encoded = [np.ravel(encode(part)) for encode, part in zip(encoders.values(), parts, strict=True)]
        return np.concatenate(encoded, dtype=np.float32, casting="unsafe")

    return (size,), "float32", encode_all


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """Key or index, and space, of each part."""
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def rows_of(space: spaces.Space[Any], observation: Any) -> tuple[list[Any], bool]:
    """Split `observation` into single observations of `space`; also returns whether it was a single one, not a batch.

    A batch of Dict or Tuple observations is a Dict or Tuple of batches. Raises ValueError if it is neither.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = [key for key, _ in _parts(space)]
        try:
            parts = [rows_of(part, observation[key]) for key, part in _parts(space)]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"it has the parts {', '.join(map(str, keys))}") from None
        if len({(len(rows), single) for rows, single in parts}) > 1:
            raise ValueError("its parts have different numbers of environments")
        together = zip(*(rows for rows, _ in parts), strict=True)
        rows = [dict(zip(keys, row, strict=True)) if isinstance(space, spaces.Dict) else row for row in together]
        return rows, parts[0][1]
    shape, given = space.shape, np.asarray(observation)
    assert shape is not None  # all other spaces that can be encoded have one
    single = given.ndim == len(shape)
    batch = given[np.newaxis] if single else given
    if batch.shape[1:] != shape:
        raise ValueError(
            f"its shape must be {list(shape)}, with one more dimension in front for a batch, not {list(given.shape)}"
        )
    return list(batch), single


def _one_hot_encoder(sizes: NDArray[Any], starts: NDArray[Any]) -> tuple[tuple[int, ...], str, Encoder]:
    """One-hot vectors of several categories, side by side."""
    offsets = np.cumsum(sizes) - sizes
    vector = np.zeros(int(sizes.sum()), np.float32)

    def encode(observation: Any) -> NDArray[Any]:
        values = np.asarray(observation).reshape(sizes.shape) - starts
        if values.dtype.kind not in "iu":
            raise ValueError(f"the observation {observation} is {values.dtype}, not integers")
        if not ((values >= 0) & (values < sizes)).all():
            raise ValueError(f"the observation {observation} is not in its space")
        vector.fill(0.0)
        vector[offsets + values] = 1.0
        return vector

    return vector.shape, "float32", encode


def _planes_encoder(shape: tuple[int, ...], categories: tuple[int, ...]) -> tuple[tuple[int, ...], str, Encoder]:
    """One-hot planes of symbols [H, W, C]: a plane for each possible value of each of the C channels."""
    height, width, _ = shape
    offsets = np.cumsum(categories) - categories
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[:, None]
    planes = np.zeros((sum(categories), height, width), np.float32)

    def encode(observation: Any) -> NDArray[Any]:
        values = _array(observation, shape, np.uint8, np.uint8)
        if not (values < categories).all():
            raise ValueError(
                f"the observation holds {values.max((0, 1))}, beyond the {categories} values of its planes"
            )
        planes.fill(0.0)
        planes[offsets + values, rows, columns] = 1.0
        return planes

    return planes.shape, "float32", encode


def _minigrid_encoder(environment: gymnasium.Env[Any, Any]) -> tuple[tuple[int, ...], str, Encoder] | None:
    """Like `_encoder`, for MiniGrid's symbols: kind of object, colour and state. None for other environments."""
    minigrid = sys.modules.get("minigrid.minigrid_env")
    if minigrid is None or not isinstance(environment.unwrapped, minigrid.MiniGridEnv):
        return None
    space = environment.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.shape[0] >= SMALLEST_SCREEN:
        return None  # pictures of the grid
    constants = importlib.import_module("minigrid.core.constants")
    return _planes_encoder(space.shape, (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), _MINIGRID_STATES))


_MINIGRID_STATES = 4
"""A door is open, closed or locked; in a view of the whole grid the agent faces one of four directions."""


def _actions(space: spaces.Space[Any], env_id: str) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Number of discrete actions, or the bounds of continuous ones."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), (), ()
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        combinations = math.prod(_sizes(space).ravel().tolist())
        if combinations > MOST_COMBINATIONS:
            raise UsageError(
                f"{env_id} has {combinations:_} combinations of actions in {space}, at most {MOST_COMBINATIONS:_} are "
                "supported: wrap it to take fewer, or a Box"
            )
        return combinations, (), ()
    if isinstance(space, spaces.Box) and math.prod(space.shape) > 0:
        return 0, tuple(map(float, space.low.ravel())), tuple(map(float, space.high.ravel()))
    raise UsageError(
        f"{env_id} has actions in {space}, which is not supported: wrap it to take Discrete, MultiDiscrete, "
        "MultiBinary or Box"
    )


def _sizes(space: spaces.MultiDiscrete | spaces.MultiBinary) -> NDArray[np.int64]:
    """The number of values of each part of an action, in the shape of the space."""
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 2, np.int64)
    return space.nvec.astype(np.int64)


def _choices(space: spaces.Space[Any]) -> list[Any]:
    """The Gymnasium action for each of our discrete actions; of several parts the last one changes fastest."""
    if isinstance(space, spaces.Discrete):
        return [int(space.start) + i for i in range(int(space.n))]
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    sizes = _sizes(space)
    start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    combinations = np.indices(tuple(sizes.ravel())).reshape(sizes.size, -1).T
    return [(one.reshape(sizes.shape) + start).astype(space.dtype) for one in combinations]


def make_gymnasium(spec: EnvSpec, seed: int, evaluation: bool) -> GymnasiumEnvironment | Preprocessed:
    """Make the environment of a spec. Raises `UsageError` if it cannot be made."""
    environment = _make_plain(spec, seed, evaluation)
    if (spec.frames_per_step, spec.frames_per_observation, spec.pixels, spec.sticky_actions) == (1, 1, 0, 0.0):
        return environment
    try:
        return Preprocessed(
            environment,
            seed,
            frame_skip=spec.frames_per_step,
            sticky_actions=spec.sticky_actions,
            pixels=spec.pixels,
            frame_stack=spec.frames_per_observation,
        )
    except UsageError:
        environment.close()
        raise


def _make_plain(spec: EnvSpec, seed: int, evaluation: bool) -> GymnasiumEnvironment:
    """The environment without preprocessing. Our own step limit is in agent steps, the environment counts frames.

    In training there is always a limit; an evaluation cuts episodes itself, and counts them.
    """
    steps = spec.step_cap if evaluation else spec.training_step_cap
    env_id, limit = spec.env_id, steps * spec.frames_per_step
    arguments = dict(spec.env_kwargs)
    if is_name(env_id):
        environment = _from_factory(env_id, arguments)
        return GymnasiumEnvironment(environment, env_id, seed, limit)
    environment, notices = _from_registry(env_id, arguments)
    return GymnasiumEnvironment(environment, env_id, seed, limit, notices)


def _from_factory(env_id: str, arguments: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    factory, attribute = find(env_id), env_id.partition(":")[2]
    try:
        environment = factory(**arguments)
    except Exception as error:
        raise UsageError(f"{env_id}: {attribute}() failed: {one_line(error)}") from error
    if not isinstance(environment, gymnasium.Env):
        raise UsageError(f"{env_id}: {attribute}() returned a {type(environment).__name__}, not a gymnasium.Env")
    return environment


def _from_registry(env_id: str, arguments: dict[str, Any]) -> tuple[gymnasium.Env[Any, Any], tuple[str, ...]]:
    _register_package_of(env_id)
    _refuse_raw_atari(env_id)
    with warnings.catch_warnings(record=True) as caught, _mujoco_silenced(env_id):
        warnings.simplefilter("always")
        environment = _make(env_id, arguments)
    said = [str(warning.message) for warning in caught if _is_for_users(warning)]
    notices = tuple(dict.fromkeys(_plain(text) for text in said))
    if env_id.startswith(("MiniGrid-", "BabyAI-")) and isinstance(environment.observation_space, spaces.Dict):
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


def _make(env_id: str, arguments: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        extra = _extra_of(env_id)
        remedy = f'pip install "asyncrl[{extra}]"' if extra else one_line(error)
        raise UsageError(f"{env_id} needs an extra: {remedy}") from error
    except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound) as error:
        near = _similar(env_id)
        remedy = f"did you mean {' or '.join(near)}?" if near else "is the package that registers it installed?"
        raise UsageError(f"no environment has the id {env_id}: {remedy}") from error
    except Exception as error:
        raise UsageError(f"{env_id} could not be made: {one_line(error)}") from error


def _register_package_of(env_id: str) -> None:
    """Import the package that registers an id, if Gymnasium does not do so itself."""
    try:
        if env_id.startswith("MinAtar/"):
            _register_minatar(env_id)
        elif env_id.startswith(("MiniGrid-", "BabyAI-")):
            importlib.import_module("minigrid")
    except ImportError as error:
        extra = "minatar" if env_id.startswith("MinAtar/") else "minigrid"
        raise UsageError(f'{env_id} needs an extra: pip install "asyncrl[{extra}]"') from error


def _register_minatar(env_id: str) -> None:
    if env_id in gymnasium.registry:
        return
    # It warns on the root logger that seaborn is missing, which only drawing needs.
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        minatar = importlib.import_module("minatar.gym")
    finally:
        logging.disable(level)
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.register_envs()


def _refuse_raw_atari(env_id: str) -> None:
    """Refuse ids like Pong-v4, which would give colour screens with a random frame skip, and name the right id."""
    form = re.fullmatch(r"(\w+)-v[04]", env_id)
    registered = gymnasium.registry.get(env_id)
    if form is None or (registered is not None and not str(registered.entry_point).startswith("ale_py")):
        return
    from asyncrl.envs.atari import games

    if form[1] in games():
        raise UsageError(f"{env_id} skips a random number of frames, which is not supported: use ALE/{form[1]}-v5")


def _extra_of(env_id: str) -> str | None:
    """The extra of this package with the dependencies of one of Gymnasium's own environments."""
    registered = gymnasium.registry.get(env_id)
    form = re.match(r"gymnasium\.envs\.(box2d|mujoco)", str(registered.entry_point if registered else ""))
    return form[1] if form else None


def _similar(env_id: str) -> list[str]:
    """Up to three existing ids similar to this one, ignoring case."""
    known = {known_id.lower(): known_id for known_id in [*gymnasium.registry, "Chain", "Catch"]}
    return [known[near] for near in difflib.get_close_matches(env_id.lower(), known, n=3, cutoff=0.7)]


def _plain(text: str) -> str:
    """A warning of Gymnasium without colours and prefix."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).removeprefix("WARN: ")
