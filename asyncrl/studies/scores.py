"""Scores of several runs compared: normalised by those of a random and of a human player, over seeds and over games.

`atari_scores.csv` has the two common sets of reference scores, for 57 games:

    no-op           episodes begin with 1 to 30 no-ops: the table of DeepMind's dqn_zoo
    human-starts    episodes begin at points that people have played to: Gorila's 49 games (Nair et al. 2015) and 8 of
                    double DQN (van Hasselt et al. 2016), as used in tables 1 and S3 of Mnih et al. 2016

Video Pinball's random score is taken as 0, whatever the tables say. With human starts the random player scores more
there than the human, so a better agent would get a lower normalised score, and only 0 reproduces the published means of
A3C and IMPALA. This moves a mean over games by hundreds of points, but no median: report medians.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from asyncrl.core.statistics import Estimate, over_games

Reference = Literal["no-op", "human-starts"]
SOURCES = {
    "no-op": "no-op starts, references of dqn_zoo",
    "human-starts": "human starts, references of Gorila and double DQN",
}
"""Descriptions of the references, for captions."""
_ZERO = "videopinball"
_ID = re.compile(r"(?:ale_py:)?(?:ALE/)?(?P<name>[A-Za-z]+?)(?:NoFrameskip)?-v\d+")


@cache
def reference_scores(reference: Reference) -> dict[str, tuple[float, float]]:
    """Scores of the random and of the human player, by the game's name in lower case without separators."""
    columns = [f"{player}_{reference.replace('-', '_')}" for player in ("random", "human")]
    text = resources.files("asyncrl.studies").joinpath("atari_scores.csv").read_text(encoding="utf-8")
    scores = {}
    for row in csv.DictReader(text.splitlines()):
        game = row["game"].replace("-", "")
        random, human = (float(row[column]) for column in columns)
        scores[game] = (0.0 if game == _ZERO else random, human)
    return scores


def game_of(env_id: str) -> str | None:
    """The game of an id, in lower case without separators; None if it is not one of the 57."""
    form = _ID.fullmatch(env_id)
    game = form["name"].lower() if form else ""
    return game if game in reference_scores("no-op") else None


def human_normalized(env_id: str, score: float, reference: Reference = "no-op") -> float | None:
    """100 (score - random) / (human - random), in percent; None if the id is not one of the 57 games."""
    game = game_of(env_id)
    if game is None:
        return None
    random, human = reference_scores(reference)[game]
    return 100 * (score - random) / (human - random)


@dataclass(frozen=True)
class Score:
    """The mean over the episodes of one run."""

    algorithm: str
    env_id: str
    mean: float


@dataclass(frozen=True)
class Total:
    """The scores of one method over all its runs."""

    algorithm: str
    runs: int
    games: int
    normalized: bool
    """Whether the figures are human-normalised, in percent; else they are raw scores of one environment."""
    median: float
    """Median over games of each game's mean over seeds."""
    mean: float
    """Mean over games of each game's mean over seeds."""
    interquartile: Estimate
    """Interquartile mean over games and seeds."""


def totals(scores: Sequence[Score], reference: Reference) -> list[Total]:
    """A total for each method whose runs can be aggregated.

    Scores of different environments are only comparable if they are human-normalised. So if there are several
    environments, only the 57 games count. A single run has no total.
    """
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(score.algorithm, []).append(score)
    return [total for own in groups.values() if (total := _total(own, reference)) is not None]


def _total(scores: Sequence[Score], reference: Reference) -> Total | None:
    games: dict[str, list[float]] = {}
    for score in scores:
        percent = human_normalized(score.env_id, score.mean, reference)
        game = game_of(score.env_id)
        if percent is not None and game is not None:
            games.setdefault(game, []).append(percent)
    normalized = bool(games)
    if not normalized and len({score.env_id for score in scores}) == 1:
        games = {scores[0].env_id: [score.mean for score in scores]}
    runs = sum(map(len, games.values()))
    if runs < 2:
        return None
    means = [statistics.fmean(seeds) for seeds in games.values()]
    return Total(
        scores[0].algorithm, runs, len(games), normalized, statistics.median(means), statistics.fmean(means),
        over_games(list(games.values())),
    )  # fmt: skip
