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

The loop itself is `asyncrl.runtime.loops.actor_learner`; this page is what makes it n-step Q-learning. Run it with
`python -m asyncrl.n_step_q`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.config.value import ValueConfig
from asyncrl.core.losses import Metrics, squared_error
from asyncrl.core.returns import best_values, lambda_returns
from asyncrl.core.rollout import Extras, Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.nets.memory import at_end, at_places
from asyncrl.nets.q_network import QNetwork, make_q_network
from asyncrl.presets import preset_of

HAS_TARGET = True
TAKES_CONTINUOUS = False
PRIVATE_COPY = True
LOOKS_AHEAD = False
EXPERIENCE = "gradient"
EXTRAS = ()


@dataclass(frozen=True)
class Config(ValueConfig):
    """Asynchronous n-step Q-learning (Mnih et al. 2016, Algorithm S2)."""

    lstm_cells: int = 0
    """Cells of an LSTM after the last hidden layer; 0: feed-forward."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("lstm_cells", 0 <= self.lstm_cells <= 100_000, "must be 0 to 100_000")


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("n_step_q", name, spaces)


make_network = make_q_network


class NStepQ:
    """One worker's action values, its exploration, and its loss."""

    def __init__(
        self,
        config: Config,
        network: QNetwork,
        target: QNetwork,
        worker: int,
        generator: torch.Generator,
    ) -> None:
        self.config = config
        self.network = network
        self.target = target
        self.generator = generator
        self.policy = config.exploration_of(worker)
        self.exploration = self.policy.facts()

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.trunk.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E]` by this worker's exploration over Q(s_t, a; theta')."""
        q, state = self.network.values_at(observations, state)
        return self.policy.choose(q, steps, self.generator), state, {}

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Squared errors, summed over the T steps and averaged over the E environments."""
        config = self.config
        q, states = self.network(rollout.observations[:-1], rollout.state, rollout.last)
        values = q.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
        rewards = rollout.learning_rewards(config.reward_clip)
        targets = lambda_returns(rewards, rollout.discounts, self._next_values(rollout, states), rollout.last)  # R
        errors = squared_error(values, targets)
        return errors.sum() / values.shape[1], lambda: {
            "value_loss": errors.detach().mean(),
            "q_mean": values.detach().mean(),
        }

    @torch.no_grad()
    def _next_values(self, rollout: Rollout, states: State) -> Tensor:
        """max_a Q(s_{t+1}, a; theta^-) `[T, E]` where a return ends: after the last step and at a time limit."""
        following = torch.zeros_like(rollout.rewards)
        following[-1] = self._best_value(rollout.observations[-1:], at_end(states))[0]
        return rollout.next_values(
            following, lambda final: self._best_value(final, at_places(states, *rollout.truncated))
        )

    def _best_value(self, observations: Tensor, state: State) -> Tensor:
        """max_a Q(s, a; theta^-) `[T, E]`; with double Q the maximum is where theta' has it."""
        online = self.network(observations, state)[0] if self.config.double_q else None
        return best_values(self.target(observations, state)[0], online)


make_agent = NStepQ


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.n_step_q"))
