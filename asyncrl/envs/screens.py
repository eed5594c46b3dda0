"""From the emulator's screen to an image: two frames in grey, merged by their maximum and shrunk by cv2's INTER_AREA.

`Screens` does that with the emulator, numpy and cv2; `CompiledScreens` gives the same pixels with the compiled kernels,
where those are there and reproduce this version of cv2.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, cast

import ale_py
import cv2
import numpy as np
from numpy.typing import NDArray

from asyncrl.core import kernels

Bytes = NDArray[np.uint8]
MARGIN = 64
"""Bytes behind a merged screen that the kernel may read, with weight 0."""
_READ = kernels.compiled("screen_read", *[ctypes.c_void_p] * 4, result=ctypes.c_int)
_MERGE = kernels.compiled("screen_merge", *[ctypes.c_void_p] * 3)
_SHRINK = kernels.compiled("screen_shrink", *[ctypes.c_void_p] * 3)
UNSEEN = 255
"""No colour, because the chip's are even numbers; and no grey that is known."""


def make_screens(ale: ale_py.ALEInterface, ring: Bytes) -> Screens:
    """For an emulator and the images `[n, size, size]` to be written."""
    height, width = ale.getScreenDims()
    area = area_of(height, width, ring.shape[1]) if kernels.LIBRARY else None
    return CompiledScreens(ale, ring, area) if area else Screens(ale, ring)


class Screens:
    """The screens of an emulator in grey, and the images made of them."""

    def __init__(self, ale: ale_py.ALEInterface, ring: Bytes) -> None:
        self._ale = ale
        height, width = ale.getScreenDims()
        self._frames = tuple(np.zeros((2, height, width), np.uint8))  # the last frame of a step, and the one before
        self.merged = np.zeros((height, width), np.uint8)
        """The screen [height, width] that the newest image shows."""
        self._scratch = np.zeros((height, width), np.uint8)  # that of the step before, to be overwritten
        self._images = tuple(ring)
        self._shrink = Shrinker(height, width, ring.shape[1])

    def begin(self, image: int) -> None:
        """Show the screen as it is now, alone, in the image of this number."""
        self._ale.getScreenGrayscale(self.merged)
        self._shrink.whole(self.merged, self._images[image])

    def restore(self, merged: Bytes) -> None:
        """Continue from an earlier merged screen; what showed it must be the image before the next."""
        self.merged[:] = merged

    def read(self, left: int) -> None:
        """Read the screen of a frame after which there are 1 or 0 left in the step."""
        self._ale.getScreenGrayscale(self._frames[left])

    def show(self, before: int, image: int, *, unread: int = 0) -> None:
        """Merge the two frames that were read and show them in an image, given the number of the image before.

        `unread` frames of the step do not exist, because the game ended. As in Gymnasium, its last screen remains.
        """
        merged, self._scratch = self._scratch, self.merged
        last = self._frames[0] if unread == 0 else self.merged
        if unread < 2:
            np.maximum(last, self._frames[1], out=merged)
        else:
            np.copyto(merged, last)
        self._shrink.changes(self.merged, merged, self._images[before], self._images[image])
        self.merged = merged


