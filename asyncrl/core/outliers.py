"""Values that are unusually large, by a running mean and variance."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SPREAD_OVER = 100
"""A running spread covers about this many of the newest values."""


def unusual(row: NDArray[np.float64], value: float, deviations: float, over: int = SPREAD_OVER) -> bool:
    """Whether |value| is more than `deviations` standard deviations above the running mean, which it then enters.

    `row` `[3]` holds the number of values, mean and variance, and is changed in place. The first `over` values have
    equal weight, and none of them is unusual; after that, older values fade by 1 / over with each new one. Unusual
    values enter too, unless they are not finite: if all values become larger for good, they are soon usual again.
    """
    count, mean, variance = row
    size = abs(value)
    if not math.isfinite(size):
        return True
    is_unusual = bool(count >= over and size > mean + deviations * variance**0.5)
    weight = 1 / min(count + 1, over)
    row[:] = count + 1, mean + weight * (size - mean), (1 - weight) * (variance + weight * (size - mean) ** 2)
    return is_unusual
