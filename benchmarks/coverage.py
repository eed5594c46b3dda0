"""Do the intervals of `asyncrl.core.statistics` cover what they say?

Draws many small samples from distributions whose true figure is known, and counts how often the 95 % interval holds it.
Beside it stands the percentile bootstrap, which all of them used to be. Takes a few minutes:

    python benchmarks/coverage.py [--repeats 2000]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.statistics import LEVEL, Estimate, Sample, interquartile_mean, mean_of, median, over_games, ratio

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
DISTRIBUTIONS: dict[str, tuple[Draw, float, float]] = {
    "normal": (lambda random, n: random.normal(10, 3, n), 10.0, 10.0),
    "exponential": (lambda random, n: random.exponential(1.0, n), 1.0, math.log(2)),
    "log-normal": (lambda random, n: random.lognormal(0, 0.5, n), math.exp(0.125), 1.0),
    "1 in 85 % of cases, 0 otherwise": (lambda random, n: random.binomial(1, 0.85, n).astype(float), 0.85, 1.0),
}
"""How to draw, the true mean, and the true median."""


def percentile(values: NDArray[np.float64], statistic: Callable[..., NDArray[np.float64]], seed: int) -> Estimate:
    """What was used before: the plain percentile bootstrap."""
    drawn = values[np.random.default_rng(seed).integers(len(values), size=(1000, len(values)))]
    low, high = np.quantile(statistic(drawn, axis=-1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(0.0, float(low), float(high))


def covers(estimate: Estimate, truth: float) -> bool:
    """Whether the interval holds the true figure."""
    return estimate.low <= truth <= estimate.high


def of_means_and_medians(repeats: int) -> None:
    """One sample of n runs."""
    print("| figure | distribution | runs | percentile bootstrap | asyncrl |\n|---|---|--:|--:|--:|")
    for name, (draw, mean, middle) in DISTRIBUTIONS.items():
        for n in (5, 10, 20):
            random, hits = np.random.default_rng(n), np.zeros(4)
            for seed in range(repeats):
                values = draw(random, n)
                hits += (
                    covers(percentile(values, np.mean, seed), mean),
                    covers(mean_of(values.tolist(), seed), mean),
                    covers(percentile(values, np.median, seed), middle),
                    covers(median(Sample.complete(values.tolist())), middle),
                )
            shares = 100 * hits / repeats
            print(f"| mean | {name} | {n} | {shares[0]:.0f} % | {shares[1]:.0f} % |")
            print(f"| median | {name} | {n} | {shares[2]:.0f} % | {shares[3]:.0f} % |", flush=True)


def of_ratios(repeats: int) -> None:
    """Two samples of n runs with the same median."""
    print("\n| ratio of medians | runs each | asyncrl |\n|---|--:|--:|")
    for name, (draw, _, _) in list(DISTRIBUTIONS.items())[:-1]:  # a median of the last may be 0
        for n in (5, 10, 20):
            random, hits = np.random.default_rng(n), 0
            for seed in range(repeats):
                one, many = (Sample.complete(draw(random, n).tolist()) for _ in range(2))
                hits += covers(ratio(one, many, seed), 1.0)
            print(f"| {name} | {n} | {100 * hits / repeats:.0f} % |", flush=True)


def of_aggregates(repeats: int) -> None:
    """Interquartile means over games that differ, a few runs each, over eight draws of what the games are like."""
    print("\n| games in an interquartile mean | runs of each | stratified bootstrap | asyncrl |\n|--:|--:|--:|--:|")
    for games, n in ((1, 5), (1, 10), (3, 5), (5, 3), (5, 5), (10, 3), (10, 5), (57, 2), (57, 3)):
        hits, count = np.zeros(2), 0
        for layout in range(8):
            random = np.random.default_rng(100 * games + layout)
            level, spread = random.lognormal(0, 1, (games, 1)), random.uniform(0.1, 0.6, (games, 1))
            samples = level * (1 + spread * random.normal(0, 1, (5000, games, n)))
            truth = float(interquartile_mean(samples.reshape(len(samples), -1)).mean())
            for seed, each in enumerate(samples[: repeats // 16]):
                again = np.random.default_rng(seed).integers(n, size=(1000, games, n))
                drawn = np.take_along_axis(each[None], again, axis=-1).reshape(1000, -1)
                low, high = np.quantile(interquartile_mean(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                hits += (low <= truth <= high, covers(over_games(each.tolist(), seed=seed), truth))
                count += 1
        shares = 100 * hits / count
        print(f"| {games} | {n} | {shares[0]:.0f} % | {shares[1]:.0f} % |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000, help="samples per row")
    repeats = parser.parse_args().repeats
    of_means_and_medians(repeats)
    of_ratios(repeats)
    of_aggregates(repeats)


if __name__ == "__main__":
    main()
