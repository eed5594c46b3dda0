"""The cost of a replay memory: space, and time to put, sample and learn, with and without priorities.

For each environment and size of minibatch two memories of Ape-X alternate, several times: one with prioritised and one
with uniform sampling (`--priority-exponent 0`). They are filled with random steps of the environment's shape, in
episodes of 200. Everything is in one process on one core, per second of its CPU time, which other programs hardly
affect. In a real run the learner shares the machine with the actors.

    put       steps per second that an actor copies into the memory
    draw      transitions per second sampled, weighted, normalised, and given new priorities, without learning
    learn     updates per second of a learner with the environment's default network
    GB / M    memory of a million steps, as planned and as measured by the growth of the process

    python benchmarks/replay.py
    python benchmarks/replay.py --env-ids ALE/Pong-v5 --memory-steps 100_000 --minibatches 32 --repeats 5

With `--cpprb PYTHON`, a Python in which cpprb is installed, it alternates CartPole's memory with cpprb's instead: steps
put 16 at a time (a rollout of the preset), and draws of 512 without and with new priorities and importance weights.
Normalising is left out, which cpprb does not do.

    python benchmarks/replay.py --cpprb ~/cpprb/bin/python --memory-steps 50_000
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from replay_cpprb import rate_of

from asyncrl import apex
from asyncrl.api.training import prepare
from asyncrl.backends.handles import experience_bytes
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience.replay import Replay
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.roles import build_learner
from asyncrl.runtime.run import Run
from asyncrl.runtime.threads import enforce_one_thread, keep_freed_memory, request_one_thread

EPISODE = 200
CPPRB = Path(__file__).with_name("replay_cpprb.py")


class Rates(NamedTuple):
    """Of one memory."""

    put: float
    """Steps per second."""
    draw: float
    """Transitions per second."""
    learn: float
    """Updates per second."""
    planned: float
    """GB of a million steps."""
    grown: float
    """GB of a million steps by which the process has grown."""


def make_run(folder: Path, env_id: str, **settings: Any) -> Run:
    """A run of Ape-X with its memory, which is empty; nothing in it waits for the replay ratio."""
    fixed = {
        "env_id": env_id, "total_steps": 2**50, "replay_ratio": 1e6, "warmup_steps": 1, "workers": 4,
        "runs_dir": str(folder),
    }  # fmt: skip
    environment = EnvSpec.of(apex.ApeX.Config(env_id=env_id))
    spaces = environment.probe()
    config = apex.ApeX.Config(**(apex.ApeX.preset("default", spaces) | fixed | settings))
    return prepare(Plan("asyncrl.apex", config, environment, spaces))


def rollouts_of(run: Run) -> list[Rollout]:
    """Eight rollouts of noise, to be put in turn."""
    config, spaces = run.spec.config, run.spec.spaces
    each = config.t_max, config.envs_per_worker
    made = []
    for _ in range(8):
        last = torch.rand(each) < 1 / EPISODE
        made.append(
            Rollout(
                observations=noise(spaces, config.t_max + 1, config.envs_per_worker),
                actions=torch.randint(spaces.actions, each),
                rewards=torch.randn(each),
                discounts=config.gamma * (~last).float(),
                last=last,
                truncated=(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
                final_observations=None,
                extras={name: torch.randn(each) for name in apex.ApeX.extras},
            )
        )
    return made


def noise(spaces: Spaces, *leading: int) -> torch.Tensor:
    """Observations that nobody has seen."""
    shape = (*leading, *spaces.observation_shape)
    return torch.randint(256, shape, dtype=torch.uint8) if spaces.observation_dtype == "uint8" else torch.randn(shape)


def measure(folder: Path, env_id: str, seconds: float, **settings: Any) -> Rates:
    """Fill a memory and draw and learn from it."""
    run = make_run(folder, env_id, **settings)
    config, memory = run.spec.config, run.handles.experience
    assert isinstance(memory, Replay)
    rollouts = rollouts_of(run)
    before, began = psutil.Process().memory_info().rss, time.process_time()
    puts = -(-config.memory_steps // rollouts[0].steps)
    for number in range(puts):
        memory.put(number % config.workers, rollouts[number // config.workers % len(rollouts)], 0)
    put = puts * rollouts[0].steps / (time.process_time() - began)
    grown = psutil.Process().memory_info().rss - before

    def draw() -> None:
        batch = memory.take()
        assert batch is not None
        if batch.keys is not None:
            memory.feedback(batch.keys, torch.rand(config.minibatch))
        memory.release()

    drawn = rate_of(draw, seconds) * config.minibatch
    role = build_learner(run)
    learnt = rate_of(lambda: next(role.loop), seconds)
    role.close()
    each = 1e-3 / config.memory_steps
    planned = experience_bytes(run.spec)
    return Rates(put, drawn, learnt, planned * each, grown * each)


def parts_of(folder: Path, n_step: int, batch: int, size: int, seconds: float, prioritised: bool) -> dict[str, float]:
    """What `replay_cpprb.py` measures, of a memory of asyncrl."""
    exponent = apex.ApeX.Config.priority_exponent if prioritised else 0.0
    fixed = {"n_step": n_step, "minibatch": batch, "memory_steps": size, "priority_exponent": exponent}
    run = make_run(folder, "CartPole-v1", **fixed)
    memory, rollouts, number = run.handles.experience, rollouts_of(run), 0
    assert isinstance(memory, Replay)

    def put() -> None:
        nonlocal number
        memory.put(number % 4, rollouts[number // 4 % len(rollouts)], 0)
        number += 1

    for _ in range(size // rollouts[0].steps + 1):
        put()
    found = {"put": rate_of(put, seconds) * rollouts[0].steps}
    drawing = memory._begin(0)
    drawing.next()
    begins, ends = memory.steps.drawable()
    found["draw"] = rate_of(lambda: drawing._draw(begins, ends), seconds) * batch
    if prioritised:
        errors, tree = np.random.default_rng(0).random(batch), drawing._tree

        def draw_and_renew() -> None:
            drawn = drawing._draw(begins, ends)
            assert drawn is not None
            assert tree is not None
            drawing._weigh(tree, *drawn[1:], 1)
            assert drawing.keys is not None
            drawing.renew(drawing.keys.numpy(), errors)

        found["draw and renew"] = rate_of(draw_and_renew, seconds) * batch
    return found


def compare(python: str, size: int, repeats: int, seconds: float) -> None:
    """Print a table of both memories, alternating."""
    print("| steps | drawn | part | asyncrl, per second | cpprb | ratio (range) |\n|--:|---|---|--:|--:|---|")
    for n_step in (1, 3):
        for prioritised in (False, True):
            pairs = []
            for _ in range(repeats):
                with tempfile.TemporaryDirectory() as folder:
                    own = parts_of(Path(folder), n_step, 512, size, seconds, prioritised)
                asked = {"size": size, "n_step": n_step, "put": 16, "batch": 512, "seconds": seconds}
                words = [python, str(CPPRB), json.dumps(asked | {"prioritised": prioritised})]
                said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
                pairs.append((own, json.loads(said)))
            for part in pairs[0][0]:
                own_rates, others = ([pair[side][part] for pair in pairs] for side in (0, 1))
                ratios = [own / other for own, other in zip(own_rates, others, strict=True)]
                print(
                    f"| {n_step} | {'by priority' if prioritised else 'equally often'} | {part} "
                    f"| {statistics.median(own_rates):,.0f} | {statistics.median(others):,.0f} "
                    f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |",
                    flush=True,
                )


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-ids", nargs="+", default=["CartPole-v1", "ALE/Pong-v5"])
    parser.add_argument("--minibatches", nargs="+", type=int, default=[32, 512])
    parser.add_argument("--memory-steps", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of drawing, and of learning, each time")
    parser.add_argument("--cpprb", metavar="PYTHON", help="compare with cpprb, which this Python has")
    options = parser.parse_args(words)
    request_one_thread()
    enforce_one_thread()
    keep_freed_memory()  # as training does
    if options.cpprb:
        compare(options.cpprb, options.memory_steps, options.repeats, options.seconds)
        return
    print(f"{options.memory_steps:,} steps, {options.repeats} x {options.seconds:g} s each, medians")
    print("| environment | batch | drawn | put, steps/s | draw, transitions/s | learn, updates/s | GB / M | grown |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for env_id in options.env_ids:
        for minibatch in options.minibatches:
            drawn = {"equally often": 0.0, "by priority": apex.ApeX.Config.priority_exponent}
            rates: dict[str, list[Rates]] = {name: [] for name in drawn}
            with tempfile.TemporaryDirectory() as folder:
                for _ in range(options.repeats):
                    for name, exponent in drawn.items():
                        settings: dict[str, Any] = {"memory_steps": options.memory_steps, "minibatch": minibatch}
                        settings["priority_exponent"] = exponent
                        rates[name].append(measure(Path(folder), env_id, options.seconds, **settings))
            for name, some in rates.items():
                put, draw, learn, planned, grown = (statistics.median(column) for column in zip(*some, strict=True))
                print(
                    f"| {env_id} | {minibatch} | {name} | {put:,.0f} | {draw:,.0f} | {learn:,.1f} "
                    f"| {planned:.3f} | {grown:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
