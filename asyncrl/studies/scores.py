"""Scores of several runs beside each other: per game over seeds, and over games."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.studies.human import Reference, game_of, human_normalized
from asyncrl.studies.statistics import Estimate, interquartile_mean_of


@dataclass(frozen=True)
class Score:
    """The mean over the episodes of one run."""

    page: str
    env_id: str
    mean: float


@dataclass(frozen=True)
class Total:
    """What the runs of one method came to."""

    page: str
    runs: int
    games: int
    normalized: bool
    """Whether the figures are human-normalised, in percent; else they are raw scores of one environment."""
    median: float
    """Over games, of each game's mean over its seeds."""
    mean: float
    """The same, as a mean."""
    interquartile: Estimate
    """Over games and seeds."""


def totals(scores: Sequence[Score], reference: Reference) -> list[Total]:
    """A total for each method of whose runs there is something to say together.

    Scores of different environments have nothing in common unless they are human-normalised: other environments than
    the 57 games are left out where there are several. One run has no total.
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
        interquartile_mean_of(list(games.values())),
    )  # fmt: skip
