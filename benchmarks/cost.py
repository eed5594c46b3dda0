"""CPU microseconds that a step of one environment costs, by part, compared with Stable-Baselines3's A2C and PPO.

Everything learns Pong. Each program has a process of its own with one thread, and the processes take turns, a round
each. Ours is one worker of a local run, with the learner if there is one. Time is CPU time, which other programs on the
machine affect less than time by the clock; starting a program and its first steps do not count. The table has medians
of the rounds. The parts of a step:

    environment   emulator, screens, and normalising observations
    act           the policy's forward pass, and drawing actions
    collector     around both: writing rollouts, and where there is a learner, handing them over
    loss          loss and gradient
    push, pull    the update of theta; reading it

Rows: `a3c` with its defaults; `nature` and `impala` with the network of Mnih et al. 2015 on 84 x 84 screens, 8
environments and rollouts of 5 and 20 steps; `ppo` with the same network, 8 environments of 128 steps and 4 epochs of 4
minibatches; `-bfloat16` adds `--precision bfloat16`. Stable-Baselines3 has the settings of RL Baselines3 Zoo: rollouts
of the same lengths, with 16 environments for A2C and 8 for PPO. `emulator` does nothing but `act` four times a step, in
8 emulators in turn; `environment-42` and `environment-84` are 8 of our environments alone, with random actions.

Stable-Baselines3 needs its own Python environment; without it, leave out its rows:

    pip install torch==2.13.0 && pip install -c constraints.txt -e ".[test]" stable-baselines3
    python benchmarks/cost.py
    python benchmarks/cost.py --rows a3c nature --rounds 11
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from asyncrl.runtime.run import Run

PARTS = ("environment", "act", "collector", "loss", "push", "pull")
PART_OF = {"collect": "collector", "put": "collector", "take": "collector"}
"""Where the table has the phases of the records that are no parts of their own."""
PONG = "ALE/Pong-v5"
NATURE = {
    "image_size": 84, "network": "nature", "normalize_observations": False, "optimizer": "rmsprop",
    "envs_per_worker": 8,
}  # fmt: skip
PASSES = NATURE | {"t_max": 128, "epochs": 4, "minibatches": 4, "optimizer": "adam"}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "a3c": ("a3c", {}),
    "nature": ("a3c", NATURE | {"t_max": 5}),
    "nature-bfloat16": ("a3c", NATURE | {"t_max": 5, "precision": "bfloat16"}),
    "impala": ("impala", NATURE | {"t_max": 20}),
    "ppo": ("ppo", PASSES),
    "ppo-bfloat16": ("ppo", PASSES | {"precision": "bfloat16"}),
}
"""Row, and its algorithm and settings."""
PEERS = {"sb3-a2c": 16, "sb3-ppo": 8}
"""Row of Stable-Baselines3, and its environments."""
ALONE = {"emulator": 0, "environment-42": 42, "environment-84": 84}
"""Rows without learning, and the size of their screens."""
COMPARED = {"nature": "sb3-a2c", "nature-bfloat16": "sb3-a2c", "ppo": "sb3-ppo", "ppo-bfloat16": "sb3-ppo"}
BY_DEFAULT = ("emulator", "environment-42", "environment-84", "a3c", "nature", "nature-bfloat16", "ppo", *PEERS)
WARM_UP_STEPS = 1_000
Cost: TypeAlias = dict[str, float]
"""Microseconds per step by part, and their "total"."""
Program: TypeAlias = Callable[[int], Cost]
"""Makes at least so many steps and says what they cost."""


def per_step(seconds: Mapping[str, float], steps: int) -> Cost:
    """The cost of a step from the CPU seconds of many."""
    return {part: 1e6 * spent / steps for part, spent in seconds.items()}


class Kept:
    """Rows of records, in memory."""

    missing = 0

    def __init__(self, _: Path) -> None:
        self.rows: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> None:
        """Keep it."""
        self.rows.append(row)

    def close(self) -> None:
        """Nothing."""


def make_run(folder: str, algorithm: str, settings: Mapping[str, Any]) -> Run:
    """A run with one worker; its records have one row, written at the end."""
    from asyncrl.algorithm import algorithm_of
    from asyncrl.api.training import prepare
    from asyncrl.envs.spec import EnvSpec
    from asyncrl.runtime.plan import Plan

    name = f"asyncrl.{algorithm}"
    method = algorithm_of(name)
    fixed = {
        "env_id": PONG, "total_steps": 2**50, "workers": 1, "record_interval_seconds": 1e9, "overlap": False,
        "backend": "local", "runs_dir": folder,
    }  # fmt: skip
    screen = {key: value for key, value in settings.items() if key == "image_size"}
    environment = EnvSpec.of(method.Config(env_id=PONG, **screen))
    spaces = environment.probe()
    config = method.Config(**(method.preset("default", spaces) | fixed | settings))
    return prepare(Plan(name, config, environment, spaces))


def ours(row: str) -> Program:
    """Training with one worker, and the learner if there is one, in turns."""
    from asyncrl.runtime.roles import build_learner, build_worker
    from asyncrl.runtime.threads import enforce_one_thread, keep_freed_memory, request_one_thread

    request_one_thread()
    enforce_one_thread()
    keep_freed_memory()  # as training does
    time.perf_counter = time.process_time  # what the records' phases are measured with
    folder = tempfile.TemporaryDirectory()
    run = make_run(folder.name, *OURS[row])
    clock = run.handles.clock
    clock.start()

    def measure(steps: int) -> Cost:
        # A learner comes first: it has nothing to do yet, and what it waits for is not among its parts.
        roles = [build_learner(run, learner, make_writer=Kept) for learner in clock.learners]
        roles.append(build_worker(run, 0, make_writer=Kept))
        before, began = clock.steps, time.process_time()
        while clock.steps < before + steps:
            for role in roles:
                next(role.loop)
        for role in roles[:-1]:  # what it has not learnt from yet
            next(role.loop)
        spent = Counter(total=time.process_time() - began)
        for role in roles:
            role.close()
            for phase, seconds in role.writer.rows[-1]["time"].items():
                spent[PART_OF.get(phase, phase)] += seconds
        return per_step(spent, clock.steps - before)

    return measure


def peer(row: str) -> Program:
    """Training by Stable-Baselines3, of which only the total is known."""
    import torch

    torch.set_num_threads(1)
    model = stable_baselines3(row.removeprefix("sb3-"), "dummy")

    def measure(steps: int) -> Cost:
        before, began = model.num_timesteps, time.process_time()
        model.learn(steps, reset_num_timesteps=False)
        return per_step({"total": time.process_time() - began}, model.num_timesteps - before)

    return measure


def stable_baselines3(algorithm: str, vectorized: str) -> Any:
    """Its model of A2C or PPO, with the settings that RL Baselines3 Zoo has for Atari.

    `vectorized`: "dummy" runs all environments in this process, "subproc" each in a process of its own.
    """
    import ale_py
    import gymnasium
    from stable_baselines3 import A2C, PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)
    kind, how = {"dummy": (DummyVecEnv, {}), "subproc": (SubprocVecEnv, {"start_method": "fork"})}[vectorized]
    plain = {"frameskip": 1, "repeat_action_probability": 0.0}
    number = PEERS[f"sb3-{algorithm}"]
    environments = make_atari_env(PONG, number, 1, vec_env_cls=kind, vec_env_kwargs=how, env_kwargs=plain)
    environments = VecFrameStack(environments, 4)
    if algorithm == "a2c":
        return A2C("CnnPolicy", environments, ent_coef=0.01, vf_coef=0.25, device="cpu")
    return PPO("CnnPolicy", environments, n_steps=128, n_epochs=4, batch_size=256, ent_coef=0.01, device="cpu",
               learning_rate=2.5e-4, clip_range=0.1)  # fmt: skip


def alone(row: str) -> Program:
    """Eight emulators or environments with random actions."""
    import numpy as np

    made = [(emulator(seed) if row == "emulator" else environment(seed, ALONE[row])) for seed in range(8)]
    random = np.random.default_rng(1)

    def measure(steps: int) -> Cost:
        actions = random.integers(6, size=(steps // len(made), len(made))).tolist()
        began = time.process_time()
        for row in actions:
            for step, action in zip(made, row, strict=True):
                step(action)
        return per_step({"total": time.process_time() - began}, len(actions) * len(made))

    return measure


def emulator(seed: int) -> Callable[[int], None]:
    """What makes a step of four frames in an emulator."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    actions = [action.value for action in ale.getMinimalActionSet()]

    def step(action: int) -> None:
        for _ in range(4):
            ale.act(actions[action])
        if ale.game_over():
            ale.reset_game()

    return step


