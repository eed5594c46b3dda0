"""Action values on one trunk."""

from __future__ import annotations

from torch import Tensor, nn

from asyncrl.core.rollout import State
from asyncrl.nets.bodies import initialise
from asyncrl.nets.memory import Trunk


class QNetwork(nn.Module):
    """Q(s, a) for all actions at once."""

    def __init__(self, trunk: Trunk, actions: int, initialisation: str = "orthogonal") -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(trunk.features, actions)
        initialise(self, initialisation, {self.head: 1.0})

    def forward(self, observations: Tensor, state: State = None, last: Tensor | None = None) -> tuple[Tensor, State]:
        """Q `[T, E, A]` and the states after each step, of observations `[T, E, *shape]`."""
        features, states = self.trunk(observations, state, last)
        return self.head(features), states

    def values_at(self, observations: Tensor, state: State = None) -> tuple[Tensor, State]:
        """All that acting needs: Q `[E, A]` at observations `[E, *shape]`, and the state after them."""
        features, state = self.trunk.step(observations, state)
        return self.head(features), state
