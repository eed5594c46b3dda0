"""Converts between the shared parameters and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import NotFinite, UsageError
from asyncrl.core.named import is_name
from asyncrl.runtime.protocols import Counts, in_theta
from asyncrl.runtime.run import Layout, Run
from asyncrl.storage.checkpoints import Checkpoint
from asyncrl.storage.files import plain

DROPPED = Counts._fields[1:]
"""Names of the facts that count dropped gradients."""
REPLAY = "replay."
"""Prefix of a replay memory's tensors in a checkpoint."""


def keeps_replay(config: RunConfig) -> bool:
    """Whether checkpoints contain the replay memory."""
    return bool(getattr(config, "checkpoint_replay", False))


def take_checkpoint(
    run: Run,
    theta: Tensor | None,
    steps: int,
    seconds: float,
    facts: dict[str, Any],
    exact: dict[str, Any] | None = None,
    updates: int | None = None,
    beside: dict[str, Tensor] | None = None,
) -> Checkpoint:
    """The current state of the run. `theta` `[P]` is an earlier snapshot, or None to take one now.

    So are `updates`, the number of updates in it, and `beside`, the store's state besides theta. Workers go on writing
    meanwhile, so the snapshot may mix consecutive updates; steps and updates are counted just before, so that theta
    has all counted updates.
    `exact` is the state of all workers, where a backend can tell it. Raises NotFinite if theta holds what is no number.
    """
    store = run.handles.store
    updates = in_theta(store).updates if updates is None else updates
    snapshot = store.snapshot() if theta is None else theta.clone()
    require_finite(snapshot, run.spec.layout)
    data, tensors = split(exact, "exact")
    if exact is None and beside is None and run.handles.experience is not None and keeps_replay(run.spec.config):
        memory = run.handles.experience.state() or {}
        tensors |= {f"{REPLAY}{name}": tensor for name, tensor in memory.items()}
    return Checkpoint(
        steps=steps,
        updates=updates,
        seconds=seconds,
        parameters=name_parameters(snapshot, run.spec.layout),
        tensors=(store.state() | run.handles.moments.state() if beside is None else beside) | tensors,
        facts={
            "algorithm": run.spec.algorithm,
            "env_id": run.spec.environment.env_id,
            "optimizer": run.spec.config.optimizer,
            **dict(zip(DROPPED, store.counts()[1:], strict=True)),
            "updates_lost": store.lost,
            "part": run.spec.part,
            "config": to_plain(run.spec.config),
            "exact": data,
            **facts,
        },
    )


def require_finite(theta: Tensor, layout: Layout) -> None:
    """Raise NotFinite, naming the parameter, if a snapshot `[P]` holds a NaN or an infinity."""
    if bool(torch.isfinite(theta).all()):
        return
    names = [name for name, tensor in name_parameters(theta, layout).items() if not bool(torch.isfinite(tensor).all())]
    raise NotFinite(f"the shared parameters hold numbers that are not finite, in {', '.join(names)}")


def name_parameters(theta: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The flat vector `[P]` as named tensors."""
    named, start = {}, 0
    for name, shape in layout:
        size = int(torch.Size(shape).numel())
        named[name] = theta[start : start + size].view(shape)
        start += size
    return named


def check_fits(checkpoint: Checkpoint, algorithm: str, env_id: str, optimizer: str, layout: Layout) -> None:
    """Raise UsageError, with one line, if the checkpoint is of another algorithm, environment, network or optimiser.

    So it does if a fact is missing that a resumed run needs.
    """
    facts = checkpoint.facts
    for key, value in {"algorithm": algorithm, "env_id": env_id, "optimizer": optimizer}.items():
        handed = key == "env_id" and str(facts.get(key)).startswith("__main__:") and is_name(value)
        if facts.get(key) != value and not handed:  # another program may call what it hands over otherwise
            raise UsageError(f"the checkpoint's {key} is {facts.get(key)}, this run's is {value}")
    for key, kind in {"part": int, **dict.fromkeys(DROPPED, int), "config": dict}.items():
        if not isinstance(facts.get(key), kind):
            raise UsageError(f"the checkpoint of step {checkpoint.steps} cannot be used: its manifest lacks {key}")
    if {name: tuple(tensor.shape) for name, tensor in checkpoint.parameters.items()} != dict(layout):
        raise UsageError("the checkpoint's network has other layers than this run's; use the same network settings")


def counts_of(checkpoint: Checkpoint) -> Counts:
    """The counts of updates in a checkpoint that fits, with those that were lost."""
    return Counts(checkpoint.updates + lost_before(checkpoint), *(checkpoint.facts[name] for name in DROPPED))


def lost_before(checkpoint: Checkpoint) -> int:
    """Updates that the run had lost at the checkpoint."""
    return int(checkpoint.facts.get("updates_lost", 0))


def flat_parameters(checkpoint: Checkpoint, layout: Layout) -> Tensor:
    """theta `[P]` of a checkpoint that fits."""
    return torch.cat([checkpoint.parameters[name].reshape(-1) for name, _ in layout])


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
