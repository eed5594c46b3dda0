"""Quantities that change with T, the number of steps all workers have made."""

from __future__ import annotations


def linear(start: float, end: float, step: int, over: int) -> float:
    """Linear from `start` at step 0 to `end` at step `over`, then constant. With `over` = 0 always `end`."""
    if over <= 0 or step >= over:
        return end
    return start + (end - start) * step / over


def crossed(before: int, after: int, period: int) -> bool:
    """Whether a multiple of `period` lies in (`before`, `after`].

    T grows by whole rollouts of many workers, so the pseudo-code's `T mod period == 0` would miss most multiples.
    """
    return period > 0 and after // period > before // period
