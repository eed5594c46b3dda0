"""Asynchronous one-step Sarsa.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), section 4. Each
actor-learner, with theta the shared parameters and theta^- the shared target network:

    repeat
        take a_t by epsilon-greedy on Q(s_t, a; theta), receiving r_t and s_{t+1}, and choose a_{t+1} likewise
        y = r_t                                     for a terminal s_{t+1}
        y = r_t + gamma Q(s_{t+1}, a_{t+1}; theta^-)          otherwise
        d theta += grad (y - Q(s_t, a_t; theta))^2
        every I_target steps of all workers: theta^- <- theta
        every I_AsyncUpdate steps: update theta with d theta, asynchronously and without a lock
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this class is what makes it one-step Sarsa. Run it with
`python -m asyncrl.one_step_sarsa`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl import one_step_q
from asyncrl.action_value import taken
from asyncrl.config.value import ValueConfig
from asyncrl.core.rollout import Rollout


class OneStepSarsa(one_step_q.OneStepQ):
    """One worker's action values, its exploration, and its loss: Q-learning's, with the value of what is done next."""

    looks_ahead = True

    @dataclass(frozen=True)
    class Config(ValueConfig):
        """Asynchronous one-step Sarsa (Mnih et al. 2016, section 4 and Algorithm 1)."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            self._require("double_q", not self.double_q, "is for Q-learning: Sarsa takes no maximum")

    def next_values(self, rollout: Rollout) -> Tensor:
        """Q(s_{t+1}, a_{t+1}; theta^-) `[T, E]`, of the actions really taken next."""
        assert rollout.next_actions is not None
        return rollout.next_values(
            self._value_taken(rollout.observations[1:], rollout.next_actions),
            lambda final: self._value_expected(final, rollout.acted_at),
        )

    @torch.no_grad()
    def _value_taken(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a; theta^-) `[T, E]`."""
        return taken(self.target(observations)[0], actions)

    @torch.no_grad()
    def _value_expected(self, observations: Tensor, steps: int) -> Tensor:
        """Where a time limit cut an episode no action followed: the mean over what the policy would have done."""
        q_target: Tensor = self.target(observations)[0]
        q, _ = self.network(observations)
        expected: Tensor = (self.policy.probabilities(q, steps) * q_target).sum(-1)
        return expected


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.one_step_sarsa"))
