"""How long a run takes to start, and how much memory one more worker needs.

A run with all workers and one with a quarter of them alternate, several times. Start-up is the time from the start of
the command until it says that all workers are ready. Memory is proportional (PSS: a page that n processes share
counts 1/n for each), summed over all processes of the run after some seconds of training; the cost of a worker is the
slope between the two runs, so what a run costs anyway (supervisor, evaluator, the shared parameters) is not in it.

    python benchmarks/startup.py                           # 16 workers on ALE/Pong-v5
    python benchmarks/startup.py --workers 64 --env-id CartPole-v1 --repeats 5 -- --envs-per-worker 1
    python benchmarks/startup.py --workers 4 -- --backend ray     # and what the processes of Ray take of it

Flags after `--` go to the training command. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil


class Start(NamedTuple):
    """One run's beginning."""

    seconds: float
    """From the start of the command until all workers were ready."""
    cpu_seconds: float
    """CPU seconds that its processes have used by then: less than `seconds` if they wait for other programs."""
    megabytes: float
    """PSS of all its processes, in 10^6 bytes."""
    parts: dict[str, float]
    """The same by part of the run; empty without Ray."""


RAY, DRIVER = "Ray's own processes", "Ray's driver"


def proportional_memory(process: psutil.Process) -> float:
    """Its PSS in 10^6 bytes."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    kibibytes = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kibibytes * 1024 / 1e6


def part_of(process: psutil.Process) -> str:
    """What a process of a run on Ray is; the actors are processes of our own."""
    words = " ".join(process.cmdline()[:3])  # not the search path of a host's fork server
    if actor := re.match(r"ray::(Host|LearnerHost|ReplayHost|Shard)\b", words):
        return actor[1]
    if words.startswith("ray::") or "/ray/" in words:
        return RAY
    if any("gcs_server" in " ".join(child.cmdline()) for child in process.children()):
        return DRIVER
    return "supervisor, evaluator, workers"


def measure(algorithm: str, workers: int, env_id: str, settle: float, extra: Sequence[str]) -> Start:
    """Start a run, let it train for `settle` seconds, weigh it, and stop it."""
    with tempfile.TemporaryDirectory() as runs:
        words = [
            "--env-id", env_id, "--workers", str(workers), "--runs-dir", runs, "--preset", "default", "--total-steps",
            "1e12", *extra,
        ]  # fmt: skip
        began = time.perf_counter()
        command = subprocess.Popen(
            [sys.executable, "-m", f"asyncrl.{algorithm}", *words], stdout=subprocess.PIPE, text=True
        )
        assert command.stdout is not None
        try:
            said = next((line for line in command.stdout if line.startswith(f"all {workers} workers are ready")), None)
            seconds = time.perf_counter() - began
            if said is None:
                raise SystemExit(f"the run ended before its workers were ready, with exit code {command.wait()}")
            supervisor = psutil.Process(command.pid)
            times = [process.cpu_times() for process in [supervisor, *supervisor.children(recursive=True)]]
            cpu_seconds = sum(one.user + one.system for one in times)
            time.sleep(settle)
            parts: dict[str, float] = {}
            for process in [supervisor, *supervisor.children(recursive=True)]:
                part = part_of(process)
                parts[part] = parts.get(part, 0) + proportional_memory(process)
        finally:
            command.send_signal(signal.SIGINT)
            command.communicate()
    return Start(seconds, cpu_seconds, sum(parts.values()), parts if RAY in parts else {})


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--algorithm", default="a3c", help="the algorithm's module")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds of training before memory is read")
    parser.add_argument("extra", nargs="*", help="after --: words for the training command")
    options = parser.parse_args()
    fewer = max(1, options.workers // 4)
    if options.workers <= fewer:
        parser.error("--workers must be at least 2, or there is no slope")

    where = f"{options.algorithm} on {options.env_id}, {psutil.cpu_count()} cores"
    print(f"{where}, median of {options.repeats} (lowest to highest)\n")
    print("workers   seconds until all are ready   CPU seconds   PSS of the run")
    starts: dict[int, list[Start]] = {fewer: [], options.workers: []}
    for _ in range(options.repeats):
        for workers, made in starts.items():
            made.append(measure(options.algorithm, workers, options.env_id, options.settle, options.extra))
    for workers, made in starts.items():
        seconds, megabytes = [start.seconds for start in made], [start.megabytes for start in made]
        print(
            f"{workers:7}   {statistics.median(seconds):8.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
            f"{statistics.median(start.cpu_seconds for start in made):12.1f}"
            f"{'':8}{statistics.median(megabytes):10.0f} MB ({min(megabytes):.0f} to {max(megabytes):.0f})"
        )
    for part in starts[fewer][0].parts:
        medians = ", ".join(
            f"{statistics.median(one.parts.get(part, 0) for one in made):.0f}" for made in starts.values()
        )
        print(f"{'':10}{part}: {medians} MB")
    light, heavy = (statistics.median(start.megabytes for start in made) for made in starts.values())
    print(f"\none more worker: {(heavy - light) / (options.workers - fewer):.1f} MB")


if __name__ == "__main__":
    main()
