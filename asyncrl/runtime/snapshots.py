"""Converts between the shared parameters and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import NotFinite
from asyncrl.core.flat import split
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.run import Layout, Run
from asyncrl.storage.checkpoints import Checkpoint

DROPPED = Counts._fields[1:]
"""Names of the facts that count dropped gradients."""
REPLAY = "replay."
"""Prefix of a replay memory's tensors in a checkpoint."""


def keeps_replay(config: RunConfig) -> bool:
    """Whether checkpoints contain the replay memory."""
    return bool(getattr(config, "checkpoint_replay", False))


def beside_theta(run: Run, replay: bool = False) -> dict[str, Tensor]:
    """Copies of what a checkpoint has beside theta, by name: statistics and, with `replay`, the memory."""
    beside = run.handles.store.state() | run.handles.moments.state()
    if replay and run.handles.experience is not None and keeps_replay(run.spec.config):
        memory = run.handles.experience.state() or {}
        beside |= {f"{REPLAY}{name}": tensor for name, tensor in memory.items()}
    return beside


def take_checkpoint(
    run: Run,
    theta: Tensor,
    beside: dict[str, Tensor],
    *,
    steps: int,
    seconds: float,
    updates: int,
    best_score: float | None,
    exact: tuple[Any, dict[str, Tensor]] = (None, {}),
) -> Checkpoint:
    """The run as it was when `theta` `[P]` and `beside` were copied.

    Workers go on writing meanwhile, so theta may mix consecutive updates; steps and updates were counted just before,
    so that it has all that are counted. `exact` is the state of all workers, as data and tensors, where a backend can
    tell it. Raises NotFinite if theta holds what is no number.
    """
    require_finite(theta, run.spec.layout)
    data, tensors = exact
    store = run.handles.store
    return Checkpoint(
        steps=steps,
        updates=updates,
        seconds=seconds,
        parameters=name_parameters(theta, run.spec.layout),
        tensors=beside | tensors,
        facts={
            "algorithm": run.spec.algorithm,
            "env_id": run.spec.environment.env_id,
            "optimizer": run.spec.config.optimizer,
            **dict(zip(DROPPED, store.counts()[1:], strict=True)),
            "updates_lost": store.lost,
            "part": run.spec.part,
            "config": to_plain(run.spec.config),
            "exact": data,
            "best_score": best_score,
        },
    )


def require_finite(theta: Tensor, layout: Layout) -> None:
    """Raise NotFinite, naming the parameter, if a snapshot `[P]` holds a NaN or an infinity."""
    names = [name for name, tensor in name_parameters(theta, layout).items() if not bool(torch.isfinite(tensor).all())]
    if names:
        raise NotFinite(f"the shared parameters hold numbers that are not finite, in {', '.join(names)}")


def name_parameters(theta: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The flat vector `[P]` as named tensors."""
    pieces = split(theta, [shape for _, shape in layout])
    return {name: piece for (name, _), piece in zip(layout, pieces, strict=True)}
