"""Means of scores over episodes, seeds and games, medians of partly censored times, and their intervals.

A time (in steps or in seconds) is *censored* if the run ended before it reached the score: it is only known that it
would have taken longer. Such a run counts as slower than every run that reached the score, and is never left out. That
is enough for a median, as long as fewer than half of the runs are censored.

Each kind of estimate has the interval that covers what it says in small samples (`benchmarks/coverage.py` simulates
it): a median that of the binomial order statistics, a mean a studentised bootstrap, a ratio of medians and an aggregate
over games a percentile bootstrap. Fewer than `LEAST` runs get none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
"""Confidence level of the intervals."""
LEAST = 5
"""Runs that an interval needs. Of five runs, the whole range holds the median with a confidence of 93.75 %."""


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
        return float(np.median(self.as_infinite))

    @property
    def bound(self) -> float:
        """The median if it is known, else a lower bound of it."""
        return self.median if math.isfinite(self.median) else float(np.median(self.values))

    @property
    def as_infinite(self) -> list[float]:
        """The values, infinite where they are censored."""
        return [value if ok else math.inf for value, ok in zip(self.values, self.reached, strict=True)]


@dataclass(frozen=True)
class Estimate:
    """A figure, its interval, and whether it is only a bound."""

    value: float
    low: float = math.nan
    """NaN if there are too few runs for an interval."""
    high: float = math.nan
    """Infinite if censored runs leave it open."""
    bound: str = ""
    """"" for a value, "<=" or ">=" if censoring leaves only a bound, "?" if not even that."""
    resamples: tuple[tuple[float, float], ...] = ()
    """The least and the most that each bootstrap sample can be, for means over environments."""

    @property
    def has_interval(self) -> bool:
        """Whether there were enough runs for one."""
        return not math.isnan(self.low)

    @property
    def spans(self) -> tuple[float, float]:
        """How far the interval reaches below and above the value, for error bars; as far as the value if it is open."""
        if not self.has_interval:
            return 0.0, 0.0
        high = self.high if math.isfinite(self.high) else 2 * self.value
        return max(0.0, self.value - self.low), max(0.0, high - self.value)

    def told(self, form: Callable[[float], str]) -> str:
        """As text; `form` formats a number. Censored ends are marked as bounds."""
        if self.bound == "?":
            return "unknown"
        told = f"{self.bound} {form(self.value)}".strip()
        if not self.has_interval:
            return told
        return f"{told} [{form(self.low)}, {form(self.high) if math.isfinite(self.high) else 'unbounded'}]"

    def __str__(self) -> str:
        return self.told("{:.2f}".format)


def unity(known: bool = True) -> Estimate:
    """The ratio 1 of a sample to itself."""
    return Estimate(1.0, 1.0, 1.0, "" if known else "?", ((1.0, 1.0),) * RESAMPLES)


def ratio(one: Sample, many: Sample, seed: int = 0) -> Estimate:
    """median(one) / median(many): how many times faster the second is, with a percentile bootstrap over seeds.

    The two samples are resampled independently. A censored median leaves one end of a resampled ratio open: it may be
    infinite, or zero.
    """
    random = np.random.default_rng(seed)
    known = math.isfinite(one.median), math.isfinite(many.median)
    bound = {(True, True): "", (True, False): "<=", (False, True): ">=", (False, False): "?"}[known]
    if min(len(one.values), len(many.values)) < LEAST:
        return Estimate(one.bound / many.bound, bound=bound)
    (least, most), (of_least, of_most) = (_resampled_medians(each, random) for each in (one, many))
    return _percentile(one.bound / many.bound, np.stack([least / of_most, most / of_least], axis=-1), bound)


def _resampled_medians(sample: Sample, random: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least and the most `[RESAMPLES]` that medians of samples drawn with replacement can be.

    They differ where a median is censored: then the most is infinite.
    """
    drawn = random.integers(len(sample.values), size=(RESAMPLES, len(sample.values)))
    most = np.median(np.array(sample.as_infinite)[drawn], axis=1)
    return np.where(np.isinf(most), np.median(np.array(sample.values)[drawn], axis=1), most), most


def median(sample: Sample) -> Estimate:
    """The median; only a bound if it is censored.

    Its interval is between two runs: the k-th smallest and the k-th largest have the median between them unless fewer
    than k of n runs fall on one side of it, whatever the distribution (binomial order statistics).
    """
    ordered, n = sorted(sample.as_infinite), len(sample.values)
    bound = "" if math.isfinite(sample.median) else ">="
    if n < LEAST:
        return Estimate(sample.bound, bound=bound)
    from scipy.stats import binom  # takes a second to import

    k = max(1, int(binom.ppf((1 - LEVEL) / 2, n, 0.5)))
    low = ordered[k - 1] if math.isfinite(ordered[k - 1]) else min(sample.values)
    return Estimate(sample.bound, low, ordered[n - k], bound)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """The arithmetic mean of ratios, as over games in the paper. A bound among the values makes the mean a bound."""
    bounds = {estimate.bound for estimate in estimates} - {""}
    bound = "" if not bounds else bounds.pop() if len(bounds) == 1 else "?"
    value = float(np.mean([estimate.value for estimate in estimates]))
    if not all(estimate.resamples for estimate in estimates):
        return Estimate(value, bound=bound)
    return _percentile(value, np.mean([estimate.resamples for estimate in estimates], axis=0), bound)


