"""State of any depth as what a checkpoint can hold: plain data, and tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TENSOR = "$tensor"


def split(state: Any, prefix: str) -> tuple[Any, dict[str, Tensor]]:
    """Plain JSON data and tensors, named `prefix`, a dot and a number.

    Arrays, tensors and bytes become tensors; dicts, lists, tuples, numbers, texts and None stay.
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor | np.ndarray | bytes):
            name = f"{prefix}.{len(tensors)}"
            tensor = torch.frombuffer(bytearray(value), dtype=torch.uint8) if isinstance(value, bytes) else value
            tensors[name] = torch.as_tensor(tensor)
            return {_TENSOR: name, "type": type(value).__name__}
        if isinstance(value, Mapping):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        return value

    return walk(state), tensors


def join(data: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `split` was given; tuples come back as lists."""
    if isinstance(data, Mapping):
        if _TENSOR not in data:
            return {key: join(item, tensors) for key, item in data.items()}
        tensor = tensors[data[_TENSOR]]
        if data["type"] == "bytes":
            return tensor.numpy().tobytes()
        return tensor.numpy() if data["type"] == "ndarray" else tensor
    return [join(item, tensors) for item in data] if isinstance(data, list) else data
