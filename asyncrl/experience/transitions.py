"""Transitions among the rows of a replay memory: how long they are, whether they are whole, their first priorities.

Both functions are compiled where there are kernels. Their Python code does the same, to the bit.
"""

from __future__ import annotations

from ctypes import c_float, c_int64, c_void_p
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.core.kernels import compiled
from asyncrl.core.returns import n_step_targets

Numbers: TypeAlias = NDArray[np.int64]
Truths: TypeAlias = NDArray[np.bool_]

LAST, START, FINAL = 1, 2, 4
"""Marks of a row: the return ends after it; an episode, or a new writer, begins with it; it is not a step, but the last
observation of a truncated episode."""
LEAST_PRIORITY = 1e-6
"""Added to every absolute error, so that a transition without error can still be sampled."""
ACTION_VALUE, STATE_VALUE = "action_value", "state_value"
"""Extras that actors must provide for initial priorities: Q(s, a) and max_a Q(s, a)."""

_FIND = compiled("transitions", c_void_p, *[c_int64] * 4, *[c_void_p] * 6)
_FIRST_PRIORITIES = compiled(
    "first_priorities", c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_float, c_float, c_float, c_void_p
)
_MOST_COMPILED = 5
"""Steps of which the kernel computes first priorities: torch adds up more rewards in an order of its own."""


class Found(NamedTuple):
    """B transitions of at most n steps."""

    places: Numbers
    """`[n + 1, B]` Where the n rows and the one after them are."""
    records: NDArray[np.void]
    """`[n + 1, B]` Copies of what is there."""
    lengths: Numbers
    """`[B]` Steps: n, or fewer if the return ends before."""
    whole: Truths
    """`[B]` Whether the first row is a step, and the transition does not reach across the start of a new writer."""


def find(
    memory: NDArray[np.void], record: np.dtype[np.void], capacity: int, n: int, streams: Numbers, rows: Numbers
) -> Found:
    """The transitions that begin with these rows `[B]` of these streams, of `capacity` rows each in `memory`."""
    if _FIND is None:
        places = streams * capacity + (rows + np.arange(n + 1)[:, None]) % capacity
        records = memory.take(places).view(record)
        return Found(places, records, *_lengths_and_whole(records["marks"]))
    size = len(rows)
    places, records = np.empty((n + 1, size), np.int64), np.empty((n + 1, size), record)
    found = Found(places, records, np.empty(size, np.int64), np.empty(size, bool))
    which = np.ascontiguousarray(streams), np.ascontiguousarray(rows)
    addresses = (array.ctypes.data for array in (*which, *found))
    _FIND(memory.ctypes.data, record.itemsize, capacity, n, size, *addresses)
    return found


def _lengths_and_whole(marks: NDArray[np.uint8]) -> tuple[Numbers, Truths]:
    """Of the rows' marks `[n + 1, B]`."""
    lasts = (marks[:-1] & LAST) > 0
    goes_on: Truths = np.logical_not(np.logical_or.accumulate(lasts))
    lengths = 1 + goes_on[:-1].sum(0)
    joins_others = np.asarray((goes_on & ((marks[1:] & START) > 0)).any(0))
    is_step: Truths = (marks[0] & FINAL) == 0
    return lengths, is_step & ~joins_others


def first_priorities(found: Found, scale: float, clip: float) -> NDArray[np.float32]:
    """Absolute n-step errors `[B]` by the action values that the actors left in the rows; 0 if one is not whole.

    Rewards are multiplied by `scale`, then clipped to +-`clip`; 0: they are not.
    """
    records = found.records
    if _FIRST_PRIORITIES is not None and len(records) <= _MOST_COMPILED + 1:
        priorities = np.empty(len(found.lengths), np.float32)
        records_at, lengths, whole, to = (
            array.ctypes.data for array in (records, found.lengths, found.whole, priorities)
        )
        size, count = records.itemsize, len(priorities)
        _FIRST_PRIORITIES(records_at, size, count, lengths, whole, scale, clip, LEAST_PRIORITY, to)
        return priorities
    rewards = records["rewards"][:-1] * np.float32(scale)
    values = records[STATE_VALUE][found.lengths, np.arange(len(found.lengths))]
    lasts = (records["marks"][:-1] & LAST) > 0
    learning = rewards.clip(-clip, clip) if clip else rewards, records["discounts"][:-1], lasts, values
    targets = n_step_targets(*(torch.from_numpy(array) for array in learning)).numpy()
    errors = targets - records[ACTION_VALUE][0]
    return np.asarray((np.where(np.isfinite(errors), np.abs(errors), 0) + LEAST_PRIORITY) * found.whole)
