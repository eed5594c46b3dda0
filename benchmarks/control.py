"""SAC and Ape-X DPG beside Stable-Baselines3's SAC: scores, minutes and core-minutes, for some tasks and seeds.

    python benchmarks/control.py runs/control docs/results/control.csv --sb3 PATH/TO/PYTHON
    python benchmarks/control.py runs/control docs/results/control.csv --seeds --figure docs/results/control.png

The runs are made one after the other, seed by seed, each with both cores for itself; PATH/TO/PYTHON is that of an
environment with Stable-Baselines3 (`sb3_sac.py`), without which only ours are made. The file gets all evaluations of a
run as soon as it has ended, and runs that are in it are not made again, on this machine or another. A run that was
interrupted goes on: ours from its checkpoint, with its memory; one of Stable-Baselines3 from its beginning. Each call
prints the table of the runs that there are.

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
from itertools import groupby, product
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from asyncrl.plots.figures import Line, Panel, draw, save_figure
from asyncrl.storage.records import read_records
from asyncrl.studies.documents import plain_table, read_csv, write_csv

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
METHODS = {"SAC": "C0", "Ape-X DPG": "C2", THEIRS: "C1"}
"""And their colours."""
Point: TypeAlias = dict[str, str]
"""A row of the file: an evaluation, with its run and what that took."""


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


def make(name: str, task: Task, seed: int, out: Path, sb3: str, threads: int) -> list[dict[str, Any]]:
    """Make a run, or the rest of it; all its evaluations, and what it took."""
    folder = folder_of(name, task, seed, out)
    ledger = folder.parent / f"{folder.name}.cost.json"
    spent = {"threads": threads, "minutes": 0.0, "core_minutes": 0.0}
    if name == THEIRS and folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.broken-{time.time_ns()}"))
    elif ledger.is_file():
        spent = json.loads(ledger.read_text())
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"{task.env_id}, seed {seed}: {name}", flush=True)
    began = time.monotonic()
    code, seconds = run(command_of(name, task, seed, folder, sb3), threads)
    spent["minutes"] += (time.monotonic() - began) / 60
    spent["core_minutes"] += seconds / 60
    ledger.write_text(json.dumps(spent))
    if code:
        raise SystemExit(f"{name} ended with exit code {code}; call this again to go on")
    place = {"task": task.env_id, "method": name, "seed": seed} | {k: round(v, 2) for k, v in spent.items()}
    rows = [row for row in read_records(folder / "evaluator.jsonl") if row.get("returns")]
    return [place | {"steps": row["steps"], "score": round(statistics.fmean(row["returns"]), 2)} for row in rows]


def run(command: list[str], threads: int) -> tuple[int, float]:
    """The exit code of a command, and the CPU seconds of its processes, but for the last moment of each."""
    used: dict[tuple[int, float], float] = {}
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(command, env=environment) as process:
        root = psutil.Process(process.pid)
        with contextlib.suppress(KeyboardInterrupt):  # the command gets it too, and ends by itself
            while process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    for one in [root, *root.children(recursive=True)]:
                        used[one.pid, one.create_time()] = sum(one.cpu_times()[:2])
                time.sleep(0.5)
    return process.returncode, sum(used.values())


def runs_of(points: Sequence[Point], task: Task, name: str) -> dict[int, list[Point]]:
    """The evaluations of a method's runs, by seed."""
    own = [point for point in points if (point["task"], point["method"]) == (task.env_id, name)]
    own.sort(key=lambda point: int(point["seed"]))
    return {int(seed): list(run) for seed, run in groupby(own, key=lambda point: point["seed"])}


def print_table(points: Sequence[Point]) -> None:
    """Scores of all seeds, and what the runs took that had both cores."""
    rows = []
    for task, name in product(TASKS, METHODS):
        runs = runs_of(points, task, name)
        if not runs:
            continue
        scores = [statistics.fmean(float(point["score"]) for point in run[-LAST:]) for run in runs.values()]
        alone = [run[0] for run in runs.values() if int(run[0]["threads"]) == ALONE]
        row = {"task": task.env_id, "method": name, "scores": ", ".join(f"{score:,.0f}" for score in scores)}
        row["mean"] = f"{statistics.fmean(scores):,.0f}"
        for cost in ("minutes", "core_minutes"):
            row[cost] = f"{statistics.fmean(float(one[cost]) for one in alone):.1f}" if alone else ""
        rows.append(row)
    print(plain_table(rows))


def draw_curves(points: Sequence[Point], path: Path) -> None:
    """A panel for each task: every seed's evaluations over steps, and their mean."""
    panels = []
    for task in TASKS:
        steps, lines = [due / 1000 for due in range(task.interval, task.steps + 1, task.interval)], []
        for name, colour in METHODS.items():
            scores = [[float(point["score"]) for point in run] for run in runs_of(points, task, name).values()]
            lines += [Line(steps, run, colour, width=0.8, alpha=0.3) for run in scores]
            if scores:
                lines.append(Line(steps, list(map(statistics.fmean, zip(*scores, strict=True))), colour, name, width=2))
        panels.append(Panel(lines, "steps, thousands", "score of ten episodes", task.env_id))
    save_figure(draw([panels], 3.4), path)


def main() -> None:
    """Make what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are")
    parser.add_argument("points", type=Path, help="the CSV file")
    parser.add_argument("--sb3", default="", help="a Python with Stable-Baselines3")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="none: only show")
    parser.add_argument("--tasks", nargs="+", default=[task.env_id for task in TASKS])
    parser.add_argument("--only", nargs="+", default=list(METHODS), help="these methods")
    parser.add_argument("--threads", type=int, default=ALONE, help="1: another run is made at the same time")
    parser.add_argument("--figure", type=Path, help="draw it here")
    arguments = parser.parse_args()
    names = [name for name in METHODS if name in arguments.only and (name != THEIRS or arguments.sb3)]
    tasks = [task for task in TASKS if task.env_id in arguments.tasks]
    for task, seed, name in product(tasks, arguments.seeds, names):
        if seed not in runs_of(read_csv(arguments.points), task, name):
            run = make(name, task, seed, arguments.folder.resolve(), arguments.sb3, arguments.threads)
            write_csv(arguments.points, [*read_csv(arguments.points), *run])
    points = read_csv(arguments.points)
    if points:
        print_table(points)
        if arguments.figure:
            draw_curves(points, arguments.figure)


if __name__ == "__main__":
    main()
