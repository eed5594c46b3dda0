"""A page of the tests' own: one-step Q-learning whose learner replays the last rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from asyncrl import one_step_q
from asyncrl.core.rollout import Rollout
from asyncrl.one_step_q import OneStepQ, make_network, preset

HAS_TARGET = True
TAKES_CONTINUOUS = False
PRIVATE_COPY = True
LOOKS_AHEAD = False
EXPERIENCE = "queue"
EXTRAS = ()


@dataclass(frozen=True)
class Config(one_step_q.Config):
    """One-step Q-learning with a small replay memory."""

    queue_length: int = 2
    """Rollouts of each actor that may wait for the learner."""
    batch_rollouts: int = 1
    """Most rollouts that the learner takes at once."""
    memory: int = 50
    """Rollouts that are kept."""
    replays: int = 2
    """Updates for each rollout."""


class Replaying(OneStepQ):
    """Acts as one-step Q does; learns from any of what it has kept."""

    def __init__(self, config: Config, *rest: Any) -> None:
        super().__init__(config, *rest)
        self._replays = config.replays
        self._memory: deque[Rollout] = deque(maxlen=config.memory)

    def passes(self, batch: Rollout) -> Iterator[Rollout]:
        """Keep the batch, and replay some of what was kept."""
        self._memory.append(batch)
        for chosen in torch.randint(len(self._memory), (self._replays,), generator=self.generator).tolist():
            yield self._memory[chosen]


make_agent = Replaying

__all__ = ["make_agent", "make_network", "preset"]
