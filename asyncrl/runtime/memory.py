"""Tensors in shared memory."""

from __future__ import annotations

import torch
from torch import Tensor


def shared_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros in memory that every process which is handed the tensor reads and writes."""
    tensor = torch.zeros(*shape, dtype=dtype)
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor
