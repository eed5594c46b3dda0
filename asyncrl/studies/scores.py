"""Scores of several runs compared: per game over seeds, and over games."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.core.statistics import Estimate, over_games
from asyncrl.studies.human import Reference, game_of, human_normalized


@dataclass(frozen=True)
class Score:
    """The mean over the episodes of one run."""

    page: str
    env_id: str
    mean: float


@dataclass(frozen=True)
class Total:
    """The scores of one method over all its runs."""

    page: str
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
    found = (_total([score for score in scores if score.page == page], reference) for page in _pages(scores))
    return [total for total in found if total is not None]


def _pages(scores: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.page for score in scores))


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
        scores[0].page, runs, len(games), normalized, statistics.median(means), statistics.fmean(means),
        over_games(list(games.values())),
    )  # fmt: skip
