"""What the methods with a replay memory have in common."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.config.groups import LearnerSettings, Settings, limited
from asyncrl.config.run_config import RunConfig


@dataclass(frozen=True)
class ReplayConfig(RunConfig, LearnerSettings):
    """Settings of the memory, and of how a learner samples from it."""

    memory_steps: int = limited(400_000, 1, 2**40)
    """Capacity of the replay memory in steps, for all actors together; when full, the oldest are overwritten."""
    warmup_steps: int = limited(10_000, 1, 2**40)
    """Steps in the memory before learning starts, also after resuming without the memory."""
    minibatch: int = limited(32, 1, 1_000_000)
    """Transitions per update."""
    replay_ratio: float = limited(0.25, above=0)
    """Updates per step after the warm-up, kept by making actors or learner wait. 0.25 is DQN's update every 4 steps."""
    n_step: int = limited(1, 1, 1_000)
    """Number of rewards in a transition's return before it bootstraps."""
    target_interval_updates: int = limited(1_000, 1)
    """Updates between refreshes of the target network."""
    checkpoint_replay: bool = False
    """Save the replay memory in checkpoints. Otherwise a resumed run refills it before it learns."""
    replay_hosts: int = limited(0, 0)
    """Ray backend: processes that share out memory, warm-up and hosts; 0: the memory is in the learner's process."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        least = self.workers * self.envs_per_worker * self.least_rows
        self._require(
            "memory_steps", self.memory_steps >= least,
            f"must be at least {least:_}, {self.least_rows} for each environment (4 times --t-max and more)",
        )  # fmt: skip
        self._require("warmup_steps", self.warmup_steps <= self.memory_steps, "must be at most --memory-steps")
        if self.backend == "ray":
            fits = self.replay_hosts <= self.most_hosts
            self._require("replay_hosts", fits, "must be at most --hosts: each holds the memory of at least one host")

    @property
    def least_rows(self) -> int:
        """Steps of each environment that must fit into the memory: some rollouts and a transition."""
        return 4 * self.t_max + self.n_step + max(4, self.frame_stack)


@dataclass(frozen=True)
class PrioritySettings(Settings):
    """How often each step is sampled, by its newest error (Schaul et al. 2016)."""

    priority_exponent: float = limited(0.6, 0)
    """alpha: how much more often steps with large errors are sampled; 0: uniform sampling."""
    importance_exponent: float = limited(0.4, 0)
    """beta: how much of the resulting bias the weights in the loss correct; 1: all of it."""


@dataclass(frozen=True)
class StabilitySettings(Settings):
    """Gorila's rules for dropping and counting gradients, for any Config derived from this class (Nair et al. 2015).

    Gradients dropped by these rules never end a run.
    """

    max_staleness: int = limited(0, 0)
    """Drop a gradient if more updates than this by others happened since its parameters were read; 0: never."""
    max_loss_deviations: float = limited(0.0, 0)
    """Drop a gradient whose loss is more than this many standard deviations above its worker's mean; 0: never."""


@dataclass(frozen=True)
class ContinuousReplayConfig(ReplayConfig, PrioritySettings):
    """Settings of SAC and Ape-X DPG."""

    layers_after_network = True
    env_id: str = "Pendulum-v1"
    """Environment with continuous actions: any Gymnasium id, or module:factory."""
    learning_rate_schedule: str = "constant"
    """Factor of the learning rate over total_steps: linear, cosine, constant, or points (0:1,0.5:0.1,1:0)."""
    max_gradient_norm: float = 0.0
    """Scale gradients with a larger L2 norm down to this norm; 0: never."""
    normalize_observations: bool = False
    """Normalise each component (pixel) of observations to mean 0 and standard deviation 1 over all workers."""
    hidden_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers of policy and critics; empty: 256 256."""
    envs_per_worker: int = 1
    """Environments of each worker (E), evaluated as one batch."""
    t_max: int = 4
    """Steps of each environment between two pulls of the parameters."""
    minibatch: int = 256
    """Transitions per update."""
