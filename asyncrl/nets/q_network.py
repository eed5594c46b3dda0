"""Action values on one trunk."""

from __future__ import annotations

from torch import Tensor, nn

from asyncrl.core.rollout import State
from asyncrl.nets.bodies import initialise
from asyncrl.nets.trunk import Reducible, Trunk


class Dueling(Reducible):
    """Q(s, a) = V(s) + A(s, a) - mean_a A(s, a), of two streams (Wang et al. 2016, equation 9)."""

    def __init__(self, features: int, width: int, actions: int) -> None:
        super().__init__()
        # A hidden layer of `width` for each stream, both in one: half the calls.
        self.hidden = nn.Linear(features, 2 * width)
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, actions)

    def large(self) -> nn.Module:
        """The hidden layer; the output layers are as small as a policy's."""
        return self.hidden

    def forward(self, features: Tensor) -> Tensor:
        """Q `[..., A]` of features `[..., F]`."""
        with self.precision:
            hidden = self.hidden(features).relu_().float()
        for_value, for_advantage = hidden.chunk(2, -1)
        advantages: Tensor = self.advantage(for_advantage)
        values: Tensor = self.value(for_value)
        return advantages + (values - advantages.mean(-1, keepdim=True))


class QNetwork(nn.Module):
    """Q(s, a) for all actions at once."""

    def __init__(self, trunk: Trunk, actions: int, initialisation: str = "orthogonal", dueling_width: int = 0) -> None:
        """With a `dueling_width`, Q combines two streams, each with a hidden layer of that width."""
        super().__init__()
        self.trunk = trunk
        if dueling_width:
            dueling = Dueling(trunk.features, dueling_width, actions)
            self.head: nn.Module = dueling
            initialise(self, initialisation, {dueling.value: 1.0, dueling.advantage: 1.0})
        else:
            self.head = nn.Linear(trunk.features, actions)
            initialise(self, initialisation, {self.head: 1.0})

    def forward(self, observations: Tensor, state: State = None, last: Tensor | None = None) -> tuple[Tensor, State]:
        """Q `[T, E, A]` and the states after each step, of observations `[T, E, *shape]`."""
        features, states = self.trunk(observations, state, last)
        return self.values_on(features, observations), states

    def values_at(self, observations: Tensor, state: State = None) -> tuple[Tensor, State]:
        """All that acting needs: Q `[E, A]` at observations `[E, *shape]`, and the state after them."""
        features, state = self.trunk.step(observations, state)
        return self.values_on(features, observations), state

    def values_on(self, features: Tensor, observations: Tensor) -> Tensor:
        """Q `[..., A]` by the features `[..., F]` of observations `[..., *shape]`."""
        q: Tensor = self.head(features)
        return q
