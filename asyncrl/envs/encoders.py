"""Gymnasium's spaces: how observations become the arrays of a network, and what its discrete actions stand for.

Images and planes [rows, columns, channels] become [C, H, W] (uint8 stays uint8, everything else becomes float32),
vectors float32, Discrete, MultiDiscrete and MiniGrid's symbols one-hot float32, and a Dict or Tuple of these one vector
of all its parts. Discrete actions count from 0 whatever the start of the space is; each combination of MultiDiscrete
and MultiBinary actions is an action.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Kind

SMALLEST_SCREEN = 36
"""Images with fewer rows are boards."""
MOST_COMBINATIONS = 4096
"""Most combinations of the parts of an action: a network has an output for each."""

Encoder = Callable[[Any], NDArray[Any]]
"""Converts a Gymnasium observation to ours. Raises ValueError, with the reason, for one that is not in its space."""


def encoder_of(space: spaces.Space[Any], env_id: str) -> tuple[tuple[int, ...], str, Encoder]:
    """Shape, dtype and conversion of the observations of a space. Raises `UsageError` if no network can use them."""
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
    largest = int(space.high.max()) if dtype == "uint8" and kind_of(shape) == "board" else 255
    if not 0 < largest < 255:
        return shape, dtype, encode
    return shape, "float32", lambda board: encode(board) * np.float32(1 / largest)


def kind_of(shape: tuple[int, ...]) -> Kind:
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
        shape, _, encode = encoder_of(part, env_id)
        if kind_of(shape) == "screen":
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


def minigrid_encoder(environment: gymnasium.Env[Any, Any]) -> tuple[tuple[int, ...], str, Encoder] | None:
    """Like `encoder_of`, for MiniGrid's symbols: kind of object, colour and state. None for other environments."""
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


def actions_of(space: spaces.Space[Any], env_id: str) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Number of discrete actions, or the bounds of continuous ones. Raises `UsageError` for other spaces."""
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


def choices_of(space: spaces.Space[Any]) -> list[Any]:
    """The Gymnasium action for each of our discrete actions; of several parts the last one changes fastest."""
    if isinstance(space, spaces.Discrete):
        return [int(space.start) + i for i in range(int(space.n))]
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    sizes = _sizes(space)
    start = space.start if isinstance(space, spaces.MultiDiscrete) else 0
    combinations = np.indices(tuple(sizes.ravel())).reshape(sizes.size, -1).T
    return [(one.reshape(sizes.shape) + start).astype(space.dtype) for one in combinations]
