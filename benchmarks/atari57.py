"""All 57 Atari games of the literature, by one page's defaults. The study of docs/results/atari57.md, by its protocol.

    python benchmarks/atari57.py runs/atari57 docs/results/atari57.csv --seeds 1 2 3              # four hours each
    python benchmarks/atari57.py runs/atari57 docs/results/atari57.csv --figure docs/results/atari57.png --games

One run per game and seed, two cores each. A row is added to the CSV file when a run has ended, together with the score
of a player that draws its actions evenly. Runs that have a row are not made again: the study may be interrupted at any
time, and goes on on another machine with the file alone. Each call prints the table of the rows of these seeds, and the
median over games with an interval by bootstrap, which draws games and, of each, seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import matplotlib.pyplot as plt
import numpy as np

from asyncrl.core.devices import usable_cores
from asyncrl.envs.spec import EnvSpec
from asyncrl.storage.records import read_records
from asyncrl.studies.documents import read_csv, write_csv
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs
from asyncrl.studies.scores import human_normalized

EPISODES, STEPS, RESAMPLES = 10, 1_000_000, 10_000
WORDS = (
    "--workers", "4", "--total-steps", str(STEPS), "--evaluation-interval-steps", "0",
    "--evaluation-episodes", str(EPISODES), "--checkpoint-interval-steps", "0",
)  # fmt: skip
PUBLISHED = Path(__file__).parents[1] / "docs" / "results" / "paper" / "atari57.csv"


@dataclass(frozen=True)
class Row:
    """One run."""

    game: str
    seed: int
    score: float
    """Mean of the final parameters' episodes."""
    lowest: float
    highest: float
    random: float
    """Mean of as many episodes of a player that draws its actions evenly."""
    minutes: float
    """Training, without the evaluation."""


Rows: TypeAlias = dict[tuple[str, int], Row]
"""By game and seed."""


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
    rows = read_csv(PUBLISHED)
    return {row["game"]: {name: float(row[name]) for name in row if name != "game" and row[name]} for row in rows}


def play_evenly(game: str, seed: int) -> float:
    """Mean score of a player that draws its actions evenly."""
    environment = EnvSpec(env_id_of(game)).make(seed, evaluation=True)
    draw, scores = np.random.default_rng(seed), []
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


def row_of(game: str, seed: int, folder: Path) -> Row:
    """The row of a run that has finished."""
    last = read_records(folder / "evaluator.jsonl")[-1]
    returns = last["returns"]
    minutes = float(last["seconds"]) / 60
    return Row(game, seed, statistics.fmean(returns), min(returns), max(returns), play_evenly(game, seed), minutes)


def read_rows(file: Path) -> Rows:
    """The rows that there are."""
    rows = [
        Row(row.pop("game"), int(row.pop("seed")), **{name: float(value) for name, value in row.items()})
        for row in read_csv(file)
    ]
    return {(row.game, row.seed): row for row in rows}


def write_rows(file: Path, rows: Rows) -> None:
    """Replace the file."""
    values = [asdict(rows[place]) for place in sorted(rows)]
    write_csv(file, [{name: round(x, 2) if isinstance(x, float) else x for name, x in row.items()} for row in values])


def by_game(rows: Rows) -> dict[str, list[Row]]:
    """The runs of each game."""
    return {game: list(runs) for game, runs in groupby((rows[place] for place in sorted(rows)), lambda row: row.game)}


def score_of(runs: Sequence[Row]) -> float:
    """Of a game: the mean over seeds."""
    return statistics.fmean(run.score for run in runs)


def percent_of(runs: Sequence[Row]) -> float:
    """The same, human-normalised."""
    return normalized(runs[0].game, score_of(runs))


