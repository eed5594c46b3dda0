"""Runs of several methods compared over environments, as Agarwal et al. 2021 advise (arXiv 2108.13264).

Their own library, rliable, pins packages that do not go together with this project's; the figures are its.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.statistics import LEAST, LEVEL, RESAMPLES, Estimate


def normalized(runs: Sequence[float], low: float, high: float) -> list[float]:
    """Scores of runs with `low` as 0 and `high` as 1."""
    return [(score - low) / (high - low) if high > low else 0.0 for score in runs]


def performance_profile(runs: Sequence[float], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share `[K]` of runs above each of K thresholds."""
    shares: NDArray[np.float64] = (np.array(runs)[:, None] > thresholds).mean(0)
    return shares


def optimality_gap(runs: Sequence[float], goal: float = 1.0) -> float:
    """By how much the runs fall short of the goal in the mean, where being above it does not count."""
    return float(np.maximum(0.0, goal - np.array(runs)).mean())


def probability_of_improvement(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], seed: int = 0
) -> Estimate:
    """How likely a run of one method scores more than a run of another, in the mean over environments.

    `ours` and `theirs` have a sequence of runs for each environment, more is better, and equal runs count as half. The
    interval is a bootstrap over the runs of each environment; with fewer than five anywhere there is none.
    """
    pairs = [(np.array(a, float), np.array(b, float)) for a, b in zip(ours, theirs, strict=True)]
    value = float(np.mean([_above(a, b) for a, b in pairs]))
    if min(min(len(a), len(b)) for a, b in pairs) < LEAST:
        return Estimate(value)
    random = np.random.default_rng(seed)
    resampled = np.mean(
        [_above(*(runs[random.integers(len(runs), size=(RESAMPLES, len(runs)))] for runs in pair)) for pair in pairs],
        axis=0,
    )
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def _above(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of pairs in which ours is above, `[...]` of runs `[..., n]` and `[..., m]`."""
    a, b = ours[..., :, None], theirs[..., None, :]
    shares: NDArray[np.float64] = ((a > b) + 0.5 * (a == b)).mean((-2, -1))
    return shares
