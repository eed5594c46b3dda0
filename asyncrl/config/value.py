"""What the value-based methods have in common: a target network and exploration by action values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asyncrl.config.groups import limited
from asyncrl.config.replay import ReplayConfig
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
from asyncrl.core.points import value_at
from asyncrl.core.user_code import is_name, user_code

EXPLORATIONS = ("drawn", "ladder", "boltzmann", "equal")


@dataclass(frozen=True)
class ActionValueConfig(RunConfig):
    """Settings of all methods that learn action values."""

    # Targets depend on a network that moves, so the learning rate is lower than A3C's.
    learning_rate: float = 3e-4
    """Learning rate (eta) at the first step."""
    evaluation_policy: Literal["greedy", "sampled"] = "greedy"
    """greedy: evaluate with the best action. sampled: epsilon-greedy with --evaluation-epsilon (default on screens)."""
    evaluation_epsilon: float = limited(0.01, 0, 1)
    """sampled: the evaluator's epsilon. DQN's 0.05 hides how well an agent plays Pong (docs/results/pong.md)."""
    double_q: bool = False
    """Double Q-learning: theta selects the action, theta^- evaluates it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Dueling network: compute Q from a state value and action advantages (Wang et al. 2016)."""
    exploration: str = "drawn"
    """Exploration of workers: drawn (the paper's final epsilons), ladder (Ape-X), boltzmann, equal, module:factory."""
    epsilons: tuple[float, ...] = limited((0.1, 0.01, 0.5), 0, 1)
    """drawn: the final epsilons to choose from. equal: all workers use the first one."""
    epsilon_probabilities: tuple[float, ...] = limited((0.4, 0.3, 0.3), 0)
    """drawn: the probabilities of these epsilons."""
    exploration_steps: int = limited(1_000_000, 0)
    """drawn, equal: steps T over which epsilon falls from 1 to its final value (the paper's 4 million frames)."""
    epsilon_schedule: str = ""
    """drawn, equal: epsilon of all workers over total_steps, by points (0:1,0.1:0.05,1:0.01), instead of the above."""
    temperatures: tuple[float, float] = limited((0.01, 1.0), above=0)
    """boltzmann: lowest and highest temperature; those of the workers are evenly spaced on a log scale."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_choice("exploration", EXPLORATIONS)
        self._require("epsilons", bool(self.epsilons), "needs at least one number")
        self._require("temperatures", self.temperatures[0] <= self.temperatures[1], "must be in ascending order")
        self._require("epsilon_probabilities", sum(self.epsilon_probabilities) > 0, "must not all be 0")
        if self.epsilon_schedule:
            self._require_schedule("epsilon_schedule", most=1.0)
            if self.exploration not in ("drawn", "equal"):
                raise UsageError(f"--epsilon-schedule is for --exploration drawn and equal, not {self.exploration}")
        if self.exploration == "drawn" and len(self.epsilon_probabilities) != len(self.epsilons):
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
        if self.epsilon_schedule:
            return EpsilonGreedy(value_at(self.epsilon_schedule, 1.0), self.total_steps, self.epsilon_schedule)
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

    target_interval_steps: int = limited(10_000, 1)
    """I_target: steps T between refreshes of the target network (the paper's 40 000 frames)."""


@dataclass(frozen=True)
class ValueReplayConfig(ActionValueConfig, ReplayConfig):
    """Settings of Gorila and Ape-X."""

    error_clip: float = limited(1.0, 0)
    """Clip errors to [-x, x] in the gradient of the loss, as DQN does; 0: do not clip."""
