"""Pictures of films, of whatever `render()` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from asyncrl.envs.pictures import as_picture, resized

COLOURS = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
GREY = COLOURS[:, :, 0]
REPEATED = np.repeat(GREY[:, :, None], 3, 2)
ALPHA = np.full((5, 7, 1), 9, np.uint8)


@pytest.mark.parametrize(
    ("rendered", "picture"),
    [
        (COLOURS, COLOURS),
        (GREY, REPEATED),
        (GREY[:, :, None], REPEATED),
        (np.concatenate([GREY[:, :, None], ALPHA], 2), REPEATED),
        (np.concatenate([COLOURS, ALPHA], 2), COLOURS),
        (COLOURS.transpose(2, 0, 1), COLOURS),
        (COLOURS.astype(np.int64), COLOURS),
        (COLOURS.astype(">i2"), COLOURS),
        (COLOURS.astype(np.float32), COLOURS),
        (COLOURS / 255, COLOURS),
        (GREY > 50, np.where(REPEATED > 50, 255, 0)),
        ([COLOURS + 1, COLOURS], COLOURS),
        ((GREY,), REPEATED),
        (np.stack([COLOURS + 1, COLOURS]), COLOURS),
        (COLOURS.tolist(), COLOURS),
        (GREY.tolist(), REPEATED),
        (Image.fromarray(COLOURS), COLOURS),
        (COLOURS[::-1, ::-1], COLOURS[::-1, ::-1]),
    ],
)
def test_what_shows_a_picture_is_one(rendered: Any, picture: Any) -> None:
    """In bytes and three colours, contiguous."""
    made = as_picture(rendered)
    assert (made.dtype, made.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(made, picture)


@pytest.mark.parametrize(
    ("rendered", "line"),
    [
        (None, "nothing; it must return a picture"),
        ("a map", "text; it must return a picture"),
        ([], "a list, not a picture"),
        ([[1, 2], [3]], "a list, not a picture"),
        (3, "a int, not a picture"),
        (object(), "a object, not a picture"),
        (np.zeros(5), r"an array float64 \[5\], not a picture"),
        (np.zeros((5, 7, 5), np.uint8), r"an array uint8 \[5, 7, 5\], not a picture"),
        (np.zeros((0, 7, 3)), r"an array float64 \[0, 7, 3\], not a picture"),
        (np.zeros((5, 7, 3), complex), "an array complex128"),
        (np.full((5, 7, 3), 300), "numbers from 300 to 300; they must lie between 0 and 255"),
        (np.full((5, 7, 3), -4.0), "numbers from -4.0 to -4.0"),
        (np.full((5, 7, 3), np.nan), "numbers from nan to nan"),
    ],
)
def test_what_is_no_picture_is_described(rendered: Any, line: str) -> None:
    """So that its author knows what to change."""
    with pytest.raises(ValueError, match=line):
        as_picture(rendered)


@pytest.mark.parametrize("shape", [(5, 7, 3), (10, 4, 3), (400, 1, 3), (3, 900, 3)])
def test_a_picture_of_another_size_keeps_its_proportions(shape: tuple[int, ...]) -> None:
    """In the middle of the film's size."""
    made = resized(np.full(shape, 200, np.uint8), (20, 30, 3))
    rows, columns = (np.flatnonzero(made.any((axis, 2))) for axis in (1, 0))
    assert made.shape == (20, 30, 3)
    assert len(rows) == 20 or len(columns) == 30
    assert abs(rows[0] - (19 - rows[-1])) <= 1
    assert abs(columns[0] - (29 - columns[-1])) <= 1
    assert len(rows) == pytest.approx(min(20, 30 * shape[0] / shape[1]), abs=1)


def test_a_picture_is_not_the_environments_own_memory() -> None:
    """Which the next step may draw into."""
    canvas = np.full((4, 5, 3), 9, np.uint8)
    picture = as_picture(canvas)
    canvas[:] = 200

    assert picture.max() == 9
