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

The loop itself is `asyncrl.runtime.loops.actor_learner`; this page is what makes it one-step Sarsa. Run it with
`python -m asyncrl.one_step_sarsa`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.config.value import ValueConfig
from asyncrl.core.losses import Metrics, squared_error
from asyncrl.core.rollout import Extras, Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.nets.q_network import QNetwork, make_q_network
from asyncrl.presets import preset_of

HAS_TARGET = True
TAKES_CONTINUOUS = False
PRIVATE_COPY = False
LOOKS_AHEAD = True
EXPERIENCE = "gradient"
EXTRAS = ()


@dataclass(frozen=True)
class Config(ValueConfig):
    """Asynchronous one-step Sarsa (Mnih et al. 2016, section 4 and Algorithm 1)."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require("double_q", not self.double_q, "is for Q-learning: Sarsa takes no maximum")


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("one_step_sarsa", name, spaces)


make_network = make_q_network


class OneStepSarsa:
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
        """Nothing to remember: the networks are feed-forward."""
        return self.network.trunk.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E]` by this worker's exploration over Q(s_t, a; theta)."""
        q, _ = self.network.values_at(observations)
        return self.policy.choose(q, steps, self.generator), state, {}

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Squared errors, summed over the T steps and averaged over the E environments."""
        config = self.config
        q, _ = self.network(rollout.observations[:-1])
        values = q.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
        rewards = rollout.learning_rewards(config.reward_clip)
        next_values = rollout.next_values(
            self._value_taken(rollout.observations[1:], rollout.next_actions),
            lambda final: self._value_expected(final, rollout.acted_at),
        )
        targets = rewards + rollout.discounts * next_values  # y
        errors = squared_error(values, targets)
        return errors.sum() / values.shape[1], lambda: {
            "value_loss": errors.detach().mean(),
            "q_mean": values.detach().mean(),
        }

    @torch.no_grad()
    def _value_taken(self, observations: Tensor, actions: Tensor | None) -> Tensor:
        """Q(s_{t+1}, a_{t+1}; theta^-) `[T, E]`, of the actions really taken next."""
        assert actions is not None
        q_target: Tensor = self.target(observations)[0]
        return q_target.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def _value_expected(self, observations: Tensor, steps: int) -> Tensor:
        """Where a time limit cut an episode no action followed: the mean over what the policy would have done."""
        q_target: Tensor = self.target(observations)[0]
        q, _ = self.network(observations)
        return (self.policy.probabilities(q, steps) * q_target).sum(-1)


make_agent = OneStepSarsa


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.one_step_sarsa"))
