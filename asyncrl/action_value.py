"""What methods of action values share: Q with a target network, and a policy that explores around its best action."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algorithm import Algorithm, Who, initialisation_of
from asyncrl.config.value import ActionValueConfig
from asyncrl.core.losses import Metrics
from asyncrl.core.returns import best_values
from asyncrl.core.rollout import Extras, State
from asyncrl.core.spaces import Spaces
from asyncrl.nets.q_network import QNetwork
from asyncrl.nets.trunk import Trunk, hidden_widths, make_body


class ActionValueMethod(Algorithm):
    """Action values Q with a target network, and a policy that explores around the best action."""

    has_target = True
    config: ActionValueConfig
    network: QNetwork
    target: QNetwork

    def __init__(
        self, config: Any, network: Any, target: Any, who: Who, number: int, generator: torch.Generator
    ) -> None:
        super().__init__(config, network, target, who, number, generator)
        self.policy = config.exploration_of(number if who == "worker" else None)
        if config.action_masks:
            from asyncrl.core.action_masks import among_valid

            self.policy = among_valid(self.policy)
        self.exploration = self.policy.facts()

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> QNetwork:
        """Q on the configured body.

        With --dueling, the two streams part before the last hidden layer, so each has its own, as in the paper. With a
        memory they part after it.
        """
        cells = getattr(config, "lstm_cells", 0)
        widths = hidden_widths(config.network, config.hidden_sizes, spaces.kind)
        below = widths[:-1] if config.dueling and not cells else widths
        body = make_body(config.network, below, spaces, config.normalize_observations)
        width = widths[-1] if config.dueling else 0
        made: type[QNetwork] = QNetwork
        if spaces.masked:
            from asyncrl.nets.action_masks import MaskedQNetwork as made
        return made(Trunk(body, cells), spaces.actions, initialisation_of(config), width)

    def initial_state(self, environments: int) -> State:
        """The LSTM's state with which episodes begin, or None."""
        return self.network.trunk.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E]` by this worker's exploration over Q(s_t, a; theta')."""
        q, state = self.network.values_at(observations, state)
        return self.policy.choose(q, steps, self.generator), state, {}

    @torch.no_grad()
    def best_value(self, observations: Tensor, state: State = None) -> Tensor:
        """max_a Q(s, a; theta^-) `[T, E]`; with double Q the maximum is where theta' has it."""
        online = self.network(observations, state)[0] if self.config.double_q else None
        return best_values(self.target(observations, state)[0], online)

    @staticmethod
    def figures(errors: Tensor, values: Tensor) -> Metrics:
        """What the records have of the errors and of the values of the actions taken: their means."""
        return lambda: {"value_loss": errors.detach().mean(), "q_mean": values.detach().mean()}


def taken(q: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) `[...]` of the actions taken `[...]`, from Q `[..., A]`."""
    return q.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
