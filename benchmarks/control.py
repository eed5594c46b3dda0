"""SAC and Ape-X DPG beside Stable-Baselines3's SAC: scores, minutes and core-minutes, for some tasks and seeds.

    python benchmarks/control.py --sb3 PATH/TO/PYTHON --out runs/control

The runs are made one after the other, seed by seed, each with both cores for itself; PATH/TO/PYTHON is that of an
environment with Stable-Baselines3 (`sb3_sac.py`), without which only ours are made. The command can be stopped at any
time and called again: it goes on where it was (ours from their checkpoints, with their memory; a run of
Stable-Baselines3 from its beginning), and prints the table of what there is. `--only table` makes nothing.

Stable-Baselines3 computes in two threads; ours learns in one, since a second gains nothing. With `--threads 1` it gets
one as well, so that two runs may be made side by side, by two such commands, in less time than one after the other;
these count for the scores and not for the times.

A score is the mean of all episodes of a run's last three evaluations, without noise. Minutes are those of the whole
command and core-minutes the CPU time of all its processes, which are asked twice a second: start, evaluations and
checkpoints included, so that both sides are measured alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parent
LAST = 3
"""Evaluations at the end of a run that make its score."""


@dataclass(frozen=True)
class Task:
    """An environment, and what differs between tasks."""

    env_id: str
    steps: int
    interval: int
    sac: tuple[str, ...]
    dpg: tuple[str, ...] = ()


MUJOCO = ("--preset", "zoo")
TASKS = [
    Task("Pendulum-v1", 20_000, 2_000, ("--learning-rate", "1e-3", "--warmup-steps", "100")),
    Task("HalfCheetah-v5", 300_000, 10_000, MUJOCO, ("--warmup-steps", "10000")),
    Task("Hopper-v5", 300_000, 10_000, MUJOCO, ("--warmup-steps", "10000")),
]
OURS = {"SAC": "sac", "Ape-X DPG": "apex_dpg"}
ALONE = 2
"""Threads of Stable-Baselines3 when a run has both cores for itself."""
THEIRS = "Stable-Baselines3's SAC"


def command_of(name: str, task: Task, seed: int, folder: Path, sb3: str) -> list[str]:
    """What makes a run, or goes on with it, in `folder`."""
    shared = ["--env-id", task.env_id, "--seed", str(seed), "--total-steps", str(task.steps)]
    shared += ["--evaluation-interval-steps", str(task.interval), "--evaluation-episodes", "10"]
    if name == THEIRS:
        return [sb3, str(HERE / "sb3_sac.py"), *shared, "--out", str(folder)]
    algorithm = OURS[name]
    words = [*(task.sac if algorithm == "sac" else task.dpg), "--workers", "1" if algorithm == "sac" else "2"]
    place = ["--runs-dir", str(folder.parent.parent.parent), "--run-name", folder.name, "--resume", "auto"]
    # Every evaluation is made when it is due, as theirs are.
    return [
        sys.executable, "-m", f"asyncrl.{algorithm}", *shared, *words, *place, "--checkpoint-replay",
        "--checkpoint-interval-steps", "50000", "--evaluation-cpu-share", "1", "--quiet",
    ]  # fmt: skip


def folder_of(name: str, task: Task, seed: int, out: Path) -> Path:
    """Where a run is: as asyncrl names folders."""
    kind = "sb3" if name == THEIRS else name.replace(" ", "-").lower()
    algorithm = "sac" if name == THEIRS else OURS[name]
    return out / kind / algorithm / task.env_id / f"seed-{seed}"


def make(name: str, task: Task, seed: int, out: Path, sb3: str, threads: int) -> None:
    """Make a run, or the rest of it, and add up what it took."""
    folder = folder_of(name, task, seed, out)
    ledger = folder.parent / f"{folder.name}.cost.json"
    spent = {"minutes": 0.0, "core_minutes": 0.0, "done": False, "threads": threads}
    if ledger.is_file():
        spent = json.loads(ledger.read_text())
    if spent["done"] or (name == THEIRS and not sb3):
        return
    if name == THEIRS and folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.broken-{time.time_ns()}"))
        spent |= {"minutes": 0.0, "core_minutes": 0.0}
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{task.env_id}, seed {seed}: {name}", flush=True)
    began = time.monotonic()
    code, seconds = run(command_of(name, task, seed, folder, sb3), threads)
    spent["minutes"] += (time.monotonic() - began) / 60
    spent["core_minutes"] += seconds / 60
    spent["done"] = code == 0
    ledger.write_text(json.dumps(spent))
    if code:
        raise SystemExit(f"{name} ended with exit code {code}; call this again to go on")


def run(command: list[str], threads: int) -> tuple[int, float]:
    """The exit code of a command, and the CPU seconds of its processes, but for the last moment of each."""
    used: dict[tuple[int, float], float] = {}
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, env=environment) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                for one in [root, *root.children(recursive=True)]:
                    used[one.pid, one.create_time()] = sum(one.cpu_times()[:2])
            time.sleep(0.5)
    return process.returncode, sum(used.values())


def score_of(folder: Path) -> float | None:
    """The mean of all episodes of the last evaluations; None without any."""
    file = folder / "evaluator.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    returns = [row["returns"] for row in rows if row.get("returns")]
    return statistics.mean(score for one in returns[-LAST:] for score in one) if returns else None


def table(tasks: Sequence[Task], seeds: Sequence[int], out: Path) -> None:
    """Print what there is of finished runs."""
    print("| task | method | scores | mean | minutes | core-minutes |\n|---|---|---|---|---|---|")
    for task in tasks:
        for name in [*OURS, THEIRS]:
            found = []
            for seed in seeds:
                folder = folder_of(name, task, seed, out)
                ledger = folder.parent / f"{folder.name}.cost.json"
                spent = json.loads(ledger.read_text()) if ledger.is_file() else {}
                if spent.get("done") and (score := score_of(folder)) is not None:
                    found.append(spent | {"score": score})
            if found:
                scores = [one["score"] for one in found]
                each = ", ".join(f"{score:,.0f}" for score in scores)
                alone = [one for one in found if one["threads"] == ALONE]
                figures = " | ".join(
                    f"{statistics.mean(one[cost] for one in alone):.1f}" if alone else "-"
                    for cost in ("minutes", "core_minutes")
                )
                print(f"| {task.env_id} | {name} | {each} | {statistics.mean(scores):,.0f} | {figures} |")


def main() -> None:
    """Make what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3", default="", help="a Python with Stable-Baselines3")
    parser.add_argument("--out", type=Path, default=Path("runs/control"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", default=[task.env_id for task in TASKS])
    parser.add_argument("--threads", type=int, default=ALONE, help="1: another run is made at the same time")
    parser.add_argument("--only", nargs="+", default=[*OURS, THEIRS], help="some of the methods; table: none")
    arguments = parser.parse_args()
    tasks = [task for task in TASKS if task.env_id in arguments.tasks]
    for task in tasks:
        for seed in arguments.seeds:
            for name in [*OURS, THEIRS]:
                if name in arguments.only:
                    make(name, task, seed, arguments.out.resolve(), arguments.sb3, arguments.threads)
    table(tasks, arguments.seeds, arguments.out.resolve())


if __name__ == "__main__":
    main()
