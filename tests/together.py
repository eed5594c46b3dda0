"""Ranks as threads of one process: what torch.distributed does between processes, for tests of everything above it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.runtime.roles import build_worker
from asyncrl.runtime.run import Run


class Together:
    """Exchanges between `ranks` threads; the sum is taken once, so it is the same to the bit for all."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._barrier = threading.Barrier(ranks, timeout=200)
        self._given: list[Any] = [None] * ranks
        self.exchanges = 0

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returns on each rank; the first exception, if one raises."""
        results: list[Any] = [None] * self.ranks
        errors: list[BaseException] = []

        def attempt(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=attempt, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return results

    def reduce(self, rank: int) -> Callable[[Tensor], Callable[[], None]]:
        """The vector must not change before it is waited for."""

        def reduce(vector: Tensor) -> Callable[[], None]:
            def wait() -> None:
                vector.copy_(torch.stack(self.all(rank, vector.clone())).sum(0))

            return wait

        return reduce

    def gather(self, rank: int) -> Callable[[Tensor], tuple[list[Tensor], float]]:
        def gather(message: Tensor) -> tuple[list[Tensor], float]:
            messages = self.all(rank, message)
            return ([part.clone() for part in messages] if rank == 0 else []), 0.0

        return gather

    def broadcast(self, rank: int) -> Callable[[Tensor], None]:
        def broadcast(tensor: Tensor) -> None:
            tensor.copy_(self.all(rank, tensor.clone())[0])

        return broadcast

    def all(self, rank: int, given: Any) -> list[Any]:
        """What all ranks have given."""
        self._given[rank] = given
        self._barrier.wait()
        taken = list(self._given)
        self._barrier.wait()
        if rank == 0:
            self.exchanges += 1
        return taken


def rollouts_of(run: Run, worker: int, count: int) -> list[Rollout]:
    """Some rollouts of a worker with the initial theta, as they were recorded."""
    role = build_worker(run, worker)
    assert role.collector is not None
    made = [Rollout.from_dict(next(role.collector).as_dict()) for _ in range(count)]
    role.close()
    return made
