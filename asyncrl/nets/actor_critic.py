"""Policy and value on one trunk."""

from __future__ import annotations

from torch import Tensor, nn

from asyncrl.core.distributions import Categorical
from asyncrl.core.rollout import State
from asyncrl.nets.bodies import initialise
from asyncrl.nets.trunk import Trunk


class ActorCritic(nn.Module):
    """A categorical policy and a state value that share all layers but the output (Mnih et al. 2016, section 4)."""

    def __init__(self, trunk: Trunk, actions: int, initialisation: str = "orthogonal") -> None:
        super().__init__()
        self.trunk = trunk
        self.policy = nn.Linear(trunk.features, actions)
        self.value: nn.Module = nn.Linear(trunk.features, 1)
        # A small gain for the policy head: the first policy is nearly uniform whatever the features are.
        initialise(self, initialisation, {self.policy: 0.01, self.value: 1.0})

    def initial_state(self, environments: int) -> State:
        """The state in which episodes begin; None without a memory."""
        return self.trunk.initial_state(environments)

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Categorical, Tensor, State]:
        """Policy at `[T, E]`, values `[T, E]` and states after each step, of observations `[T, E, *shape]`."""
        features, states = self.trunk(observations, state, last)
        return self.policy_on(features, observations), self.value(features).squeeze(-1), states

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, State]:
        """All that acting needs: the policy `[E]` at observations `[E, *shape]`, and the state after them."""
        features, state = self.trunk.step(observations, state)
        return self.policy_on(features, observations), state

    def policy_and_value_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, Tensor, State]:
        """The same with the value `[E]` between the two."""
        features, state = self.trunk.step(observations, state)
        return self.policy_on(features, observations), self.value(features).squeeze(-1), state

    def policy_on(self, features: Tensor, observations: Tensor) -> Categorical:
        """The policy `[...]` by the features `[..., F]` of observations `[..., *shape]`."""
        return Categorical(self.policy(features))
