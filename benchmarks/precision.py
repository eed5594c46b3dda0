"""Does bfloat16 harm learning? The table and the figure of docs/results/bfloat16.md, from the runs of its sweep.

python benchmarks/precision.py docs/results/bfloat16.csv --runs runs/bfloat16    # collect finished runs, then show
python benchmarks/precision.py docs/results/bfloat16.csv --figure docs/results/bfloat16.png
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt

from asyncrl.storage.files import read_json
from asyncrl.storage.records import read_records
from asyncrl.studies.documents import read_csv, write_csv

FROM_STEPS = 750_000
"""Evaluations from here on count."""
PRECISIONS = ("float32", "bfloat16")


class Evaluation(NamedTuple):
    """One evaluation of a run."""

    env_id: str
    precision: str
    seed: int
    steps: int
    score: float


def collect(runs: Path) -> list[Evaluation]:
    """All evaluations of the sweep's finished runs."""
    found = []
    for folder in sorted(runs.glob("*/*/*/")):
        if read_json(folder / "status.json").get("state") == "finished":
            config = read_json(folder / "config.json")["config"]
            which = str(config["env_id"]), str(config["precision"]), int(config["seed"])
            rows = [row for row in read_records(folder / "evaluator.jsonl") if row.get("mean") is not None]
            found += [Evaluation(*which, int(row["steps"]), float(row["mean"])) for row in rows]
    return found


def read(file: Path) -> list[Evaluation]:
    """The evaluations of a CSV file."""
    return [
        Evaluation(row["env_id"], row["precision"], int(row["seed"]), int(row["steps"]), float(row["score"]))
        for row in read_csv(file)
    ]


def scores_of(evaluations: Sequence[Evaluation], env_id: str, precision: str) -> dict[int, float]:
    """What counts of each seed: the mean of its later evaluations."""
    later = [one for one in evaluations if one[:2] == (env_id, precision) and one.steps >= FROM_STEPS]
    return {
        seed: statistics.fmean(one.score for one in later if one.seed == seed)
        for seed in sorted({one.seed for one in later})
    }


def print_table(evaluations: Sequence[Evaluation]) -> None:
    """The seeds of both precisions, their means, and the difference."""
    print("| game | float32 | mean | bfloat16 | mean | difference |")
    print("|---|---|--:|---|--:|--:|")
    for env_id in sorted({one.env_id for one in evaluations}):
        scores = {precision: list(scores_of(evaluations, env_id, precision).values()) for precision in PRECISIONS}
        if not all(scores.values()):
            continue
        single, reduced = (statistics.fmean(scores[precision]) for precision in PRECISIONS)
        cells = [
            f"{', '.join(f'{one:.1f}' for one in scores[precision])} | {mean:.1f}"
            for precision, mean in zip(PRECISIONS, (single, reduced), strict=True)
        ]
        print(f"| {env_id} | {' | '.join(cells)} | {reduced - single:+.1f} |")


def draw(evaluations: Sequence[Evaluation], path: Path) -> None:
    """Evaluation scores over steps, a panel per game, a line per seed."""
    games = sorted({one.env_id for one in evaluations}, reverse=True)
    figure, panels = plt.subplots(1, len(games), figsize=(10, 4), layout="constrained", squeeze=False)
    for axes, env_id in zip(panels[0], games, strict=True):
        for colour, precision in zip(("C0", "C1"), PRECISIONS, strict=True):
            mine = [one for one in evaluations if one[:2] == (env_id, precision)]
            for number, seed in enumerate(sorted({one.seed for one in mine})):
                points = sorted((one.steps / 1e6, one.score) for one in mine if one.seed == seed)
                label = precision if number == 0 else None
                axes.plot(*zip(*points, strict=True), ".-", color=colour, linewidth=1.2, alpha=0.8, label=label)
        axes.axvline(FROM_STEPS / 1e6, color="0.8", linewidth=0.8, zorder=0)
        axes.set_title(env_id)
        axes.set_xlabel("steps of all workers (millions)")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("evaluation score (mean of 10 games)")
    panels[0][0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Collect, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the CSV file of all evaluations")
    parser.add_argument("--runs", type=Path, help="write it from the runs in this folder first")
    parser.add_argument("--figure", type=Path, help="draw the curves here")
    arguments = parser.parse_args()
    if arguments.runs:
        if not (found := collect(arguments.runs)):
            parser.error(f"there are no finished runs in {arguments.runs}")
        write_csv(arguments.rows, [one._asdict() for one in sorted(found)])
    evaluations = read(arguments.rows)
    print_table(evaluations)
    if arguments.figure:
        draw(evaluations, arguments.figure)


if __name__ == "__main__":
    main()
