"""How slow ranks become if each may use many threads, and so the value of the protection against it.

Two ranks, started with OMP_NUM_THREADS=16 as some launchers do, train for some seconds, alternately with the protection
that every command has and without it.

    python benchmarks/thread_trap.py
    python benchmarks/thread_trap.py --repeats 1 -- --network paper --image-size 84

Flags after `--` go to the training command.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ranks import beginning, counted

RANKS = 2
UNGUARDED = """
import sys
from asyncrl.runtime import threads
threads.request_one_thread = threads.limit_threads = threads.enforce_one_thread = lambda: None
from asyncrl.commands.train import main
raise SystemExit(main("asyncrl.a3c", sys.argv[1:]))
"""


def rate(guarded: bool, threads: int, seconds: float, flags: Sequence[str]) -> float:
    """Steps per second of both ranks after the first two seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, *(("-m", "asyncrl.a3c") if guarded else ("-c", UNGUARDED)), "--backend", "collective",
            "--max-seconds", str(2 + seconds), "--total-steps", "1e9", "--evaluation-interval-steps", "0",
            "--evaluation-episodes", "1", "--record-interval-seconds", "0.5", "--runs-dir", folder, "--quiet", *flags,
        ]  # fmt: skip
        ranks = [
            subprocess.Popen(command, env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.DEVNULL)
            for rank in range(RANKS)
        ]
        if codes := [rank.wait() for rank in ranks if rank.wait()]:
            raise SystemExit(f"training ended with exit code {codes[0]}")
        (run,) = Path(folder).glob("*/*/*")
        rows = [row for file in run.glob("worker-*.jsonl") for row in counted(file, 2.0)]
        began = beginning(run, 2.0)
    return float(sum(row["worker_steps"] for row in rows) / (max(row["seconds"] for row in rows) - began))


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(arguments.repeats):
        for guarded in found:
            everywhere = ["--env-id", arguments.env_id, *flags]
            found[guarded].append(rate(guarded, arguments.threads, arguments.seconds, everywhere))
            print(f"# guard {'on' if guarded else 'off'}: {found[guarded][-1]:,.0f} steps/s", flush=True)
    for guarded, rates in found.items():
        print(
            f"{RANKS} ranks, OMP_NUM_THREADS={arguments.threads}, guard {'on ' if guarded else 'off'}: "
            f"{statistics.median(rates):,.0f} steps/s ({min(rates):,.0f} to {max(rates):,.0f})"
        )


if __name__ == "__main__":
    main()
