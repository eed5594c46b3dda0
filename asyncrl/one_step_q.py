"""Asynchronous one-step Q-learning.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), Algorithm 1. Each
actor-learner, with theta the shared parameters and theta^- the shared target network:

    repeat
        take a_t by epsilon-greedy on Q(s_t, a; theta), receiving r_t and s_{t+1}
        y = r_t                                     for a terminal s_{t+1}
        y = r_t + gamma max_a Q(s_{t+1}, a; theta^-)          otherwise
        d theta += grad (y - Q(s_t, a_t; theta))^2
        every I_target steps of all workers: theta^- <- theta
        every I_AsyncUpdate steps: update theta with d theta, asynchronously and without a lock
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this class is what makes it one-step Q-learning. Run it with
`python -m asyncrl.one_step_q`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl import presets
from asyncrl.action_value import ActionValueMethod, taken
from asyncrl.config.value import ValueConfig
from asyncrl.core.losses import Metrics, squared_error
from asyncrl.core.rollout import Rollout


class OneStepQ(ActionValueMethod):
    """One worker's action values, its exploration, and its loss."""

    private_copy = False
    presets = presets.ONE_STEP_Q

    @dataclass(frozen=True)
    class Config(ValueConfig):
        """Asynchronous one-step Q-learning (Mnih et al. 2016, Algorithm 1)."""

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Squared errors, summed over the T steps and averaged over the E environments."""
        q, _ = self.network(rollout.observations[:-1])
        values = taken(q, rollout.actions)
        rewards = rollout.learning_rewards(self.config.reward_clip)
        targets = rewards + rollout.discounts * self.next_values(rollout)  # y
        errors = squared_error(values, targets)
        return errors.sum() / values.shape[1], self.figures(errors, values)

    def next_values(self, rollout: Rollout) -> Tensor:
        """max_a Q(s_{t+1}, a; theta^-) `[T, E]`."""
        return rollout.next_values(self.best_value(rollout.observations[1:]), self.best_value)


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.one_step_q"))
