"""Gymnasium's spaces: how observations become the arrays of a network, and what its discrete actions stand for.

Images and planes [rows, columns, channels] become [C, H, W] (uint8 stays uint8, everything else becomes float32),
vectors float32, Discrete, MultiDiscrete and MiniGrid's symbols one-hot float32, and a Dict or Tuple of these one vector
of all its parts. An image with fewer than 3 rows or columns is a vector. Discrete actions count from 0 even if the
space starts elsewhere; each combination of MultiDiscrete and MultiBinary actions is an action.

With images among the parts of a Dict or Tuple, the vector has all numbers first and then the pixels of each image: so
whatever holds observations holds these too, and the network takes the parts out again (`Spaces.parts`).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.spaces import Kind, Spaces

SMALLEST_SCREEN, NARROWEST_SCREEN = 36, 11
"""Images with fewer rows or columns are boards: the kernels for screens need 11."""
SMALLEST_BOARD = 3
"""Images with fewer rows or columns are vectors: the kernels for boards need 3."""
MOST_NUMBERS, MOST_PIXELS = 1_000_000, 2**25
"""Largest vector, and image, that is observed. A network has 64 weights or more for each number of a vector; 2^25 are
a third more than a 4K screen has in colour."""
MOST_ACTIONS = 100_000
"""Most values of a Discrete action, or components of a Box: a network has an output for each."""
MOST_COMBINATIONS = 4096
"""Most combinations of the parts of an action. Parts multiply unnoticed, so these are fewer."""
_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_LARGEST = np.finfo(np.float32).max
_NOT_FINITE = "the observation contains NaN or infinity, or a number too large for float32"

Encoder = Callable[[Any], NDArray[Any]]
"""Converts a Gymnasium observation to ours. Raises ValueError, with the reason, for one that is not in its space."""


class Encoding(NamedTuple):
    """The shape and dtype of observations as a network takes them, and what converts Gymnasium's to them."""

    shape: tuple[int, ...]
    dtype: str
    encode: Encoder
    parts: tuple[Spaces, ...] = ()
    """As in `Spaces`."""

    @property
    def kind(self) -> Kind:
        """The kind of observation; with several images, that of the largest."""
        kinds = {part.kind for part in self.parts} or {kind_of(self.shape)}
        return "screen" if "screen" in kinds else "board" if "board" in kinds else "vector"

    @property
    def spaces(self) -> tuple[Spaces, ...]:
        """The parts, or the observation as the only one."""
        return self.parts or (Spaces(self.shape, self.dtype, 0, kind=self.kind),)


def encoder_of(space: spaces.Space[Any], env_id: str) -> Encoding:
    """How the observations of a space are converted. Raises `UsageError` if no network can use them."""
    if isinstance(space, spaces.Box):
        return _box_encoder(space, env_id)
    if isinstance(space, spaces.Discrete):
        # One category is a MultiDiscrete of one: the same one-hot vector.
        return _one_hot_encoder([int(space.n)], [int(space.start)], env_id)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot_encoder(space.nvec.ravel().tolist(), space.start.ravel().tolist(), env_id)
    if isinstance(space, spaces.MultiBinary):
        return _vector_encoder(space.shape, env_id)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _parts_encoder(space, env_id)
    refuse_old_gym(space, env_id, "observation_space")
    raise UsageError(f"{env_id} observes a {type(space).__name__}, which is not supported: wrap it to observe a Box")


def refuse_old_gym(thing: Any, env_id: str, name: str) -> None:
    """Raise UsageError for a space or an environment of the package from which Gymnasium was forked.

    Its classes have the same names as Gymnasium's, so that they look right in any other message.
    """
    if any(cls.__module__.split(".")[0] == "gym" for cls in type(thing).__mro__):
        raise UsageError(
            f"{env_id} has an {name} of the old package gym: make it with gymnasium, or convert the whole environment "
            "with the package shimmy (GymV26CompatibilityV0, GymV21CompatibilityV0)"
        )


def check_size(shape: tuple[int, ...], env_id: str) -> None:
    """Raise UsageError for observations of a shape that is empty or too large for any network."""
    numbers, most = math.prod(shape), MOST_PIXELS if len(shape) > 1 else MOST_NUMBERS
    if not 0 < numbers <= most:
        what = "pixels" if len(shape) > 1 else "numbers (one for each value of a Discrete)"
        raise UsageError(f"{env_id} observes {numbers:_} {what}, 1 to {most:_} are supported: wrap it to observe fewer")


