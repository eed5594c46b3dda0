"""Steps to a score on several hosts with Ray, and on one machine with as many workers.

The hosts are network namespaces of this machine, joined by a bridge, with a Ray node each, whose processes are in a
namespace of their own. Needs root, the command `ip` and `pip install "asyncrl[ray]"`. For each algorithm, seed and
number of hosts a run on the hosts and one of the local backend with as many workers are made in turn. Each ends at
the first evaluation that has the score. A finished run is not repeated.

    python benchmarks/hosts.py runs/hosts
    python benchmarks/hosts.py runs/hosts --env-id MinAtar/Breakout-v1 --score 5 --total-steps 1_000_000

Flags after `--` go to all runs. Printed are the steps of each seed, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from asyncrl.backends.ray.connection import VARIABLES
from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records

KINDS = ("ray", "local")


def link(name: object) -> str:
    """The name of a virtual device of this process; the system allows 15 characters."""
    return f"arl{os.getpid()}-{name}"


def ip(*words: str) -> None:
    """Run the command ip."""
    subprocess.run(["ip", *words], check=True)


@contextmanager
def joined(hosts: int) -> Iterator[list[tuple[str, str]]]:
    """Names and addresses of network namespaces that reach each other."""
    named = [(f"arl-{os.getpid()}-{number}", f"10.79.0.{number + 1}") for number in range(hosts)]
    with ExitStack() as stack:
        ip("link", "add", link("all"), "type", "bridge")
        stack.callback(ip, "link", "del", link("all"))
        ip("link", "set", link("all"), "up")
        for number, (name, address) in enumerate(named):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            ip("link", "add", link(number), "type", "veth", "peer", "eth0", "netns", name)
            stack.callback(ip, "link", "del", link(number))
            ip("link", "set", link(number), "master", link("all"), "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "dev", "eth0")  # by it Ray's driver finds its own node
        yield named


@contextmanager
def cluster(hosts: int, workers: int, again: bool = False) -> Iterator[tuple[list[str], str]]:
    """A Ray cluster on that many hosts: the words that run a command on the first one, and the cluster's address.

    With `again` Ray is started anew where it has ended, on all hosts but the first one.
    """
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, **VARIABLES}
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    loop = ["sh", "-c", 'while true; do "$@"; sleep 5; done', "loop"]
    with joined(hosts) as named, ExitStack() as stack:
        head = f"{named[0][1]}:6379"
        for number, (name, address) in enumerate(named):
            # A short name: the paths of Ray's sockets may have 107 characters.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="r", dir="/tmp"))
            place = ["--head", "--port=6379", "--include-dashboard=false"] if number == 0 else [f"--address={head}"]
            own = [f"--num-cpus={workers}", f"--node-ip-address={address}", f"--temp-dir={folder}"]
            node = subprocess.Popen(
                ["ip", "netns", "exec", name, *apart, *(loop if again and number else []), *start, *place, *own],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(node.wait)
            stack.callback(node.kill)  # and all in its namespace with it
        yield ["ip", "netns", "exec", named[0][0]], head


def train(words: Sequence[str], algorithm: str, folder: Path, score: float) -> dict[str, Any]:
    """One run: its steps to the score (None: not reached), that evaluation, all evaluations, and its seconds."""
    command = [*words, "--runs-dir", str(folder), "--run-name", "run", "--quiet", "--stop-at-score", str(score)]
    code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    if code:
        raise SystemExit(f"{algorithm} ended with exit code {code}: {' '.join(command)}")
    (own,) = folder.glob("*/*/run")
    rows = [row for row in read_records(own / "evaluator.jsonl") if row.get("mean") is not None]
    reached = next((row for row in rows if row["mean"] >= score), None)
    status = read_json(own / "status.json")
    return {
        "steps": reached and reached["steps"], "seconds": rows[-1]["seconds"], "of": status["steps"],
        "evaluations": [[row["steps"], row["mean"]] for row in rows],
    }  # fmt: skip


def show(results: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> None:
    """The table."""
    print(f"| {arguments.env_id} to {arguments.score:g} | hosts | steps on hosts | steps of local | ratio of medians |")
    print("|---|--:|---|---|--:|")
    for algorithm in arguments.algorithms:
        for hosts in arguments.hosts:
            pairs = [[results.get(f"{algorithm}-{hosts}-{kind}-{seed}") for seed in arguments.seeds] for kind in KINDS]
            if any(result is None for column in pairs for result in column):
                continue
            steps = [[result["steps"] or float("inf") for result in column if result] for column in pairs]
            texts = [", ".join(f"{one:,.0f}" for one in column) for column in steps]
            ratio = statistics.median(steps[0]) / statistics.median(steps[1])
            print(
                f"| {algorithm} | {hosts} x {arguments.workers} | {texts[0]} | {texts[1]} | {ratio:.2f} |", flush=True
            )


def main() -> None:
    """Measure what is missing, and print."""
    given = sys.argv[1:]
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the results")
    parser.add_argument("--algorithms", nargs="+", default=["a3c", "impala", "gorila"])
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--score", type=float, default=475.0)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--workers", type=int, default=2, help="of each host")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--total-steps", type=int, default=500_000)
    parser.add_argument("--evaluation-interval-steps", type=int, default=2_000)
    arguments = parser.parse_args(own)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    stored = arguments.folder / f"{arguments.env_id.replace('/', '_')}.json"
    results = read_json(stored) if stored.exists() else {}
    of = [arguments.score, arguments.workers, arguments.total_steps, arguments.evaluation_interval_steps, *flags]
    if results.setdefault("of", of) != of:
        parser.error(f"{stored} has runs with other settings: give another folder")
    for hosts in arguments.hosts:
        jobs = [(algorithm, seed) for seed in arguments.seeds for algorithm in arguments.algorithms]
        if all(f"{algorithm}-{hosts}-{kind}-{seed}" in results for algorithm, seed in jobs for kind in KINDS):
            continue
        with cluster(hosts, arguments.workers) as (prefix, address):
            for algorithm, seed in jobs:
                common = [
                    sys.executable, "-m", f"asyncrl.{algorithm}", "--env-id", arguments.env_id, "--seed", str(seed),
                    "--total-steps", str(arguments.total_steps), "--evaluation-episodes", "20",
                    "--evaluation-interval-steps", str(arguments.evaluation_interval_steps), *flags,
                ]  # fmt: skip
                many = ["--backend", "ray", "--address", address, "--hosts", str(hosts)]
                kinds = {
                    "ray": [*prefix, *common, *many, "--workers", str(arguments.workers)],
                    "local": [*common, "--backend", "local", "--workers", str(hosts * arguments.workers)],
                }
                for kind, words in kinds.items():
                    if (name := f"{algorithm}-{hosts}-{kind}-{seed}") not in results:
                        with tempfile.TemporaryDirectory() as folder:
                            results[name] = train(words, algorithm, Path(folder), arguments.score)
                        print(name, results[name]["steps"], f"{results[name]['seconds']:.1f} s", flush=True)
                        stored.write_text(json.dumps(results, indent=1))
    show(results, arguments)


if __name__ == "__main__":
    main()
