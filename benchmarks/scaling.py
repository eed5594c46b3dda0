"""Where shards or a learner saturate: what one call and one step cost, measured on one and two hosts, and a model.

With `--measure` short runs of CartPole-v1 are made on one and two hosts (raylets of one cluster on this machine) with
one and two shards, with a small and a large network, and by IMPALA, which plays Pong, too. From the CPU time of each
process, the steps and the exchanges come the costs: of a worker per step, of a host's exchange and of a shard per call
and per megabyte, of the learner per step. CPU time is nearly the same however busy the machine is. Costs per call are
fitted to the runs on one host; those on two hosts, printed beside what the model says of them, are its test.

    python benchmarks/scaling.py docs/results/scaling.json --measure        # with Ray; about ten minutes
    python benchmarks/scaling.py docs/results/scaling.json --figure docs/results/scaling.png
    python benchmarks/scaling.py docs/results/scaling.json --cpu-per-step 500 --parameters 84000 --workers 16

Without `--measure` it prints the table for hosts of the given kind, and draws the figure. The model: on a host with a
core per worker, workers make as many steps as they have CPU time for. Each makes `--exchange-updates` updates between
two calls to each shard, at least one call per second and at most fifty. A shard, and the learner, has one core. The
script also puts runs of `benchmarks/simulated_hosts.py` (`--simulated FOLDER`) into the file, in place of those in it:
hosts, seed, and steps to a score of 475.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import psutil
from matplotlib.axes import Axes

from asyncrl.backends.ray.connection import VARIABLES
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records

CART_POLE, PONG = "CartPole-v1", "ALE/Pong-v5"
SMALL, LARGE = ("--hidden-sizes", "64", "64"), ("--hidden-sizes", "512", "512")
RUNS = [
    *(("a3c", hosts, shards, CART_POLE, size) for hosts in (1, 2) for shards in (1, 2) for size in (SMALL, LARGE)),
    *(("impala", hosts, 1, env_id, SMALL) for hosts in (1, 2) for env_id in (CART_POLE, PONG)),
]
CALLS_AT_MOST, CALLS_AT_LEAST = 50.0, 1.0
"""Exchanges of a host per second (backends/ray/to_shards.py)."""
ACTORS = {"Shard": "shard", "Host": "host", "LearnerHost": "learner"}
"""Classes of Ray's actors, and what they are called here."""
SHARDS = (1, 2, 4, 8)
HOSTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def call_megabytes(parameters: int, shards: int) -> float:
    """What a call to a shard and its answer hold, in 10^6 bytes: a change of theta, and theta."""
    return 2 * 4 * parameters / shards / 1e6


