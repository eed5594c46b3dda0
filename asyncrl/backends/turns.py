"""Schedules of the serial backend: whose turn it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np


def round_robin(workers: int) -> Iterator[int]:
    """0, 1, ..., N - 1, 0, 1, ...: N - 1 others push between two turns of a worker."""
    while True:
        yield from range(workers)


def random_order(workers: int, seed: int) -> Iterator[int]:
    """Each turn goes to a worker sampled uniformly."""
    random = np.random.default_rng(seed)
    while True:
        yield from random.integers(workers, size=1024).tolist()


def by_delays(workers: int, delays: Sequence[float]) -> Iterator[int]:
    """Worker k's turns take `delays[k mod len]` units of time; the worker that is ready first goes next.

    Slow workers' updates are the stale ones, as on a machine with unequal cores.
    """
    ready = [(float(delays[worker % len(delays)]), worker) for worker in range(workers)]
    heapq.heapify(ready)
    while True:
        time, worker = ready[0]
        yield worker
        heapq.heapreplace(ready, (time + delays[worker % len(delays)], worker))


def make_schedule(name: str, workers: int, seed: int, delays: Sequence[float]) -> Iterator[int]:
    """The schedule of that name; `by_delays` if there are any."""
    if delays:
        return by_delays(workers, delays)
    if name == "random":
        return random_order(workers, seed)
    return round_robin(workers)