def print_table(rows: Rows) -> None:
    """All games, and the medians over them."""
    known, games = published(), by_game(rows)
    print(
        "| game | score | of each seed | lowest, highest | uniform player | human-normalised | A3C | PPO, 40M frames |"
    )
    print(f"|---|{'--:|' * 7}")
    for game, runs in sorted(games.items(), key=lambda pair: -percent_of(pair[1])):
        theirs = [
            f"{known[game][name]:,.0f} ({normalized(game, known[game][name]):,.0f} %)" if name in known[game] else ""
            for name in ("a3c_no_op", "ppo_40m_frames")
        ]
        each, even = ", ".join(f"{run.score:,.0f}" for run in runs), statistics.fmean(run.random for run in runs)
        low, high = min(run.lowest for run in runs), max(run.highest for run in runs)
        print(
            f"| {game} | {score_of(runs):,.1f} | {each} | {low:,.0f}, {high:,.0f} | {even:,.1f} | "
            f"{percent_of(runs):,.1f} % | {theirs[0]} | {theirs[1]} |"
        )
    percents = [percent_of(runs) for runs in games.values()]
    better = sum(score_of(runs) > statistics.fmean(run.random for run in runs) for runs in games.values())
    low, high = interval_of([[normalized(run.game, run.score) for run in runs] for runs in games.values()])
    print(
        f"\n{len(rows)} runs of {len(games)} games: "
        f"median {statistics.median(percents):.1f} % [{low:.1f}, {high:.1f}], mean {statistics.fmean(percents):.1f} %, "
        f"{sum(one > 100 for one in percents)} above the human; "
        f"{better} above the uniform player"
    )


def interval_of(games: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % of the medians over games drawn with replacement, each the mean of seeds drawn with replacement."""
    draw = np.random.default_rng(1)
    means = np.stack([draw.choice(runs, (RESAMPLES, len(runs))).mean(1) for runs in games])
    drawn = draw.integers(len(games), size=(len(games), RESAMPLES))
    low, high = np.percentile(np.median(np.take_along_axis(means, drawn, 0), 0), (2.5, 97.5))
    return float(low), float(high)


def draw(rows: Rows, path: Path) -> None:
    """A bar per game, ordered, with a dot for each seed, beside published PPO and the player that draws evenly."""
    games, known = sorted(by_game(rows).values(), key=percent_of), published()
    figure, axes = plt.subplots(figsize=(7, 11), layout="constrained")
    places, names = range(len(games)), [runs[0].game for runs in games]
    axes.barh(places, [percent_of(runs) for runs in games], color="C0", height=0.6, label="1 M steps, two cores")
    if len(rows) > len(games):
        each = [
            (normalized(run.game, run.score), place) for place, runs in zip(places, games, strict=True) for run in runs
        ]
        axes.plot(*zip(*each, strict=True), ".", color="0.2", markersize=3, label="each seed")
    theirs = [(place, known[game]["ppo_40m_frames"]) for place, game in zip(places, names, strict=True)
              if "ppo_40m_frames" in known[game]]  # fmt: skip
    at = [normalized(names[place], score) for place, score in theirs]
    axes.plot(at, [place for place, _ in theirs], "|", color="C1", label="PPO, 10 M steps (Schulman et al. 2017)")
    even = [normalized(runs[0].game, statistics.fmean(run.random for run in runs)) for runs in games]
    axes.plot(even, places, "o", color="white", markeredgecolor="0.2", markersize=5, label="actions drawn evenly")
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xticks((-10, 0, 10, 100, 1_000, 10_000), ("-10", "0", "10", "100", "1,000", "10,000"))
    axes.set_yticks(places, names, fontsize=7)
    axes.set_xlabel("human-normalised score, percent (0: random player, 100: human)")
    axes.axvline(100, color="0.6", linewidth=0.8)
    axes.axvline(0, color="0.6", linewidth=0.8)
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=3)
    axes.set_ylim(-1, len(games))
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--slots", type=int, default=max(1, len(usable_cores()) // 2), help="runs at a time")
    parser.add_argument("--figure", type=Path, help="draw it here")
    arguments = parser.parse_args()

    rows = read_rows(arguments.rows)
    jobs = {
        (game, seed): Job(arguments.algorithm, env_id_of(game), f"seed-{seed}", (*WORDS, "--seed", str(seed)))
        for seed in arguments.seeds
        for game in arguments.games
        if (game, seed) not in rows
    }

    def say(line: str) -> None:
        print(line, flush=True)
        for place, job in jobs.items():
            if place not in rows and is_done(job, arguments.folder):
                rows[place] = row_of(*place, job.folder(arguments.folder))
                write_rows(arguments.rows, rows)

    if jobs:
        with alone_in(arguments.folder, print) as lock:
            run_jobs(list(jobs.values()), arguments.folder, arguments.slots, lock, say)
    if shown := {place: row for place, row in rows.items() if row.seed in arguments.seeds}:
        print_table(shown)
        if arguments.figure:
            draw(shown, arguments.figure)


if __name__ == "__main__":
    main()
