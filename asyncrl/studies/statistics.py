"""Means of scores over episodes, seeds and games, medians of partly censored times, and bootstrap intervals.

A time (in steps or in seconds) is *censored* if the run ended before it reached the score: it is only known that it
would have taken longer. Such a run counts as slower than every run that reached the score, and is never left out. That
is enough for a median, as long as fewer than half of the runs are censored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
"""Confidence level of the intervals."""


@dataclass(frozen=True)
class Sample:
    """The times of the runs of one setting, one value per seed."""

    values: tuple[float, ...]
    """Time to the score; for a censored run the time at which it ended."""
    reached: tuple[bool, ...]

    @classmethod
    def complete(cls, values: Sequence[float]) -> Sample:
        """A sample without censored values."""
        return cls(tuple(values), (True,) * len(values))

    @property
    def median(self) -> float:
        """The median; infinite if it is censored."""
        return float(_medians(np.array([self._as_infinite()]))[0])

    @property
    def bound(self) -> float:
        """The median if it is known, else a lower bound of it."""
        return self.median if math.isfinite(self.median) else float(np.median(self.values))

    def _as_infinite(self) -> list[float]:
        return [value if ok else math.inf for value, ok in zip(self.values, self.reached, strict=True)]

    def resampled_medians(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Medians [count] of samples drawn with replacement; a lower bound for a censored median."""
        drawn = random.integers(len(self.values), size=(count, len(self.values)))
        medians = _medians(np.array(self._as_infinite())[drawn])
        return np.where(np.isinf(medians), np.median(np.array(self.values)[drawn], axis=1), medians)


def _medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians [R] of rows [R, k] that may hold infinities."""
    ordered = np.sort(values, axis=1)
    k = values.shape[1]
    median: NDArray[np.float64] = (ordered[:, (k - 1) // 2] + ordered[:, k // 2]) / 2
    return median


@dataclass(frozen=True)
class Estimate:
    """A ratio, its interval, and whether it is only a bound."""

    value: float
    low: float
    high: float
    bound: str = ""
    """"" for a value, "<=" or ">=" if censoring leaves only a bound, "?" if not even that."""
    resamples: tuple[float, ...] = ()
    """The bootstrap samples, for means over environments."""

    def __str__(self) -> str:
        if self.bound == "?":
            return "unknown"
        return f"{self.bound}{' ' if self.bound else ''}{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def unity(known: bool = True) -> Estimate:
    """The ratio 1 of a sample to itself."""
    return Estimate(1.0, 1.0, 1.0, "" if known else "?", (1.0,) * RESAMPLES)


def ratio(one: Sample, many: Sample, seed: int = 0) -> Estimate:
    """median(one) / median(many): how many times faster the second is, with a percentile bootstrap over seeds.

    The two samples are resampled independently.
    """
    random = np.random.default_rng(seed)
    resamples = one.resampled_medians(random, RESAMPLES) / many.resampled_medians(random, RESAMPLES)
    known = math.isfinite(one.median), math.isfinite(many.median)
    bound = {(True, True): "", (True, False): "<=", (False, True): ">=", (False, False): "?"}[known]
    return _estimate(one.bound / many.bound, bound, resamples)


def median(sample: Sample, seed: int = 0) -> Estimate:
    """The median with a percentile bootstrap over seeds; only a bound if it is censored."""
    resamples = sample.resampled_medians(np.random.default_rng(seed), RESAMPLES)
    return _estimate(sample.bound, "" if math.isfinite(sample.median) else ">=", resamples)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The arithmetic mean, as over games in the paper. A bound among the values makes the mean a bound."""
    bounds = {estimate.bound for estimate in estimates} - {""}
    bound = "" if not bounds else bounds.pop() if len(bounds) == 1 else "?"
    resamples = np.mean([estimate.resamples for estimate in estimates], axis=0)
    return _estimate(float(np.mean([estimate.value for estimate in estimates])), bound, resamples)


def mean_of(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of scores with its percentile bootstrap interval, which for a single score is the score."""
    scores = np.array(values)
    drawn = np.random.default_rng(seed).integers(len(scores), size=(RESAMPLES, len(scores)))
    return _estimate(float(scores.mean()), "", scores[drawn].mean(1))


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means [R] of the middle half of each row [R, k]: a quarter of it, rounded down, is left out at each end."""
    k = values.shape[-1]
    middle: NDArray[np.float64] = np.sort(values, axis=-1)[..., k // 4 : k - k // 4].mean(-1)
    return middle


def interquartile_mean_of(games: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Interquartile mean over all runs of all games, one score per run (Agarwal et al. 2021).

    Its interval is a stratified percentile bootstrap: seeds are resampled within each game.
    """
    random = np.random.default_rng(seed)
    scores = [np.array(runs) for runs in games]
    resampled = [runs[random.integers(len(runs), size=(RESAMPLES, len(runs)))] for runs in scores]
    value = interquartile_mean(np.concatenate(scores)[np.newaxis])[0]
    return _estimate(float(value), "", interquartile_mean(np.concatenate(resampled, axis=1)))


def _estimate(value: float, bound: str, resamples: NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(float(value), float(low), float(high), bound, tuple(resamples.tolist()))
