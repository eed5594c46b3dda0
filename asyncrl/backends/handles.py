"""What the processes of a run share: the handles of the serial and the local backend, of a host, and of a rank.

A run imports only what it uses, so what hosts and ranks need is imported where it is built.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from asyncrl.algorithm import GRADIENT, IN_STEP, MEMORY, algorithm_of
from asyncrl.config.replay import ReplayConfig
from asyncrl.config.run_config import RunConfig
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience.batches import Batches, batches_bytes
from asyncrl.experience.blocks import RolloutShape
from asyncrl.experience.replay import Replay, ReplayPlan
from asyncrl.experience.steps import StepShape
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.accord import Accord
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.normalize import RunMoments, make_normalizer, moments_shape, moments_size
from asyncrl.runtime.protocols import LEARNER, Experience
from asyncrl.runtime.run import Handles, RunSpec, state_shapes
from asyncrl.runtime.snapshots import REPLAY, counts_of, lost_before
from asyncrl.storage.checkpoints import Checkpoint

ON_THE_WAY = 2
"""Several hosts: rollouts of each actor for which there is room on the way to a replay memory."""


def build_handles(spec: RunSpec, theta: Tensor, checkpoint: Checkpoint | None = None, trains: bool = True) -> Handles:
    """Shared memory for a run that begins with theta `[P]`, or resumes from a checkpoint.

    A run that does not train needs no room for rollouts.
    Raises UsageError, naming the setting, for a checkpoint that does not fit.
    """
    begun = (checkpoint.steps, checkpoint.seconds) if checkpoint else (0, 0.0)
    if spec.config.backend == "collective":
        handles = build_rank_handles(spec, theta, 0, *begun)
    elif spec.config.backend == "ray":
        handles = build_mirror_handles(spec, theta, *begun)
    else:
        handles = build_shared_handles(spec, theta, trains, *begun)
    if checkpoint is not None:
        restore(handles, theta, checkpoint)
    return handles


def build_shared_handles(
    spec: RunSpec, theta: Tensor, trains: bool = True, steps: int = 0, seconds: float = 0.0, shards: int = 0
) -> Handles:
    """What the processes of one machine share; begun as `build_clock` says. `shards`: those that apply gradients."""
    config, algorithm = spec.config, algorithm_of(spec.algorithm)
    clock = build_clock(spec, steps, seconds)
    lock_file = str(spec.folder.path / "store.lock") if config.update == "locked" else None
    if shards:
        from asyncrl.parameters.outbox import Outbox

        store: SharedStore = Outbox(theta, config.descent, config.workers, clock, shards)
    else:
        store = SharedStore(theta, config.descent, config.workers, clock, lock_file)
    moments = RunMoments(config.workers, moments_size(moments_shape(config, spec.environment, spec.spaces)))
    experience = None
    if trains and algorithm.experience != GRADIENT:
        experience = build_experience(spec, clock, moments)
    return Handles(store, clock, moments, experience)


def as_one_machine(config: RunConfig, workers: int) -> RunConfig:
    """The settings of the part of a run on several machines that is on one of them."""
    plain = type(config)
    if isinstance(config, ReplayConfig):
        config = replace(config, replay_hosts=0)
    return replace(
        config, backend="local", workers=workers, hosts=1, address="", parameter_shards=1, learner_resource="",
        push=plain.push,
        statistics="per-worker" if config.per_worker_statistics else "shared",
    )  # fmt: skip


def as_one_host(algorithm: str, config: RunConfig) -> RunConfig:
    """The settings of one of several hosts. If each has a replay memory of its own, that is its share of the steps."""
    one, hosts = as_one_machine(config, config.workers), config.most_hosts
    if not learns_on_hosts(algorithm, config):
        return one
    if config.hosts != "auto":
        one = with_decays_of(one, hosts)
    if not isinstance(one, ReplayConfig):
        return one
    return replace(one, memory_steps=one.memory_steps // hosts, warmup_steps=one.warmup_steps // hosts)


def with_decays_of(config: RunConfig, hosts: int) -> RunConfig:
    """The settings of a host whose optimiser sees one update in `hosts`, but remembers as many updates of the run."""
    return replace(
        config, optimizer_decay=config.optimizer_decay**hosts, optimizer_momentum=config.optimizer_momentum**hosts
    )


def learns_on_hosts(algorithm: str, config: RunConfig) -> bool:
    """Whether each of several hosts learns, and theta is in shards between them; else one learner has it."""
    return algorithm_of(algorithm).experience == GRADIENT or is_bundled(config) or learners_of(algorithm, config) > 1


def replay_hosts_of(config: RunConfig) -> int:
    """Number of actors that have the replay memory of a run on several hosts; 0: the learner or the hosts have it."""
    return config.replay_hosts if config.backend == "ray" and isinstance(config, ReplayConfig) else 0


def pushes_every_update(algorithm: str, config: RunConfig) -> bool:
    """Whether hosts send every gradient to the shards, which apply them."""
    return config.push == "every-update" and learns_on_hosts(algorithm, config)


def build_host_handles(spec: RunSpec, theta: Tensor, shards: int = 0) -> Handles:
    """What the processes of one of several hosts share. `shards`: those that apply its gradients; 0: it does so itself.

    If a learner is elsewhere, the store is a copy of its theta, and the experience has the rollouts on their way to it.
    """
    if learns_on_hosts(spec.algorithm, spec.config):
        return build_shared_handles(spec, theta, shards=shards)
    clock = build_clock(spec)
    from asyncrl.parameters.mirror import Mirror

    store = Mirror(theta, spec.config.descent, spec.config.workers, clock)
    moments = RunMoments(spec.config.workers, moments_size(moments_shape(spec.config, spec.environment, spec.spaces)))
    if algorithm_of(spec.algorithm).experience != MEMORY:
        return Handles(store, clock, moments, build_experience(spec, clock, moments))
    shape = rollout_shape(spec.algorithm, spec.config, spec.environment, spec.spaces)
    queue = Batches(shape, spec.config.workers, clock, in_step=False, capacity=ON_THE_WAY)
    return Handles(store, clock, moments, queue)


def build_mirror_handles(spec: RunSpec, theta: Tensor, steps: int, seconds: float) -> Handles:
    """What the driver of the ray backend has; begun as `build_clock` says."""
    from asyncrl.parameters.mirror import Mirror

    clock = build_clock(spec, steps, seconds)
    store = Mirror(theta, spec.config.descent, spec.config.all_workers, clock)
    return Handles(store, clock, RunMoments(1, moments_size(moments_shape(spec.config, spec.environment, spec.spaces))))


def build_clock(spec: RunSpec, steps: int = 0, seconds: float = 0.0) -> Clock:
    """The counters of a run that made so many steps in so many seconds before it was resumed."""
    return Clock(
        spec.config.all_workers, spec.config.total_steps, steps, seconds, learners_of(spec.algorithm, spec.config)
    )


def build_rank_handles(spec: RunSpec, theta: Tensor, rank: int, steps: int = 0, seconds: float = 0.0) -> Handles:
    """What one rank of the collective backend has, the transport still missing; begun as `build_clock` says."""
    config, algorithm = spec.config, algorithm_of(spec.algorithm)
    clock = build_clock(spec, steps, seconds)
    from asyncrl.experience.gathered import Gathered, Kept
    from asyncrl.parameters.replicas import Replicas

    accord = Accord()
    reduces = config.reduce == "gradients" and algorithm.experience != GRADIENT
    overlap = config.overlap and algorithm.experience == GRADIENT
    store = Replicas(
        theta, config.descent, config.workers, rank, clock, accord, config.check_replicas, reduces, overlap
    )
    size = moments_size(moments_shape(config, spec.environment, spec.spaces))
    experience: Gathered | Kept | None = None
    if algorithm.experience != GRADIENT:
        shape = rollout_shape(spec.algorithm, config, spec.environment, spec.spaces)
        experience = Kept(shape, clock) if reduces else Gathered(shape, config.workers, rank, clock, store, accord)
    return Handles(store, clock, RunMoments(config.workers, size, rank=True), experience, accord)


def restore(handles: Handles, theta: Tensor, checkpoint: Checkpoint) -> None:
    """Put theta `[P]`, statistics, moments and counts of a checkpoint into the memory of a run."""
    handles.store.restore(theta, checkpoint.tensors, counts_of(checkpoint))
    handles.store.lose(lost_before(checkpoint))
    handles.moments.restore(checkpoint.tensors)
    memory = {name.removeprefix(REPLAY): own for name, own in checkpoint.tensors.items() if name.startswith(REPLAY)}
    if memory and isinstance(handles.experience, Replay) and handles.experience.plan.kept:
        handles.experience.restore(memory, exactly=False)


def build_experience(spec: RunSpec, clock: Clock, moments: RunMoments) -> Experience:
    """Where rollouts of a run go on their way to a learner."""
    algorithm, config = algorithm_of(spec.algorithm), spec.config
    if algorithm.experience == MEMORY:
        make = partial(make_normalizer, moments, LEARNER, config, spec.environment, spec.spaces)
        place = (spec.part, *([spec.first_worker] if spec.first_worker else []))
        return Replay(replay_plan(spec.algorithm, config, spec.environment, spec.spaces, place), clock, make)
    shape = rollout_shape(spec.algorithm, config, spec.environment, spec.spaces)
    in_step, length = algorithm.experience == IN_STEP, queue_length(spec.algorithm, config)
    most = 0 if in_step else config.batch_rollouts  # type: ignore[attr-defined]
    return Batches(shape, config.workers, clock, in_step, length, most, config.backend == "serial")


def is_bundled(config: RunConfig) -> bool:
    """Whether each worker has its own learner and memory."""
    return getattr(config, "layout", "") == "bundled"


def learners_of(algorithm: str, config: RunConfig) -> int:
    """Number of learner processes, on all hosts."""
    if algorithm_of(algorithm).experience == GRADIENT or is_bundled(config):
        return 0
    learners = int(getattr(config, "learners", 1))
    return learners * config.most_hosts if config.backend == "ray" and learners > 1 else learners


def queue_length(algorithm: str, config: RunConfig) -> int:
    """Rollouts of each actor for which there is room on the way to the learner."""
    if algorithm_of(algorithm).experience == IN_STEP:
        return 2 if config.overlap else 1
    return int(config.queue_length)  # type: ignore[attr-defined]


def experience_bytes(algorithm: str, config: RunConfig, environment: EnvSpec, spaces: Spaces) -> int:
    """Bytes of shared memory that rollouts of a run take on their way to a learner; 0 without one.

    Of several replay hosts it is the memory of the first: the others may be on other machines.
    """
    kind = algorithm_of(algorithm).experience
    if kind == GRADIENT or config.backend == "collective":
        return 0
    if kind == MEMORY:
        if replay_hosts_of(config):
            return replay_host_plan(algorithm, config, environment, spaces, 0, (0,)).bytes
        return replay_plan(algorithm, config, environment, spaces).bytes
    shape = rollout_shape(algorithm, config, environment, spaces)
    return batches_bytes(shape, config.workers, queue_length(algorithm, config))


def replay_plan(
    algorithm: str, config: RunConfig, environment: EnvSpec, spaces: Spaces, place: tuple[int, ...] = (0,)
) -> ReplayPlan:
    """The replay memory of a run, as plain data. `place` distinguishes its random numbers from those of others."""
    assert isinstance(config, ReplayConfig)
    exponent, correction = (getattr(config, name, 0.0) for name in ("priority_exponent", "importance_exponent"))
    stack = environment.frames_per_observation
    return ReplayPlan(
        StepShape(spaces, stack, config.n_step, exponent > 0, config.reward_clip),
        config.workers,
        config.envs_per_worker,
        config.t_max,
        config.memory_steps,
        config.warmup_steps,
        config.minibatch,
        config.replay_ratio,
        exponent,
        correction,
        (config.seed, *place),
        config.checkpoint_replay,
        is_bundled(config),
        config.workers if is_bundled(config) else learners_of(algorithm, config),
    )


def replay_host_plan(
    algorithm: str, config: RunConfig, environment: EnvSpec, spaces: Spaces, number: int, place: tuple[int, ...]
) -> ReplayPlan:
    """The part of a run's replay memory that replay host `number` has: that of hosts `number`, `number` + N, ..."""
    whole = replay_plan(algorithm, as_one_machine(config, config.all_workers), environment, spaces, place)
    hosts, own = config.most_hosts, len(range(number, config.most_hosts, replay_hosts_of(config)))
    return replace(
        whole,
        actors=own * config.workers,
        capacity=whole.capacity * own // hosts,
        warmup_steps=whole.warmup_steps * own // hosts,
    )


def rollout_shape(algorithm: str, config: RunConfig, environment: EnvSpec, spaces: Spaces) -> RolloutShape:
    """What all rollouts of a run have in common."""
    moments = moments_shape(config, environment, spaces)
    state = state_shapes(algorithm, config, spaces)
    return RolloutShape(config.t_max, config.envs_per_worker, spaces, state, algorithm_of(algorithm).extras, moments)