# ---------------------------------------------------------------------------------------------------------- measuring


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """A Ray cluster on this machine; yields its address."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=1)
        yield made.address
    finally:
        made.shutdown()


def part_of(process: psutil.Process) -> str:
    """What a process of a run on Ray is."""
    with suppress(psutil.Error):
        words = " ".join(process.cmdline()[:3])
        if actor := re.match(r"ray::(Shard|Host|LearnerHost)\b", words):
            return ACTORS[actor[1]]
        if any(re.fullmatch(r"worker-\d+\.jsonl", Path(file.path).name) for file in process.open_files()):
            return "worker"
    return "other"


def look(command: psutil.Process, parts: dict[int, str]) -> dict[str, float]:
    """CPU seconds by part of the run, of all processes below this one."""
    spent: dict[str, float] = defaultdict(float)
    for process in [command, *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            if parts.get(process.pid, "other") == "other":
                parts[process.pid] = part_of(process)
            spent[parts[process.pid]] += sum(process.cpu_times()[:2])
    return spent


def counted(folder: Path) -> tuple[int, int, int]:
    """Steps and updates in the records of a run, and exchanges of all hosts with all shards."""
    workers = [row for file in folder.glob("*/*/*/worker-*.jsonl") for row in read_records(file)]
    hosts = [row for file in folder.glob("*/*/*/host-*.jsonl") for row in read_records(file)]
    return (
        sum(row.get("worker_steps", 0) for row in workers), sum(row.get("updates", 0) for row in workers),
        sum(row.get("exchanges", 0) for row in hosts),
    )  # fmt: skip


def measure(
    algorithm: str, hosts: int, shards: int, env_id: str, size: Sequence[str], address: str, seconds: float
) -> dict[str, Any]:
    """One run: CPU seconds, steps, updates and exchanges between two looks that are `seconds` apart."""
    with tempfile.TemporaryDirectory() as folder:
        network = size if env_id == CART_POLE else ()
        often = ("--parameter-shards", str(shards), "--exchange-updates", "1") if algorithm == "a3c" else ()
        words = [
            "--env-id", env_id, "--backend", "ray", "--address", address, "--hosts", str(hosts),
            "--workers", "1", "--preset", "default", "--total-steps", "1e9", "--evaluation-interval-steps", "0",
            "--record-interval-seconds", "0.2", "--runs-dir", folder, "--quiet", *often, *network,
        ]  # fmt: skip
        command = subprocess.Popen([sys.executable, "-m", f"asyncrl.{algorithm}", *words], stdout=subprocess.DEVNULL)
        try:
            while counted(Path(folder))[0] < 2000:
                if command.poll() is not None:
                    raise SystemExit(f"a run of {algorithm} ended with exit code {command.returncode}")
                time.sleep(0.5)
            parts: dict[int, str] = {}
            one = psutil.Process(command.pid)
            before, counts, began = look(one, parts), counted(Path(folder)), time.monotonic()
            time.sleep(seconds)
            after, later, took = look(one, parts), counted(Path(folder)), time.monotonic() - began
        finally:
            command.terminate()
            command.wait()
        steps, updates, exchanges = (new - old for new, old in zip(later, counts, strict=True))
        (run,) = Path(folder).glob("*/*/*")
        status = read_json(run / "status.json")
        assert status["exit_code"] == 143, status
    return {
        "algorithm": algorithm, "env_id": env_id, "hosts": hosts, "shards": shards,
        "parameters": parameters_of(env_id, size),
        "seconds": round(took, 2), "steps": steps, "updates": updates, "exchanges": exchanges,
        "cpu_seconds": {part: round(spent - before.get(part, 0.0), 3) for part, spent in sorted(after.items())},
    }  # fmt: skip


def missing(known: Sequence[dict[str, Any]], seconds: float) -> Iterator[dict[str, Any]]:
    """Make the runs that are not known yet."""
    os.environ |= VARIABLES
    made = {tuple(row[key] for key in ("algorithm", "hosts", "shards", "env_id", "parameters")) for row in known}
    for nodes in (1, 2):
        runs = [run for run in RUNS if run[1] == nodes and (*run[:4], parameters_of(*run[3:])) not in made]
        if runs:
            with cluster(nodes) as address:
                for run in runs:
                    yield measure(*run, address, seconds)


def write(file: Path, found: dict[str, Any]) -> None:
    """Write all runs, one a line."""
    lists = [",\n    ".join(json.dumps(row) for row in found[kind]) for kind in ("measured", "simulated")]
    file.write_text('{{\n  "measured": [\n    {}\n  ],\n  "simulated": [\n    {}\n  ]\n}}\n'.format(*lists))


def parameters_of(env_id: str, size: Sequence[str]) -> int:
    """Parameters of an actor-critic: for CartPole 4 inputs, 2 actions and a value; for Pong those of the default."""
    if env_id == PONG:
        return 84_000
    widths = [4, *(int(width) for width in size[1:])]
    return sum((a + 1) * b for a, b in itertools.pairwise(widths)) + 3 * (widths[-1] + 1)


def simulated(folder: Path) -> list[dict[str, Any]]:
    """Simulated runs in a folder: how many hosts and workers, and steps to the first evaluation of 475."""
    found = []
    for file in sorted(folder.glob("*/*/*/config.json")):
        config = read_json(file)["config"]
        rows = read_records(file.parent / "evaluator.jsonl")
        exchanges = [row for own in file.parent.glob("host-*.jsonl") for row in read_records(own)]
        count = sum(row["exchanges"] for row in exchanges)
        staleness = sum(row["exchange_staleness_mean"] * row["exchanges"] for row in exchanges) / max(1, count)
        reached = next((row["steps"] for row in rows if (row.get("mean") or 0) >= 475), None)
        found.append(
            {
                "hosts": len(list(file.parent.glob("host-*.jsonl"))), "workers": config["workers"],
                "seed": config["seed"],
                "learning_rate": config["learning_rate"],
                "steps_to_475": reached, "steps": read_json(file.parent / "status.json")["steps"],
                "staleness_between_hosts": round(staleness, 1),
            }
        )  # fmt: skip
    return found


# -------------------------------------------------------------------------------------------------------------- model


def fit(rows: Sequence[dict[str, Any]], part: str) -> tuple[float, float]:
    """CPU milliseconds per call and per megabyte of a shard, or of a host's exchange."""
    calls = np.array([row["exchanges"] for row in rows], float)
    costs = 1e3 * np.array([row["cpu_seconds"][part] for row in rows]) / calls
    sizes = np.array([call_megabytes(row["parameters"], row["shards"]) for row in rows])
    (base, slope), *_ = np.linalg.lstsq(np.stack([np.ones_like(sizes), sizes], 1), costs, rcond=None)
    return float(base), float(slope)


