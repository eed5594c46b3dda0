"""What a run has learnt, as a function from observations to actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.api.playing import Loaded
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces
from asyncrl.envs.gymnasium_env import GymnasiumEnvironment, rows_of
from asyncrl.envs.preprocessed import Preprocessed
from asyncrl.runtime.collect import for_environments, reset_state
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.run import build_agent, build_environments, build_normalizer


@dataclass(frozen=True)
class PolicyState:
    """What a policy has to remember between two steps of B environments."""

    memory: State
    """Of the network, `[B, ...]` each; None for a feed-forward one."""
    seen: NDArray[Any]
    """The observations as they were made, `[B, *shape]`: the images or vectors a stack still has to know."""


class Policy:
    """Acts as a run's evaluations do, on observations of its environment as Gymnasium gives them.

    Atari's observations are the exception: they come preprocessed, uint8 [stack, size, size], as Gymnasium's wrappers
    AtariPreprocessing and FrameStackObservation make them with the run's settings; so do those of Chain and Catch.
    An environment with a frame skip is the caller's to step that often with each action.
    """

    def __init__(self, loaded: Loaded) -> None:
        run = loaded.run
        self.page = run.spec.page
        """Module of the algorithm."""
        self.env_id = run.spec.environment.env_id
        self.steps = loaded.checkpoint.steps
        """Agent steps that its checkpoint had been trained for."""
        self.greedy = run.spec.config.evaluation_policy == "greedy"
        """Whether it takes the best action; else it draws, from a stream of the seed it was loaded with."""
        self.spaces: Spaces = run.spec.spaces
        """What goes in and out of the network."""
        self._agent, replica = build_agent(run, EVALUATOR)
        replica.pull(run.handles.store)
        self._normalizer = build_normalizer(run, EVALUATOR)
        environment: Any = build_environments(run, EVALUATOR, 1, evaluation=True)[0]
        environment.close()
        self._stacked = environment if isinstance(environment, Preprocessed) else None
        below = environment.environment if self._stacked else environment
        self._native = below if isinstance(below, GymnasiumEnvironment) else None
        own = gymnasium.spaces.Box(-np.inf, np.inf, self.spaces.observation_shape)
        self._space: gymnasium.Space[Any] = self._native.native.observation_space if self._native else own

    def act(self, observation: Any, state: PolicyState | None = None) -> tuple[Any, PolicyState]:
        """The action for one observation, or the actions `[B, ...]` for a batch `[B, ...]`, and the next state.

        Observations that are a Dict or a Tuple make a batch whose parts are batches. Actions are as the environment
        takes them: an int, or an array of its action space. `state` is what the call before returned, None at the
        beginning of an episode. Raises UsageError for an observation that is none of the environment's.
        """
        try:
            batch, single = rows_of(self._space, observation)
        except ValueError as error:
            raise UsageError(f"an observation of {self.env_id} is not as it should be: {error}") from None
        if state is None:
            state = self._first(len(batch))
        elif len(state.seen) != len(batch):
            raise UsageError(f"the state is of {len(state.seen)} environments, the observations are of {len(batch)}")
        seen = self._encoded(batch, state.seen)
        with torch.inference_mode():
            observations = torch.from_numpy(seen)
            if self._normalizer is not None:
                observations = self._normalizer.observe(observations)
            chosen, memory, _ = self._agent.act(observations, state.memory, self.steps)
        actions = [self._native.native_action(one) if self._native else one for one in self._by_place(chosen)]
        return (actions[0] if single else np.array(actions)), PolicyState(memory, seen)

    def restart(self, state: PolicyState, ended: Any) -> PolicyState:
        """The state of a batch in which the episodes of some environments have `ended`, `[B]` of bool."""
        over = np.array(ended, np.bool_)
        seen = state.seen.copy()
        seen[over] = 0
        return PolicyState(reset_state(self._agent, state.memory, over), seen)

    def _first(self, count: int) -> PolicyState:
        """The state of `count` environments whose episodes begin."""
        seen = np.zeros((count, *self.spaces.observation_shape), self.spaces.observation_dtype)
        return PolicyState(self._agent.initial_state(count), seen)

    def _encoded(self, batch: Sequence[Any], before: NDArray[Any]) -> NDArray[Any]:
        """Observations as the network takes them, `[B, *shape]`, in an array of its own."""
        seen = before.copy()
        for place, raw in zip(seen, batch, strict=True):
            try:
                newest = raw if self._native is None else self._native.encode(raw)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{self.env_id}: {error}") from error
            if self._stacked is not None:
                self._stacked.push(place, self._stacked.shrink(newest))
            else:
                place[...] = newest
        return seen

    def _by_place(self, chosen: torch.Tensor) -> list[Any]:
        return list(for_environments(chosen, self.spaces))
