"""The cost of ranks in step: steps per second of several settings, alternating, and where the time of each went.

Every variant is trained with every number of workers for some seconds, one after the other, and this is repeated, so
that other programs on the machine affect all of them alike. The first seconds of each run do not count.

    python benchmarks/ranks.py --env-id ALE/Pong-v5 --workers 1 2 --variants "local" "collective" "collective --overlap"
    python benchmarks/ranks.py --algorithm ppo --env-id HalfCheetah-v5 --workers 1 2 4 8 \
        --variants "collective" "collective --reduce gradients"

A variant is a backend and further flags. What follows `--` goes to every run. Shares are of the time of all ranks:
*acting* in environments and network, *learning* (loss, gradient, update), *waiting* for others, *communicating*.
CPU time per step is that of all processes of the run. It is nearly the same however busy the machine is; steps per
second and shares are not.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from asyncrl.storage.records import read_records
from asyncrl.storage.rows import add_up

SHARES = ("acting", "learning", "waiting", "communicating")
ACTING, LEARNING = ("environment", "act", "collect", "pull"), ("loss", "push", "take", "put")


def train(
    algorithm: str, variant: str, workers: int, seconds: float, warm_up: float, flags: Sequence[str]
) -> list[float]:
    """One run: steps per second, updates per second, CPU microseconds per step, and the shares of the time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "asyncrl", "train", algorithm, "--backend", *variant.split(), "--workers",
            str(workers),
            "--max-seconds", str(warm_up + seconds), "--total-steps", "1e9", "--record-interval-seconds", "0.5",
            "--evaluation-interval-steps", "0", "--evaluation-episodes", "1", "--checkpoint-interval-steps", "0",
            "--runs-dir", folder, "--quiet", *flags,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        used = cpu_of(process, Path(folder), warm_up)
        errors = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"training ended with exit code {process.returncode}: {errors.strip()}")
        (run,) = Path(folder).glob("*/*/*")
        ranks = [counted(file, warm_up) for file in sorted(run.glob("worker-*.jsonl"))]
        learner = counted(run / "learner.jsonl", warm_up)
        began = beginning(run, warm_up)
    spent = max(own[-1]["seconds"] for own in ranks) - began
    steps = sum(row["worker_steps"] for own in ranks for row in own)
    updates = sum(row.get("updates", 0) for row in (learner or ranks[0]))
    return [steps / spent, updates / spent, used, *shares([time_of(own) for own in ranks], time_of(learner)).values()]


def cpu_of(process: subprocess.Popen[str], folder: Path, warm_up: float) -> float:
    """CPU microseconds per step of a run and all its processes, from the end of the warm-up to the last look."""
    looks: list[tuple[int, dict[int, float]]] = []
    used: dict[int, float] = {}
    """Of each process when it was last seen: one that has ended has used that."""
    while process.poll() is None:
        time.sleep(0.5)
        rows = [row for file in folder.glob("*/*/*/worker-*.jsonl") for row in counted(file, 0.0)]
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                used[one.pid] = sum(one.cpu_times()[:2])
        steps = sum(row["worker_steps"] for row in rows)
        if rows and max(row["seconds"] for row in rows) >= warm_up and (not looks or steps > looks[-1][0]):
            looks.append((steps, dict(used)))
    (first, before), (last, after) = looks[0], looks[-1]
    return 1e6 * sum(after[pid] - before.get(pid, 0.0) for pid in after) / max(1, last - first)


def counted(file: Path, warm_up: float) -> list[dict[str, Any]]:
    """The rows of a process after the first seconds."""
    return [row for row in read_records(file) if "time" in row and row["seconds"] >= warm_up]


def beginning(run: Path, warm_up: float) -> float:
    """Seconds of a run at which its counted rows begin: the last row before the end of the warm-up."""
    rows = counted(run / "worker-0.jsonl", 0.0)
    return float(max((row["seconds"] for row in rows if row["seconds"] < warm_up), default=0.0))


def time_of(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Seconds by phase."""
    return add_up(row["time"] for row in rows)


def shares(ranks: Sequence[Counter[str]], learner: Counter[str]) -> dict[str, float]:
    """What each share is of the time of all ranks.

    Where each rank has its own learner, only rank 0 records it, and the shares are its. Where rank 0 learns for all, it
    does so while the others wait, and within its own actor's `wait`.
    """
    everyone = sum(ranks, Counter[str]())
    own = Counter(learner)
    if "communicate" in learner:
        everyone, waiting = Counter(ranks[0]), learner["wait_for_ranks"]
        everyone["communicate"] = learner["communicate"]
    else:
        waiting = everyone["wait_for_ranks"] + everyone["wait"] - sum(own[phase] for phase in LEARNING)
    seconds = {
        "acting": sum(everyone[phase] for phase in ACTING),
        "learning": sum((everyone + own)[phase] for phase in LEARNING),
        "waiting": max(0.0, waiting),
        "communicating": everyone["communicate"],
    }
    total = sum(seconds.values())
    return {share: value / total for share, value in seconds.items()}


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="a3c")
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--variants", nargs="+", default=["local", "collective"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm-up", type=float, default=3.0)
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    everywhere = ["--env-id", arguments.env_id, *flags]
    cells = [(variant, workers) for workers in arguments.workers for variant in arguments.variants]
    found: dict[tuple[str, int], list[list[float]]] = {cell: [] for cell in cells}
    for repeat in range(arguments.repeats):
        for cell in cells if repeat % 2 == 0 else reversed(cells):
            made = train(arguments.algorithm, *cell, arguments.seconds, arguments.warm_up, everywhere)
            found[cell].append(made)
            split = ", ".join(f"{share} {part:.1%}" for share, part in zip(SHARES, made[3:], strict=True))
            rate = f"{made[0]:,.0f} steps/s, {made[1]:,.1f} updates/s, {made[2]:,.0f} CPU us per step"
            print(f"# {cell[0]}, {cell[1]}: {rate}, {split}", file=sys.stderr, flush=True)
    print(
        f"{arguments.algorithm} on {arguments.env_id}, {arguments.repeats} x {arguments.seconds:g} s each, medians",
        *flags,
    )
    print("| run | workers | steps/s (range) | times one | updates/s | CPU us/step | " + " | ".join(SHARES) + " |")
    print("|---" * (6 + len(SHARES)) + "|")
    for variant, workers in cells:
        made = found[variant, workers]
        rates = [one[0] for one in made]
        median = [statistics.median(one[i] for one in made) for i in range(len(made[0]))]
        alone = statistics.median(one[0] for one in found[variant, arguments.workers[0]])
        print(
            f"| {variant} | {workers} | {median[0]:,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) | "
            f"{median[0] / alone:.2f} | {median[1]:,.1f} | {median[2]:,.0f} | "
            + " | ".join(f"{share:.1%}" for share in median[3:])
            + " |"
        )


if __name__ == "__main__":
    main()
