"""A network of two numbers, and rollouts for it: what a loss does to it can be computed by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.core.distributions import Categorical
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.rollout import Rollout, State


class Table(nn.Module):
    """V(s) = v s, logits (0, l)."""

    def __init__(self, v: float = 2.0, logit: float = 0.0) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.tensor([v]))
        self.logit = nn.Parameter(torch.tensor([logit]))

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Categorical, Tensor, State]:
        number = observations[..., 0]
        logits = torch.stack([torch.zeros_like(number), self.logit + 0 * number], -1)
        return Categorical(logits), self.v * number, None

    def policy_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, State]:
        return self(observations, state)[0], state

    def policy_and_value_at(self, observations: Tensor, state: State = None) -> tuple[Categorical, Tensor, State]:
        return self(observations, state)


def rollout_of(
    states: list[float], actions: list[int], rewards: list[float], discounts: list[float], environments: int = 1
) -> Rollout:
    """A rollout of identical environments, acted with equal probabilities; a discount of 0 is a termination."""

    def tile(values: list[Any], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype)[:, None].repeat(1, environments)

    nowhere = torch.tensor([], dtype=torch.int64)
    return Rollout(
        observations=tile(states)[..., None],
        actions=tile(actions, torch.int64),
        rewards=tile(rewards),
        discounts=tile(discounts),
        last=tile(discounts) == 0,
        truncated=(nowhere, nowhere),
        final_observations=None,
        extras={"log_probability": torch.full((len(actions), environments), 0.5).log()},
    )


def gradients_of(agent: Any, part: Any) -> dict[str, float]:
    """The gradient of the loss of a part, by the network's two numbers."""
    flat = flatten_parameters(agent.network)
    gradient = gradient_of(agent.loss(part)[0], list(agent.network.parameters()), torch.empty_like(flat))
    return dict(zip(("v", "logit"), gradient.tolist(), strict=True))
