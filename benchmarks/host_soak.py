"""An hour on two hosts with a random fault every two minutes: memory, files, speed, score, and what each fault cost.

The hosts are those of `benchmarks/hosts.py`: network namespaces of this machine, with a Ray node each, which is started
in a loop on the second one. Needs root, the command `ip` and `pip install "asyncrl[ray,test]"`.

    python benchmarks/host_soak.py runs/host-soak --figure host-soak.png
    python benchmarks/host_soak.py runs/host-soak --figure host-soak.png --show     # only what is there

The faults: a worker, a host's actor, the shard, the second host's raylet or the whole command is killed by SIGKILL, a
host's actor is stopped by SIGSTOP, the link of the second host is cut for 5 or for 30 seconds. A killed command is
started again with `--resume auto`. Each kind comes once before one comes twice. A fault is over when the link is mended
and all of the run's workers have made steps again.

Each ten seconds a row is added to FOLDER/rows.jsonl: memory (PSS) and open files of all processes, Ray's included,
bytes of the run's folder and of Ray's, steps and updates; each fault is a row of FOLDER/faults.jsonl. Exit code 1 if
steps or updates fell while a command lived, a fault was not over after two minutes, or anything is left at the end.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import matplotlib
import psutil
from hosts import cluster, ip, link
from soak import NAME, WORKERS, names_in, speeds, status_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from asyncrl.storage.records import RecordWriter, read_records

HOSTS, ROW_SECONDS, LONGEST = 2, 10.0, 120.0
SETTLED_SECONDS = 3.0
"""After these the newest status is of a time after the fault."""
SHARED_MEMORY = Path("/dev/shm")
STATUS = ("steps", "updates", "seconds")


class Run:
    """The command, which is started again when it was killed, and all processes of the cluster."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.folder, self.words = folder.resolve(), words
        self.start()

    def start(self) -> None:
        """Begin, or go on from the newest checkpoint."""
        self.process = subprocess.Popen(self.words, stdout=subprocess.DEVNULL, start_new_session=True)
        self.began = time.time()

    def status(self) -> dict[str, Any]:
        """What status.json says, once it is of the command that is running."""
        new = [file for file in self.folder.glob(f"*/*/{NAME}/status.json") if file.stat().st_mtime > self.began]
        return status_of(self.folder) if new else {}

    def everyone(self) -> list[psutil.Process]:
        """All processes of the command and of Ray, on all hosts."""
        return psutil.Process().children(recursive=True)

    def named(self, *words: str) -> list[psutil.Process]:
        """Those with all of these words in their command lines."""
        found = []
        for process in self.everyone():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                found += [process] if all(word in line for word in words) else []
        return found

    def workers(self) -> list[psutil.Process]:
        """Those that write a worker's records on their host; Ray's driver writes them into the run's folder."""
        found = []
        for process in self.everyone():
            with suppress(psutil.Error):
                files = [file.path for file in process.open_files() if WORKERS.search(file.path)]
                found += [process] if any(not Path(file).is_relative_to(self.folder) for file in files) else []
        return found

    def kill_command(self) -> None:
        """Kill the supervisor with its group, and start again."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.start()


def one(processes: list[psutil.Process], choose: random.Random) -> psutil.Process:
    """A random one of them."""
    return choose.choice(sorted(processes, key=lambda process: process.pid))


def cut(seconds: float) -> None:
    """Let nothing through to the second host for so long."""
    ip("link", "set", link(1), "down")
    time.sleep(seconds)
    ip("link", "set", link(1), "up")


FAULTS: dict[str, Callable[[Run, random.Random], Any]] = {
    "worker killed": lambda run, choose: one(run.workers(), choose).kill(),
    "host actor killed": lambda run, choose: one(run.named("ray::Host"), choose).kill(),
    "host actor stopped": lambda run, choose: one(run.named("ray::Host"), choose).suspend(),
    "shard killed": lambda run, choose: one(run.named("ray::Shard"), choose).kill(),
    "raylet killed": lambda run, choose: one(run.named("raylet/raylet", "10.79.0.2"), choose).kill(),
    "command killed": lambda run, choose: run.kill_command(),
    "link cut, 5 s": lambda run, choose: cut(5),
    "link cut, 30 s": lambda run, choose: cut(30),
}


def command_of(options: argparse.Namespace, prefix: list[str], address: str) -> list[str]:
    """The run, which begins or goes on."""
    return [
        *prefix, sys.executable, "-m", f"asyncrl.{options.algorithm}", "--env-id", options.env_id, "--backend", "ray",
        "--address", address, "--hosts", str(HOSTS), "--workers", str(options.workers), "--total-steps", "1e12",
        "--worker-restarts", "1000000", "--hang-seconds", "20", "--checkpoint-interval-steps", "100000",
        "--runs-dir", str(options.folder), "--run-name", NAME, "--resume", "auto", "--quiet", *options.words,
    ]  # fmt: skip


def size_of(*folders: Path) -> float:
    """MiB of all files below."""
    total = 0
    for file in itertools.chain.from_iterable(folder.rglob("*") for folder in folders):
        with suppress(OSError):
            total += file.lstat().st_size
    return total / 2**20


def look(run: Run, status: dict[str, Any], folders: list[Path]) -> dict[str, Any]:
    """Memory in MiB, open files and zombies of all processes, size of the folders, and where the run is."""
    memory, files, zombies, count = 0, 0, 0, 0
    for process in run.everyone():
        with suppress(psutil.Error):
            zombies += process.status() == psutil.STATUS_ZOMBIE
            memory += process.memory_full_info().pss
            files += process.num_fds()
            count += 1
    return {
        "memory_mib": memory / 2**20, "files": files, "processes": count, "zombies": zombies,
        "folder_mib": size_of(run.folder), "ray_mib": size_of(*folders),
        "restarts": sum(status.get("worker_restarts", [])), **{key: status.get(key, 0) for key in STATUS},
    }  # fmt: skip


def over(run: Run, before: list[int], updates: int) -> bool:
    """Whether all workers, and the updates of theta, have got further than they were."""
    status = run.status()
    now = status.get("worker_steps", [])
    return len(now) == len(before) > 0 and all(a > b for a, b in zip(now, before, strict=True)) \
        and status["updates"] > updates  # fmt: skip


def main() -> int:
    """Train, do harm, measure, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--algorithm", default="a3c", help="the algorithm's module")
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=120.0, help="seconds between two faults")
    parser.add_argument("--workers", type=int, default=2, help="of each host")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of faults")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--show", action="store_true", help="make no run")
    given = sys.argv[1:]
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = parser.parse_args(own, argparse.Namespace(words=flags))
    if not options.show and (options.folder / "rows.jsonl").exists():
        parser.error(f"{options.folder} has a soak already: --show, or another folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster and its hosts are removed on the way out
    options.folder.mkdir(parents=True, exist_ok=True)
    bad = [] if options.show else soak(options)
    rows = read_records(options.folder / "rows.jsonl")
    faults = read_records(options.folder / "faults.jsonl")
    tell(rows, faults)
    if options.figure:
        draw(rows, faults, options.folder, options.figure)
    print("\n".join(bad) or ("" if options.show else "nothing fell, nothing is left"))
    return int(bool(bad))


def soak(options: argparse.Namespace) -> list[str]:
    """Train on two hosts with faults; what was wrong."""
    choose, bad = random.Random(options.seed), []
    shared = names_in(SHARED_MEMORY)
    with cluster(HOSTS, options.workers, again=True) as (prefix, address):
        folders = [Path(word.split("=")[1]) for process in psutil.Process().children(recursive=True)
                   for word in process.cmdline() if word.startswith("--temp-dir=")]  # fmt: skip
        run = Run(options.folder, command_of(options, prefix, address))
        try:
            while min(run.status().get("worker_steps") or [0]) == 0:
                if run.process.poll() is not None:
                    raise SystemExit(f"the run ended with exit code {run.process.returncode}")
                time.sleep(0.2)
            bad += watch(options, run, choose, sorted(set(folders)))
            run.process.send_signal(signal.SIGTERM)
            if (code := run.process.wait(timeout=LONGEST)) != 143:
                bad.append(f"exit code {code} after SIGTERM")
            time.sleep(70)
            left = run.named("ray::Host") + run.named("ray::Shard") + run.workers() + run.named("asyncrl.")
            bad += [f"left: process {process.pid} {' '.join(process.cmdline())[:80]}" for process in left]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.process.pid, signal.SIGKILL)
            run.process.wait()
    return bad + [f"left: {SHARED_MEMORY}/{name}" for name in sorted(names_in(SHARED_MEMORY) - shared)]


