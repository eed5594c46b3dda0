"""Laws of scaling, fitted to measured speed-ups.

The Universal Scalability Law (Gunther 1993, 2007) has the speed-up of n workers as

    S(n) = n / (1 + contention (n - 1) + coherence n (n - 1)).

Contention is the share of work that only one worker can do at a time, coherence the cost of each pair of workers to
each other. Without coherence it is Amdahl's law (1967), with the contention as serial fraction: 1 / (s + (1 - s) / n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Law:
    """A fitted curve."""

    contention: float
    """Amdahl's serial fraction."""
    coherence: float = 0.0
    error: float = 0.0
    """Root mean square of the relative errors at the points of the fit."""

    def speedup(self, workers: float) -> float:
        """S(n)."""
        n = workers
        return n / (1 + self.contention * (n - 1) + self.coherence * n * (n - 1))

    @property
    def limit(self) -> float:
        """The largest speed-up with any number of workers; infinite without contention and coherence."""
        if self.coherence > 0:
            return self.speedup(max(1.0, self.best_workers))
        return 1 / self.contention if self.contention > 0 else math.inf

    @property
    def best_workers(self) -> float:
        """The number of workers above which more of them make it slower; infinite without coherence."""
        return math.sqrt(max(0.0, 1 - self.contention) / self.coherence) if self.coherence > 0 else math.inf


def fit_amdahl(workers: Sequence[int], speedups: Sequence[float]) -> Law:
    """Fit Amdahl's law by least squares of relative errors. Raises ValueError without a point above one worker."""
    return _fit(workers, speedups, terms=1)


def fit_usl(workers: Sequence[int], speedups: Sequence[float]) -> Law:
    """Fit the Universal Scalability Law likewise. Raises ValueError with fewer than two points above one worker."""
    return _fit(workers, speedups, terms=2)


def _fit(workers: Sequence[int], speedups: Sequence[float], terms: int) -> Law:
    """Fit non-negative coefficients of n / S - 1 = contention (n - 1) + coherence n (n - 1).

    This is linear; each equation is weighted by S / n, so that its residual is the relative error of the law.
    """
    n, s = np.array(workers, float), np.array(speedups, float)
    if np.count_nonzero(n > 1) < terms:
        raise ValueError(f"{terms} coefficients need as many points with more than one worker")
    weight = s / n
    columns = (weight[:, None] * np.stack([n - 1, n * (n - 1)], axis=1))[:, :terms]
    wanted = 1 - weight
    from scipy.optimize import nnls

    solution, norm = nnls(columns, wanted)
    contention, coherence = [*map(float, solution), 0.0][:2]
    return Law(min(1.0, contention), coherence, float(norm) / math.sqrt(len(wanted)))
