"""From environments to rollouts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout, State
from asyncrl.envs.spec import Environment, Spaces
from asyncrl.runtime.progress import Progress
from asyncrl.runtime.protocols import Agent


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole episode: raw return and length in steps."""

    score: float
    length: int


class Collector(Iterator[Rollout]):
    """Endless rollouts of `t_max` steps from E environments, episodes running on from one rollout to the next.

    `episodes` fills with what ended; whoever reads it clears it. `environment_seconds` and `acting_seconds` add up
    where the time goes.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        agent: Agent,
        spaces: Spaces,
        t_max: int,
        gamma: float,
        progress: Progress,
    ) -> None:
        self.episodes: list[Episode] = []
        self.environment_seconds = 0.0
        self.acting_seconds = 0.0
        self._environments = environments
        self._agent = agent
        self._gamma = gamma
        self._progress = progress
        shape = (t_max, len(environments))
        self._observations = torch.empty(
            (t_max + 1, len(environments), *spaces.observation_shape),
            dtype=getattr(torch, spaces.observation_dtype),
        )
        self._rows = self._observations.numpy()
        self._actions = torch.empty(shape, dtype=torch.int64)
        self._rewards = np.empty(shape, np.float32)
        self._discounts = np.empty(shape, np.float32)
        self._last = np.empty(shape, np.bool_)
        self._scores = np.zeros(len(environments))
        self._lengths = np.zeros(len(environments), np.int64)
        self._state: State = agent.initial_state(len(environments))
        for e, environment in enumerate(environments):
            self._rows[-1, e] = environment.reset()

    def __next__(self) -> Rollout:
        steps = self._progress.steps
        state_before = self._state
        self._rows[0] = self._rows[-1]
        truncated: list[tuple[int, int]] = []
        finals: list[Tensor] = []
        for t in range(len(self._rewards)):
            began = time.perf_counter()
            actions, self._state = self._agent.act(self._observations[t], self._state, steps)
            self._actions[t] = actions
            acted = time.perf_counter()
            for e, action in enumerate(actions.tolist()):
                self._step(t, e, action, truncated, finals)
            if self._state is not None and self._last[t].any():
                self._reset_state(self._last[t])
            self.acting_seconds += acted - began
            self.environment_seconds += time.perf_counter() - acted
        times, places = np.array(truncated, np.intp).reshape(-1, 2).T
        return Rollout(
            observations=self._observations,
            actions=self._actions,
            rewards=self._rewards,
            discounts=self._discounts,
            last=self._last,
            truncated=(times, places),
            final_observations=torch.stack(finals) if finals else None,
            state=state_before,
        )

    def _step(self, t: int, e: int, action: int, truncated: list[tuple[int, int]], finals: list[Tensor]) -> None:
        """Step one environment into row t; the observation of row t + 1 begins a new episode where one ended."""
        environment = self._environments[e]
        observation, reward, terminated, cut, life_lost = environment.step(action)
        self._rewards[t, e] = reward
        self._discounts[t, e] = 0.0 if terminated or life_lost else self._gamma
        self._last[t, e] = terminated or cut or life_lost
        self._scores[e] += reward
        self._lengths[e] += 1
        if terminated or cut:
            if cut and not terminated:
                truncated.append((t, e))
                finals.append(torch.from_numpy(np.array(observation)))
            self.episodes.append(Episode(float(self._scores[e]), int(self._lengths[e])))
            self._scores[e], self._lengths[e] = 0.0, 0
            observation = environment.reset()
        self._rows[t + 1, e] = observation

    def _reset_state(self, last: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        assert self._state is not None
        keep = torch.from_numpy(~last)
        fresh = self._agent.initial_state(len(last))
        assert fresh is not None
        self._state = tuple(
            torch.where(keep.view(-1, *[1] * (old.dim() - 1)), old, new)
            for old, new in zip(self._state, fresh, strict=True)
        )
