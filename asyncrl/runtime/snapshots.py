"""Between the shared parameters and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.core.config import to_plain
from asyncrl.core.errors import NotFinite, UsageError
from asyncrl.runtime.plan import Layout, RunPlan
from asyncrl.storage.checkpoints import Checkpoint


def take_checkpoint(
    plan: RunPlan, theta: Tensor | None, steps: int, seconds: float, facts: dict[str, Any]
) -> Checkpoint:
    """The run as it is now. `theta` `[P]` is a snapshot already taken, or None to take one.

    Workers go on writing meanwhile, so the snapshot may mix neighbouring updates; its steps are counted just before.
    Raises NotFinite if it holds anything that is no number.
    """
    store = plan.store
    snapshot = store.snapshot() if theta is None else theta.clone()
    require_finite(snapshot, plan.layout)
    return Checkpoint(
        steps=steps,
        updates=plan.store.updates,
        seconds=seconds,
        parameters=name_parameters(snapshot, plan.layout),
        tensors=store.state(),
        facts={
            "page": plan.page,
            "env_id": plan.spec.env_id,
            "optimizer": plan.config.optimizer,
            "layout": [[name, list(shape)] for name, shape in plan.layout],
            "dropped_gradients": plan.store.dropped,
            "part": plan.part,
            "config": to_plain(plan.config),
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


def check_fits(checkpoint: Checkpoint, page: str, env_id: str, optimizer: str, layout: Layout) -> None:
    """Raise UsageError, with one line, if the checkpoint is of another page, environment, network or optimiser."""
    mine = {"page": page, "env_id": env_id, "optimizer": optimizer}
    for key, value in mine.items():
        if checkpoint.facts.get(key) != value:
            raise UsageError(f"the checkpoint's {key} is {checkpoint.facts.get(key)}, this run's is {value}")
    stored = tuple((name, tuple(shape)) for name, shape in checkpoint.facts.get("layout", ()))
    if stored != layout:
        raise UsageError("the checkpoint's network has other layers than this run's; use the same network settings")


def flat_parameters(checkpoint: Checkpoint, layout: Layout) -> Tensor:
    """theta `[P]` of a checkpoint that fits."""
    return torch.cat([checkpoint.parameters[name].reshape(-1) for name, _ in layout])
