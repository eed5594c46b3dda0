"""Many workers for a long time while some of them are killed: does memory grow, anything remain, or training slow down?

    python benchmarks/soak.py --minutes 60 --workers 16
    python benchmarks/soak.py --minutes 60 --workers 16 --folder soak        # again: goes on where it stopped
    python benchmarks/soak.py --algorithm ppo --workers 4 --minutes 1.2 --kill-every 1 --score 475
    python benchmarks/soak.py --algorithm ppo --workers 4 --group-kills 20 --score 475
    python benchmarks/soak.py --algorithm gorila --workers 4 --group-kills 20 --score 450 -- --layout bundled

With a kill every 30 seconds, starting successors takes about a hundredth of one core, so the run still trains, and the
measurement shows what remains after kills, not the cost of a start.

Every ten seconds a row is added to FOLDER/soak.jsonl: memory (PSS), open files and number of all processes of the run,
zombies among them, steps so far. The table compares the first tenth of the time with the last, over the rows of all
parts. Exit code 1 if memory or descriptors grew by more than a tenth, a zombie was seen, or speed fell by a tenth.

With --score the kills then stop, and the same run must reach that score: does it still learn? The output shows what was
killed and what it cost. With --group-kills N the whole process group is killed N times, up to 4 seconds after a new
checkpoint, and the run is resumed. Exit code 1 if the score is not reached, or if a process, shared memory or an
incomplete file is left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import matplotlib
import psutil

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from asyncrl.storage import checkpoints
from asyncrl.storage.records import RecordWriter, read_records

ROW_SECONDS = 10.0
MOST_CHANGE = 0.10
NAME = "soak"
MOST_SECONDS = 600.0
"""Time to reach the score after the kills."""
TWENTY = ("--evaluation-episodes", "20")
SHARED_MEMORY = Path("/dev/shm")
HALF_WRITTEN = re.compile(r"\.(saving-|deleting-|.*\.tmp$)")
WORKERS = re.compile(r"/(worker-\d+|learner(-\d+)?)\.jsonl$")


def main() -> int:
    """Run, kill, measure, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--algorithm", default="a3c", help="the algorithm's module")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time over all parts")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--kill-every", type=float, default=30.0, help="seconds between two kills of a random worker")
    parser.add_argument("--checkpoint-interval", type=int, default=5_000, help="in steps, with --group-kills")
    parser.add_argument("--group-kills", type=int, default=0, help="kill and resume the whole run so often instead")
    parser.add_argument("--score", type=float, help="after the kills: train until an evaluation reaches it")
    parser.add_argument("--folder", type=Path, default=Path("soak"))
    parser.add_argument("--seed", type=int, default=1, help="of the choice of victims")
    parser.add_argument("--figure", type=Path, help="draw memory, open files and speed over the minutes into this file")
    parser.add_argument("words", nargs="*", help="behind --: more settings of the run")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.group_kills or options.score is not None:
        return trial(options)
    file = options.folder / "soak.jsonl"
    done = max((row["minutes"] for row in read_records(file)), default=0.0)
    if done < options.minutes:
        soak(options, file, done)
    if options.figure:
        draw(read_records(file), options.figure)
    return tell(read_records(file))


def command_of(options: argparse.Namespace, evaluation_interval: int) -> list[str]:
    """The run, which begins or goes on."""
    return [
        sys.executable, "-m", f"asyncrl.{options.algorithm}", "--env-id", options.env_id, "--workers",
        str(options.workers), "--preset", "default",
        "--runs-dir", str(options.folder), "--run-name", NAME, "--resume", "auto", "--total-steps", "1e12",
        "--evaluation-interval-steps", str(evaluation_interval), "--worker-restarts", "1000000", "--quiet",
        *options.words,
    ]  # fmt: skip


