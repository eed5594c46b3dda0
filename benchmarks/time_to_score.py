"""How long training takes to reach a score: wall clock, steps and core-minutes, for several seeds.

Each seed is one run of the training command with `--stop-at-score`; it ends when the mean of an evaluation's episodes
(10 by default) has reached the score. Runs are made one after the other, so that each has the machine to itself. A
finished run is not repeated: an interrupted benchmark continues with the run that was interrupted.

    python benchmarks/time_to_score.py                     # ALE/Pong-v5 to 18, seeds 1 to 3, the plain default
    python benchmarks/time_to_score.py --algorithm ppo
    python benchmarks/time_to_score.py --env-id CartPole-v1 --score 475 --seeds 1 2 3 4 5 -- --workers 4
    python benchmarks/time_to_score.py --seeds --csv pong.csv --figure pong.png

`--csv` keeps the runs in a file, under `--name`, and `--figure` draws for each name in that file which share of its
runs have the score after so many minutes and steps.

Flags after `--` go to the training command. Three times are printed, in minutes: `reached` is the snapshot whose
evaluation reached the score, counted from the moment all workers were ready; `known` is the end of that evaluation;
`command` is the whole command. Core-minutes are `known` times the cores that the run could use.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from asyncrl.core.statistics import Sample
from asyncrl.plots.figures import Line, Panel, draw, save_figure
from asyncrl.storage.records import read_records
from asyncrl.studies.documents import read_csv, write_csv


@dataclass(frozen=True)
class Result:
    """One seed."""

    seed: int
    score: float
    """Mean of the last evaluation."""
    steps: int
    reached: float
    """Minutes."""
    known: float
    """Minutes."""
    command: float
    """Minutes."""
    cores: int
    ended: bool
    """Whether the score was reached."""


def measure(seed: int, folder: Path, arguments: argparse.Namespace, flags: Sequence[str]) -> Result:
    """Train in a folder of its own until the score is reached or the time is over."""
    command = [
        sys.executable, "-m", f"asyncrl.{arguments.algorithm}", "--env-id", arguments.env_id, "--seed", str(seed),
        "--stop-at-score", str(arguments.score), "--max-seconds", str(60 * arguments.max_minutes),
        "--runs-dir", str(arguments.runs_dir), "--run-name", folder.name, "--quiet", *flags,
    ]  # fmt: skip
    if folder.exists():
        shutil.rmtree(folder)  # interrupted: its clock would not be that of one run
    began = time.perf_counter()
    process = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    minutes = (time.perf_counter() - began) / 60
    if process.returncode:
        raise SystemExit(f"seed {seed} ended with exit code {process.returncode}")
    rows = [row for row in read_records(folder / "evaluator.jsonl") if row.get("mean") is not None]
    row = next((row for row in rows if row["mean"] >= arguments.score), rows[-1])
    known = (row["seconds"] + row["evaluation_seconds"]) / 60
    return Result(
        seed, row["mean"], row["steps"], row["seconds"] / 60, known, minutes, len(os.sched_getaffinity(0)),
        row["mean"] >= arguments.score,
    )  # fmt: skip


def keep(results: Sequence[Result], name: str, file: Path) -> list[dict[str, str]]:
    """Put runs into a file, in the place of those of the same name and seed; returns all rows."""
    rows = {(row["name"], int(row["seed"])): row for row in read_csv(file)}
    for one in results:
        values = asdict(one) | {key: round(getattr(one, key), 2) for key in ("score", "reached", "known", "command")}
        rows[name, one.seed] = {"name": name} | {key: str(value) for key, value in values.items()}
    write_csv(file, list(rows.values()))
    return list(rows.values())


def share_reached(rows: Sequence[dict[str, str]], key: str, unit: float, colour: str) -> Line:
    """Which share of runs have the score after so many minutes or steps. Those that never had it stay below."""
    x, y = [0.0], [0.0]
    for at in sorted(float(row[key]) / unit for row in rows if row["ended"] == "True"):
        x += [at, at]
        y += [y[-1], y[-1] + 1 / len(rows)]
    last = max([float(row[key]) / unit for row in rows if row["ended"] != "True"], default=x[-1])
    return Line([*x, last], [*y, y[-1]], colour, f"{rows[0]['name']} ({len(rows)} seeds)", width=2)


def draw_shares(rows: Sequence[dict[str, str]], score: float, path: Path) -> None:
    """Minutes on the left, steps on the right."""
    groups = [[row for row in rows if row["name"] == name] for name in dict.fromkeys(row["name"] for row in rows)]
    panels = []
    for key, unit, label in (("known", 1.0, "minutes"), ("steps", 1e6, "million steps")):
        marks = [share_reached(group, key, unit, f"C{i}") for i, group in enumerate(groups)]
        title = f"share of runs that have {score:g}"
        panels.append(Panel(marks, label, title, y_limits=(0, 1.02), x_limits=(0, None)))
    save_figure(draw([panels], 3.4, share_y="all"), path)


def main() -> None:
    """Measure and print."""
    words = sys.argv[1:]
    flags = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="a3c", help="the algorithm's module")
    parser.add_argument("--env-id", default="ALE/Pong-v5")
    parser.add_argument("--score", type=float, default=18.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3], help="none: only draw")
    parser.add_argument("--max-minutes", type=float, default=60.0)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/time-to-score"))
    parser.add_argument("--csv", type=Path, help="put the runs into this file")
    parser.add_argument("--name", default="", help="of the runs in that file")
    parser.add_argument("--figure", type=Path, help="draw all runs of that file")
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)

    if arguments.figure and not arguments.csv:
        parser.error("--figure draws the runs of a file: give --csv")

    print(f"{arguments.algorithm} on {arguments.env_id} until {arguments.score:g}:", *flags)
    print(f"{'seed':>5} {'score':>7} {'steps':>11} {'reached':>9} {'known':>9} {'command':>9} {'core-min':>9}")
    results = []
    for seed in arguments.seeds:
        folder = arguments.runs_dir / arguments.algorithm / arguments.env_id.replace("/", "_") / f"seed-{seed}"
        stored = folder.parent / f"result-{seed}.json"
        of = [arguments.score, arguments.max_minutes, *flags]
        if stored.exists():
            kept = json.loads(stored.read_text())
            if kept.pop("of") != of:
                raise SystemExit(f"{stored} is of other settings: give another --runs-dir")
            result = Result(**kept)
        else:
            result = measure(seed, folder, arguments, flags)
            stored.write_text(json.dumps(asdict(result) | {"of": of}))
        results.append(result)
        print(
            f"{seed:>5} {result.score:>7.1f} {result.steps:>11,} {result.reached:>9.1f} {result.known:>9.1f} "
            f"{result.command:>9.1f} {result.known * result.cores:>9.1f}" + ("" if result.ended else "   not reached"),
            flush=True,
        )
    if results:
        middle = Sample(tuple(result.known for result in results), tuple(result.ended for result in results)).median
        reached = sum(result.ended for result in results)
        in_words = f"median {middle:.1f} minutes" if math.isfinite(middle) else "the median did not"
        print(f"{reached} of {len(results)} reached {arguments.score:g}; {in_words}")
    if arguments.csv:
        rows = keep(results, arguments.name, arguments.csv)
        if arguments.figure:
            draw_shares(rows, arguments.score, arguments.figure)


if __name__ == "__main__":
    main()
