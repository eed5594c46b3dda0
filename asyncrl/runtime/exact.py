"""The state of all workers in a checkpoint, with which a run of the serial backend goes on exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.storage.checkpoints import Checkpoint
from asyncrl.storage.files import plain

MAY_CHANGE = {
    "total_steps", "max_seconds", "stop_at_score", "quiet", "resume", "runs_dir", "run_name",
    "checkpoint_interval_steps", "checkpoints_kept", "record_interval_seconds", "on_worker_error",
    "worker_restarts", "hang_seconds", "learning_rate", "anneal_learning_rate", "max_gradient_norm",
}  # fmt: skip
"""Settings that may change when a run resumes exactly: no state depends on them."""


def exact_state(checkpoint: Checkpoint, config: RunConfig) -> dict[str, Any] | None:
    """The state of all workers at the checkpoint; None if it has none, or if the settings have changed."""
    data = checkpoint.facts.get("exact")
    before, now = checkpoint.facts["config"], plain(to_plain(config))
    if data is None or any(before.get(name) != now[name] for name in now.keys() - MAY_CHANGE):
        return None
    try:
        state: dict[str, Any] = join(data, checkpoint.tensors)
    except KeyError as error:
        raise UsageError(f"the checkpoint of step {checkpoint.steps} cannot be used: it lacks {error}") from None
    return state


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