def _box_encoder(space: spaces.Box, env_id: str) -> Encoding:
    shape = space.shape
    if 0 in shape or len(shape) > 3:
        raise UsageError(
            f"{env_id} observes an array {list(shape)}: wrap it to observe a vector or an image [H, W, C]; "
            "--frame-stack stacks images"
        )
    check_size(shape, env_id)
    if len(shape) < 2:
        return _vector_encoder(shape, env_id)
    dtype = _UINT8 if space.dtype == np.uint8 else _FLOAT32
    # Channels come last in Gymnasium, first after wrappers that stack frames or follow torch.
    last = len(shape) == 3 and shape[0] >= min(shape[1:])
    planes = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2]) if last else shape
    kind, largest = kind_of(planes), int(space.high.max()) if dtype is _UINT8 else 0
    # What becomes a vector is scaled to 0..1 here, and so are boards with a bound below 255: only images are divided by
    # 255 later, and divided by that their symbols would look alike.
    is_scaled = largest > 0 and (kind == "vector" or (kind == "board" and largest != 255))

    def encode(image: Any) -> NDArray[Any]:
        array = as_numbers(image, shape, dtype)
        array = array.transpose(2, 0, 1) if last else array.reshape(planes)
        return array * np.float32(1 / largest) if is_scaled else array

    if kind != "vector":
        return Encoding(planes, "float32" if is_scaled else dtype.name, encode)
    size = math.prod(shape)
    check_size((size,), env_id)
    return Encoding((size,), "float32", lambda image: np.ravel(encode(image)).astype(np.float32, copy=False))


def kind_of(shape: tuple[int, ...]) -> Kind:
    """The kind of observations of this shape."""
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_BOARD:
        return "vector"
    return "screen" if shape[1] >= SMALLEST_SCREEN and shape[2] >= NARROWEST_SCREEN else "board"


def as_numbers(observation: Any, shape: tuple[int, ...], dtype: np.dtype[Any] = _FLOAT32) -> NDArray[Any]:
    """An observation as a finite array of this shape and dtype, uint8 or float32. Raises ValueError if it is none."""
    array = _as_array(observation)
    if array.shape != shape:
        raise ValueError(f"the observation has the shape {list(array.shape)}, not {list(shape)}")
    if array.dtype != dtype:
        return _converted(array, dtype)
    if dtype is _FLOAT32 and not np.isfinite(array).all():
        raise ValueError(_NOT_FINITE)
    return array


