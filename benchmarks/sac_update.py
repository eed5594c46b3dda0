"""CPU time of one update: asyncrl.sac in float32 and bfloat16, and Stable-Baselines3's SAC, in turns in one process.

HalfCheetah's sizes (17 numbers, 6 components), two layers of 256, minibatches of 256, one thread. An update is all of
what a learner computes: losses, gradients, Adam, targets; not the sampling of the minibatch. It needs Python with both:

    pip install torch==2.13.0 && pip install stable-baselines3
    PYTHONPATH=. python benchmarks/sac_update.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC as TheirSAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.rollout import Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.nets.trunk import compute_in
from asyncrl.sac import SAC

SEEN, COMPONENTS, BATCH = 17, 6, 256


def ours(precision: str) -> Callable[[], None]:
    """An update as the learner and the store make it."""
    config, spaces = SAC.Config(), Spaces((SEEN,), "float32", 0, (-1.0,) * COMPONENTS, (1.0,) * COMPONENTS)
    network, target = SAC.make_network(config, spaces), SAC.make_network(config, spaces)
    agent = SAC(config, network, target, "learner", 0, torch.Generator())
    theta, averaged = flatten_parameters(network), flatten_parameters(target)
    gradient, statistics_of = torch.empty_like(theta), torch.zeros(2, len(theta))
    compute_in(network, precision)
    compute_in(target, precision, cast_weights=False)
    parameters, rule = list(network.parameters()), config.update_rule
    batch = Transitions(
        torch.randn(BATCH, SEEN), 2 * torch.rand(BATCH, COMPONENTS) - 1, torch.randn(1, BATCH),
        torch.full((1, BATCH), 0.99), torch.zeros(1, BATCH, dtype=torch.bool), torch.randn(BATCH, SEEN),
        torch.ones(BATCH),
    )  # fmt: skip

    def update() -> None:
        for part in agent.passes(batch):
            gradient_of(agent.loss(part)[0], parameters, out=gradient)
            rule.apply(theta, gradient, statistics_of, config.learning_rate, 0)
            averaged.lerp_(theta, config.target_rate)

    return update


def theirs() -> Callable[[], None]:
    """An update as the library makes it."""

    class Sizes(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SEEN,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (COMPONENTS,), np.float32)

    model = TheirSAC("MlpPolicy", Sizes(), buffer_size=10, device="cpu")
    model.set_logger(Logger(None, []))
    batch = ReplayBufferSamples(
        torch.randn(BATCH, SEEN), 2 * torch.rand(BATCH, COMPONENTS) - 1, torch.randn(BATCH, SEEN),
        torch.zeros(BATCH, 1), torch.randn(BATCH, 1),
    )  # fmt: skip
    model.replay_buffer.sample = lambda *given, **named: batch  # type: ignore
    return lambda: model.train(1, BATCH)


def main() -> None:
    """Print milliseconds of CPU per update, the medians of alternating rounds, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = {"float32": ours("float32"), "bfloat16": ours("bfloat16"), "Stable-Baselines3": theirs()}
    took: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(arguments.rounds + 1):
        for name, update in made.items():
            began = time.process_time()
            for _ in range(arguments.updates):
                update()
            took[name].append((time.process_time() - began) / arguments.updates * 1e3)
    medians = {name: statistics.median(each[1:]) for name, each in took.items()}
    print("| update | ms of CPU | of Stable-Baselines3's |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median:.2f} | {median / medians['Stable-Baselines3']:.2f} |")


if __name__ == "__main__":
    main()
