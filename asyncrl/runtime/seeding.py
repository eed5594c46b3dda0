"""Derives independent random streams for all from one seed."""

from __future__ import annotations

import random
import threading

import numpy as np
import torch

ENVIRONMENT, ACTIONS, SCHEDULE, NETWORK, REPLAY, LIBRARIES = range(6)
"""What a stream is for."""
NO_PART = -1
"""In place of the part of a run, for playing outside of runs. No run, whatever its seed, uses these streams."""

GLOBAL_GENERATOR = threading.RLock()
"""Held while numbers are drawn from torch's global generator: a program may prepare several runs in its threads."""


def derive(seed: int, purpose: int, *place: int) -> int:
    """A 31-bit seed for one purpose and place (worker, environment, part of a resumed run).

    From numpy's SeedSequence, so that neighbouring seeds and workers have unrelated streams. 31 bits, because the Atari
    emulator takes no more.
    """
    # An entropy pool must not be negative: the evaluator's place is -1, the learner's -2.
    key = [number + 1 if number >= -1 else number % 2**32 for number in place]
    sequence = np.random.SeedSequence(seed, spawn_key=(purpose, *key))
    return int(sequence.generate_state(1, np.uint32)[0]) >> 1


def seed_libraries(seed: int, *place: int) -> None:
    """Give a run's own process random streams of its own in Python, numpy and torch, for user code that draws there."""
    for seed_library in (random.seed, np.random.seed, torch.manual_seed):
        seed_library(derive(seed, LIBRARIES, *place))


def generator(seed: int, purpose: int, *place: int) -> torch.Generator:
    """A torch generator with its own stream."""
    return torch.Generator().manual_seed(derive(seed, purpose, *place))
