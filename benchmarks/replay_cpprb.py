"""What cpprb's memory does per second of CPU time, as JSON: for `replay.py --cpprb`, in a Python that has cpprb.

Steps of CartPole's shape, kept with their successors. `nstep` is for its own returns of several steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np


def rate_of(work: Callable[[], object], seconds: float) -> float:
    """How often it is done in a second, after some that do not count."""
    for _ in range(5):
        work()
    times, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds:
        work()
        times += 1
    return times / spent


def rates(size: int, n_step: int, put: int, batch: int, seconds: float, prioritised: bool) -> dict[str, float]:
    """Steps put `put` at a time, and transitions drawn `batch` at a time, per second."""
    import cpprb  # type: ignore[import-not-found, unused-ignore]

    random = np.random.default_rng(0)
    shapes = {"obs": {"shape": 4}, "next_obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
    several = {"size": n_step, "gamma": 0.99, "rew": "rew", "next": "next_obs"} if n_step > 1 else None
    kind = cpprb.PrioritizedReplayBuffer if prioritised else cpprb.ReplayBuffer
    memory = kind(size, shapes, Nstep=several)
    rows = {name: random.random((put, 4), np.float32) for name in ("obs", "next_obs")}
    rows |= {"act": random.integers(2, size=put), "rew": random.random(put), "done": np.zeros(put)}
    if prioritised:
        rows["priorities"] = random.random(put)
    for _ in range(size // put + 1):
        memory.add(**rows)
    found = {"put": rate_of(lambda: memory.add(**rows), seconds) * put}
    found["draw"] = rate_of(lambda: memory.sample(batch), seconds) * batch
    if prioritised:
        renewed = random.random(batch)

        def draw_and_renew() -> None:
            memory.update_priorities(memory.sample(batch, 0.4)["indexes"], renewed)

        found["draw and renew"] = rate_of(draw_and_renew, seconds) * batch
    return found


if __name__ == "__main__":
    print(json.dumps(rates(**json.loads(sys.argv[1]))))
