"""Converts between the shared parameters and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.config.run_config import RunConfig, to_plain
from asyncrl.core.errors import NotFinite, UsageError
from asyncrl.core.user_code import is_name
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
        raise UsageError("the checkpoint's network has different layers from this run's; use the same network settings")


def counts_of(checkpoint: Checkpoint) -> Counts:
    """The counts of updates in a checkpoint that fits, with those that were lost."""
    return Counts(checkpoint.updates + lost_before(checkpoint), *(checkpoint.facts[name] for name in DROPPED))


def lost_before(checkpoint: Checkpoint) -> int:
    """Updates that the run had lost at the checkpoint."""
    return int(checkpoint.facts.get("updates_lost", 0))


def flat_parameters(checkpoint: Checkpoint, layout: Layout) -> Tensor:
    """theta `[P]` of a checkpoint that fits."""
    return torch.cat([checkpoint.parameters[name].reshape(-1) for name, _ in layout])