def per_step(rows: Sequence[dict[str, Any]], part: str) -> float:
    """CPU microseconds per step."""
    return 1e6 * float(sum(row["cpu_seconds"][part] for row in rows) / sum(row["steps"] for row in rows))


def calls_of(hosts: float, updates_per_second: float, exchange_updates: int) -> float:
    """Calls per second to each shard."""
    return hosts * min(CALLS_AT_MOST, max(CALLS_AT_LEAST, updates_per_second / exchange_updates))


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--simulated", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--cpu-per-step", type=float, default=500.0, help="of a worker, in microseconds")
    parser.add_argument("--parameters", type=int, default=84_000)
    parser.add_argument("--workers", type=int, default=16, help="on each host, with a core each")
    parser.add_argument("--steps-per-update", type=int, default=80)
    parser.add_argument("--exchange-updates", type=int, default=1, help="of each worker")
    given = parser.parse_args()
    found: dict[str, Any] = read_json(given.file) if given.file.exists() else {"measured": [], "simulated": []}
    if given.measure:
        for row in missing(found["measured"], given.seconds):
            print(row, flush=True)
            found["measured"].append(row)
            write(given.file, found)
    if given.simulated is not None:
        found["simulated"] = simulated(given.simulated) or parser.error(f"there are no runs in {given.simulated}")
        write(given.file, found)
    report(found, given)


def report(found: dict[str, Any], given: argparse.Namespace) -> None:
    """Print costs, the model beside what was measured, and the table; draw the figure."""
    exchanging = [row for row in found["measured"] if row["algorithm"] == "a3c"]
    learning = [row for row in found["measured"] if row["algorithm"] == "impala"]
    alone = [row for row in exchanging if row["hosts"] == 1]
    shard, host = fit(alone, "shard"), fit(alone, "host")
    print(f"shard: {shard[0]:.2f} ms per call, {shard[1]:.2f} ms per megabyte; ", end="")
    print(f"host's exchange: {host[0]:.2f} ms per call, {host[1]:.2f} ms per megabyte")
    print("measured, CPU ms of the shards per call | the same by the model | calls per second")
    for row in exchanging:
        cost = 1e3 * row["cpu_seconds"]["shard"] / row["exchanges"]
        model = shard[0] + shard[1] * call_megabytes(row["parameters"], row["shards"])
        what = f"{row['hosts']} hosts, {row['shards']} shards, {row['parameters']:,} parameters"
        print(f"{what}: {cost:.2f} | {model:.2f} | {row['exchanges'] / row['seconds']:.1f}")
    for row in learning:
        learner, worker = per_step([row], "learner"), per_step([row], "worker")
        print(f"IMPALA, {row['env_id']}, {row['hosts']} hosts: learner {learner:.0f} us per step, actors {worker:.0f}; "
              f"saturated at {1e6 / learner:,.0f} steps per second, {worker / learner:.1f} actors")  # fmt: skip
    updates = given.workers * 1e6 / given.cpu_per_step / given.steps_per_update
    print(f"\n{given.workers} workers per host, {given.cpu_per_step:g} us per step, {given.parameters:,} parameters")
    print(
        "hosts | steps per second | busy cores of a shard, of " + ", ".join(map(str, SHARDS)) + " | MB/s of all shards"
    )
    loads = {count: np.array([load_of(hosts, count, shard, updates, given) for hosts in HOSTS]) for count in SHARDS}
    for at, hosts in enumerate(HOSTS):
        calls = calls_of(hosts, updates, given.exchange_updates * given.workers)
        loaded = ", ".join(f"{loads[count][at]:.2f}" for count in SHARDS)
        steps = hosts * given.workers * 1e6 / given.cpu_per_step
        print(f"{hosts} | {steps:,.0f} | {loaded} | {calls * call_megabytes(given.parameters, 1):.1f}")
    for count in SHARDS:
        print(f"{count} shards saturate at {1 / load_of(1, count, shard, updates, given):.0f} hosts")
    if given.figure is not None:
        draw(found, loads, shard, given)


