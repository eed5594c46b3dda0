"""Three speed-ups from measurements (throughput, data and time), their mean over environments, and laws of scaling.

The Universal Scalability Law (Gunther 1993, 2007) has the speed-up of n workers as

    S(n) = n / (1 + contention (n - 1) + coherence n (n - 1)).

Contention is the share of work that only one worker can do at a time, coherence the cost of each pair of workers to
each other. Without coherence it is Amdahl's law (1967), with the contention as serial fraction: 1 / (s + (1 - s) / n).
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.statistics import Estimate, Sample, mean, ratio, unity
from asyncrl.storage.rows import add_up
from asyncrl.studies.measure import Group, Measurement
from asyncrl.studies.study import CLOCKED, Reference, Series

KINDS = {
    "throughput": ("steps_per_second", "steps per second"),
    "data": ("steps_to_reference", "steps to the reference score"),
    "time": ("seconds_to_reference", "seconds to the reference score"),
}
"""The kinds of speed-up: what each compares, as a column of table.csv and in words."""
MEAN = "mean"
"""Used as the environment of a mean over all environments."""


@dataclass(frozen=True)
class Point(Group):
    """The runs of one series at one number of workers, in one environment or in all of them."""

    series: Series
    env_id: str
    """`MEAN`: all."""
    backend: str
    workers: int
    speedups: Mapping[str, Estimate] = field(default_factory=dict)
    """The known speed-ups, by kind."""

    @cached_property
    def samples(self) -> dict[str, Sample]:
        """What the runs of one environment needed or made, by the kind of speed-up. A serial clock is meaningless."""
        samples = {"throughput": self.throughput} if self.is_clocked else {}
        if self.reference:
            samples |= {"data": self.steps} | ({"time": self.seconds} if self.is_clocked else {})
        return samples if self.env_id != MEAN else {}

    @property
    def is_clocked(self) -> bool:
        """Whether the clock of the runs counts."""
        return self.backend in CLOCKED

    @property
    def cores(self) -> int:
        """The cores that a run could use."""
        return max(run.cores for run in self.runs)

    @property
    def is_crowded(self) -> bool:
        """Whether there were more workers than cores."""
        return self.is_clocked and 0 < self.cores < self.workers

    @property
    def seeds(self) -> int:
        """The runs of the environment that has the fewest."""
        return min(Counter(run.cell.env_id for run in self.runs).values())

    @property
    def staleness(self) -> float:
        """Mean staleness of updates."""
        lags = add_up(run.staleness for run in self.runs)
        return float(sum(lag * count for lag, count in lags.items())) / max(1, lags.total())

    def phase(self, name: str) -> float:
        """Seconds that a worker spent in a phase for each of its steps, mean over runs."""
        return float(np.mean([run.phases.get(name, 0.0) for run in self.runs]))

    def cost(self, price_per_core_hour: float) -> float | None:
        """Money until the reference score, for the median time: a core for each worker, at most all cores."""
        seconds = self.samples["time"].median if "time" in self.samples else math.inf
        if not math.isfinite(seconds):
            return None
        return price_per_core_hour * min(self.workers, self.cores or self.workers) * seconds / 3600


def make_points(measurements: Sequence[Measurement]) -> list[Point]:
    """All points, environment by environment, then the mean of each series."""
    groups: dict[tuple[Series, str, str, int], list[Measurement]] = {}
    for run in sorted(measurements, key=lambda run: (run.cell.backend, run.cell.env_id)):
        if run.complete:
            key = run.cell.series, run.cell.env_id, run.cell.backend, run.cell.workers
            groups.setdefault(key, []).append(run)
    bare = {key: Point(sorted(runs, key=lambda run: run.cell.seed), *key) for key, runs in groups.items()}
    points = [replace(point, speedups=_speedups(bare.get((*key[:3], 1)), point)) for key, point in bare.items()]
    return points + _means(points)


def _speedups(one: Point | None, many: Point) -> dict[str, Estimate]:
    """The speed-ups against one worker. With one worker they are 1 by definition."""
    speedups = {}
    for kind, sample in many.samples.items():
        below = one.samples.get(kind) if one else None
        if below is None or below.bound <= 0 or sample.bound <= 0:
            continue
        # A seed for each, so that the values are independent for the mean over environments.
        seed = zlib.crc32(f"{many.series} {many.env_id} {many.backend} {many.workers} {kind}".encode())
        pair = (sample, below) if kind == "throughput" else (below, sample)  # a rate: more is faster
        speedups[kind] = unity(math.isfinite(sample.median)) if many.workers == 1 else ratio(*pair, seed)
    return speedups


def _means(points: Sequence[Point]) -> list[Point]:
    """Each series' mean over environments, for each number of workers for which all environments have a value."""
    means = []
    for series, backend in dict.fromkeys((point.series, point.backend) for point in points):
        own = [point for point in points if (point.series, point.backend) == (series, backend)]
        env_ids = {point.env_id for point in own}
        for workers in sorted({point.workers for point in own}):
            here = [point for point in own if point.workers == workers]
            values = {kind: [point.speedups[kind] for point in here if kind in point.speedups] for kind in KINDS}
            speedups = {kind: mean(found) for kind, found in values.items() if len(found) == len(env_ids)}
            means.append(Point([run for p in here for run in p.runs], series, MEAN, backend, workers, speedups))
    return means


