"""What the methods with a policy and a value have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.config.groups import LearnerSettings, limited
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError


@dataclass(frozen=True)
class PolicyConfig(RunConfig):
    """Settings of A3C, A2C, PPO and IMPALA."""

    # While a policy still explores, its most likely actions get stuck: half-way through Pong, sampled actions scored
    # -16, greedy ones -21.
    evaluation_policy: Literal["greedy", "sampled"] = "sampled"
    """greedy: evaluate with the most likely action. sampled: sample from the policy like the workers."""
    gae_lambda: float = limited(0.95, 0, 1)
    """lambda of the returns (GAE); 1 gives n-step returns."""
    # With the usual 0.01 Pong's policy kept an entropy of 1.5 out of ln 6 = 1.8 and lost points to its random actions.
    entropy_weights: tuple[float, ...] = limited((0.003,), 0)
    """Weight of the policy's entropy (beta). Several values are assigned to the workers in turn."""
    entropy_schedule: str = "constant"
    """Factor of the entropy's weight over total_steps: constant, linear, cosine, or points (0:1,0.5:0.1,1:0)."""
    value_cost: float = limited(0.5, 0)
    """Weight of the squared value error in the loss."""
    lstm_cells: int = limited(0, 0, 100_000)
    """Cells of an LSTM after the last hidden layer (256 in the paper); 0: no LSTM."""
    mean: Literal["bounded", "linear"] = "bounded"
    """Continuous actions: bound the mean to the action space with tanh, or use the paper's linear output."""
    variance: Literal["free", "state"] = "free"
    """Continuous actions: a free standard deviation per component, or the paper's single state-dependent variance."""
    first_deviation: float = limited(0.15, above=0)
    """variance free: initial standard deviation; with bounded means, relative to half the range of the action."""
    normalize_advantages: bool = False
    """Normalise the advantages of an update to mean 0 and standard deviation 1."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("entropy_weights", bool(self.entropy_weights), "needs at least one number")
        self._require_schedule("entropy_schedule")
        if self.normalize_advantages and self.t_max * self.rollouts_per_update < 2:
            raise UsageError("--normalize-advantages needs more than one step per update: --t-max or --envs-per-worker")

    @property
    def rollouts_per_update(self) -> int:
        """Number of environments whose rollouts an update is computed from."""
        return self.envs_per_worker


@dataclass(frozen=True)
class InStepConfig(PolicyConfig, LearnerSettings):
    """Settings of A2C and PPO, whose learner takes a rollout of every actor at a time."""

    @property
    def rollouts_per_update(self) -> int:
        """All workers' environments; with gradients that are averaged, those of one rank."""
        apart = self.backend == "collective" and self.reduce == "gradients"
        return self.envs_per_worker * (1 if apart else self.workers)
