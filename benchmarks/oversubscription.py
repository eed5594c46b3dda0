"""What more workers than cores cost: CPU time, context switches and page faults per step of training.

For each number of workers a run trains for a while; the first seconds do not count. The settings alternate. CPU time is
that of the workers' processes alone; other programs hardly affect it, while they do affect steps per second.

    python benchmarks/oversubscription.py
    python benchmarks/oversubscription.py --workers 2 32 --prefixes "" "chrt -b 0" --repeats 3 -- --envs-per-worker 8

`--prefixes` are put before the command, each in turn: `chrt -b 0` makes all its processes yield less often.
Flags after `--` go to the training command.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from soak import workers_of

from asyncrl.storage.records import read_records
from asyncrl.storage.rows import add_up

WARM_UP = 5.0
"""Seconds that do not count."""


class Used(NamedTuple):
    """By some processes since each began."""

    cpu: float
    """Seconds."""
    system: float
    """The kernel's part of them."""
    given_up: int
    """Times a process waited by itself."""
    preempted: int
    """Times it was made to wait."""
    faults: int
    """Pages that were mapped."""

    @classmethod
    def of(cls, processes: Sequence[psutil.Process]) -> Used:
        """The sum over those that still live."""
        total = cls(0.0, 0.0, 0, 0, 0)
        for process in processes:
            with contextlib.suppress(psutil.Error, OSError):
                times, switches = process.cpu_times(), process.num_ctx_switches()
                stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                cpu = times.user + times.system
                own = cls(cpu, times.system, switches.voluntary, switches.involuntary, int(stat[7]))
                total = cls(*(a + b for a, b in zip(total, own, strict=True)))
        return total


class Cost(NamedTuple):
    """Of a run's steps after the warm-up."""

    rate: float
    """Steps per second."""
    microseconds: float
    """CPU time of a step."""
    system: float
    given_up: float
    preempted: float
    faults: float
    """All per 1,000 steps; the kernel's time in milliseconds."""
    phases: dict[str, float]
    """Shares of the workers' time, of the clock."""


def measure(algorithm: str, env_id: str, workers: int, prefix: str, seconds: float, flags: Sequence[str]) -> Cost:
    """Train once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *shlex.split(prefix), sys.executable, "-m", f"asyncrl.{algorithm}", "--env-id", env_id, "--workers",
            str(workers), "--total-steps", "1e12", "--max-seconds", str(WARM_UP + seconds), "--runs-dir", folder,
            "--evaluation-interval-steps", "0", "--evaluation-episodes", "1", "--checkpoint-interval-steps", "0",
            "--record-interval-seconds", "1", "--quiet", *flags,
        ]  # fmt: skip
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while len(files := list(Path(folder).glob("*/*/*/worker-*.jsonl"))) < workers or not all(
            file.stat().st_size for file in files
        ):
            if run.poll() is not None:
                raise SystemExit(f"training ended with exit code {run.returncode}")
            time.sleep(0.05)
        time.sleep(WARM_UP)
        every = workers_of(run.pid)
        began, before = time.perf_counter(), Used.of(every)
        time.sleep(max(1.0, seconds - 3.0))
        spent, after = time.perf_counter() - began, Used.of(every)
        run.wait()
        rows = [[row for row in read_records(file) if "time" in row] for file in files]
    counted = [[row for row in own if row["seconds"] > WARM_UP] for own in rows]
    rate = sum(
        sum(row["worker_steps"] for row in own[1:]) / (own[-1]["seconds"] - own[0]["seconds"]) for own in counted
    )
    phases = add_up(row["time"] for own in counted for row in own)
    total = sum(phases.values())
    used = [(b - a) / spent / rate * 1e3 for a, b in zip(before, after, strict=True)]
    shares = {name: value / total for name, value in phases.items()}
    return Cost(rate, used[0] * 1e3, used[1] * 1e3, used[2], used[3], used[4], shares)


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="a3c")
    parser.add_argument("--env-ids", nargs="+", default=["ALE/Pong-v5", "CartPole-v1"])
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--prefixes", nargs="+", default=[""])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args(words)
    print(
        "| game | workers | before the command | steps/s | CPU us per step | per 1,000 steps: kernel, ms | waits | ",
        end="",
    )
    print("preempted | page faults | time spent in |\n|---|--:|---|--:|--:|--:|--:|--:|--:|---|")
    for env_id in options.env_ids:
        settings = [(workers, prefix) for workers in options.workers for prefix in options.prefixes]
        costs: dict[tuple[int, str], list[Cost]] = {setting: [] for setting in settings}
        for _ in range(options.repeats):
            for setting in settings:
                costs[setting].append(measure(options.algorithm, env_id, *setting, options.seconds, options.flags))
        for (workers, prefix), some in costs.items():
            rate, cpu, *others = (statistics.median(each) for each in list(zip(*some, strict=True))[:6])
            names = sorted(some[0].phases, key=lambda name: -some[0].phases[name])
            shares = {name: statistics.median(cost.phases.get(name, 0.0) for cost in some) for name in names}
            said = ", ".join(f"{name} {share:.1%}" for name, share in shares.items() if share >= 0.005)
            print(
                f"| {env_id} | {workers} | {prefix} | {rate:,.0f} | {cpu:,.0f} | "
                + " | ".join(f"{value:.2f}" for value in others)
                + f" | {said} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
