"""How much of the emulator's speed training keeps.

For each setting (workers; environments per worker; t_max) two runs alternate, several times, with the same number of
processes on the same cores: the environments alone with random actions, and full training. Compare the ratio of their
steps per second within one repetition; absolute figures depend on the machine. The first six seconds of training do not
count.

    python benchmarks/throughput.py                        # all five settings, ALE/Pong-v5
    python benchmarks/throughput.py --settings 2,8,20 --repeats 5 --seconds 20 -- --network paper --image-size 84
    python benchmarks/throughput.py --algorithm impala --settings 2,8,20
    python benchmarks/throughput.py --bookkeeping --seconds 120

With `--bookkeeping` it measures the cost of bookkeeping instead: training with the default records, TensorBoard,
checkpoints and evaluator, compared with training without evaluations and with hardly any records.

Flags after `--` go to the training command.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from asyncrl.algorithm import algorithm_of
from asyncrl.config.commandline import parse
from asyncrl.envs.spec import EnvSpec
from asyncrl.runtime.clock import shared_zeros
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage.records import read_records

SETTINGS = ((2, 1, 5), (2, 1, 20), (2, 8, 20), (16, 1, 20), (16, 8, 20))
BARE = ("--evaluation-interval-steps", "0", "--evaluation-episodes", "1", "--checkpoint-interval-steps", "0")
"""Training with nobody watching; there is still one evaluation, after the end."""
WARM_UP = 6.0
"""Seconds of training that do not count: in the first ones every process prepares its kernels."""
PHASES = ("environment", "act", "collect", "loss", "pull", "push")
"""What a worker's time goes into; where there is a learner, an actor's and the learner's also into the others."""
OF_ACTORS_AND_LEARNER = ("put", "take", "wait")


def step_environments(spec: EnvSpec, environments: int, counts: object, row: int, seconds: float) -> None:
    """One process of the comparison: random actions, no network. Counts steps made in `seconds`."""
    enforce_one_thread()
    made = [spec.make(row * 100 + e, evaluation=False) for e in range(environments)]
    actions = spec.probe().actions
    rng = np.random.default_rng(row)
    for environment in made:
        environment.reset()
    table = counts.numpy()  # type: ignore[attr-defined]
    table[row, 1] = 1
    while not table[:, 1].all():
        time.sleep(0.001)
    steps, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for environment, action in zip(made, rng.integers(actions, size=environments).tolist(), strict=True):
            _, _, terminated, truncated, _ = environment.step(action)
            if terminated or truncated:
                environment.reset()
            steps += 1
    table[row, 0] = steps


