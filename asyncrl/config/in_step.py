"""What the methods have in common whose learner takes a rollout of every actor at a time."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.config.groups import LearnerSettings
from asyncrl.config.policy import PolicyConfig


@dataclass(frozen=True)
class InStepConfig(PolicyConfig, LearnerSettings):
    """Settings of A2C and PPO."""

    @property
    def rollouts_per_update(self) -> int:
        """All workers' environments; with gradients that are averaged, those of one rank."""
        apart = self.backend == "collective" and self.reduce == "gradients"
        return self.envs_per_worker * (1 if apart else self.workers)