def _converted(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Numbers of another type as float32 or uint8. Raises ValueError for those that it cannot hold."""
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the observation contains something that is not a number: {one_line(error)}") from error
    # As bytes only integers: an image scaled to 0..1 would silently become black.
    if array.dtype.kind not in ("biu" if dtype is _UINT8 else "biuf"):
        raise ValueError(f"the observation is {array.dtype}, not {'uint8' if dtype is _UINT8 else 'numbers'}")
    if dtype is _UINT8 and (array.min() < 0 or array.max() > 255):
        raise ValueError(f"the observation holds {array.min()} to {array.max()}, but its space is uint8: 0 to 255")
    if array.dtype.kind == "f" and not (np.abs(array) <= _LARGEST).all():  # nor NaN
        raise ValueError(_NOT_FINITE)
    return array.astype(dtype)


def _as_array(observation: Any) -> NDArray[Any]:
    try:
        return np.asarray(observation)
    except Exception as error:  # an object's own __array__ may raise anything, as torch's does for a GPU's tensors
        raise ValueError(f"the observation is not an array: {one_line(error)}") from error


def _short(thing: Any) -> str:
    """A space or an observation on one line: those of many parts are long."""
    text = " ".join(str(thing).split())
    return text if len(text) <= 100 else text[:97] + "..."


def _vector_encoder(shape: tuple[int, ...], env_id: str) -> Encoding:
    size = math.prod(shape)
    check_size((size,), env_id)
    return Encoding((size,), "float32", lambda observation: as_numbers(observation, shape).reshape(size))


def _parts_encoder(space: spaces.Dict | spaces.Tuple[Any], env_id: str) -> Encoding:
    """Concatenate the parts of a Dict or Tuple, in the order of the space, to one vector: numbers before images."""
    encodings = {path: encoder_of(part, env_id) for path, part in _leaves(space)}
    if not encodings:
        raise UsageError(f"{env_id} observes a {type(space).__name__} without parts: there is nothing to learn from")
    by_kind = sorted(encodings.items(), key=lambda item: item[1].kind != "vector")
    paths, images = [path for path, _ in by_kind], [one for _, one in by_kind if one.kind != "vector"]
    numbers = sum(math.prod(one.shape) for _, one in by_kind) - sum(math.prod(one.shape) for one in images)

    def parts_of(observation: Any) -> list[NDArray[Any]]:
        try:
            parts = [functools.reduce(operator.getitem, path, observation) for path in paths]
        except (KeyError, IndexError, TypeError):
            names = ", ".join(".".join(map(str, path)) for path in encodings)
            raise ValueError(f"the observation lacks some of the parts {names}") from None
        return [one.encode(part) for (_, one), part in zip(by_kind, parts, strict=True)]

    if images and len(paths) == 1:
        return images[0]._replace(encode=lambda observation: parts_of(observation)[0])
    if numbers or not images:
        check_size((numbers,), env_id)
    parts = [one for image in images for one in image.spaces]
    parts = [Spaces((numbers,), "float32", 0), *parts] if numbers else parts
    size = sum(math.prod(part.observation_shape) for part in parts)
    check_size((size, 1), env_id)
    # Bytes if all are: a replay memory is then a quarter as large.
    dtype = _UINT8 if all(part.observation_dtype == "uint8" for part in parts) else _FLOAT32

    def encode(observation: Any) -> NDArray[Any]:
        return np.concatenate([np.ravel(part) for part in parts_of(observation)], dtype=dtype, casting="unsafe")

    return Encoding((size,), dtype.name, encode, tuple(parts) if images else ())


def _leaves(
    space: spaces.Dict | spaces.Tuple[Any], path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """Keys or indices that lead to each part that has no parts itself, and its space."""
    for key, part in _parts(space):
        if isinstance(part, spaces.Dict | spaces.Tuple):
            yield from _leaves(part, (*path, key))
        else:
            yield (*path, key), part


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
            raise ValueError(f"it must have the parts {', '.join(map(str, keys))}") from None
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


def _one_hot_encoder(sizes: list[int], starts: list[int], env_id: str) -> Encoding:
    """One-hot vectors of several categories, side by side."""
    check_size((sum(sizes),), env_id)
    first = np.array(starts, np.int64)
    last = first + np.array(sizes, np.int64) - 1
    zeros = np.cumsum(sizes) - sizes - first
    """Where the value 0 of each category would be."""
    vector = np.zeros(sum(sizes), np.float32)

    def encode(observation: Any) -> NDArray[Any]:
        values = _integers(observation, len(sizes))
        if not ((values >= first) & (values <= last)).all():
            raise ValueError(f"the observation {_short(observation)} is not in its space")
        vector.fill(0.0)
        vector[zeros + values] = 1.0
        return vector

    return Encoding(vector.shape, "float32", encode)


def _integers(observation: Any, count: int) -> NDArray[np.int64]:
    """An observation as `count` integers `[count]`. Raises ValueError if it is not that."""
    values = _as_array(observation)
    if values.dtype.kind not in "biu":
        raise ValueError(f"the observation {_short(observation)} is {values.dtype}, not integers")
    if values.size != count:
        raise ValueError(f"the observation has the shape {list(values.shape)}, not {count} numbers")
    if values.dtype == np.uint64:
        values = np.minimum(values, np.iinfo(np.int64).max)  # larger ones would become negative
    return values.reshape(count).astype(np.int64, copy=False)


def _planes_encoder(shape: tuple[int, ...], categories: tuple[int, ...]) -> Encoding:
    """One-hot planes of symbols [H, W, C]: a plane for each possible value of each of the C channels."""
    height, width, _ = shape
    offsets = np.cumsum(categories) - categories
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[:, None]
    planes = np.zeros((sum(categories), height, width), np.float32)

    def encode(observation: Any) -> NDArray[Any]:
        values = as_numbers(observation, shape, _UINT8)
        if not (values < categories).all():
            raise ValueError(
                f"the observation holds {values.max((0, 1))}, beyond the {categories} values of its planes"
            )
        planes.fill(0.0)
        planes[offsets + values, rows, columns] = 1.0
        return planes

    return Encoding(planes.shape, "float32", encode)


def minigrid_encoder(environment: gymnasium.Env[Any, Any], env_id: str) -> Encoding | None:
    """Like `encoder_of`, for MiniGrid's symbols: kind of object, colour and state. None for other environments."""
    minigrid = sys.modules.get("minigrid.minigrid_env")
    if minigrid is None or not isinstance(environment.unwrapped, minigrid.MiniGridEnv):
        return None
    space = environment.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype != np.uint8:
        return None
    maker = _image_maker(environment)
    if type(maker).__name__ == "OneHotPartialObsWrapper":
        return encoder_of(spaces.Box(0, 1, space.shape, np.uint8), env_id)  # it promises numbers up to 255
    if space.shape[2] != 3 or maker is not environment.unwrapped:
        return None
    constants = importlib.import_module("minigrid.core.constants")
    categories = (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), _MINIGRID_STATES)
    return _planes_encoder(space.shape, categories)


