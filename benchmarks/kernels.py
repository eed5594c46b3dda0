"""CPU time of update rules and Atari steps, compiled and not, and of the emulator alone.

`python benchmarks/kernels.py` prints the tables.
Everything is alternated in one process; medians, and the median of the ratios within a round. The rules' parameters are
those of the default network and of the Nature network.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch

from asyncrl.core import kernels
from asyncrl.core.updates import UpdateRule
from asyncrl.envs.atari import AtariEnvironment
from asyncrl.envs.spec import EnvSpec

STEPS = 400
"""In each measurement."""
RULES = ("rmsprop", "centred-rmsprop", "momentum-sgd")


def measured(rounds: int, calls: int, parts: dict[str, Callable[[int], None]]) -> dict[str, list[float]]:
    """Microseconds of CPU time per call of each part, which gets the number of calls made before."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(-1, rounds):  # the first is not counted
        for name, part in parts.items():
            began = time.process_time()
            for call in range(calls):
                part((turn + 1) * calls + call)
            if turn >= 0:
                found[name].append((time.process_time() - began) / calls * 1e6)
    return found


def show(what: str, found: dict[str, list[float]]) -> None:
    """A line for each part, with its ratio to the first."""
    first = next(iter(found.values()))
    for name, values in found.items():
        ratio = statistics.median(one / base for one, base in zip(values, first, strict=True))
        print(f"{what:28} {name:24} {statistics.median(values):9.1f} us  {ratio:6.3f}")


def rule(name: str, size: int, compiled: bool) -> Callable[[int], None]:
    """An update of so many parameters."""
    applied = UpdateRule(name)
    theta, gradient, state = torch.randn(size), torch.randn(size), torch.rand(applied.statistics, size)
    rules = kernels.RULES if compiled else {}

    def update(call: int) -> None:
        with patch.object(kernels, "RULES", rules):
            applied.apply(theta, gradient, state, 1e-6, call)

    return update


def game(env_id: str, size: int, compiled: bool) -> AtariEnvironment:
    """An environment that has begun."""
    with patch.object(kernels, "LIBRARY", kernels.LIBRARY if compiled else None):
        environment = EnvSpec(env_id, image_size=size).make(3, evaluation=False)
    assert isinstance(environment, AtariEnvironment)
    environment.reset()
    return environment


def stepping(environment: AtariEnvironment, actions: list[int]) -> Callable[[int], None]:
    """Whole steps."""

    def step(call: int) -> None:
        _, _, over, cut, _ = environment.step(actions[call])
        if over or cut:
            environment.reset()

    return step


def emulating(environment: AtariEnvironment, actions: list[int], reads: bool) -> Callable[[int], None]:
    """The four frames of a step without anything else, or with two grey screens."""
    ale, codes = environment._ale, environment._actions
    grey = np.zeros(ale.getScreenDims(), np.uint8)

    def step(call: int) -> None:
        for left in (3, 2, 1, 0):
            ale.act(codes[actions[call]])
            if reads and left < 2:
                ale.getScreenGrayscale(grey)
        if ale.game_over():
            environment.reset()

    return step


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--games", nargs="*", default=["Pong", "Breakout", "Seaquest"])
    arguments = parser.parse_args()
    if kernels.LIBRARY is None:
        raise SystemExit(f"the kernels are not used: {kernels.MISSING}")
    torch.set_num_threads(1)
    for size, calls in ((84_000, 100), (1_690_000, 5)):
        for name in RULES:
            parts = {word: rule(name, size, word == "compiled") for word in ("torch", "compiled")}
            show(f"{name}, {size:,}", measured(arguments.rounds, calls, parts))
    for name in arguments.games:
        env_id = f"ALE/{name}-v5"
        bare, read = game(env_id, 84, False), game(env_id, 84, False)
        count = bare.spaces.actions
        actions = np.random.default_rng(0).integers(0, count, (arguments.rounds + 2) * STEPS).tolist()
        parts = {"emulator": emulating(bare, actions, False), "and two grey screens": emulating(read, actions, True)}
        for size in (84, 42):
            for word, compiled in (("not compiled", False), ("compiled", True)):
                parts[f"step, {size}, {word}"] = stepping(game(env_id, size, compiled), actions)
        show(name, measured(arguments.rounds, STEPS, parts))


if __name__ == "__main__":
    main()
