"""What the value-based methods have in common: a target network and exploration by action values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import (
    Boltzmann,
    EpsilonGreedy,
    Exploration,
    draw_epsilon,
    ladder_epsilon,
    spread_temperature,
)
from asyncrl.core.user_code import is_name, user_code

EXPLORATIONS = ("drawn", "ladder", "boltzmann", "equal")


@dataclass(frozen=True)
class ActionValueConfig(RunConfig):
    """Settings of all methods that learn action values."""

    # Targets depend on a network that moves, so the learning rate is lower than A3C's.
    learning_rate: float = 3e-4
    """eta at the first step."""
    evaluation_policy: Literal["greedy", "sampled"] = "greedy"
    """Whether the evaluator takes the best action or, with --evaluation-epsilon, a random one. Screens: sampled."""
    evaluation_epsilon: float = 0.01
    """sampled: the evaluator's epsilon. DQN's 0.05 hides how well a player of Pong plays (docs/results/pong.md)."""
    double_q: bool = False
    """Double Q: theta chooses the action, theta^- gives its value (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Make Q of two streams, the state's value and the actions' advantages (Wang et al. 2016)."""
    exploration: str = "drawn"
    """How workers differ: drawn (final epsilons, the paper's), ladder (Ape-X), boltzmann, equal or module:factory."""
    epsilons: tuple[float, ...] = (0.1, 0.01, 0.5)
    """drawn: the final epsilons to choose from. equal: all workers have the first one."""
    epsilon_probabilities: tuple[float, ...] = (0.4, 0.3, 0.3)
    """drawn: the probabilities of these epsilons."""
    exploration_steps: int = 1_000_000
    """drawn, equal: steps T over which epsilon falls from 1 to its final value (the paper's 4 million frames)."""
    temperatures: tuple[float, float] = (0.01, 1.0)
    """boltzmann: lowest and highest temperature; the workers' are evenly spaced in the logarithm."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_choice("exploration", EXPLORATIONS)
        self._require("evaluation_epsilon", 0 <= self.evaluation_epsilon <= 1, "must lie in [0, 1]")
        self._require("exploration_steps", self.exploration_steps >= 0, "must not be negative")
        self._require("epsilons", bool(self.epsilons) and all(0 <= e <= 1 for e in self.epsilons), "must lie in [0, 1]")
        self._require("temperatures", all(0 < t < math.inf for t in self.temperatures), "must be positive")
        self._require("temperatures", self.temperatures[0] <= self.temperatures[1], "must be lowest first")
        weights = self.epsilon_probabilities
        possible = all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
        self._require("epsilon_probabilities", possible, "must be probabilities")
        if self.exploration == "drawn" and len(weights) != len(self.epsilons):
            raise UsageError("--epsilons and --epsilon-probabilities must have the same length")

    def exploration_of(self, worker: int | None) -> Exploration:
        """How a worker explores; None: the evaluator."""
        if worker is None:
            return EpsilonGreedy(0.0 if self.evaluation_policy == "greedy" else self.evaluation_epsilon)
        if is_name(self.exploration):
            from asyncrl.core.named import find

            with user_code(f"--exploration {self.exploration}"):
                own: Exploration = find(self.exploration)(self, worker)
            return own
        rung = worker % self.workers  # workers count through all hosts: each host has the whole ladder
        if self.exploration == "boltzmann":
            return Boltzmann(spread_temperature(rung, self.workers, *self.temperatures))
        if self.exploration == "ladder":
            return EpsilonGreedy(ladder_epsilon(rung, self.workers))
        if self.exploration == "equal":
            return EpsilonGreedy(self.epsilons[0], self.exploration_steps)
        final = draw_epsilon(self.epsilons, self.epsilon_probabilities, (self.seed, worker))
        return EpsilonGreedy(final, self.exploration_steps)


@dataclass(frozen=True)
class ValueConfig(ActionValueConfig):
    """Settings of one-step Q, one-step Sarsa and n-step Q."""

    target_interval_steps: int = 10_000
    """I_target: steps T between refreshes of the target network (the paper's 40 000 frames)."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("target_interval_steps", self.target_interval_steps >= 1, "must be at least 1")
