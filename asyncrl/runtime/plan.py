"""What a run consists of, decided by an algorithm, its settings and its environment before anything is started."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass

import torch

from asyncrl.algorithm import GRADIENT, IN_STEP, MEMORY, Algorithm, algorithm_of
from asyncrl.catalog import command_of
from asyncrl.config.run_config import RunConfig
from asyncrl.core.devices import CPU, require_device
from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import user_code
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.seeding import GLOBAL_GENERATOR


@dataclass(frozen=True)
class Plan:
    """A run, as plain data: who takes part in it, and where theta and rollouts are."""

    algorithm: str
    """Name of the algorithm: its module, for example "asyncrl.a3c", or `module:Class`."""
    config: RunConfig
    environment: EnvSpec
    spaces: Spaces

    @property
    def method(self) -> type[Algorithm]:
        """The algorithm itself."""
        return algorithm_of(self.algorithm)

    @property
    def bundled(self) -> bool:
        """Whether each worker has its own learner and memory."""
        return getattr(self.config, "layout", "") == "bundled"

    @property
    def learners(self) -> int:
        """Number of learner processes, on all hosts."""
        if self.method.experience == GRADIENT or self.bundled:
            return 0
        learners = int(getattr(self.config, "learners", 1))
        return learners * self.config.most_hosts if self.config.backend == "ray" and learners > 1 else learners

    @property
    def learns_on_hosts(self) -> bool:
        """Whether each of several hosts learns, and theta is in shards between them; else one learner has it."""
        return self.method.experience == GRADIENT or self.bundled or self.learners > 1

    @property
    def pushes_every_update(self) -> bool:
        """Whether hosts send every gradient to the shards, which apply them."""
        return self.config.push == "every-update" and self.learns_on_hosts

    @property
    def replay_hosts(self) -> int:
        """Number of actors that have the replay memory of a run on several hosts; 0: the learner or the hosts do."""
        if self.config.backend != "ray" or self.method.experience != MEMORY:
            return 0
        return int(self.config.replay_hosts)  # type: ignore[attr-defined]

    @property
    def room(self) -> int:
        """Rollouts of each actor for which there is room on the way to the learner."""
        if self.method.experience == IN_STEP:
            return 2 if self.config.overlap else 1
        return int(self.config.queue_length)  # type: ignore[attr-defined]

    @property
    def learner_device(self) -> str:
        """Where a learner computes; ranks compute on the CPU."""
        return CPU if self.config.backend == "collective" else str(getattr(self.config, "learner_device", CPU))

    @property
    def moments_shape(self) -> tuple[int, ...]:
        """The shape of the moments: one image of an Atari stack, else the whole observation; () without any."""
        if not self.config.normalize_observations:
            return ()
        shape = self.spaces.observation_shape
        return (1, *shape[1:]) if self.environment.is_atari else shape

    @property
    def moments_size(self) -> int:
        """Components of an observation that have moments."""
        return math.prod(self.moments_shape) if self.moments_shape else 0

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the recurrent state's tensors for one environment; none for a feed-forward network."""
        return _state_shapes(self.algorithm, self.config, self.spaces)

    def check(self) -> None:
        """Raise UsageError for settings that do not fit the algorithm, the environment or this processor.

        What a backend cannot run, it refuses itself.
        """
        config, kind, command = self.config, self.method.experience, command_of(self.algorithm)
        if self.spaces.is_continuous and not self.method.takes_continuous:
            raise UsageError(f"{config.env_id} has continuous actions; {command} chooses between discrete ones")
        if not self.spaces.is_continuous and not self.method.takes_discrete:
            raise UsageError(f"{config.env_id} has discrete actions; {command} chooses vectors of numbers")
        if config.statistics == "per-worker" and kind != GRADIENT:
            who = "one learner does" if self.learners == 1 else "learners do"
            raise UsageError(f"--statistics per-worker is for workers that learn; in {command} {who}")
        if config.overlap and kind not in (GRADIENT, IN_STEP):
            raise UsageError(f"--overlap is for actors that wait for the learner; those of {command} do not")
        if config.overlap and kind == GRADIENT and config.backend != "collective":
            raise UsageError(f"--overlap is for ranks (--backend collective); workers of {command} do not wait")
        if self.method.whole_episodes and (kind != GRADIENT or self.method.looks_ahead):
            raise UsageError(f"{command} has whole_episodes, which is for workers that learn and do not look ahead")
        if config.precision == "bfloat16":
            from asyncrl.runtime.precision import require_bfloat16

            require_bfloat16(self.learner_device)
        if self.bundled and (getattr(config, "learner_threads", 1) > 1 or self.learner_device != CPU):
            raise UsageError(
                "--learner-threads and --learner-device are for --layout unbundled: bundled, every worker is a learner"
            )
        if self.learner_device != CPU and (config.backend != "ray" or not config.learner_resource):
            require_device(self.learner_device)  # else it may be on another machine
        if config.update == "locked" and sys.platform == "win32":
            raise UsageError("--update locked needs a POSIX system")


@functools.lru_cache(maxsize=1)  # it takes a network, and a run asks for it twice before it begins
def _state_shapes(algorithm: str, config: RunConfig, spaces: Spaces) -> tuple[tuple[int, ...], ...]:
    method = algorithm_of(algorithm)
    with GLOBAL_GENERATOR, user_code(f"{algorithm}'s initial_state()"):
        agent = method(config, method.make_network(config, spaces), None, "worker", 0, torch.Generator())
        return tuple(tuple(part.shape[1:]) for part in agent.initial_state(1) or ())
