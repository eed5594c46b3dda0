"""Ranks in step as the literature shows them: processes, steps per second, score, and where the time went.

Trains HalfCheetah by PPO with gathered rollouts, PPO with averaged gradients and A3C by Allreduce, with each number of
processes, to the same number of steps. Prints a table of what was measured, and one of what a run with one and with two
processes predicts for more.

    python benchmarks/collective_table.py --steps 1_000_000 --seeds 1 2 3                  # strong scaling
    python benchmarks/collective_table.py --steps 1_000_000 --scaling weak
    python benchmarks/collective_table.py --steps 1_000_000 --processes 1 2 --t-max 16 128 512   # small, large batches

With `--scaling strong` there are `--environments` in all, so every number of processes makes the same updates from the
same number of steps, and only the work is divided. With `weak` each process has `--environments`: an update uses more
steps, and there are fewer updates. Other settings are the preset for the environment; flags after `--` go to every
run.

Runs are made one after the other, seed by seed, in alternating order. A finished run is not repeated: the same command
continues where it was stopped, and more seeds, processes or batches can be added. Rates are medians over seeds and
begin after `--warm-up` seconds; a score is the mean of the last evaluations, which go on beside the training and take
at most 4 % of the cores (`--evaluation-cpu-share`).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ranks import SHARES, beginning, counted, shares, time_of

from asyncrl.storage.records import read_records
from asyncrl.studies.speedup import fit_law

METHODS = {
    "ppo-gathering": ("ppo", "--reduce", "experience"),
    "ppo-averaging": ("ppo", "--reduce", "gradients"),
    "a3c-allreduce": ("a3c",),
}
HUNDREDFOLD = 100.0


@dataclass(frozen=True)
class Cell:
    """What is measured with several seeds."""

    method: str
    t_max: int
    """0: the preset's."""
    processes: int
    environments: int
    """Of each process."""


@dataclass(frozen=True)
class Result:
    """One seed of it."""

    rate: float
    """Steps per second of all processes."""
    score: float
    batch: int
    """Steps that an update (A3C), or the updates of a batch (PPO), are made from."""
    shares: list[float]


