"""Environments whose episodes are written down beforehand, and the slow way to make transitions of what they gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.core.rollout import Extras, State
from asyncrl.core.spaces import Spaces
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from tests.support import FixedAgent

GAMMA = 0.5
GOES_ON, TERMINATES, TRUNCATES, LOSES_A_LIFE = range(4)


@dataclass(frozen=True)
class Seen:
    """One step as the environment saw it."""

    observation: NDArray[Any]
    action: int
    reward: float
    kind: int
    following: NDArray[Any]


class Written:
    """Its steps end as `kinds` say, over and over. Every image is of another number, and rewards are."""

    def __init__(self, kinds: Sequence[int], stack: int, first: int) -> None:
        self.kinds, self.number, self.at = list(kinds), first, 0
        self.stack = np.zeros((stack, 1, 2), np.uint8)
        self.log: list[Seen] = []

    def _see(self) -> NDArray[Any]:
        self.number += 1
        self.stack[:-1] = self.stack[1:]
        self.stack[-1] = 1 + self.number % 255
        return self.stack

    def reset(self) -> NDArray[Any]:
        self.stack.fill(0)
        return self._see()

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        before, kind = self.stack.copy(), self.kinds[self.at % len(self.kinds)]
        self.at += 1
        after = self._see()
        reward = float(self.number)
        self.log.append(Seen(before, action, reward, kind, after.copy()))
        return after, reward, kind == TERMINATES, kind == TRUNCATES, kind == LOSES_A_LIFE

    def close(self) -> None:
        pass


class Counter(FixedAgent):
    """Actions count; values are what the test can foresee."""

    def __init__(self) -> None:
        super().__init__()
        self.acted = 0

    def act(self, observations: torch.Tensor, state: State, steps: int) -> tuple[torch.Tensor, State, Extras]:
        self.acted += 1
        actions = torch.arange(len(observations)) + 10 * self.acted
        newest = observations[:, -1, 0, 0].float()
        return actions, state, {"action_value": newest / 2, "state_value": newest}


def spaces_of(stack: int) -> Spaces:
    return Spaces((stack, 1, 2), "uint8", 10_000, kind="screen")


def collector_of(environments: Sequence[Written], stack: int, t_max: int) -> Collector:
    extras = ("action_value", "state_value")
    clock = Clock(1, 10**9)
    return Collector(environments, Counter(), spaces_of(stack), t_max, GAMMA, clock, extras=extras)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Expected:
    """A transition as one would write it down."""

    observation: NDArray[Any]
    action: int
    rewards: list[float]
    discounts: list[float]
    following: NDArray[Any] | None
    """None: the episode terminated."""


def transition(log: Sequence[Seen], i: int, n: int) -> Expected | None:
    """Of n steps from step i on, or to an end; None if the log has no step more, to say what they led to."""
    rewards, discounts = [], []
    for one in log[i : i + n]:
        rewards.append(one.reward)
        discounts.append(0.0 if one.kind in (TERMINATES, LOSES_A_LIFE) else GAMMA)
        if one.kind != GOES_ON:
            break
    if one.kind == GOES_ON and i + n >= len(log):
        return None
    following = one.following if discounts[-1] else None
    return Expected(log[i].observation, log[i].action, rewards, discounts, following)


def rows_of(logs: Sequence[Sequence[Seen]], n: int) -> list[Expected | None]:
    """What can be drawn of each row of a stream, whose writers were so many: None: nothing."""
    rows: list[Expected | None] = []
    for log in logs:
        for i, one in enumerate(log):
            rows.append(transition(log, i, n))
            if one.kind == TRUNCATES:
                rows.append(None)  # its last observation
    return rows