_MINIGRID_STATES = 4
"""A door is open, closed or locked; in a view of the whole grid the agent faces one of four directions."""
_SYMBOL_WRAPPERS = (
    "ImgObsWrapper", "FullyObsWrapper", "ViewSizeWrapper", "DictObservationSpaceWrapper", "DirectionObsWrapper",
)  # fmt: skip
"""MiniGrid's own wrappers whose image holds kinds of objects, colours and states, if that of the environment does."""


def _image_maker(environment: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The wrapper from which MiniGrid's image has its meaning; the environment without wrappers if none changes it.

    A wrapper of somebody else is taken to change nothing if it leaves shape, type and bounds as they are.
    """
    while isinstance(environment, gymnasium.Wrapper):
        below = environment.env
        wrapper = type(environment)
        if wrapper.__module__ == "minigrid.wrappers" and issubclass(wrapper, gymnasium.ObservationWrapper):
            passes = wrapper.__name__ in _SYMBOL_WRAPPERS
        else:
            passes = _image_of(environment.observation_space) == _image_of(below.observation_space)
        if not passes:
            break
        environment = below
    return environment


def _image_of(space: spaces.Space[Any]) -> spaces.Space[Any] | None:
    return space.spaces.get("image") if isinstance(space, spaces.Dict) else space


def actions_of(space: spaces.Space[Any], env_id: str) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Number of discrete actions, or the bounds of continuous ones. Raises `UsageError` for other spaces."""
    number, most, what = 0, MOST_ACTIONS, "actions"
    if isinstance(space, spaces.Discrete):
        number = int(space.n)
    elif isinstance(space, spaces.Box):
        number = math.prod(space.shape)
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        number, most, what = 2 ** min(math.prod(space.shape), 99), MOST_COMBINATIONS, "combinations of actions"
        if isinstance(space, spaces.MultiDiscrete):
            number = math.prod(space.nvec.ravel().tolist())
    if number > most:
        raise UsageError(
            f"{env_id} has more {what} in {_short(space)} than the {most:_} supported: wrap it to take fewer, or a Box"
        )
    if isinstance(space, spaces.Box) and number > 0:
        low = np.where(space.bounded_below, space.low, -np.inf)  # infinite bounds of whole numbers are the type's own
        high = np.where(space.bounded_above, space.high, np.inf)
        return 0, tuple(map(float, low.ravel())), tuple(map(float, high.ravel()))
    if number == 0:
        refuse_old_gym(space, env_id, "action_space")
        raise UsageError(
            f"{env_id} has actions in {_short(space)}, which is not supported: wrap it to take Discrete, "
            "MultiDiscrete, MultiBinary or Box"
        )
    return number, (), ()


def choices_of(space: spaces.Space[Any]) -> list[Any]:
    """The Gymnasium action for each of our discrete actions; of several parts the last one changes fastest."""
    if isinstance(space, spaces.Discrete):
        return [int(space.start) + i for i in range(int(space.n))]
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    sizes, start = np.full(space.shape, 2), np.zeros((), np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec, space.start
    combinations = itertools.product(*map(range, sizes.ravel().tolist()))
    return [(np.array(one).reshape(sizes.shape) + start).astype(space.dtype) for one in combinations]
