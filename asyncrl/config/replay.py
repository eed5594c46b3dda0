"""What the methods with a replay memory have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncrl.config.value import ActionValueConfig


@dataclass(frozen=True)
class ReplayConfig(ActionValueConfig):
    """Settings of Gorila and Ape-X."""

    memory_steps: int = 400_000
    """Steps that the replay memory keeps, of all actors together; then the oldest go."""
    warmup_steps: int = 10_000
    """Steps in the memory before anything is learnt, also after a resume without its memory."""
    minibatch: int = 32
    """Transitions of an update."""
    replay_ratio: float = 0.25
    """Updates per step after the warm-up; actors or learner wait so that it holds. DQN's update every 4 steps: 0.25."""
    n_step: int = 1
    """Steps of a transition, after which its return bootstraps."""
    target_interval_updates: int = 1_000
    """The target network is renewed whenever the number of updates crosses a multiple of this."""
    checkpoint_replay: bool = False
    """Keep the memory in checkpoints. Without it a resumed run fills it again before it learns."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("warmup_steps", most=2**40)
        self._require_count("minibatch", most=1_000_000)
        self._require("replay_ratio", 0 < self.replay_ratio < math.inf, "must be a positive number")
        self._require("n_step", 1 <= self.n_step <= 1_000, "must be 1 to 1_000")
        self._require("target_interval_updates", self.target_interval_updates >= 1, "must be at least 1")
        self._require("memory_steps", self.memory_steps <= 2**40, "must be at most 2^40")
        least = self.workers * self.envs_per_worker * self.least_rows
        self._require(
            "memory_steps", self.memory_steps >= least,
            f"must be at least {least:_}, {self.least_rows} for each environment (4 times --t-max and more)",
        )  # fmt: skip
        self._require("warmup_steps", self.warmup_steps <= self.memory_steps, "must be at most --memory-steps")

    @property
    def least_rows(self) -> int:
        """Steps of each environment that must fit into the memory: some rollouts, and what a transition is made of."""
        return 4 * self.t_max + self.n_step + max(4, self.frame_stack)
