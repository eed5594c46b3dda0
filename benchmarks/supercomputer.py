"""Six runs of ten million steps on this machine, beside what RLlib reached on a supercomputer with as many.

    python benchmarks/supercomputer.py runs/supercomputer docs/results/supercomputer.csv                   # hours
    python benchmarks/supercomputer.py runs/supercomputer docs/results/supercomputer.csv --only impala --seeds 2
    python benchmarks/supercomputer.py runs/supercomputer docs/results/supercomputer.csv --figure supercomputer.png \
        --seeds

Each run has all cores for itself. The file gets all evaluations of a run as soon as it has ended, and runs that are in
it are not made again: the study may be interrupted at any time, and goes on on another machine with the file alone.
Each call prints the table of the runs that there are. `--words` adds flags, for tuning: give that its own file.

A score is the mean of ten whole games of the final parameters. The published ones are means over episodes of training,
so the mean of the last 100 episodes of training stands beside it. Minutes are those until the last step; core-minutes
are minutes times cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from asyncrl.plots.figures import BLACK, COLOURS, Line, Panel, draw, method_name, save_figure
from asyncrl.storage.records import read_records
from asyncrl.studies.documents import Rows, plain_table, read_csv, write_csv
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs
from asyncrl.studies.measure import measure
from asyncrl.studies.study import Cell

STEPS, EPISODES = 10_000_000, 100


@dataclass(frozen=True)
class Published:
    """A row of the report."""

    algorithm: str
    game: str
    score: float
    minutes: float


REPORT = (
    Published("impala", "BeamRider", 2_173, 28),
    Published("impala", "Breakout", 374, 28),
    Published("impala", "Qbert", 1_077, 28),
    Published("impala", "SpaceInvaders", 747, 28),
    Published("a2c", "Qbert", 15_101, 96),
    Published("ppo", "Qbert", 12_775, 144),
)


def job_of(row: Published, seed: int, words: Sequence[str]) -> Job:
    """Our run of a row."""
    plan = ("--seed", str(seed), "--total-steps", str(STEPS), *words)
    return Job(row.algorithm, f"ALE/{row.game}-v5", f"seed-{seed}", plan)


def episodes_of(folder: Path) -> list[tuple[int, float]]:
    """All episodes of training in their order: the step by which each was known, and its raw return."""
    rows = [row for file in folder.glob("worker-*.jsonl") for row in read_records(file)]
    return sorted((row["steps"], score) for row in rows for score, _ in row.get("episodes", ()))


def points_of(row: Published, seed: int, folder: Path) -> Rows:
    """All evaluations of a run, each with the mean of the last episodes of training before it."""
    run = measure(Cell(row.algorithm, "", f"ALE/{row.game}-v5", "local", 0, seed), folder)
    episodes = episodes_of(folder)
    points = []
    for at in run.evaluations:
        past = [score for steps, score in episodes if steps <= at.steps][-EPISODES:]
        place = {"algorithm": row.algorithm, "game": row.game, "seed": seed, "cores": run.cores, "steps": at.steps}
        training = round(fmean(past), 2) if past else ""
        points.append(place | {"seconds": round(at.seconds), "score": round(at.score, 2), "training": training})
    return points


def runs_in(points: Sequence[dict[str, str]], row: Published) -> dict[int, list[dict[str, str]]]:
    """The evaluations of our runs of a row, by seed."""
    own = [point for point in points if (point["algorithm"], point["game"]) == (row.algorithm, row.game)]
    own.sort(key=lambda point: int(point["seed"]))
    return {int(seed): list(run) for seed, run in groupby(own, key=lambda point: point["seed"])}


def print_table(points: Sequence[dict[str, str]]) -> None:
    """Their score and time beside ours."""
    rows = []
    for row in REPORT:
        for seed, run in runs_in(points, row).items():
            last = run[-1]
            minutes = float(last["seconds"]) / 60
            rows.append(
                {
                    "method": method_name(row.algorithm), "game": row.game, "their score": f"{row.score:,.0f}",
                    "their minutes": row.minutes, "seed": seed, "our score": f"{float(last['score']):,.0f}",
                    f"last {EPISODES} of training": f"{float(last['training']):,.0f}", "our minutes": f"{minutes:.0f}",
                    "core-minutes": f"{minutes * int(last['cores']):.0f}",
                }
            )  # fmt: skip
    print(plain_table(rows))


def draw_rows(points: Sequence[dict[str, str]], path: Path) -> None:
    """A panel for each row with runs: every seed's evaluations over minutes, and the published score at its time."""
    panels = []
    for row in REPORT:
        runs = runs_in(points, row).values()
        if not runs:
            continue
        marks = [Line((row.minutes,), (row.score,), BLACK, "RLlib on a supercomputer", "", marker="*", size=11)]
        for run in runs:
            minutes, scores = [float(at["seconds"]) / 60 for at in run], [float(at["score"]) for at in run]
            name = f"{method_name(row.algorithm)}, {run[-1]['cores']} cores"
            marks.append(Line(minutes, scores, COLOURS[row.algorithm], name, width=1.2))
        panels.append(Panel(marks, "minutes", "score of ten games", f"{method_name(row.algorithm)}, {row.game}"))
    save_figure(draw([panels[:3], panels[3:]], 3.2), path)


def main() -> None:
    """Make the runs that are missing, then print what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are")
    parser.add_argument("points", type=Path, help="the CSV file")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="none: only show")
    parser.add_argument("--only", nargs="+", default=[], help="these methods or games")
    parser.add_argument("--words", nargs=argparse.REMAINDER, default=[], help="further flags of the runs, at the end")
    parser.add_argument("--figure", type=Path, help="draw it here")
    arguments = parser.parse_args()

    points = read_csv(arguments.points)
    jobs = {
        (row, seed): job_of(row, seed, arguments.words)
        for seed in arguments.seeds for row in REPORT
        if seed not in runs_in(points, row) and (not arguments.only or {row.algorithm, row.game} & {*arguments.only})
    }  # fmt: skip

    def say(line: str) -> None:
        print(line, flush=True)
        for (row, seed), job in jobs.items():
            if seed not in runs_in(points, row) and is_done(job, arguments.folder):
                points.extend(
                    {k: str(v) for k, v in at.items()} for at in points_of(row, seed, job.folder(arguments.folder))
                )
                write_csv(arguments.points, points)

    if jobs:
        with alone_in(arguments.folder, print) as lock:
            run_jobs(list(jobs.values()), arguments.folder, 1, lock, say)
    if points:
        print_table(points)
        if arguments.figure:
            draw_rows(points, arguments.figure)


if __name__ == "__main__":
    main()