def mean_of(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of scores, with a studentised bootstrap interval (Efron & Tibshirani 1993, section 12.5).

    Resampling shows how (mean* - mean) / its own standard error is distributed, so a small or skewed sample gets an
    interval that is as wide as it must be. The percentile bootstrap covers 84 % instead of 95 % with five values. If
    most scores are nearly equal, as in a solved task, some resamples have hardly any error, and the interval would be
    many times as wide as the scores lie apart. So errors of resamples count as at least a fifth of the sample's.
    """
    scores = np.array(values, np.float64)
    if len(scores) < LEAST:
        return Estimate(float(scores.mean()))
    drawn = scores[np.random.default_rng(seed).integers(len(scores), size=(RESAMPLES, len(scores)))]
    error, errors = (each.std(-1, ddof=1) / math.sqrt(len(scores)) for each in (scores, drawn))
    mean = float(scores.mean())
    if not error:
        return Estimate(mean, mean, mean)
    deviations = (drawn.mean(-1) - mean) / np.maximum(errors, error / 5)
    below, above = np.quantile(deviations, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(mean - above * error), float(mean - below * error))


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means [R] of the middle half of each row [R, k]: a quarter of it, rounded down, is left out at each end."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(values, 0.25, axis=-1))


def over_games(games: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """The interquartile mean over all runs of all games, one score per run (Agarwal et al. 2021).

    Its interval is a stratified bootstrap: seeds are resampled within each game. n seeds vary too little among
    themselves, by (n - 1) / n, so their deviations are enlarged by as much (Rao & Wu 1988), and by what Student's t of
    all seeds has beyond a normal distribution. A game with a single run says nothing of its own variation, and then
    there is no interval.
    """
    scores = [np.array(runs, np.float64) for runs in games]
    together = np.concatenate(scores)
    value = float(interquartile_mean(together))
    if len(together) < LEAST or min(map(len, scores)) < 2:
        return Estimate(value)
    from scipy.stats import norm, t

    random, freedom, upper = np.random.default_rng(seed), len(together) - len(scores), (1 + LEVEL) / 2
    resampled = []
    for runs in scores:
        n = len(runs)
        drawn = runs[random.integers(n, size=(RESAMPLES, n))]
        enlarged = math.sqrt(n / (n - 1)) * t.ppf(upper, freedom) / norm.ppf(upper)
        resampled.append(runs.mean() + enlarged * (drawn - runs.mean()))
    resamples = interquartile_mean(np.concatenate(resampled, axis=1))
    return _percentile(value, np.stack([resamples, resamples], axis=-1))


def normalized(runs: Sequence[float], low: float, high: float) -> list[float]:
    """Scores of runs with `low` as 0 and `high` as 1; 1 also if the two are equal, and so is the score."""
    return [(score - low) / (high - low) if high > low else float(score >= high) for score in runs]


def optimality_gap(runs: Sequence[float]) -> float:
    """By how much normalised scores fall short of 1 in the mean, where being above 1 does not count."""
    return float(np.maximum(0.0, 1.0 - np.array(runs)).mean())


def probability_of_improvement(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], seed: int = 0
) -> Estimate:
    """How likely a run of one method scores more than a run of another, in the mean over environments.

    `ours` and `theirs` have a sequence of runs for each environment, more is better, and equal runs count as half
    (Mann and Whitney's U). The interval is a bootstrap over the runs of each environment; with fewer than five anywhere
    there is none.
    """
    pairs = [(np.array(a, float), np.array(b, float)) for a, b in zip(ours, theirs, strict=True)]
    value = float(np.mean([_share_above(a, b) for a, b in pairs]))
    if min(min(len(a), len(b)) for a, b in pairs) < LEAST:
        return Estimate(value)
    random = np.random.default_rng(seed)
    shares = [
        _share_above(*(runs[random.integers(len(runs), size=(RESAMPLES, len(runs)))] for runs in pair))
        for pair in pairs
    ]
    resamples = np.mean(shares, axis=0)
    return _percentile(value, np.stack([resamples, resamples], axis=-1))


def comparison(scores: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, str]]:
    """Methods compared run against run (Agarwal et al. 2021), a row for each.

    `scores` have a sequence of normalised scores for each environment.
    """
    rows = []
    for name, own in scores.items():
        together = [score for runs in own for score in runs]
        row = {"method": name, "runs": str(len(together)), "interquartile mean": str(over_games(own))}
        row["optimality gap"] = f"{optimality_gap(together):.2f}"
        for other, theirs in scores.items():
            row[f"better than {other}"] = "" if other == name else str(probability_of_improvement(own, theirs))
        rows.append(row)
    return rows


def _share_above(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of pairs in which ours is above, `[...]` of runs `[..., n]` and `[..., m]`."""
    from scipy.stats import mannwhitneyu

    u = mannwhitneyu(ours, theirs, axis=-1, method="asymptotic").statistic
    return np.asarray(u / (ours.shape[-1] * theirs.shape[-1]))


def _percentile(value: float, resamples: NDArray[np.float64], bound: str = "") -> Estimate:
    """The percentile interval of resamples `[R, 2]`, the least and the most that each can be."""
    low = np.quantile(resamples[:, 0], (1 - LEVEL) / 2, method="lower")
    high = np.quantile(resamples[:, 1], (1 + LEVEL) / 2, method="higher")
    return Estimate(float(value), float(low), float(high), bound, tuple(map(tuple, resamples.tolist())))
