"""What the processes of a run on one machine share: the handles of the serial and the local backend."""

from __future__ import annotations

import math

from torch import Tensor

from asyncrl.experience.batches import PATIENCE_SECONDS, Batches
from asyncrl.experience.blocks import RolloutShape
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.moments import RunMoments
from asyncrl.runtime.normalize import moments_shape
from asyncrl.runtime.run import Handles, RunSpec, load_page, state_shapes
from asyncrl.storage.checkpoints import Checkpoint

GRADIENT, IN_STEP = "gradient", "in step"
"""Values of a page's EXPERIENCE, beside "queue"."""


def build_handles(spec: RunSpec, theta: Tensor, checkpoint: Checkpoint | None = None) -> Handles:
    """Shared memory for a run that begins with theta `[P]`, or goes on from a checkpoint.

    Raises UsageError, naming the setting, for a checkpoint that does not fit.
    """
    config, page = spec.config, load_page(spec.page)
    clock = Clock(
        config.workers,
        config.total_steps,
        base_steps=checkpoint.steps if checkpoint else 0,
        base_seconds=checkpoint.seconds if checkpoint else 0.0,
        learner=page.EXPERIENCE != GRADIENT,
    )
    lock_file = str(spec.folder.path / "store.lock") if config.update == "locked" else None
    store = SharedStore(theta, config.descent, config.workers, clock, lock_file)
    moments = RunMoments(
        config.workers, math.prod(moments_shape(spec.environment, spec.spaces)) if config.normalize_observations else 0
    )
    experience = None
    if page.EXPERIENCE != GRADIENT:
        in_step = page.EXPERIENCE == IN_STEP
        length, most = (1, 0) if in_step else (config.queue_length, config.batch_rollouts)  # type: ignore[attr-defined]
        patience = math.inf if config.backend == "serial" else PATIENCE_SECONDS  # in turns, nobody is lost
        experience = Batches(rollout_shape(spec), config.workers, clock, in_step, length, most, patience)
    handles = Handles(store, clock, moments, experience)
    if checkpoint is not None:
        restore(handles, theta, checkpoint)
    return handles


def restore(handles: Handles, theta: Tensor, checkpoint: Checkpoint) -> None:
    """Put theta `[P]`, statistics, moments and counts of a checkpoint into the memory of a run."""
    dropped = checkpoint.facts["dropped_gradients"]
    handles.store.restore(theta, checkpoint.tensors, checkpoint.updates, dropped)
    handles.moments.restore(checkpoint.tensors)


def rollout_shape(spec: RunSpec) -> RolloutShape:
    """What all rollouts of a run have in common."""
    config = spec.config
    moments = moments_shape(spec.environment, spec.spaces) if config.normalize_observations else ()
    return RolloutShape(
        config.t_max, config.envs_per_worker, spec.spaces, state_shapes(spec), load_page(spec.page).EXTRAS, moments
    )
