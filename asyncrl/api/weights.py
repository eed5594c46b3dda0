"""Weights of another run for a new one, layer by layer where they fit (--load)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from asyncrl.api.playing import load_checkpoint
from asyncrl.core.errors import UsageError
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Layout
from asyncrl.runtime.snapshots import name_parameters
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import BadCheckpoint, Checkpoint
from asyncrl.storage.run_folder import RunFolder

Shapes = Mapping[str, tuple[int, ...]]
MOMENTS = ("observation_moments", "return_moments")


def taken_from(
    plan: Plan, theta: Tensor, layout: Layout, say: Callable[[str], object]
) -> tuple[Tensor, dict[str, Tensor]]:
    """theta `[P]` with the layers that the run or checkpoint of --load has too, and its moments, if they fit.

    A layer is taken if all its parameters have the same names and shapes. Moments of observations and returns belong to
    an environment, so they are taken from a run of the same one. `say` is called with one line: what was taken, what
    was not, and why. Only tensors and counters are read. Raises UsageError if there is no such checkpoint, or if none
    of its layers fits.
    """
    source = plan.config.load
    which, checkpoint = _checkpoint(Path(source))
    here, there = _by_layer(dict(layout)), _by_layer({name: own.shape for name, own in checkpoint.parameters.items()})
    left = {layer: _difference(shapes, there.get(layer)) for layer, shapes in here.items()}
    reasons = ", ".join(f"{layer} ({why})" for layer, why in left.items() if why)
    taken = [layer for layer, why in left.items() if not why]
    if not taken:
        raise UsageError(f"--load {source}: no layer of its network fits: {reasons}")
    mixed = theta.clone()
    for name, own in name_parameters(mixed, layout).items():
        if _layer_of(name) in taken:
            own.copy_(checkpoint.parameters[name])
    moments, why = _moments(plan, checkpoint)
    unused = ", ".join(sorted(there.keys() - here.keys()))
    say(
        f"weights from {source} ({which}, step {checkpoint.steps:,}): loaded {', '.join(taken)}"
        + (f"; skipped {reasons}" if reasons else "")
        + (f"; unused: {unused}" if unused else "")
        + (f"; {why}" if why else "")
    )
    return mixed, moments


def _checkpoint(path: Path) -> tuple[str, Checkpoint]:
    """A checkpoint by its folder, or the best one of a run, or the newest if it has no best one. Raises UsageError."""
    if (path / checkpoints.MANIFEST).is_file():
        try:
            return path.name, checkpoints.load(path)
        except BadCheckpoint as error:
            raise UsageError(f"--load {path}: {error}") from None
    folder = RunFolder.open(path)
    name = "best" if checkpoints.find(folder.checkpoints, "best") else "newest"
    return f"{name} checkpoint", load_checkpoint(folder, name)


def _layer_of(name: str) -> str:
    """The layer of a parameter: `policy` for `policy.weight`."""
    return name.rpartition(".")[0] or name


def _by_layer(shapes: Shapes) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of each layer's parameters, by the parameters' names."""
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        layers.setdefault(_layer_of(name), {})[name] = tuple(shape)
    return layers


def _difference(here: Shapes, there: Shapes | None) -> str:
    """Why a layer of that network cannot be taken for this one; "" if it can."""
    if there is None:
        return "not in the checkpoint"
    if here.keys() != there.keys():
        return "different parameters in the checkpoint"
    different = next((name for name in here if here[name] != there[name]), None)
    return "" if different is None else f"{_size(here[different])} here, {_size(there[different])} there"


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _moments(plan: Plan, checkpoint: Checkpoint) -> tuple[dict[str, Tensor], str]:
    """The moments, and what is to be said of them; without normalisation nothing."""
    config = plan.config
    if not (config.normalize_observations or config.normalize_returns):
        return {}, ""
    if checkpoint.facts.get("env_id") != plan.environment.env_id:
        return {}, "normalisation starts afresh for a different environment"
    found = {name: checkpoint.tensors[name] for name in MOMENTS if name in checkpoint.tensors}
    if len(found) < len(MOMENTS) or found[MOMENTS[0]].shape != (1 + 2 * plan.moments_size,):
        return {}, "normalisation starts afresh: that run normalised different observations"
    return found, "normalisation loaded too"
