"""What the methods with a replay memory have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncrl.config.groups import LearnerSettings
from asyncrl.config.value import ActionValueConfig


@dataclass(frozen=True)
class ReplayConfig(ActionValueConfig, LearnerSettings):
    """Settings of Gorila and Ape-X."""

    memory_steps: int = 400_000
    """Capacity of the replay memory in steps, for all actors together; then the oldest are overwritten."""
    warmup_steps: int = 10_000
    """Steps in the memory before learning starts, also after a resume without the memory."""
    minibatch: int = 32
    """Transitions per update."""
    replay_ratio: float = 0.25
    """Updates per step after the warm-up; the side that is ahead waits. 0.25 is DQN's update every 4 steps."""
    n_step: int = 1
    """Steps of a transition before its return bootstraps."""
    error_clip: float = 1.0
    """Clip errors to [-x, x] in the gradient of the loss, as DQN does; 0: do not clip."""
    target_interval_updates: int = 1_000
    """Updates between refreshes of the target network."""
    checkpoint_replay: bool = False
    """Save the memory in checkpoints. Without it a resumed run refills the memory before it learns."""
    replay_hosts: int = 0
    """Ray backend: processes that share the memory and its warm-up as they share the hosts; 0: beside the learner."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("warmup_steps", most=2**40)
        self._require_count("minibatch", most=1_000_000)
        self._require("replay_ratio", 0 < self.replay_ratio < math.inf, "must be a positive number")
        self._require("n_step", 1 <= self.n_step <= 1_000, "must be 1 to 1_000")
        self._require_not_negative("error_clip")
        self._require("target_interval_updates", self.target_interval_updates >= 1, "must be at least 1")
        self._require("memory_steps", self.memory_steps <= 2**40, "must be at most 2^40")
        least = self.workers * self.envs_per_worker * self.least_rows
        self._require(
            "memory_steps", self.memory_steps >= least,
            f"must be at least {least:_}, {self.least_rows} for each environment (4 times --t-max and more)",
        )  # fmt: skip
        self._require("warmup_steps", self.warmup_steps <= self.memory_steps, "must be at most --memory-steps")
        self._require_not_negative("replay_hosts")
        if self.backend == "ray":
            fits = self.replay_hosts <= self.most_hosts
            self._require("replay_hosts", fits, "must be at most --hosts: each of them has the memory of some hosts")

    @property
    def least_rows(self) -> int:
        """Steps of each environment that must fit into the memory: some rollouts and a transition."""
        return 4 * self.t_max + self.n_step + max(4, self.frame_stack)