class Shrinker:
    """cv2's INTER_AREA to a square image, repeated only for the rows that changed since the last image.

    When 210 rows become 84, each 5 rows become 2, independently of all others. So the image has 42 bands that can be
    shrunk separately, with the same arithmetic and so the same pixels; in general there are gcd(height, size) bands.
    Most of a screen does not change (a third of Pong's does in a step), so a step takes up to a tenth less time.
    """

    def __init__(self, height: int, width: int, size: int) -> None:
        # Bands give the same pixels only if the scale is an exact float and no row is interpolated.
        exact = Fraction(height / size) == Fraction(height, size) and size <= min(height, width)
        bands = math.gcd(height, size) if exact else 1
        self._size = size
        self._source_rows = height // bands
        self._target_rows = size // bands
        self._band_pixels = self._source_rows * width

    def whole(self, screen: Bytes, image: Bytes) -> None:
        """Shrink a screen [H, W] into an image [size, size]."""
        cv2.resize(screen, (self._size, self._size), image, interpolation=cv2.INTER_AREA)

    def changes(self, before: Bytes, screen: Bytes, image_before: Bytes, image: Bytes) -> None:
        """The same, given that `image_before` is the image of the screen `before`."""
        np.copyto(image, image_before)
        # Compared eight pixels at a time. Only the span from the first to the last change is shrunk: one call of cv2.
        changed = np.flatnonzero(before.view(np.uint64) != screen.view(np.uint64))
        if changed.size:
            first, last = 8 * int(changed[0]) // self._band_pixels, 8 * int(changed[-1]) // self._band_pixels
            bands = last + 1 - first
            rows = screen[first * self._source_rows : (last + 1) * self._source_rows]
            target = image[first * self._target_rows : (last + 1) * self._target_rows]
            cv2.resize(rows, (self._size, bands * self._target_rows), target, interpolation=cv2.INTER_AREA)


@dataclass(frozen=True)
class Area:
    """How a screen [height, width] is shrunk to an image [size, size]: which pixels are summed with which weights."""

    height: int
    width: int
    size: int
    first_x: NDArray[np.int32]
    """Where the pixels under each column begin [columns]; the number of columns is a multiple of 8."""
    weights_x: NDArray[np.float32]
    """[taps, columns]"""
    first_y: NDArray[np.int32]
    """[size]"""
    weights_y: NDArray[np.float32]
    """[size, taps]"""

    def picks(self) -> Bytes | None:
        """Where the pixels of a column are in the 16 loaded for each 4 columns; None if they lie further apart.

        As the processor wants it [columns, 4]: the place, and three bytes of 0.
        """
        places = self.first_x.reshape(-1, 4) - self.first_x.reshape(-1, 4)[:, :1]
        picks = np.full((self.first_x.size, 4), 0x80, np.uint8)
        picks[:, 0] = places.flatten()
        return picks if places.max() < 16 else None


@cache
def area_of(height: int, width: int, size: int) -> Area | None:
    """The area for screens and images of these sizes; None if the kernels do not reproduce cv2 with it.

    They do not enlarge; and where both scales are whole numbers cv2 computes in another way.
    """
    if min(height, width) < size or width % 8 or height % size == width % size == 0:
        return None
    first_x, weights_x = _taps(width, size, -size % 8)
    first_y, weights_y = _taps(height, size, 0)
    area = Area(height, width, size, first_x, np.ascontiguousarray(weights_x.T), first_y, weights_y)
    # Another version of cv2, or that of another processor, may round differently.
    noise = np.random.default_rng(0).integers(0, 256, (height, width), np.uint8)
    ring = np.zeros((1, size, size), np.uint8)
    CompiledScreens(cast(Any, _Still(noise)), ring, area).begin(0)
    same = np.array_equal(ring[0], cv2.resize(noise, (size, size), interpolation=cv2.INTER_AREA))
    return area if same else None


