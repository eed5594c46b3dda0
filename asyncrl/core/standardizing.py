"""Normalised observations, written to memory that is there already: in one pass where there is compiled code."""

from __future__ import annotations

from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from asyncrl.core.kernels import LANES, compiled
from asyncrl.core.moments import LARGEST, standardize

_STANDARDIZE = compiled(
    "acting_standardize", c_int, c_void_p, c_int, c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p
)


def standardize_into(raw: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """`standardize`, to the bit, of `raw` `[..., *shape]` by moments `[*shape]`, written to `out` and returned."""
    size, pixels = mean.numel(), raw.dtype == torch.uint8
    repeats = raw.shape[raw.dim() - mean.dim() + 1 :] == mean.shape[1:] and mean.shape[0] in (1, raw.shape[-mean.dim()])
    known = raw.is_cpu and out.dtype == torch.float32 and (pixels or raw.dtype == torch.float32)
    whole = raw.is_contiguous() and out.is_contiguous() and mean.is_contiguous() and scale.is_contiguous()
    if not (LANES and repeats and known and whole):
        return standardize(raw, mean, scale, out)
    places = mean.data_ptr(), scale.data_ptr()
    rows = raw.numel() // size
    _STANDARDIZE(LANES, raw.data_ptr(), pixels, *places, rows, size, LARGEST, out.data_ptr())
    return out
