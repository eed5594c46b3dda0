"""Running mean and variance: each writer adds to its own row, readers merge all rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 5.0
"""A normalised component is clipped to this many standard deviations."""


def standardize(raw: Tensor, mean: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    """(raw - mean) * scale, clipped, float32, of `[..., *shape]` by moments `[*shape]`; written to `out` if given."""
    return torch.sub(raw, mean, out=out).mul_(scale).clamp_(-LARGEST, LARGEST)


class Moments:
    """Count, mean and sum of squared deviations of vectors `[n]`, one row per worker.

    A worker adds to its own row only, so no update is lost and no lock is needed; a reader merges all rows by the
    formula of Chan, Golub and LeVeque (1979). A reader may see a row that is being written: its mean is then off by a
    part of one batch, which hardly changes a running mean of many thousands.
    """

    def __init__(self, rows: Tensor, own: Tensor | None = None) -> None:
        """`rows` is float64 `[workers + 1, 1 + 2 n]`, zero or restored; the last row is from before a resume.

        With `own` `[1 + 2 n]`, samples are added to that row instead, which readers do not see.
        """
        self._rows: NDArray[np.float64] = rows.numpy()
        self._own: NDArray[np.float64] | None = None if own is None else own.numpy()

    def add(self, worker: int, batch: Tensor) -> None:
        """Add vectors `[B, n]` to a worker's row."""
        count = len(batch)
        # In float32 the squares of large numbers would not be exact enough. torch.var_mean takes twenty times as long
        # over the first axis.
        samples = batch.double()
        mean = samples.mean(0)
        squares = (samples - mean).square_().sum(0)
        addition = np.concatenate([[count], mean.numpy(), squares.numpy()], dtype=np.float64)
        if self._own is None:
            self._rows[worker] = merge(self._rows[worker], addition)
        else:
            self._own[:] = merge(self._own, addition)

    @property
    def count(self) -> float:
        """How many vectors have been added to all rows."""
        return float(self._rows[:, 0].sum())

    def merged(self) -> NDArray[np.float64]:
        """All rows as one, `[1 + 2 n]`."""
        total = np.zeros(self._rows.shape[1])
        for row in self._rows:
            total = merge(total, row)
        return total


def mean_and_deviation(row: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and standard deviation `[n]` of the samples of a row `[1 + 2 n]`; 0 and 1 if there are fewer than two."""
    n = (len(row) - 1) // 2
    count, mean, squares = row[0], row[1 : 1 + n], row[1 + n :]
    if count < 2:
        return np.zeros(n, np.float32), np.ones(n, np.float32)
    return mean.astype(np.float32), np.sqrt(squares / count + 1e-8).astype(np.float32)


def merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two rows (count, mean `[n]`, squared deviations `[n]`) of different samples as the row of all."""
    n = (len(a) - 1) // 2
    count = a[0] + b[0]
    if count == 0:
        return a.copy()
    shift = b[1 : 1 + n] - a[1 : 1 + n]
    mean = a[1 : 1 + n] + shift * (b[0] / count)
    squares = a[1 + n :] + b[1 + n :] + np.square(shift) * (a[0] * b[0] / count)
    return np.concatenate([[count], mean, squares])
