"""What the methods with a policy and a value have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from asyncrl.config.groups import LearnerSettings
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError


@dataclass(frozen=True)
class PolicyConfig(RunConfig):
    """Settings of A3C, A2C, PPO and IMPALA."""

    # While a policy still explores, its most likely actions get stuck: half-way through Pong, sampled actions scored
    # -16, greedy ones -21.
    evaluation_policy: Literal["greedy", "sampled"] = "sampled"
    """Whether the evaluator takes the most likely action or draws from the policy like the workers."""
    gae_lambda: float = 0.95
    """lambda of the returns (GAE); 1 is the n-step return."""
    # With the usual 0.01 Pong's policy kept an entropy of 1.5 out of ln 6 = 1.8 and lost points to its random actions.
    entropy_weights: tuple[float, ...] = (0.003,)
    """beta: weight of the policy's entropy. Several values are assigned to the workers in turn."""
    value_cost: float = 0.5
    """Weight of the squared value error."""
    lstm_cells: int = 0
    """Cells of an LSTM after the last hidden layer (the paper's has 256); 0: feed-forward."""
    mean: Literal["bounded", "linear"] = "bounded"
    """Continuous actions: keep the mean within the action's bounds by tanh, or use the paper's linear output."""
    variance: Literal["free", "state"] = "free"
    """Continuous actions: a deviation per component, or the paper's single variance that depends on the state."""
    first_deviation: float = 0.15
    """Variance free: initial standard deviation; with bounded means, as a share of half an action's range."""
    normalize_advantages: bool = False
    """Scale the advantages of an update to mean 0 and standard deviation 1."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("gae_lambda", 0 <= self.gae_lambda <= 1, "must lie between 0 and 1")
        possible = bool(self.entropy_weights) and all(0 <= weight < math.inf for weight in self.entropy_weights)
        self._require("entropy_weights", possible, "must be at least one number, none of them negative")
        self._require("value_cost", 0 <= self.value_cost < math.inf, "must not be negative")
        if self.normalize_advantages and self.t_max * self.envs_per_worker < 2:
            raise UsageError("--normalize-advantages needs more than one step per update: --t-max or --envs-per-worker")
        self._require("first_deviation", 0 < self.first_deviation < math.inf, "must be a positive number")
        self._require("lstm_cells", 0 <= self.lstm_cells <= 100_000, "must be 0 to 100_000")


@dataclass(frozen=True)
class InStepConfig(PolicyConfig, LearnerSettings):
    """Settings of A2C and PPO."""