def command_of(cell: Cell, seed: int, arguments: argparse.Namespace, flags: Sequence[str]) -> list[str]:
    """The training command of a run, without its folder."""
    algorithm, *words = METHODS[cell.method]
    steps = arguments.steps
    return [
        sys.executable, "-m", "asyncrl", "train", algorithm, *words, "--env-id", arguments.env_id, "--backend",
        "collective",
        "--workers", str(cell.processes), "--envs-per-worker", str(cell.environments), "--seed", str(seed),
        *(["--t-max", str(cell.t_max)] if cell.t_max else []), "--total-steps", str(steps),
        "--evaluation-interval-steps", str(max(1, steps // arguments.evaluations)), "--quiet", *flags,
    ]  # fmt: skip


def measure(command: Sequence[str], folder: Path, arguments: argparse.Namespace) -> Result:
    """Train in a folder of its own, from the start: the clock of a resumed run would not be that of one run."""
    if folder.exists():
        shutil.rmtree(folder)
    process = subprocess.run([*command, "--runs-dir", str(folder)], stdout=subprocess.DEVNULL, check=False)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with exit code {process.returncode}")
    (run,) = folder.glob("*/*/*")
    files = sorted(run.glob("worker-*.jsonl"))
    ranks = [counted(file, arguments.warm_up) for file in files]
    if not all(ranks):
        raise SystemExit(f"{' '.join(command)}\ndid not last longer than the warm-up of {arguments.warm_up:g} seconds")
    learner = counted(run / "learner.jsonl", arguments.warm_up)
    spent = max(own[-1]["seconds"] for own in ranks) - beginning(run, arguments.warm_up)
    scores = [row["mean"] for row in read_records(run / "evaluator.jsonl") if row.get("mean") is not None]
    config = json.loads((run / "config.json").read_text())["config"]
    return Result(
        rate=sum(row["worker_steps"] for own in ranks for row in own) / spent,
        score=statistics.mean(scores[-arguments.last :]),
        batch=config["workers"] * config["envs_per_worker"] * config["t_max"],
        shares=list(shares([time_of(own) for own in ranks], time_of(learner)).values()),
    )


def result_of(cell: Cell, seed: int, arguments: argparse.Namespace, flags: Sequence[str]) -> Result:
    """The stored result of a run, or that of a run made now. Stored together with its command."""
    command = command_of(cell, seed, arguments, flags)
    name = f"{cell.method}-t{cell.t_max}-n{cell.processes}x{cell.environments}-s{seed}"
    folder = arguments.runs_dir / arguments.env_id.replace("/", "_") / name
    stored = folder.with_suffix(".json")
    if stored.exists():
        kept = json.loads(stored.read_text())
        if kept["command"] != command[1:] or kept["last"] != [arguments.warm_up, arguments.last]:
            raise SystemExit(f"{stored} is of another command: {' '.join(kept['command'])}; give another --runs-dir")
        return Result(**kept["result"])
    result = measure(command, folder, arguments)
    kept = {"command": command[1:], "last": [arguments.warm_up, arguments.last], "result": asdict(result)}
    stored.write_text(json.dumps(kept))
    return result


def print_measured(found: dict[Cell, list[Result]], cores: int) -> None:
    """The table of what was measured."""
    titles = ["method", "processes", "environments each", "steps per batch", "steps per second (range)", "times one"]
    print("\n| " + " | ".join([*titles, "score (range)", *SHARES]) + " |")
    print("|---" * (len(titles) + 1 + len(SHARES)) + "|")
    for cell, results in found.items():
        rates, scores = [one.rate for one in results], [one.score for one in results]
        alone = one_process(found, cell)
        row = [
            cell.method, of(cell.processes, cores), cell.environments, f"{results[0].batch:,}",
            f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
            f"{statistics.median(rates) / alone:.2f}" if alone else "",
            f"{statistics.mean(scores):,.0f} ({min(scores):,.0f} to {max(scores):,.0f})",
            *(f"{statistics.median(one.shares[i] for one in results):.1%}" for i in range(len(SHARES))),
        ]  # fmt: skip
        print("| " + " | ".join(map(str, row)) + " |")


def print_predicted(found: dict[Cell, list[Result]], cores: int) -> None:
    """What one and two processes predict for more, beside what was measured, and the cores for a hundredfold.

    The slope adds for each further process what the second one has added. Amdahl's law takes what the second one has
    not added for a part of the work that is not divided. Where the second one adds nothing there is nothing to predict.
    """
    print("\n| method | t_max | processes | by the slope | by Amdahl's law | measured |\n|---|---|---|---|---|---|")
    ends = []
    for method, t_max in dict.fromkeys((cell.method, cell.t_max) for cell in found):
        rates = {
            cell.processes: statistics.median(one.rate for one in results)
            for cell, results in found.items()
            if (cell.method, cell.t_max) == (method, t_max)
        }
        if not {1, 2} <= rates.keys():
            continue
        gain = rates[2] / rates[1]
        told = f"{method}, t_max {t_max or 'of the preset'}: two processes make {gain:.2f} times the steps of one"
        if gain <= 1:
            ends.append(f"{told}; no number of them makes a hundredfold.")
            continue
        law = fit_law([(1, 1.0), (2, gain)], 1)
        for processes, rate in sorted(rates.items()):
            slope = rates[1] * (1 + (processes - 1) * (gain - 1))
            amdahl = rates[1] * processes / (1 + law.contention * (processes - 1))
            row = (method, t_max or "preset", of(processes, cores), f"{slope:,.0f}", f"{amdahl:,.0f}", f"{rate:,.0f}")
            print("| " + " | ".join(map(str, row)) + " |")
        by_slope = 1 + (HUNDREDFOLD - 1) / (gain - 1)
        serial = law.contention
        needed = (1 - serial) / (1 / HUNDREDFOLD - serial) if serial < 1 / HUNDREDFOLD else math.inf
        by_law = f"{needed:,.0f}" if needed < math.inf else f"no number of (at most {1 / serial:,.1f} times)"
        ends.append(f"{told}; a hundredfold takes {by_slope:,.0f} cores by the slope, {by_law} cores by Amdahl's law.")
    print("\n" + "\n".join(ends))


def one_process(found: dict[Cell, list[Result]], cell: Cell) -> float:
    """The rate of one process of the same method and t_max; 0 if it was not measured."""
    same = [
        one.rate
        for other, results in found.items()
        if (other.method, other.t_max, other.processes) == (cell.method, cell.t_max, 1)
        for one in results
    ]
    return statistics.median(same) if same else 0.0


def of(processes: int, cores: int) -> str:
    """The number of processes, marked if they have to share cores."""
    return f"{processes} on {cores} cores" if processes > cores else str(processes)


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="HalfCheetah-v5")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--environments", type=int, default=8, help="in all, or of each process with --scaling weak")
    parser.add_argument("--scaling", choices=("strong", "weak"), default="strong")
    parser.add_argument("--t-max", nargs="+", type=int, default=[0], help="steps per environment and batch; 0: preset")
    parser.add_argument("--steps", type=lambda text: int(float(text)), default=300_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--evaluations", type=int, default=20, help="evaluations of a run")
    parser.add_argument("--last", type=int, default=3, help="evaluations whose mean is the score")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds that do not count")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/collective-table"))
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    strong = arguments.scaling == "strong"
    if strong and any(arguments.environments % processes for processes in arguments.processes):
        parser.error(f"{arguments.environments} environments cannot be divided equally")
    cells = [
        Cell(method, t_max, processes, arguments.environments // (processes if strong else 1))
        for t_max in arguments.t_max
        for method in arguments.methods
        for processes in arguments.processes
    ]
    found: dict[Cell, list[Result]] = {cell: [] for cell in cells}
    for seed in arguments.seeds:
        for cell in cells if seed % 2 else reversed(cells):
            result = result_of(cell, seed, arguments, flags)
            found[cell].append(result)
            print(f"# seed {seed}, {cell}: {result.rate:,.0f} steps/s, score {result.score:,.0f}", file=sys.stderr)
    cores = len(os.sched_getaffinity(0))
    print(
        f"{arguments.env_id}, {arguments.steps:,} steps, {len(arguments.seeds)} seeds, {cores} cores, "
        f"{arguments.environments} environments " + ("in all" if strong else "per process"),
        *flags,
    )
    print_measured(found, cores)
    print_predicted(found, cores)


if __name__ == "__main__":
    main()
