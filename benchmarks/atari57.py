"""All 57 Atari games of the literature, by one page's defaults. The study of docs/results/atari57.md, by its protocol.

    python benchmarks/atari57.py runs/atari57 docs/results/atari57.csv                          # about four hours
    python benchmarks/atari57.py runs/atari57 docs/results/atari57.csv --figure docs/results/atari57.png --games

One run per game, two cores each. A row is added to the CSV file when a run has ended, together with the score of a
player that draws its actions evenly. Games that have a row are not played again: the study may be interrupted at any
time, and goes on on another machine with the file alone. Each call prints the table of the rows that there are.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from asyncrl.core.devices import usable_cores
from asyncrl.envs.spec import EnvSpec
from asyncrl.storage.files import replace_file
from asyncrl.storage.records import read_records
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs
from asyncrl.studies.scores import human_normalized

EPISODES, SEED, STEPS = 10, 1, 1_000_000
WORDS = (
    "--workers", "4", "--seed", str(SEED), "--total-steps", str(STEPS), "--evaluation-interval-steps", "0",
    "--evaluation-episodes", str(EPISODES), "--checkpoint-interval-steps", "0",
)  # fmt: skip
PUBLISHED = Path(__file__).parents[1] / "docs" / "results" / "paper" / "atari57.csv"


@dataclass(frozen=True)
class Row:
    """One game."""

    game: str
    score: float
    """Mean of the final parameters' episodes."""
    lowest: float
    highest: float
    random: float
    """Mean of as many episodes of a player that draws its actions evenly."""
    minutes: float
    """Training, without the evaluation."""

    @property
    def percent(self) -> float:
        """Human-normalised score."""
        return normalized(self.game, self.score)


def env_id_of(game: str) -> str:
    """The environment of a game such as "bank-heist"."""
    return f"ALE/{''.join(part.capitalize() for part in game.split('-'))}-v5"


def normalized(game: str, score: float) -> float:
    """Percent of the way from the random to the human player, with no-op starts."""
    percent = human_normalized(env_id_of(game), score)
    assert percent is not None
    return percent


def published() -> dict[str, dict[str, float]]:
    """Scores of A3C and PPO by game; some games are missing."""
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    return {row["game"]: {name: float(row[name]) for name in row if name != "game" and row[name]} for row in rows}


def play_evenly(game: str) -> float:
    """Mean score of a player that draws its actions evenly."""
    environment = EnvSpec(env_id_of(game)).make(SEED, evaluation=True)
    draw, scores = np.random.default_rng(SEED), []
    for _ in range(EPISODES):
        environment.reset()
        score, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = environment.step(int(draw.integers(environment.spaces.actions)))
            score += float(reward)
            over = terminated or truncated
        scores.append(score)
    environment.close()
    return statistics.fmean(scores)


def row_of(game: str, folder: Path) -> Row:
    """The row of a run that has finished."""
    last = list(read_records(folder / "evaluator.jsonl"))[-1]
    returns = last["returns"]
    minutes = float(last["seconds"]) / 60
    return Row(game, statistics.fmean(returns), min(returns), max(returns), play_evenly(game), minutes)


def read_rows(file: Path) -> dict[str, Row]:
    """The rows that there are, by game."""
    if not file.exists():
        return {}
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    return {row["game"]: Row(row["game"], **{name: float(row[name]) for name in row if name != "game"}) for row in rows}


def write_rows(file: Path, rows: Mapping[str, Row]) -> None:
    """Replace the file."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    for game in sorted(rows):
        values = asdict(rows[game])
        writer.writerow({name: value if name == "game" else round(value, 2) for name, value in values.items()})
    replace_file(file, lines.getvalue().encode())


def print_table(rows: Mapping[str, Row]) -> None:
    """All games, and the medians over them."""
    known = published()
    print("| game | score | lowest, highest | uniform player | human-normalised | A3C, no-op | PPO, 40M frames |")
    print(f"|---|{'--:|' * 6}")
    for row in sorted(rows.values(), key=lambda row: -row.percent):
        theirs = [
            f"{known[row.game][name]:,.0f} ({normalized(row.game, known[row.game][name]):,.0f} %)"
            if name in known[row.game] else "" for name in ("a3c_no_op", "ppo_40m_frames")
        ]  # fmt: skip
        print(
            f"| {row.game} | {row.score:,.1f} | {row.lowest:,.0f}, {row.highest:,.0f} | {row.random:,.1f} | "
            f"{row.percent:,.1f} % | {theirs[0]} | {theirs[1]} |"
        )
    percents = [row.percent for row in rows.values()]
    better = sum(row.score > row.random for row in rows.values())
    print(f"\n{len(rows)} games: median {statistics.median(percents):.1f} %, mean {statistics.fmean(percents):.1f} %, "
          f"{sum(one > 100 for one in percents)} above the human; {better} above the uniform player")  # fmt: skip


def draw(rows: Sequence[Row], path: Path) -> None:
    """A bar per game, ordered, beside published PPO and the player that draws evenly."""
    rows, known = sorted(rows, key=lambda row: row.percent), published()
    figure, axes = plt.subplots(figsize=(7, 11), layout="constrained")
    places = range(len(rows))
    axes.barh(places, [row.percent for row in rows], color="C0", height=0.6, label="1 M steps, two cores")
    theirs = [(place, known[row.game]["ppo_40m_frames"]) for place, row in zip(places, rows, strict=True)
              if "ppo_40m_frames" in known[row.game]]  # fmt: skip
    at = [normalized(rows[place].game, score) for place, score in theirs]
    axes.plot(at, [place for place, _ in theirs], "|", color="C1", label="PPO, 10 M steps (Schulman et al. 2017)")
    even = [normalized(row.game, row.random) for row in rows]
    axes.plot(even, places, "o", color="0.2", markeredgecolor="white", markersize=5, label="actions drawn evenly")
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xticks((-10, 0, 10, 100, 1_000, 10_000), ("-10", "0", "10", "100", "1,000", "10,000"))
    axes.set_yticks(places, [row.game for row in rows], fontsize=7)
    axes.set_xlabel("human-normalised score, percent (0: random player, 100: human)")
    axes.axvline(100, color="0.6", linewidth=0.8)
    axes.axvline(0, color="0.6", linewidth=0.8)
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=3)
    axes.set_ylim(-1, len(rows))
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Make the runs that are missing, then print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the runs are")
    parser.add_argument("rows", type=Path, help="the CSV file")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--games", nargs="*", default=sorted(published()), help="by default all 57; none: only show")
    parser.add_argument("--slots", type=int, default=max(1, len(usable_cores()) // 2), help="runs at a time")
    parser.add_argument("--figure", type=Path, help="draw it here")
    arguments = parser.parse_args()

    rows = read_rows(arguments.rows)
    jobs = {
        game: Job(arguments.algorithm, env_id_of(game), "million", WORDS)
        for game in arguments.games
        if game not in rows
    }

    def say(line: str) -> None:
        print(line, flush=True)
        for game, job in jobs.items():
            if game not in rows and is_done(job, arguments.folder):
                rows[game] = row_of(game, job.folder(arguments.folder))
                write_rows(arguments.rows, rows)

    if jobs:
        with alone_in(arguments.folder, print) as lock:
            run_jobs(list(jobs.values()), arguments.folder, arguments.slots, lock, say)
    if rows:
        print_table(rows)
        if arguments.figure:
            draw(list(rows.values()), arguments.figure)


if __name__ == "__main__":
    main()
