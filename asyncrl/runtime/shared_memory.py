"""Tensors in shared memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros in memory that every process with this tensor reads and writes.

    Allocated in shared memory, not copied there: pages that nobody writes take no memory.
    """
    size = max(1, math.prod(shape)) * dtype.itemsize  # there is no shared memory of 0 bytes
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
