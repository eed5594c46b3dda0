"""From a checkpoint back into a run: whether it fits, and its parts."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.user_code import is_name
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.run import Handles, Layout
from asyncrl.runtime.snapshots import DROPPED, REPLAY
from asyncrl.storage.checkpoints import MOST, Checkpoint


def restore(handles: Handles, theta: Tensor, checkpoint: Checkpoint, exactly: bool = False) -> None:
    """Put theta `[P]`, statistics, moments, counts and any memory of a checkpoint into the memory of a run.

    `exactly`: a serial run goes on where it was, and restores its memory itself. Raises UsageError, naming the setting,
    for a checkpoint that does not fit.
    """
    lost = checkpoint.facts.get("updates_lost", 0)
    counts = Counts(checkpoint.updates + lost, *(checkpoint.facts[name] for name in DROPPED))
    handles.store.restore(theta, checkpoint.tensors, counts)
    handles.store.lose(lost)
    handles.moments.restore(checkpoint.tensors)
    if handles.experience is None:  # as where nobody learns: a memory need not be imported
        return
    memory = {name.removeprefix(REPLAY): own for name, own in checkpoint.tensors.items() if name.startswith(REPLAY)}
    from asyncrl.experience.replay import Replay

    if isinstance(handles.experience, Replay) and handles.experience.plan.kept:
        if not memory and checkpoint.facts.get("exact") and not exactly:
            from asyncrl.backends.serial import joined

            memory = joined(checkpoint).get("experience") or {}
        if memory:
            handles.experience.restore(memory, exactly=False)


def check_fits(checkpoint: Checkpoint, algorithm: str, env_id: str, optimizer: str, layout: Layout) -> None:
    """Raise UsageError, with one line, if the checkpoint is of another algorithm, environment, network or optimiser.

    So it does if a fact is missing that a resumed run needs.
    """
    facts = checkpoint.facts
    for key, value in {"algorithm": algorithm, "env_id": env_id, "optimizer": optimizer}.items():
        handed = key == "env_id" and str(facts.get(key)).startswith("__main__:") and is_name(value)
        if facts.get(key) != value and not handed:  # another program may call what it hands over otherwise
            raise UsageError(f"the checkpoint's {key} is {facts.get(key)}, this run's is {value}")
    wrong = [] if isinstance(facts.get("config"), dict) else ["config"]
    counts = {name: facts.get(name) for name in ("part", *DROPPED)} | {"updates_lost": facts.get("updates_lost", 0)}
    wrong += [name for name, count in counts.items() if type(count) is not int or not 0 <= count < MOST]
    if wrong:
        reason = f"{wrong[0]} is missing or invalid in its manifest"
        raise UsageError(f"the checkpoint of step {checkpoint.steps} cannot be used: {reason}")
    if {name: tuple(tensor.shape) for name, tensor in checkpoint.parameters.items()} != dict(layout):
        remedy = "use the same environment and the same network settings"
        raise UsageError(f"the checkpoint's network has different layers from this run's; {remedy}")


def flat_parameters(checkpoint: Checkpoint, layout: Layout) -> Tensor:
    """theta `[P]` of a checkpoint that fits."""
    return torch.cat([checkpoint.parameters[name].reshape(-1) for name, _ in layout])