def watch(options: argparse.Namespace, run: Run, choose: random.Random, folders: list[Path]) -> list[str]:
    """Write rows, and do a fault from time to time, until the minutes are over; what was wrong."""
    bad: list[str] = []
    deck: list[str] = []
    began, row_due, fault_due = time.monotonic(), 0.0, options.every
    fault: dict[str, Any] | None = None
    before, highest, settled, done = [0], {"steps": 0, "updates": 0}, 0.0, 0.0
    with (
        closing(RecordWriter(options.folder / "rows.jsonl")) as rows,
        closing(RecordWriter(options.folder / "faults.jsonl")) as faults,
    ):
        while (at := time.monotonic() - began) < 60 * options.minutes or fault:
            time.sleep(0.2)
            status = run.status()
            if run.process.poll() is not None:
                return [*bad, f"the run ended with exit code {run.process.returncode}: {status.get('reason')}"]
            for key, value in highest.items():
                if status and status[key] < value:
                    bad.append(f"{key} fell from {value} to {status[key]} in minute {at / 60:.1f}")
                highest[key] = max(value, status.get(key, 0))
            if fault is None and at >= fault_due and at < 60 * options.minutes:
                deck = deck or choose.sample(list(FAULTS), len(FAULTS))
                name = deck.pop()
                print(f"{at / 60:5.1f} min  {name}", flush=True)
                fault = {"minutes": at / 60, "fault": name, "steps": highest["steps"], "updates": highest["updates"]}
                FAULTS[name](run, choose)
                done, before, fault_due = time.monotonic(), [], fault_due + options.every
                settled = done + SETTLED_SECONDS
                if name == "command killed":
                    highest = dict.fromkeys(highest, 0)
            elif fault and time.monotonic() > settled:
                if not before and status.get("worker_steps"):
                    before, updates = list(status["worker_steps"]), status["updates"]
                    if fault["fault"] == "command killed":
                        fault["lost_steps"] = fault["steps"] - status["steps"]
                waited = time.monotonic() - done
                if (before and over(run, before, updates)) or waited > LONGEST:
                    bad += [f"{fault['fault']} was not over after {waited:.0f} s"] if waited > LONGEST else []
                    faults.write({**fault, "over_seconds": waited})
                    fault = None
            if at >= row_due:
                rows.write({"minutes": at / 60, **look(run, status, folders)})
                row_due += ROW_SECONDS
    return bad


