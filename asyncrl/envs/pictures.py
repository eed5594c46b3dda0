"""Pictures of an environment: what its `render()` returns, and boards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

_CHANNELS = {1: 1, 2: 1, 3: 3, 4: 3}
"""How many channels of 1 to 4 are colours: grey, grey and alpha, RGB, RGB and alpha."""
_CELL = 40
"""Height and width of a board's cell in pixels."""
FIELD, EDGE = (30, 33, 39), (52, 57, 66)
BLUE, YELLOW, GREEN, RED = (90, 160, 250), (245, 200, 70), (80, 200, 120), (235, 87, 87)


class Piece(NamedTuple):
    """What lies in a cell of a board."""

    form: Literal["ball", "paddle", "goal"]
    colour: tuple[int, int, int]


def as_picture(rendered: Any) -> NDArray[np.uint8]:
    """A picture, uint8 [height, width, 3], of whatever shows one: the newest of several, grey, with alpha, in numbers.

    Real numbers up to 1 are taken as 0 to 1, others as 0 to 255. Raises ValueError, which says what was given, if it
    is no picture.
    """
    if isinstance(rendered, list | tuple) and rendered and not isinstance(rendered[-1], list | tuple | int | float):
        rendered = rendered[-1]  # of render_mode rgb_array_list; other lists are rows of one picture
    if rendered is None or isinstance(rendered, str):
        what = "text" if isinstance(rendered, str) else "nothing"
        raise ValueError(f"{what}; it must return a picture, uint8 [height, width, 3] (render_mode rgb_array)")
    try:
        array = np.asarray(rendered)
    except Exception:  # rows of different lengths, or an object of its own kind
        array = np.array(rendered, object)
    if array.ndim == 4 and len(array):  # several pictures in one array
        array = array[-1]
    if array.ndim == 2:
        array = array[:, :, np.newaxis]
    if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in _CHANNELS or array.size == 0 or array.dtype.kind not in "biuf":
        raise ValueError(f"{_described(rendered)}, not a picture, uint8 [height, width, 3]")
    colours = _as_bytes(array[:, :, : _CHANNELS[array.shape[2]]])
    return np.array(np.broadcast_to(colours, (*colours.shape[:2], 3)), order="C")  # the next one may overwrite it


def board(rows: int, columns: int, pieces: Mapping[tuple[int, int], tuple[Piece, ...]]) -> NDArray[np.uint8]:
    """A picture, uint8 [height, width, 3], of a board with `pieces` in the cells (row, column)."""
    from PIL import Image, ImageDraw  # of films alone

    picture = Image.new("RGB", (_CELL * columns, _CELL * rows), FIELD)
    pen = ImageDraw.Draw(picture)
    for row in range(rows):
        for column in range(columns):
            x, y = _CELL * column, _CELL * row
            pen.rectangle((x, y, x + _CELL - 1, y + _CELL - 1), outline=EDGE)
            for form, colour in pieces.get((row, column), ()):
                if form == "ball":
                    pen.ellipse((x + 9, y + 5, x + _CELL - 10, y + _CELL - 14), colour)
                elif form == "paddle":
                    pen.rectangle((x + 2, y + _CELL - 12, x + _CELL - 3, y + _CELL - 4), colour)
                else:
                    pen.rectangle((x + 4, y + 4, x + _CELL - 5, y + _CELL - 5), outline=colour, width=3)
    return np.array(picture)


def resized(picture: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """A picture as large as possible within the `shape` [height, width, 3], black around it."""
    import cv2  # a slow import, rarely needed

    height, width, _ = shape
    scale = min(height / picture.shape[0], width / picture.shape[1])
    rows, columns = (max(1, round(size * scale)) for size in picture.shape[:2])
    scaled = cv2.resize(picture, (columns, rows), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)
    whole = np.zeros((height, width, 3), np.uint8)
    top, left = (height - rows) // 2, (width - columns) // 2
    whole[top : top + rows, left : left + columns] = scaled
    return whole


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Brightness as bytes. Raises ValueError for numbers that are none."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(255)
    low, high = values.min(), values.max()
    if not (low > -1 and high < 256):  # nor NaN
        raise ValueError(f"a picture of numbers from {low} to {high}; they must lie between 0 and 255, or 0 and 1")
    if values.dtype.kind == "f":
        values = np.rint(values * (255 if high <= 1.001 else 1))
    return values.clip(0, 255).astype(np.uint8)


def _described(rendered: Any) -> str:
    """The type of what is no picture, and its shape if it has one."""
    if isinstance(rendered, np.ndarray):
        return f"an array {rendered.dtype} {list(rendered.shape)}"
    return f"a {type(rendered).__name__}"
