"""The three speed-ups from measurements: throughput, data and time, per environment and their mean."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.statistics import Estimate, Sample, mean, ratio, unity
from asyncrl.studies.documents import write_csv
from asyncrl.studies.measure import Measurement, add_staleness, times_to
from asyncrl.studies.plan import Reference, References, Series

KINDS = ("throughput", "data", "time")
"""throughput: steps per second. data: steps to the reference score. time: seconds to the reference score."""
CLOCKED = ("local", "collective")
"""Backends whose workers run at the same time, so that their clock counts."""
MEAN = "mean"
"""Used as the environment of a mean over all environments."""


@dataclass(frozen=True)
class Point:
    """One series at one number of workers, in one environment or as the mean over all of them."""

    series: Series
    env_id: str
    backend: str
    workers: int
    runs: int = 0
    """Number of finished runs."""
    reached: int = 0
    """Number of those that reached the reference score; the others are censored."""
    cores: int = 0
    throughput: Sample | None = None
    steps: Sample | None = None
    """Steps to the reference score."""
    seconds: Sample | None = None
    """Seconds to the reference score. None for the serial backend, whose clock is meaningless."""
    speedups: Mapping[str, Estimate] | None = None
    """The known speed-ups, by kind."""
    staleness: float = 0.0
    """Mean staleness of updates."""
    evaluator_share: float = 0.0

    @property
    def crowded(self) -> bool:
        """Whether there were more workers than cores."""
        return self.backend in CLOCKED and 0 < self.cores < self.workers

    def speedup(self, kind: str) -> Estimate | None:
        """The speed-up of that kind, if it is known."""
        return (self.speedups or {}).get(kind)


def make_points(measurements: Sequence[Measurement], references: References) -> list[Point]:
    """All points, environment by environment, then the mean of each series."""
    complete = [measurement for measurement in measurements if measurement.complete]
    keys = list(dict.fromkeys((m.cell.series, m.cell.env_id, m.cell.backend, m.cell.workers) for m in complete))
    bare = {key: _gather(key, [m for m in complete if _key(m) == key], references) for key in keys}
    points = [_compare(bare.get((*key[:3], 1)), point) for key, point in bare.items()]
    points.sort(key=lambda point: (point.backend, point.env_id))
    return points + _means(points)


def _key(measurement: Measurement) -> tuple[Series, str, str, int]:
    cell = measurement.cell
    return cell.series, cell.env_id, cell.backend, cell.workers


def _gather(key: tuple[Series, str, str, int], runs: list[Measurement], references: References) -> Point:
    """A point, without speed-ups."""
    series, env_id, backend, workers = key
    reference = references.get((env_id, series.algorithm))
    runs = sorted(runs, key=lambda run: run.cell.seed)
    clocked = backend in CLOCKED
    lags = add_staleness(run.staleness for run in runs)
    steps = times_to(reference, runs, lambda at: float(at.steps)) if reference else None
    return Point(
        series,
        env_id,
        backend,
        workers,
        runs=len(runs),
        reached=sum(steps.reached) if steps else 0,
        cores=max(run.cores for run in runs),
        throughput=Sample.complete([run.throughput for run in runs]) if clocked else None,
        steps=steps,
        seconds=times_to(reference, runs, lambda at: at.seconds) if reference and clocked else None,
        staleness=sum(lag * count for lag, count in lags.items()) / max(1, sum(lags.values())),
        evaluator_share=float(np.mean([run.evaluator_share for run in runs])),
    )


def _compare(one: Point | None, point: Point) -> Point:
    """The point with its speed-ups against one worker. With one worker they are 1 by definition."""
    speedups: dict[str, Estimate] = {}
    if one is not None:
        pairs = {
            "throughput": (point.throughput, one.throughput),  # a rate, not a time: more is faster
            "data": (one.steps, point.steps),
            "time": (one.seconds, point.seconds),
        }
        for kind, (above, below) in pairs.items():
            if above is None or below is None or below.bound <= 0:
                continue
            same = point.workers == 1
            # A seed for each, so that the values are independent for the mean over environments.
            seed = zlib.crc32(f"{point.series} {point.env_id} {point.backend} {point.workers} {kind}".encode())
            speedups[kind] = unity(math.isfinite(above.median)) if same else ratio(above, below, seed)
    return dataclasses.replace(point, speedups=speedups)


def _means(points: Sequence[Point]) -> list[Point]:
    """Each series' mean over environments, for each number of workers for which all environments have a value."""
    means = []
    for series, backend in dict.fromkeys((point.series, point.backend) for point in points):
        own = [point for point in points if (point.series, point.backend) == (series, backend)]
        env_ids = {point.env_id for point in own}
        for workers in sorted({point.workers for point in own}):
            here = [point for point in own if point.workers == workers]
            speedups = {}
            for kind in KINDS:
                values = [value for point in here if (value := point.speedup(kind)) is not None]
                if len(values) == len(env_ids):
                    speedups[kind] = mean(values)
            means.append(
                Point(
                    series,
                    MEAN,
                    backend,
                    workers,
                    runs=sum(point.runs for point in here),
                    reached=sum(point.reached for point in here),
                    cores=max(point.cores for point in here),
                    speedups=speedups,
                    staleness=float(np.mean([point.staleness for point in here])),
                    evaluator_share=float(np.mean([point.evaluator_share for point in here])),
                )
            )
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