def tell(rows: list[dict[str, Any]], faults: list[dict[str, Any]]) -> None:
    """Medians of the parts of the time, and what each kind of fault cost."""
    sixth = max(2, -(-len(rows) // 6))
    print("| minutes | MiB | open files | processes | run's folder, MiB | Ray's folders, MiB | steps per second |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for part in (rows[start : start + sixth] for start in range(0, len(rows), sixth)):
        medians = [statistics.median(row[key] for row in part) for key in ("memory_mib", "files", "processes")]
        last, pace = part[-1], [rate for _, rate in speeds(part)]
        print(
            f"| {part[0]['minutes']:.0f} to {last['minutes']:.0f} | "
            + " | ".join(f"{one:,.0f}" for one in medians)
            + f" | {last['folder_mib']:.1f} | {last['ray_mib']:.1f} | {statistics.median(pace or [0]):,.0f} |"
        )
    print("\n| fault | times | seconds until all workers made steps again |\n|---|--:|---|")
    for name in FAULTS:
        if own := [fault for fault in faults if fault["fault"] == name]:
            print(f"| {name} | {len(own)} | {', '.join(format(fault['over_seconds'], '.0f') for fault in own)} |")


def draw(rows: list[dict[str, Any]], faults: list[dict[str, Any]], folder: Path, file: Path) -> None:
    """Memory, open files, speed and score over the minutes; a tick for each fault."""
    figure, (memory, files, rate, score) = plt.subplots(4, 1, figsize=(8, 8), sharex=True, layout="constrained")
    minutes = [row["minutes"] for row in rows]
    memory.plot(minutes, [row["memory_mib"] for row in rows])
    memory.set_ylabel("MiB (PSS)")
    files.plot(minutes, [row["files"] for row in rows])
    files.set_ylabel("open files")
    rate.plot(*zip(*speeds(rows), strict=True))
    rate.set_ylabel("steps/s")
    records = [row for own in folder.glob(f"*/*/{NAME}/evaluator.jsonl") for row in read_records(own)]
    known = [(row["steps"], row["mean"]) for row in records if row.get("mean") is not None]
    steps = [row["steps"] for row in rows]
    at = [next((row["minutes"] for row in rows if row["steps"] >= step), minutes[-1]) for step, _ in known if steps]
    score.plot(at, [mean for _, mean in known], "o-", markersize=3)
    score.set(ylabel="score", xlabel="minutes")
    for axes in (memory, files, rate):
        axes.set_ylim(bottom=0)
    for axes in (memory, files, rate, score):
        for fault in faults:
            axes.axvline(fault["minutes"], color="tab:red", linewidth=0.6, alpha=0.5)
        axes.grid(alpha=0.3)
    figure.suptitle(f"Two hosts, {len(faults)} faults (red lines)", fontsize="medium")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    raise SystemExit(main())
