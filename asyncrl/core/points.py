"""Schedules by name or by points: a value for each share of a run, from 0 at its beginning to 1 at its end."""

from __future__ import annotations

import bisect
import functools
import math


def value_at(schedule: str, share: float) -> float:
    """The value at a share of the run: linear and cosine fall from 1 to 0, constant is 1; straight between points.

    Before the first point and after the last one it is constant. Of two points at one share the later counts from
    there on. Raises ValueError for what is no schedule.
    """
    share = min(max(share, 0.0), 1.0)
    if schedule == "linear":
        return 1.0 - share
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * share))
    if schedule == "constant":
        return 1.0
    shares, values = points_of(schedule)
    after = bisect.bisect_right(shares, share)
    if after in (0, len(shares)):
        return values[max(0, after - 1)]
    start, end = shares[after - 1], shares[after]
    return values[after - 1] + (values[after] - values[after - 1]) * (share - start) / (end - start)


@functools.cache
def points_of(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shares and values of `share:value,share:value,...`. Raises ValueError unless shares rise from 0 to 1 at most."""
    pairs = [tuple(map(float, point.split(":"))) for point in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{text} is not share:value,share:value,...")
    shares, values = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    if not (list(shares) == sorted(shares) and shares[0] >= 0 and shares[-1] <= 1):
        raise ValueError("shares must rise from 0 to 1")
    if not all(0 <= value < math.inf for value in values):
        raise ValueError("values must be finite and at least 0")
    return shares, values


def is_schedule(text: str, most: float = math.inf) -> bool:
    """Whether this is a name of a schedule, or points with values of at most `most`."""
    if text in ("linear", "cosine", "constant"):
        return True
    try:
        return max(points_of(text)[1]) <= most
    except ValueError:
        return False
