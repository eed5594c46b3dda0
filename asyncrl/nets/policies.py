"""Policy and value networks from the settings of an algorithm."""

from __future__ import annotations

from asyncrl.config.policy import PolicyConfig
from asyncrl.core.spaces import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.bodies import make_body
from asyncrl.nets.gaussian import GaussianActorCritic
from asyncrl.nets.memory import Trunk


def make_actor_critic(config: PolicyConfig, spaces: Spaces) -> ActorCritic | GaussianActorCritic:
    """Policy and value on the configured body, shared unless actions are continuous."""

    def trunk() -> Trunk:
        body = make_body(config, spaces.observation_shape, spaces.observation_dtype, spaces.kind)
        return Trunk(body, config.lstm_cells)

    initialisation = "torch7" if config.preset == "paper" else "orthogonal"
    if spaces.is_continuous:
        return GaussianActorCritic(
            trunk(), trunk(), spaces.action_low, spaces.action_high,
            config.mean, config.variance, config.first_deviation, initialisation,
        )  # fmt: skip
    return ActorCritic(trunk(), spaces.actions, initialisation)