def environment(seed: int, image_size: int) -> Callable[[int], None]:
    """What makes a step in our environment."""
    from asyncrl.a3c import A3C
    from asyncrl.envs.spec import EnvSpec

    made = EnvSpec.of(A3C.Config(env_id=PONG, image_size=image_size)).make(seed, evaluation=False)
    made.reset()

    def step(action: int) -> None:
        _, _, terminated, truncated, _ = made.step(action)
        if terminated or truncated:
            made.reset()

    return step


@functools.cache
def program(row: str) -> Program:
    """The program of a row, warmed up; each process has one."""
    kinds = {**dict.fromkeys(OURS, ours), **dict.fromkeys(PEERS, peer), **dict.fromkeys(ALONE, alone)}
    measure = kinds[row](row)
    measure(WARM_UP_STEPS)
    return measure


def turn(row: str, steps: int) -> Cost:
    """A round of a program, in its process."""
    return program(row)(steps)


def compare(rows: Sequence[str], rounds: int, steps: int) -> dict[str, list[Cost]]:
    """The cost of each row in each round."""
    context = multiprocessing.get_context("spawn")
    costs: dict[str, list[Cost]] = {row: [] for row in rows}
    with ExitStack() as stack:
        pools = {row: stack.enter_context(ProcessPoolExecutor(1, context)) for row in rows}
        for number in range(rounds):
            for row, pool in pools.items():
                costs[row].append(pool.submit(turn, row, steps).result())
            print(f"{number + 1}:", *(f"{row} {costs[row][-1]['total']:,.0f}" for row in rows), flush=True)
    return costs


def show(costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print the table, and the median ratio to Stable-Baselines3 within a round."""
    print(f"| CPU us per step | {' | '.join(PARTS)} | total | range | Stable-Baselines3 / this |")
    print(f"|---|{'--:|' * len(PARTS)}--:|---|---|")
    for row, rounds in costs.items():
        parts = [statistics.median(one.get(part, 0.0) for one in rounds) for part in PARTS]
        totals = [one["total"] for one in rounds]
        cells = [row, *(f"{value:,.1f}" if value else "" for value in parts), f"{statistics.median(totals):,.0f}"]
        cells.append(f"{min(totals):,.0f} to {max(totals):,.0f}")
        if (other := COMPARED.get(row)) in costs:
            times = [theirs["total"] / own for theirs, own in zip(costs[other], totals, strict=True)]
            cells.append(f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})")
        else:
            cells.append("")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=[*ALONE, *OURS, *PEERS], default=list(BY_DEFAULT))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2048, help="of each program in each round")
    arguments = parser.parse_args()
    show(compare(arguments.rows, arguments.rounds, arguments.steps))


if __name__ == "__main__":
    main()
