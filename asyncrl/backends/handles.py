"""What the processes of one machine share: the store, the counters, and the memory for rollouts.

What experience needs is imported where it is built: workers that learn from their own rollouts have no use for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from asyncrl.algorithm import GRADIENT, IN_STEP, MEMORY
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.normalize import RunMoments, make_normalizer
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import LEARNER, Experience
from asyncrl.runtime.run import Handles, RunSpec

if TYPE_CHECKING:
    from asyncrl.experience.blocks import RolloutShape


def shared(
    spec: RunSpec, theta: Tensor, steps: int = 0, seconds: float = 0.0, trains: bool = True, shards: int = 0
) -> Handles:
    """What the processes of one machine share; begun as `clock_of` says.

    A run that does not train needs no room for rollouts. `shards`: those that apply gradients.
    """
    config, clock = spec.config, clock_of(spec, steps, seconds)
    lock_file = str(spec.folder.store_lock) if config.update == "locked" else None
    if shards:
        from asyncrl.parameters.pushing import PushingStore

        store: SharedStore = PushingStore(theta, config.descent, config.workers, clock, shards, lock_file)
    else:
        store = SharedStore(theta, config.descent, config.workers, clock, lock_file)
    moments = RunMoments(config.workers, spec.moments_size)
    experience = experience_of(spec, clock, moments) if trains and spec.method.experience != GRADIENT else None
    return Handles(store, clock, moments, experience)


def clock_of(spec: RunSpec, steps: int = 0, seconds: float = 0.0) -> Clock:
    """The counters of a run that made so many steps in so many seconds before it was resumed."""
    return Clock(spec.config.all_workers, spec.config.total_steps, steps, seconds, spec.learners)


def experience_of(spec: RunSpec, clock: Clock, moments: RunMoments) -> Experience:
    """Where rollouts of a run go on their way to a learner of this machine."""
    if spec.method.experience == MEMORY:
        from asyncrl.backends.replay_plans import memory_plan
        from asyncrl.experience.replay import Replay

        make = partial(make_normalizer, moments, LEARNER, spec)
        place = (spec.random_part, *([spec.first_worker] if spec.first_worker else []))
        return Replay(memory_plan(spec, place), clock, make)
    from asyncrl.experience.batches import Batches

    in_step = spec.method.experience == IN_STEP
    most = 0 if in_step else spec.config.batch_rollouts  # type: ignore[attr-defined]
    shape, serial = rollout_shape(spec), spec.config.backend == "serial"
    return Batches(shape, spec.config.workers, clock, in_step, spec.room, most, serial)


def rollout_shape(plan: Plan) -> RolloutShape:
    """What all rollouts of a run have in common."""
    from asyncrl.experience.blocks import RolloutShape

    config = plan.config
    return RolloutShape(
        config.t_max, config.envs_per_worker, plan.spaces, plan.state_shapes, plan.method.extras, plan.moments_shape
    )


def experience_bytes(plan: Plan) -> int:
    """Bytes of shared memory that rollouts of a run take on their way to a learner; 0 without one.

    Of several replay hosts it is the memory of the first: the others may be on other machines.
    """
    kind, config = plan.method.experience, plan.config
    if kind == GRADIENT or config.backend == "collective":
        return 0
    if kind == MEMORY:
        from asyncrl.backends.replay_plans import memory_plan, memory_plan_of_host

        return (memory_plan_of_host(plan, 0, (0,)) if plan.replay_hosts else memory_plan(plan)).bytes
    from asyncrl.experience.blocks import ring_bytes

    return config.workers * ring_bytes(rollout_shape(plan).layout(), plan.room)