def cost(point: Point, price_per_core_hour: float) -> float | None:
    """Money until the reference score, for the median time: a core for each worker, at most all cores."""
    if point.seconds is None or not math.isfinite(point.seconds.median):
        return None
    cores = min(point.workers, point.cores) if point.cores else point.workers
    return price_per_core_hour * cores * point.seconds.median / 3600


def write_table(path: Path, points: Sequence[Point], references: References, price_per_core_hour: float) -> None:
    """Write table.csv: a row per point. Columns that depend on the clock are empty for the serial backend."""
    rows = [
        _row(point, references.get((point.env_id, point.series.algorithm)), price_per_core_hour) for point in points
    ]
    write_csv(path, rows)


def _row(point: Point, reference: Reference | None, price: float) -> dict[str, Any]:
    clocked = point.backend in CLOCKED
    row: dict[str, Any] = {
        "backend": point.backend,
        "method": point.series.algorithm,
        "variant": point.series.variant,
        "environment": point.env_id,
        "workers": point.workers,
        "cores": point.cores if clocked else "",
        "runs": point.runs,
        "reached": point.reached,
        "reference_score": reference.score if reference else "",
        "steps_per_second": _number(point.throughput),
        "steps_to_reference": _number(point.steps),
        "seconds_to_reference": _number(point.seconds),
    }
    for kind in KINDS:
        estimate = point.speedup(kind)
        shown = estimate is not None and estimate.bound != "?"
        row[f"{kind}_speedup"] = f"{estimate.value:.4g}" if shown and estimate else ""
        interval = shown and estimate is not None and estimate.has_interval
        row[f"{kind}_low"] = f"{estimate.low:.4g}" if interval and estimate else ""
        row[f"{kind}_high"] = f"{estimate.high:.4g}" if interval and estimate else ""
        row[f"{kind}_bound"] = estimate.bound if estimate else ""
    money = cost(point, price) if price else None
    return row | {
        "staleness_mean": f"{point.staleness:.4g}",
        "evaluator_share": f"{point.evaluator_share:.3f}" if clocked else "",
        "cost_to_reference": f"{money:.4g}" if money is not None else "",
    }


def _number(sample: Sample | None) -> str:
    """A median; "> x" if it is censored."""
    if sample is None:
        return ""
    return f"{sample.median:.6g}" if math.isfinite(sample.median) else f"> {sample.bound:.6g}"


def write_runs(path: Path, measurements: Sequence[Measurement], references: References) -> None:
    """Write runs.csv: a row per planned run, also those that failed, never reached the score, or are missing."""
    rows = []
    for run in measurements:
        cell = run.cell
        clocked = cell.backend in CLOCKED
        reference = references.get((cell.env_id, cell.algorithm))
        at = run.reach(reference) if reference else None
        best = run.best_score()
        rows.append(
            {
                "backend": cell.backend,
                "method": cell.algorithm,
                "variant": cell.variant,
                "environment": cell.env_id,
                "workers": cell.workers,
                "seed": cell.seed,
                "state": run.state or "missing",
                "restarts": run.restarts,
                "steps": run.steps,
                "steps_per_second": f"{run.throughput:.6g}" if clocked else "",
                "best_score": "" if best is None else f"{best:.6g}",
                "reference_score": reference.score if reference else "",
                "steps_to_reference": at.steps if at else "",
                "seconds_to_reference": at.seconds if at and clocked else "",
                "censored": "" if at or not run.complete else f"at {run.steps} steps",
            }
        )
    write_csv(path, rows)