def environment_rate(spec: EnvSpec, workers: int, environments: int, seconds: float) -> float:
    """Steps per second of `workers` processes that only step environments."""
    import torch

    counts = shared_zeros(workers, 2, dtype=torch.int64)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "gymnasium", "asyncrl.envs.atari", __name__])
    processes = [
        context.Process(target=step_environments, args=(spec, environments, counts, row, seconds))
        for row in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return float(counts[:, 0].sum()) / seconds


def training_rate(
    algorithm: str, env_id: str, setting: Sequence[int], seconds: float, flags: Sequence[str], warm_up: float = 0.0
) -> tuple[float, dict[str, float], Usage]:
    """Steps per second of a training run, where its processes' time went, and what it used.

    What was recorded in the first `warm_up` seconds does not count.
    """
    workers, environments, t_max = setting
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", f"asyncrl.{algorithm}", "--env-id", env_id, "--workers", str(workers),
            "--envs-per-worker", str(environments), "--t-max", str(t_max), "--max-seconds", str(warm_up + seconds),
            "--total-steps", "1e12", "--runs-dir", folder, "--quiet", *flags,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        usage = Usage(process.pid)
        process.wait()
        usage.stop()
        if process.returncode:
            raise SystemExit(f"training ended with exit code {process.returncode}")
        (run,) = Path(folder).glob("*/*/*")
        # The rows of workers, not the command's own clock: the last evaluation is not training.
        rates, spent = [], dict.fromkeys(phases_of(algorithm), 0.0)
        for file in (*run.glob("worker-*.jsonl"), *run.glob("learner.jsonl")):
            rows = [row for row in read_records(file) if "time" in row]
            earlier = [row["seconds"] for row in rows if row["seconds"] < warm_up]
            counted = rows[len(earlier) :]
            began = max(earlier, default=0.0)
            if file.name != "learner.jsonl":
                rates.append(sum(row["worker_steps"] for row in counted) / (counted[-1]["seconds"] - began))
            for phase in spent:
                spent[phase] += sum(row["time"].get(phase, 0.0) for row in counted)
    total = sum(spent.values())
    return sum(rates), {phase: value / total for phase, value in spent.items()}, usage


def phases_of(algorithm: str) -> tuple[str, ...]:
    """The phases of an algorithm's processes, in the records' words."""
    return PHASES if algorithm_of(f"asyncrl.{algorithm}").experience == "gradient" else PHASES + OF_ACTORS_AND_LEARNER


def compare_bookkeeping(
    algorithm: str, env_id: str, setting: Sequence[int], repeats: int, seconds: float, flags: Sequence[str]
) -> None:
    """Print what is left of the speed of bare training when everything is on, alternating."""
    bare = (*BARE, "--record-interval-seconds", "3600")
    ratios = []
    for _ in range(repeats):
        without, watched = (
            training_rate(algorithm, env_id, setting, seconds, (*part, *flags))[0] for part in (bare, ())
        )
        ratios.append(watched / without)
        print(f"bare {without:,.0f} steps/s, watched {watched:,.0f} steps/s: {ratios[-1]:.1%}", flush=True)
    print(f"median {statistics.median(ratios):.1%}, {min(ratios):.1%} to {max(ratios):.1%}")


class Usage:
    """What a process and all below it use, looked at each second."""

    def __init__(self, pid: int) -> None:
        self.peak = 0.0
        """Largest sum of proportional memory (PSS) in MB."""
        self._began = time.perf_counter()
        self._spent: list[tuple[float, float]] = []
        """Seconds since the start, and CPU seconds spent until then."""
        self._root = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            total, spent = 0, 0.0
            try:
                for process in (self._root, *self._root.children(recursive=True)):
                    total += process.memory_full_info().pss
                    spent += sum(process.cpu_times()[:2])
            except (psutil.Error, AttributeError):
                continue
            self.peak = max(self.peak, total / 1e6)
            self._spent.append((time.perf_counter() - self._began, spent))

    def cores(self, first: float, last: float) -> float:
        """CPU seconds per second between two times after the start."""
        within = [(at, spent) for at, spent in self._spent if first <= at <= last]
        (began, before), (ended, after) = within[0], within[-1]
        return (after - before) / (ended - began)

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="a3c", help="the algorithm's module")
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--settings", nargs="*", help="workers,environments,t_max")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--bookkeeping", action="store_true", help="what watching costs, instead")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    settings = [tuple(map(int, text.split(","))) for text in arguments.settings or ()] or list(SETTINGS)
    request_one_thread()
    if arguments.bookkeeping:
        repeats, seconds = arguments.repeats, arguments.seconds
        compare_bookkeeping(arguments.algorithm, arguments.env_id, (16, 4, 20), repeats, seconds, flags)
        return
    # The very environment that training will make, flags included.
    phases, config = phases_of(arguments.algorithm), algorithm_of(f"asyncrl.{arguments.algorithm}").Config
    spec = EnvSpec.of(parse(config, ["--env-id", arguments.env_id, *flags], "throughput"))
    skip = spec.frames_per_step
    print(
        f"{arguments.algorithm} on {arguments.env_id}, {arguments.repeats} x {arguments.seconds:g} s each, medians",
        *flags,
    )
    print(
        f"{'workers':>7} {'E':>3} {'t_max':>5} | {'env only':>9} {'training':>9} {'frames/s':>9} | {'kept':>5} "
        f"{'range':>11} | " + " ".join(f"{phase:>11}" for phase in phases) + " | peak MB"
    )
    results = []
    for setting in settings:
        pairs = []
        for _ in range(arguments.repeats):
            alone = environment_rate(spec, setting[0], setting[1], arguments.seconds)
            bare = (*BARE, "--record-interval-seconds", "1", *flags)
            made = training_rate(arguments.algorithm, arguments.env_id, setting, arguments.seconds, bare, WARM_UP)
            pairs.append((alone, *made))
        ratios = [training / alone for alone, training, _, _ in pairs]
        alone, training = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        shares = {phase: statistics.median(pair[2][phase] for pair in pairs) for phase in phases}
        peak = max(pair[3].peak for pair in pairs)
        print(
            f"{setting[0]:>7} {setting[1]:>3} {setting[2]:>5} | {alone:>9,.0f} {training:>9,.0f} "
            f"{training * skip:>9,.0f} | {statistics.median(ratios):>5.0%} "
            f"{min(ratios):>5.0%}-{max(ratios):<5.0%} | "
            + " ".join(f"{shares[phase]:>11.1%}" for phase in phases)
            + f" | {peak:>7,.0f}",
            flush=True,
        )
        results.append({"setting": setting, "environment": alone, "training": training, "ratios": ratios, **shares})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
