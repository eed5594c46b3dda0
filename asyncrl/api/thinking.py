"""What an agent thinks of an observation: its policy or its action values, and the return it expects."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import greedy
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces


def think(network: Any, spaces: Spaces, observations: Tensor, state: State) -> tuple[dict[str, Tensor], State]:
    """The network's outputs for `observations` `[B, *shape]`, preprocessed and normalised, and the next state.

    By name: `action`, the best one as the environment takes it, int64 `[B]` or float32 `[B, n]`; besides:

        logits                  `[B, A]`, of a policy over discrete actions
        q                       `[B, A]`, of a value-based method
        mean, deviation         `[B, n]`, of a policy over continuous actions, not yet clipped to their bounds
        value                   `[B]`, the expected return, in the units of its loss

    REINFORCE has no `value`: its baseline is one number for all states. Raises UsageError for a user's network without
    the methods of the package's networks.
    """
    if hasattr(network, "values_at"):
        q, state = network.values_at(observations, state)
        return {"action": greedy(q), "q": q, "value": q.amax(-1)}, state
    if not hasattr(network, "policy_at"):
        raise UsageError(f"{type(network).__name__} needs a method policy_at or values_at for this")
    policy, values, states = network(observations[None], state)
    after = None if states is None else tuple(part[0] for part in states)
    said = {"value": values[0]} if isinstance(network.value, nn.Linear) else {}
    if not spaces.is_continuous:
        return {"action": greedy(policy.logits[0]), "logits": policy.logits[0]} | said, after
    mean = policy.mean[0]
    action = mean.clamp(torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return {"action": action, "mean": mean, "deviation": policy.deviation.expand_as(policy.mean)[0]} | said, after