def choose_reference(one_worker: Sequence[Measurement], fraction: float, evaluations: int = 1) -> Reference | None:
    """A score that one worker reaches: `fraction` of the way from its worst evaluation to its best.

    The best is the median over seeds of each run's best mean of `evaluations` consecutive evaluations, so that at least
    half of the runs reach the score. The worst is the lowest evaluation of all, close to the score of an untrained
    network. None without evaluations.
    """
    scores = (run.best_score(evaluations) for run in one_worker if run.complete)
    best = [score for score in scores if score is not None]
    if not best:
        return None
    lowest = min(evaluation.score for run in one_worker for evaluation in run.evaluations)
    # The lower of two middle values, so that it is the score of a run.
    highest = sorted(best)[(len(best) - 1) // 2]
    # Rounded for people, but not above what was reached.
    score = min(float(f"{lowest + fraction * (highest - lowest):.4g}"), highest)
    how = (
        f"{fraction:g} of the way from the worst evaluation of one worker ({lowest:.4g}) to the best of its median "
        f"seed ({highest:.4g}, {len(best)} seeds); fixed before any run with more workers"
    )
    return Reference(score, how, evaluations)


@dataclass(frozen=True)
class Law:
    """A fitted law of scaling."""

    contention: float
    """Amdahl's serial fraction."""
    coherence: float = 0.0

    def speedup(self, n: NDArray[np.float64]) -> NDArray[np.float64]:
        """S(n)."""
        return n / (1 + self.contention * (n - 1) + self.coherence * n * (n - 1))


def fit_law(points: Sequence[tuple[int, float]], coefficients: int) -> Law:
    """Fit Amdahl's law (1 coefficient) or the Universal Scalability Law (2) by least squares of relative errors.

    `points` are numbers of workers and their speed-ups.

    Raises ValueError with fewer points above one worker than coefficients.
    """
    from scipy.optimize import nnls

    n, s = np.array(points, float).T
    if np.count_nonzero(n > 1) < coefficients:
        raise ValueError(f"{coefficients} coefficients need as many points with more than one worker")
    # n / S - 1 = contention (n - 1) + coherence n (n - 1) is linear; weighted by S / n, its residuals are the law's
    # relative errors.
    columns = np.stack([n - 1, n * (n - 1)], axis=1)[:, :coefficients] * (s / n)[:, None]
    solution, _ = nnls(columns, 1 - s / n)
    return Law(min(1.0, float(solution[0])), *map(float, solution[1:]))


def table_row(point: Point, price_per_core_hour: float) -> dict[str, Any]:
    """A point in table.csv. Columns that depend on the clock are empty for the serial backend."""
    row: dict[str, Any] = {
        "backend": point.backend,
        "method": point.series.algorithm,
        "variant": point.series.variant,
        "environment": point.env_id,
        "workers": point.workers,
        "cores": point.cores if point.is_clocked else "",
        "runs": len(point.runs),
        "reached": point.reached,
        "reference_score": point.reference.score if point.reference and point.env_id != MEAN else "",
    }
    for kind, (title, _) in KINDS.items():
        sample = point.samples.get(kind)
        row[title] = f"{'' if math.isfinite(sample.median) else '> '}{sample.bound:.6g}" if sample else ""
    for kind in KINDS:
        estimate = point.speedups.get(kind, Estimate(math.nan))
        shown = {"speedup": estimate.value, "low": estimate.low, "high": estimate.high}
        known = estimate.bound != "?"
        row |= {f"{kind}_{name}": f"{x:.4g}" if known and not math.isnan(x) else "" for name, x in shown.items()}
        row[f"{kind}_bound"] = estimate.bound
    money = point.cost(price_per_core_hour) if price_per_core_hour else None
    share = np.mean([run.evaluator_share for run in point.runs])
    return row | {
        "staleness_mean": f"{point.staleness:.4g}",
        "evaluator_share": f"{share:.3f}" if point.is_clocked else "",
        "cost_to_reference": f"{money:.4g}" if money is not None else "",
    }
