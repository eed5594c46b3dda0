"""Observations and rewards brought to unit scale by statistics that all workers gather together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.moments import Moments
from asyncrl.runtime.store import SharedStore

LARGEST = 10.0
"""A normalised component is clipped to this many standard deviations."""


class Normalizer:
    """What one worker (or the evaluator, which only reads) does with the shared moments.

    The moments are read once per rollout, like the parameters, and saved with them. Observations are shifted and
    scaled; rewards are only scaled, by the spread of discounted returns, so that their sign stays what it was.
    """

    def __init__(self, store: SharedStore, worker: int, observations: bool, returns: bool, gamma: float) -> None:
        self._worker = worker
        self._gamma = gamma
        self._observations = Moments(store.observation_moments) if observations else None
        self._returns = Moments(store.return_moments) if returns else None
        self._discounted: NDArray[np.float64] | None = None
        self._seen: list[NDArray[Any]] = []
        self._seen_returns: list[NDArray[np.float64]] = []
        self.reward_scale = 1.0
        """What the loss multiplies rewards by."""
        self.renew()

    def renew(self) -> None:
        """Read what all workers have seen so far."""
        if self._observations is not None:
            self._mean, self._deviation = self._observations.mean_and_deviation()
        if self._returns is not None:
            self.reward_scale = 1.0 / float(self._returns.mean_and_deviation()[1][0])

    def observe(self, observation: NDArray[Any]) -> NDArray[Any]:
        """The observation as the network should see it; it is remembered until `share`."""
        if self._observations is None:
            return observation
        if self._worker >= 0:
            self._seen.append(observation.copy())
        scaled: NDArray[Any] = (observation - self._mean) / self._deviation
        return scaled.clip(-LARGEST, LARGEST)

    def reward(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> None:
        """Follow the discounted return of each environment, `[E]` rewards at a time."""
        if self._returns is None:
            return
        before = np.zeros(len(rewards)) if self._discounted is None else self._discounted
        discounted = self._gamma * before + rewards
        self._seen_returns.append(discounted)
        self._discounted = np.where(ended, 0.0, discounted)

    def share(self) -> None:
        """Add what was seen since the last time to this worker's row of the shared moments."""
        if self._observations is not None and self._seen:
            self._observations.add(self._worker, np.stack(self._seen))
        if self._returns is not None and self._seen_returns:
            self._returns.add(self._worker, np.concatenate(self._seen_returns)[:, None])
        self._seen.clear()
        self._seen_returns.clear()