def load_of(hosts: int, shards: int, cost: tuple[float, float], updates: float, given: argparse.Namespace) -> float:
    """Busy cores of each shard; 1: it is saturated."""
    per_call = cost[0] + cost[1] * call_megabytes(given.parameters, shards)
    return calls_of(hosts, updates, given.exchange_updates * given.workers) * per_call / 1e3


def draw(
    found: dict[str, Any], loads: dict[int, np.ndarray[Any, Any]], shard: tuple[float, float], given: argparse.Namespace
) -> None:
    """What a shard's calls cost, how busy that makes it, and data efficiency of simulated hosts."""
    figure, (first, second, right) = plt.subplots(1, 3, figsize=(13.5, 4), layout="constrained")
    draw_calls(found["measured"], shard, first)
    for count, load in loads.items():
        second.plot(HOSTS, load, marker=".", label=f"{count} shard" + "s" * (count > 1))
    second.axhline(1.0, color="black", linestyle=":", linewidth=1)
    second.set(
        xscale="log", yscale="log", xlabel=f"hosts with {given.workers} workers each", ylabel="busy cores per shard"
    )
    second.set_title(f"Predicted: {given.parameters:,} parameters,\n{given.cpu_per_step:g} us per step", fontsize=10)
    second.legend(fontsize=8)
    rates = sorted({row["learning_rate"] for row in found["simulated"]}, reverse=True)
    for rate, marker in zip(rates, "os^vD", strict=False):
        runs = [row for row in found["simulated"] if row["learning_rate"] == rate]
        reached = [(row["hosts"], row["steps_to_475"]) for row in runs if row["steps_to_475"] is not None]
        (dots,) = right.plot(*np.array(reached).reshape(-1, 2).T, marker, alpha=0.6, label=f"learning rate {rate:g}")
        failed = [(row["hosts"], row["steps"]) for row in runs if row["steps_to_475"] is None]
        right.plot(*np.array(failed).reshape(-1, 2).T, "x", color=dots.get_color(), markersize=9)
    right.legend(fontsize=8)
    counts = sorted({row["hosts"] for row in found["simulated"]})
    right.set(
        xscale="log", yscale="log", xlabel="simulated hosts with a worker each", ylabel="steps to 475 (x: not reached)"
    )
    right.set_xticks(counts, [str(hosts) for hosts in counts])
    right.set_title("Simulated: A3C on CartPole-v1", fontsize=10)
    for axes in (first, second, right):
        axes.grid(alpha=0.3)
    figure.savefig(given.figure, dpi=130)


def draw_calls(measured: Sequence[dict[str, Any]], shard: tuple[float, float], axes: Axes) -> None:
    """CPU time of a shard per call, and the line that was fitted to the runs on one host."""
    for hosts, marker in ((1, "o"), (2, "s")):
        rows = [row for row in measured if row["algorithm"] == "a3c" and row["hosts"] == hosts]
        sizes = [call_megabytes(row["parameters"], row["shards"]) for row in rows]
        costs = [1e3 * row["cpu_seconds"]["shard"] / row["exchanges"] for row in rows]
        axes.plot(sizes, costs, marker, alpha=0.7, label=f"{hosts} host" + "s" * (hosts > 1))
    there = np.array([0.0, call_megabytes(parameters_of(CART_POLE, LARGE), 1)])
    axes.plot(there, shard[0] + shard[1] * there, color="grey", linewidth=1, label="fitted to one host")
    axes.set(xlabel="megabytes of a call and its answer", ylabel="CPU ms of a shard per call", ylim=(0, None))
    axes.set_title("Measured: A3C on CartPole-v1", fontsize=10)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
