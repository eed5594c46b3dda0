"""Asynchronous n-step Q-learning.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), Algorithm S2. Each
actor-learner, with theta' its own copy of the shared parameters theta and theta^- the shared target network:

    repeat
        theta' <- theta
        act t_max steps by epsilon-greedy on Q(s_t, a; theta'), receiving r_t and s_{t+1}
        R <- 0 for a terminal s_t, max_a Q(s_t, a; theta^-) otherwise               (bootstrap)
        for i = t-1, ..., t_start:
            R <- r_i + gamma R
            d theta += grad (R - Q(s_i, a_i; theta'))^2
        update theta with d theta, asynchronously and without a lock
        every I_target steps of all workers: theta^- <- theta
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this class is what makes it n-step Q-learning. Run it with
`python -m asyncrl.n_step_q`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl import presets
from asyncrl.action_value import ActionValueMethod, taken
from asyncrl.config.value import ValueConfig
from asyncrl.core.losses import Metrics, squared_error
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Rollout, State, at_end, at_places


class NStepQ(ActionValueMethod):
    """One worker's action values, its exploration, and its loss."""

    presets = presets.N_STEP_Q

    @dataclass(frozen=True)
    class Config(ValueConfig):
        """Asynchronous n-step Q-learning (Mnih et al. 2016, Algorithm S2)."""

        lstm_cells: int = 0
        """Cells of an LSTM after the last hidden layer; 0: feed-forward."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            self._require("lstm_cells", 0 <= self.lstm_cells <= 100_000, "must be 0 to 100_000")

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Squared errors, summed over the T steps and averaged over the E environments."""
        q, states = self.network(rollout.observations[:-1], rollout.state, rollout.last)
        values = taken(q, rollout.actions)
        rewards = rollout.learning_rewards(self.config.reward_clip)
        targets = lambda_returns(rewards, rollout.discounts, self._next_values(rollout, states), rollout.last)  # R
        errors = squared_error(values, targets)
        return errors.sum() / values.shape[1], self.figures(errors, values)

    @torch.no_grad()
    def _next_values(self, rollout: Rollout, states: State) -> Tensor:
        """max_a Q(s_{t+1}, a; theta^-) `[T, E]` where a return ends: after the last step and at a time limit."""
        following = torch.zeros_like(rollout.rewards)
        following[-1] = self.best_value(rollout.observations[-1:], at_end(states))[0]
        return rollout.next_values(
            following, lambda final: self.best_value(final, at_places(states, *rollout.truncated))
        )


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.n_step_q"))
