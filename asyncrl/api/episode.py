"""An episode step by step: what the agent saw, the network's outputs, the action, and the reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asyncrl.api.playing import Loaded
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import greedy
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import BadEnvironment, EpisodeLost, close_all
from asyncrl.runtime.collect import for_environments
from asyncrl.runtime.normalize import make_normalizer
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import build_agent, build_environments


def outputs_of(network: Any, spaces: Spaces, observations: Tensor, state: State) -> tuple[dict[str, Tensor], State]:
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
    value = {"value": values[0]} if isinstance(network.value, nn.Linear) else {}
    if not spaces.is_continuous:
        return {"action": greedy(policy.logits[0]), "logits": policy.logits[0]} | value, after
    mean = policy.mean[0]
    action = mean.clamp(torch.tensor(spaces.action_low), torch.tensor(spaces.action_high))
    return {"action": action, "mean": mean, "deviation": policy.deviation.expand_as(policy.mean)[0]} | value, after


@dataclass(frozen=True)
class Step:
    """One step of an episode."""

    picture: NDArray[np.uint8] | None
    """The environment's picture, uint8 `[H, W, 3]`; None if it has none."""
    observation: NDArray[Any]
    """What the agent saw, before normalisation."""
    outputs: dict[str, NDArray[np.float64]]
    """`probabilities` or `q` `[A]`, or `mean` and `deviation` `[n]`; `value` `[]` where there is one."""
    action: int | NDArray[np.float32]
    reward: float
    """The reward of this step."""
    score: float
    """The sum of the rewards before this step."""
    number: int
    """Number of this step in the episode, from 0."""


def steps_of(loaded: Loaded, steps: int, skip: int = 0, pictures: bool = True) -> Iterator[Step]:
    """At most `steps` steps of one episode, from step `skip` on, with the policy of the run's own evaluations.

    Raises UsageError for an environment that breaks, and for a network that `outputs_of` cannot use.
    """
    run = loaded.run
    agent, replica = build_agent(run, EVALUATOR)
    replica.pull(run.handles.store)
    normalizer = make_normalizer(run.handles.moments, EVALUATOR, run.spec)
    environments = build_environments(run, EVALUATOR, 1, evaluation=True)
    environment: Any = environments[0]
    state, score = agent.initial_state(1), 0.0
    try:
        observation, over = environment.reset(), False
        for number in range(skip + steps):
            if over:
                return
            seen = torch.from_numpy(np.array(observation))
            with torch.inference_mode():
                normalized = seen[None] if normalizer is None else normalizer.observe(seen[None])
                found, _ = outputs_of(agent.network, run.spec.spaces, normalized, state)
                chosen, state, _ = agent.act(normalized, state, loaded.checkpoint.steps)
            (action,) = for_environments(chosen, run.spec.spaces)
            picture = environment.picture() if pictures and number >= skip else None
            observation, reward, terminated, truncated, _ = environment.step(action)
            if number >= skip:
                outputs = {name: values[0].double().numpy() for name, values in found.items() if name != "action"}
                if "logits" in outputs:
                    outputs["probabilities"] = torch.softmax(found["logits"][0].double(), -1).numpy()
                yield Step(picture, seen.numpy(), outputs, action, reward, score, number)
            score += reward
            over = terminated or truncated
    except (BadEnvironment, EpisodeLost) as error:
        raise UsageError(str(error.__cause__ or error)) from error
    finally:
        close_all(environments)


def action_names(loaded: Loaded) -> tuple[str, ...]:
    """The environment's names of its actions, or "action 0" and so on."""
    spaces = loaded.run.spec.spaces
    count = len(spaces.action_low) if spaces.is_continuous else spaces.actions
    environment: Any = loaded.run.spec.environment.make(0, evaluation=True)
    environment.close()
    names = () if spaces.is_continuous else getattr(environment, "action_names", ())
    return tuple(names) if len(names) == count else tuple(f"action {i}" for i in range(count))