def _taps(length: int, size: int, unused: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Which of `length` pixels are summed for each of `size`, from which on [n], and with which weights [n, taps].

    As cv2 does in computeResizeAreaTab: pixels in part under the target have a part of the weight, unless it is below
    a thousandth. The last is repeated `unused` times, without weights.
    """
    scale = 1.0 / (size / length)
    first, weights = [], []
    for target in range(size):
        start, end = target * scale, target * scale + scale
        whole = min(scale, length - start)
        high = min(math.floor(end), length - 1)
        low = min(math.ceil(start), high)
        parts = [(low - start) / whole] if low - start > 1e-3 else []
        first.append(low - len(parts))
        parts += [1.0 / whole] * (high - low)
        parts += [min(end - high, 1.0, whole) / whole] if end - high > 1e-3 else []
        weights.append(parts)
    padded = np.zeros((size + unused, max(map(len, weights))), np.float32)
    for target, parts in enumerate(weights):
        padded[target, : len(parts)] = parts
    return np.array(first + first[-1:] * unused, np.int32), padded


def _address(array: NDArray[Any]) -> int:
    return array.ctypes.data


class _Still:
    """An emulator with only one screen."""

    def __init__(self, screen: Bytes) -> None:
        self._screen = screen

    def getScreen(self, into: Bytes) -> None:
        into[:] = self._screen

    getScreenGrayscale = getScreen


class _Struct(ctypes.Structure):
    """`struct screen` of kernels.c."""

    POINTERS = ("greys", "merged", "changed", "first_x", "weights_x", "first_y", "weights_y", "picks", "row", "total")
    NUMBERS = ("height", "width", "size", "columns", "taps_x", "taps_y")
    _fields_ = [*((name, ctypes.c_void_p) for name in POINTERS), *((name, ctypes.c_int32) for name in NUMBERS)]


class CompiledScreens(Screens):
    """The same with the compiled kernels: only what changed is turned into grey, merged and shrunk.

    The emulator's own grey is a table of its colours, which depends on the game. It is learned: whenever a colour
    appears for the first time, the emulator is asked for the whole screen in grey.
    """

    def __init__(self, ale: ale_py.ALEInterface, ring: Bytes, area: Area) -> None:
        self._ale = ale
        memory = np.zeros(area.height * area.width + MARGIN, np.uint8)
        self.merged = memory[:-MARGIN].reshape(area.height, area.width)
        self._greys = np.full(256, UNSEEN, np.uint8)
        self._changed = np.ones(area.height, np.uint8)
        self._colours = np.zeros_like(self.merged)
        self._seen = np.full((2, *self.merged.shape), UNSEEN, np.uint8)
        self._grey = np.zeros_like(self._seen)  # what was seen, in grey
        columns = area.first_x.size
        arrays: dict[str, NDArray[Any] | None] = {
            "greys": self._greys, "merged": memory, "changed": self._changed, "first_x": area.first_x,
            "weights_x": area.weights_x, "first_y": area.first_y, "weights_y": area.weights_y, "picks": area.picks(),
            "row": np.zeros(columns, np.float32), "total": np.zeros(columns, np.float32),
        }  # fmt: skip
        self._kept = arrays, ring  # the kernels know only their addresses
        self._struct = _Struct(
            **{name: None if array is None else _address(array) for name, array in arrays.items()},
            height=area.height, width=area.width, size=area.size, columns=columns,
            taps_x=len(area.weights_x), taps_y=area.weights_y.shape[1],
        )  # fmt: skip
        self._its_address = ctypes.addressof(self._struct)
        self._images = tuple(map(_address, ring))
        self._frames = tuple(map(_address, self._grey))
        self._places = tuple(
            (_address(self._colours), *map(_address, pair)) for pair in zip(self._seen, self._grey, strict=True)
        )

    def begin(self, image: int) -> None:
        """Show the screen as it is now, alone, in the image of this number."""
        self.read(0)
        self.restore(self._grey[0])
        _SHRINK(self._its_address, self._images[image], self._images[image])
        self._changed.fill(1)  # the frame before does not belong to it

    def restore(self, merged: Bytes) -> None:
        """Continue from an earlier merged screen; what showed it must be the image before the next."""
        self.merged[:] = merged
        self._changed.fill(1)

    def read(self, left: int) -> None:
        """Read the screen of a frame after which there are 1 or 0 left in the step."""
        self._ale.getScreen(self._colours)
        if _READ(self._its_address, *self._places[left]):
            self._ale.getScreenGrayscale(self._grey[left])
            self._greys[self._colours] = self._grey[left]
            self._changed.fill(1)

    def show(self, before: int, image: int, *, unread: int = 0) -> None:
        """Merge the two frames that were read and show them in an image, given the number of the image before."""
        if not unread:
            _MERGE(self._its_address, *self._frames)
        else:
            self.restore(np.maximum(self.merged, self._grey[1]) if unread < 2 else self.merged)
        _SHRINK(self._its_address, self._images[before], self._images[image])
        if unread:
            self._changed.fill(1)
