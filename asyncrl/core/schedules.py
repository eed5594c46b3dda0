"""Quantities that change with T, the number of steps all workers have made."""

from __future__ import annotations


def linear(start: float, end: float, step: int, over: int) -> float:
    """From `start` at step 0 to `end` at step `over`, straight, then constant. With `over` = 0 always `end`."""
    if over <= 0 or step >= over:
        return end
    return start + (end - start) * step / over


def crossed(before: int, after: int, period: int) -> bool:
    """Whether a multiple of `period` lies in (`before`, `after`].

    T grows by whole rollouts of many workers, so `T mod period == 0` of the pseudo-code would be skipped.
    """
    return period > 0 and after // period > before // period
