"""Transitions among the rows of a replay memory: how long they are, and their first priorities.

`core/replay.c` does the same, to the bit.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.int64]
Truths: TypeAlias = NDArray[np.bool_]

LAST, START, FINAL = 1, 2, 4
"""Marks of a row: the return ends after it; an episode, or a new writer, begins with it; it is not a step, but the last
observation of a truncated episode."""
LEAST_PRIORITY = 1e-6
"""Added to every absolute error, so that a transition without error can still be sampled."""
ACTION_VALUE, STATE_VALUE = "action_value", "state_value"
"""Extras that actors must provide for initial priorities: Q(s, a) and max_a Q(s, a)."""


def lengths_of(marks: NDArray[np.uint8]) -> Numbers:
    """Steps `[B]` of transitions whose rows have these marks `[n + 1, B]`: n, or fewer if the return ends before.

    0 if it is not whole: its first row is not a step, or it reaches across the start of a new writer.
    """
    goes_on: Truths = np.logical_not(np.logical_or.accumulate((marks[:-1] & LAST) > 0))
    joins_others = (goes_on & ((marks[1:] & START) > 0)).any(0)
    is_step: Truths = (marks[0] & FINAL) == 0
    return np.asarray((1 + goes_on[:-1].sum(0)) * (is_step & ~joins_others))


def first_priorities(records: NDArray[np.void], lengths: Numbers, scale: float, clip: float) -> NDArray[np.float32]:
    """Absolute n-step errors `[B]` by the action values that the actors left in the rows `[n + 1, B]`.

    0 where the length is. Rewards are multiplied by `scale`, then clipped to +-`clip`; 0: they are not. It is what
    `core.returns.n_step_targets` computes, but sums are added up in the order of steps, for any n.
    """
    rewards = records["rewards"][:-1] * np.float32(scale)
    rewards = rewards.clip(-clip, clip) if clip else rewards
    behind = np.arange(len(rewards))[:, None] >= lengths
    rewards[behind] = 0
    reached = np.where(behind, 1, records["discounts"][:-1]).cumprod(0, np.float64).astype(np.float32)
    values = records[STATE_VALUE][lengths, np.arange(len(lengths))]
    errors = rewards[0] + sum(reached[:-1] * rewards[1:], np.float32(0)) + reached[-1] * values
    errors -= records[ACTION_VALUE][0]
    sizes = np.where(np.isfinite(errors), np.abs(errors), 0) + np.float32(LEAST_PRIORITY)
    return np.where(lengths > 0, sizes, np.float32(0))
