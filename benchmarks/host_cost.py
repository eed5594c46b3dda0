"""What Ray costs: CPU per step on one host, and by the local backend with as many workers.

Both alternate, several times. Counted is the CPU time of all processes of a run, the evaluator's apart (there is none),
over the steps that its workers have made meanwhile, from the moment the run is under way. CPU time is nearly the same
however busy the machine is. The ratio is the local backend's cost over that with Ray: 1 if Ray costs nothing.

    python benchmarks/host_cost.py                                # ALE/Pong-v5, all cases; with Ray
    python benchmarks/host_cost.py --cases a3c impala --repeats 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from asyncrl.backends.ray.connection import VARIABLES
from asyncrl.storage.records import read_records

PAPER, PUSHES = ("--preset", "paper"), ("--push", "every-update")
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "a3c": ("a3c", (), ()),
    "a3c, one exchange a second": ("a3c", (), ("--exchange-updates", "1000")),
    "a3c paper": ("a3c", PAPER, ()),
    "a3c pushes": ("a3c", (), PUSHES),
    "a3c paper pushes": ("a3c", PAPER, PUSHES),
    "gorila": ("gorila", ("--layout", "bundled", "--warmup-steps", "1000"), ()),
    "impala": ("impala", (), ()),
    "apex": ("apex", ("--warmup-steps", "1000"), ()),
}
"""By name: algorithm, flags of both, flags with Ray."""


def cpu_seconds(command: psutil.Process) -> dict[int, float]:
    """CPU seconds of the command and all processes below it, by their ids."""
    spent = {}
    for process in [command, *command.children(recursive=True)]:
        with suppress(psutil.Error):
            spent[process.pid] = sum(process.cpu_times()[:2])
    return spent


def counted(folder: Path) -> tuple[int, int]:
    """Steps and updates in the records of a run."""
    rows = [
        row for kind in ("worker", "learner") for file in folder.glob(f"*/*/*/{kind}*") for row in read_records(file)
    ]
    return sum(row.get("worker_steps", 0) for row in rows), sum(row.get("updates", 0) for row in rows)


def cost(algorithm: str, words: Sequence[str], seconds: float) -> tuple[float, float]:
    """CPU microseconds per step, and steps per second, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        common = [
            "--total-steps", "1e9", "--evaluation-interval-steps", "0", "--record-interval-seconds", "0.5",
            "--runs-dir", folder, "--quiet",
        ]  # fmt: skip
        command = subprocess.Popen(
            [sys.executable, "-m", f"asyncrl.{algorithm}", "--preset", "default", *words, *common],
            stdout=subprocess.DEVNULL,
        )
        try:
            while counted(Path(folder))[1] < 20:
                if command.poll() is not None:
                    raise SystemExit(f"a run of {algorithm} ended with exit code {command.returncode}")
                time.sleep(0.5)
            one = psutil.Process(command.pid)
            time.sleep(2)
            before, steps, began = cpu_seconds(one), counted(Path(folder))[0], time.monotonic()
            time.sleep(seconds)
            after, later, took = cpu_seconds(one), counted(Path(folder))[0], time.monotonic() - began
        finally:
            command.terminate()
            command.wait()
    spent = sum(value - before.get(number, 0.0) for number, value in after.items())
    return 1e6 * spent / (later - steps), (later - steps) / took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    os.environ |= VARIABLES
    print(f"{arguments.env_id}, {arguments.workers} workers, medians of {arguments.repeats} (lowest to highest)")
    print("| case | local, CPU us per step | Ray, CPU us per step | ratio | steps per second, local and Ray |")
    print("|---|--:|--:|--:|--:|")
    for name in arguments.cases:
        algorithm, common, with_ray = CASES[name]
        words = ["--env-id", arguments.env_id, "--workers", str(arguments.workers), *common]
        local, ray = [], []
        for _ in range(arguments.repeats):
            local.append(cost(algorithm, [*words, "--backend", "local"], arguments.seconds))
            ray.append(cost(algorithm, [*words, "--backend", "ray", *with_ray], arguments.seconds))
        ratios = sorted(one[0] / other[0] for one, other in zip(local, ray, strict=True))
        costs = [statistics.median(one[0] for one in column) for column in (local, ray)]
        rates = [statistics.median(one[1] for one in column) for column in (local, ray)]
        print(
            f"| {name} | {costs[0]:,.0f} | {costs[1]:,.0f} | {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {rates[0]:,.0f}, {rates[1]:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