def until_it_trains(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for it. What status.json says may still be of the part before."""
    while status_of(folder).get("state") != "running" or not workers_of(process.pid):
        time.sleep(0.1)
        require(process)


def require(process: subprocess.Popen[bytes]) -> None:
    """Raise SystemExit if the run has ended."""
    if process.poll() is not None:
        raise SystemExit(f"the run ended with {process.returncode}")


def soak(options: argparse.Namespace, file: Path, done: float) -> None:
    """One part: train until the minutes are over, killing a random worker now and then."""
    process = subprocess.Popen(command_of(options, 200_000), stdout=subprocess.DEVNULL)
    choose = random.Random(options.seed)
    try:
        until_it_trains(process, options.folder)
        began = time.monotonic()
        row_due, kill_due, kills = began + ROW_SECONDS, began + options.kill_every, 0
        with closing(RecordWriter(file)) as writer:
            while done + (time.monotonic() - began) / 60 < options.minutes:
                require(process)
                if time.monotonic() >= kill_due and (victims := workers_of(process.pid)):
                    choose.choice(victims).kill()
                    kills, kill_due = kills + 1, kill_due + options.kill_every
                if time.monotonic() >= row_due:
                    row = look(process.pid, status_of(options.folder))
                    writer.write({"minutes": done + (time.monotonic() - began) / 60, "kills": kills, **row})
                    row_due += ROW_SECONDS
                time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def trial(options: argparse.Namespace) -> int:
    """Kill, and then see whether the run still learns, and whether anything is left; the exit code."""
    killing = kill_groups if options.group_kills else kill_workers
    everybody, told, best = killing(options, random.Random(options.seed))
    _, alive = psutil.wait_procs(everybody, timeout=60)
    left = [f"process {process.pid}" for process in alive]
    owners = {str(process.pid) for process in everybody}
    left += [f"{SHARED_MEMORY}/{name}" for name in sorted(names_in(SHARED_MEMORY)) if owners & set(name.split("_"))]
    left += [str(path) for path in options.folder.rglob("*") if HALF_WRITTEN.match(path.name)]
    status = status_of(options.folder)
    print(f"{options.algorithm}: {told}; evaluations up to {best}; {status['steps']:,} steps and {status['updates']:,} "
          f"updates; left behind: {', '.join(left) or 'nothing'}")  # fmt: skip
    return int(bool(left) or (options.score is not None and best < options.score))


def kill_workers(options: argparse.Namespace, choose: random.Random) -> tuple[list[psutil.Process], str, float]:
    """Train for so many minutes, with a random worker (or the learner) killed again and again, and then to the score.

    Returns all processes there were, what was done, and the best evaluation of those that began after the last kill.
    """
    process = subprocess.Popen([*command_of(options, 10_000), *TWENTY], stdout=subprocess.DEVNULL)
    everybody: dict[int, psutil.Process] = {}
    killed: Counter[str] = Counter()
    try:
        until_it_trains(process, options.folder)
        began = time.monotonic()
        while time.monotonic() < began + 60 * options.minutes:
            time.sleep(options.kill_every)
            require(process)
            everybody |= {one.pid: one for one in everyone(process.pid)}
            if victims := workers_of(process.pid):
                victim = choose.choice(victims)
                killed[role_of(victim)] += 1
                victim.kill()
        steps = status_of(options.folder)["steps"]
        best = reached(options, process, steps)
        everybody |= {one.pid: one for one in everyone(process.pid)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    status = status_of(options.folder)
    kills = ", ".join(f"{count} of {role}" for role, count in sorted(killed.items()))
    restarts = f"{sum(status['worker_restarts'])} and {status['learner_restarts']}"
    return (
        list(everybody.values()),
        f"kills in {options.minutes * 60:.0f} s: {kills}; restarts of workers and learner: {restarts}; "
        f"{steps:,} steps until the last kill, score after {status['seconds']:.0f} s of training",
        best,
    )


def kill_groups(options: argparse.Namespace, choose: random.Random) -> tuple[list[psutil.Process], str, float]:
    """Kill the run's whole process group again and again, resume it each time, and train to the score.

    Returns all processes there were, what was done, and the best evaluation after the last kill.
    """
    everybody: list[psutil.Process] = []
    words = [*command_of(options, 10_000), *TWENTY, "--checkpoint-interval-steps", str(options.checkpoint_interval)]
    saves, steps = 0, 0
    for kill in range(options.group_kills + 1):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            while starts_of(options.folder) <= kill:
                time.sleep(0.1)
                require(process)
            everybody += everyone(process.pid)
            if kill == options.group_kills:
                best = reached(options, process, steps)
                process.send_signal(signal.SIGTERM)
                process.wait()
            else:
                while newest_of(options.folder) <= steps:  # however slow the machine, each part gets further
                    time.sleep(0.1)
                    require(process)
                time.sleep(choose.uniform(0.0, 4.0))
                require(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        checkpoints_folder = next(options.folder.glob(f"*/*/{NAME}/checkpoints"))
        saves += any(checkpoints_folder.glob(".saving-*"))
        checkpoint, skipped = checkpoints.load_newest(checkpoints_folder)
        steps = checkpoint.steps
        if skipped:
            raise SystemExit(f"a damaged checkpoint: {skipped[0]}")
    return everybody, f"{options.group_kills} kills of the group, {saves} of them during a save", best


def reached(options: argparse.Namespace, process: subprocess.Popen[bytes], steps: int) -> float:
    """Wait for an evaluation after step `steps` that reaches the score; returns the best."""
    best = -math.inf
    began = time.monotonic()
    while options.score is not None and best < options.score and time.monotonic() < began + MOST_SECONDS:
        time.sleep(1.0)
        require(process)
        rows = [row for file in options.folder.glob(f"*/*/{NAME}/evaluator.jsonl") for row in read_records(file)]
        best = max((row["mean"] for row in rows if row.get("mean") is not None and row["steps"] > steps), default=best)
    return best


def newest_of(folder: Path) -> int:
    """Steps of the newest checkpoint, by its name; 0 before there is one."""
    names = [path.name for path in folder.glob(f"*/*/{NAME}/checkpoints/step_*")]
    return max((int(name.split("_")[1].split(".")[0]) for name in names), default=0)


def starts_of(folder: Path) -> int:
    """How often training began."""
    rows = [row for file in folder.glob(f"*/*/{NAME}/supervisor.jsonl") for row in read_records(file)]
    return sum(row.get("event") in ("started", "resumed") for row in rows)


def names_in(folder: Path) -> set[str]:
    """What lies in a folder; nothing if there is none."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def role_of(process: psutil.Process) -> str:
    """Whether it is a worker or the learner."""
    try:
        return "the learner" if any("/learner" in file.path for file in process.open_files()) else "workers"
    except psutil.Error:
        return "workers"


def everyone(pid: int) -> list[psutil.Process]:
    """The command and all below it."""
    supervisor = psutil.Process(pid)
    return [supervisor, *supervisor.children(recursive=True)]


def workers_of(pid: int) -> list[psutil.Process]:
    """Those that write a worker's records, or the learner's."""
    found = []
    for process in everyone(pid)[1:]:
        try:
            if any(WORKERS.search(file.path) for file in process.open_files()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def look(pid: int, status: dict[str, Any]) -> dict[str, Any]:
    """Memory in MiB, open files and zombies of all processes, and where the run is."""
    memory, files, zombies, count = 0, 0, 0, 0
    for process in everyone(pid):
        try:
            zombies += process.status() == psutil.STATUS_ZOMBIE
            memory += process.memory_full_info().pss
            files += process.num_fds()
            count += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    supervisor = psutil.Process(pid)
    return {
        "memory_mib": memory / 2**20,
        "supervisor_mib": supervisor.memory_full_info().pss / 2**20,
        "files": files,
        "supervisor_files": supervisor.num_fds(),
        "processes": count,
        "zombies": zombies,
        "steps": status.get("steps", 0),
        "seconds": status.get("seconds", 0.0),
        "restarts": sum(status.get("worker_restarts", [])) + status.get("learner_restarts", 0),
        "gone": len(status.get("workers_gone", [])),
    }


def status_of(folder: Path) -> dict[str, Any]:
    """status.json of the run; empty before there is one."""
    for file in folder.glob(f"*/*/{NAME}/status.json"):
        try:
            status: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        return status
    return {}


def tell(rows: list[dict[str, Any]]) -> int:
    """The first tenth against the last, per quantity; whether one of them is out of bounds."""
    if len(rows) < 4:
        print(f"{len(rows)} rows are too few to compare; give more --minutes")
        return 1
    part = max(2, len(rows) // 10)
    first, last = rows[:part], rows[-part:]
    print(
        f"{rows[-1]['minutes']:.1f} minutes, {len(rows)} rows; medians of the first {part} rows and of the last {part}"
    )
    print(f"{'':24}{'first':>12}{'last':>12}{'change':>9}")
    bad = []
    for name, limited in (
        ("memory_mib", 1), ("supervisor_mib", 1), ("files", 1), ("supervisor_files", 1), ("processes", 0),
    ):  # fmt: skip
        before, after = (statistics.median(row[name] for row in rows) for rows in (first, last))
        print(f"{name:24}{before:12,.1f}{after:12,.1f}{after / before - 1:9.1%}")
        if limited and after > before * (1 + MOST_CHANGE):
            bad.append(name)
    before, after = speed(first), speed(last)
    print(f"{'steps_per_second':24}{before:12,.1f}{after:12,.1f}{after / before - 1:9.1%}")
    if after < before * (1 - MOST_CHANGE):
        bad.append("steps_per_second")
    # One that has just died is a zombie until the next look of its parent: it counts when it stays.
    lasting = max((min(a["zombies"], b["zombies"]) for a, b in itertools.pairwise(rows)), default=0)
    print(f"zombies seen twice in a row {lasting}; kills {rows[-1]['kills']}, restarts {rows[-1]['restarts']}, "
          f"workers gone {rows[-1]['gone']}")  # fmt: skip
    bad += ["zombies"] if lasting else []
    print("out of bounds: " + ", ".join(bad) if bad else "all within bounds")
    return int(bool(bad))


def speed(rows: list[dict[str, Any]]) -> float:
    """Steps per second of training: the median over neighbouring rows, which one slow moment does not move."""
    return statistics.median(rate for _, rate in speeds(rows))


def speeds(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Minutes, and steps per second since the row before."""
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if b["seconds"] > a["seconds"]]
    return [(b["minutes"], (b["steps"] - a["steps"]) / (b["seconds"] - a["seconds"])) for a, b in pairs]


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Memory, open files and speed over the minutes; a tick on the lowest axis for each kill."""
    figure, (memory, files, rate) = plt.subplots(3, 1, figsize=(8, 6), sharex=True, layout="constrained")
    minutes = [row["minutes"] for row in rows]
    memory.plot(minutes, [row["memory_mib"] for row in rows], label="all processes (PSS)")
    memory.plot(minutes, [row["supervisor_mib"] for row in rows], label="supervisor")
    memory.set_ylabel("MiB")
    files.plot(minutes, [row["files"] for row in rows], label="all processes")
    files.plot(minutes, [row["supervisor_files"] for row in rows], label="supervisor")
    files.set_ylabel("open files")
    rate.plot(*zip(*speeds(rows), strict=True), label="in 10 seconds")
    killed = [b["minutes"] for a, b in itertools.pairwise(rows) if b["kills"] > a["kills"]]
    rate.plot(killed, [0] * len(killed), "|", color="tab:red", markersize=8, label="kill", clip_on=False)
    rate.set(ylabel="steps/s", xlabel="minutes")
    for axes in (memory, files, rate):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="center right", fontsize="small")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main())
