"""Settings as functions of a run's progress, from a program: they are sampled once, and stored as points.

So a run's folder holds data only, a resumed run has the same schedule, and no worker needs the program's function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.core.errors import UsageError, one_line

SCHEDULES = {
    "learning_rate": "learning_rate_schedule", "entropy_weights": "entropy_schedule", "epsilons": "epsilon_schedule",
}  # fmt: skip
"""Settings that may be such functions, and where their schedules are."""
SAMPLES = 100
"""Parts of a run at whose ends a function is asked; in between the schedule is straight."""
STRAIGHT = 1e-9
"""A point that is this close to the line between its neighbours is redundant."""

Points = list[tuple[float, float]]


def sampled(name: str, given: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    """Setting `name` as its largest value, and the schedule of its values, from a function or from points.

    A function takes the remaining progress, 1 at the beginning and 0 at the end, as in Stable-Baselines3; points are
    pairs of a share of the run, 0 to 1, and a value. epsilons have a schedule of their values alone. Nothing for what
    is neither. Raises UsageError.
    """
    pairs = isinstance(given, list | tuple) and any(isinstance(one, list | tuple) for one in given)
    if not (callable(given) or pairs):
        return {}
    schedule = SCHEDULES[name]
    if schedule in others:
        raise UsageError(f"{name} already defines its own schedule: leave out {schedule}")
    points = _asked(name, given) if callable(given) else _pairs(name, given)
    values = [value for _, value in points]
    if wrong := [value for value in values if not 0 <= value < math.inf]:
        raise UsageError(f"{name} must be finite and at least 0 throughout the run, got {wrong[0]}")
    if name == "epsilons":
        return {schedule: _text(points)}
    largest = max(values)
    setting = (largest,) if name == "entropy_weights" else largest
    if min(values) == largest:
        return {name: setting, schedule: "constant"}
    return {name: setting, schedule: _text([(share, value / largest) for share, value in points])}


def _asked(name: str, function: Callable[[float], Any]) -> Points:
    points = []
    for number in range(SAMPLES + 1):
        share = number / SAMPLES
        try:
            points.append((share, float(function(1.0 - share))))
        except Exception as error:
            where = f"the remaining progress {1 - share:g}"
            raise UsageError(f"{name} was called with {where}: {one_line(error)}") from error
    return points


def _pairs(name: str, given: Sequence[Any]) -> Points:
    try:
        points = [(float(share), float(value)) for share, value in given]
    except (TypeError, ValueError):
        raise UsageError(f"{name} takes pairs of a share of the run and a value, got {given!r}") from None
    shares = [share for share, _ in points]
    if shares != sorted(shares) or shares[0] < 0 or shares[-1] > 1:
        raise UsageError(f"{name}: shares of the run must rise from 0 to 1, got {shares}")
    return points


def _text(points: Points) -> str:
    """The points that matter, as the setting has them."""
    kept = points[:1]
    for (share, value), (after, next_value) in itertools.pairwise(points[1:]):
        before, last_value = kept[-1]
        straight = last_value + (next_value - last_value) * (share - before) / ((after - before) or 1.0)
        if abs(value - straight) > STRAIGHT * max(1.0, abs(value)) or share in (before, after):
            kept.append((share, value))
    kept += points[-1:] if len(points) > 1 else []
    return ",".join(f"{share:.6g}:{value:.10g}" for share, value in kept)
