"""What the records of a race say: when each run reached the score, and what it scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from asyncrl.core.aggregates import normalized
from asyncrl.core.statistics import Sample
from asyncrl.plots.curves import unit_of
from asyncrl.studies.figures import NAMES
from asyncrl.studies.human import human_normalized
from asyncrl.studies.measure import Measurement, measure
from asyncrl.studies.plan import Cell, Reference
from asyncrl.studies.races import Entrant, RaceFile, Start

LAST = 3
"""Evaluations at the end of a run whose mean is its last score."""


@dataclass(frozen=True)
class Lap:
    """One run of the race, from its records."""

    start: Start
    folder: Path
    run: Measurement
    score: float | None
    """The score to reach, if there is one."""
    at: tuple[float, int] | None
    """Minutes and steps at the snapshot whose evaluation first reached the score."""

    @property
    def minutes(self) -> float:
        """Minutes to the score, or of the whole run."""
        return self.at[0] if self.at else self.run.seconds / 60

    @property
    def steps(self) -> int:
        """Steps to the score, or of the whole run."""
        return self.at[1] if self.at else self.run.steps

    @property
    def last_score(self) -> float | None:
        """The mean of the last evaluations; None if there is no evaluation."""
        return self.run.last_score(LAST)

    def score_at(self, minutes: float) -> float | None:
        """The mean of the last evaluations of snapshots up to that time; None if there is none."""
        if self.run.seconds <= 60 * minutes:
            return self.last_score
        until = tuple(each for each in self.run.evaluations if each.seconds <= 60 * minutes)
        return replace(self.run, evaluations=until).last_score(LAST)


@dataclass(frozen=True)
class Result:
    """All finished runs of an entrant in an environment.

    Its times are those to the score, or of whole runs if there is no score to reach.
    """

    entrant: Entrant
    laps: Sequence[Lap]

    @property
    def reached(self) -> int:
        """Number of runs that reached the score."""
        return sum(lap.at is not None for lap in self.laps)

    def sample(self, values: Sequence[float]) -> Sample:
        """The values `[runs]`, with censored ones marked."""
        return Sample(tuple(values), tuple(lap.score is None or lap.at is not None for lap in self.laps))

    @property
    def minutes(self) -> Sample:
        """Minutes."""
        return self.sample([lap.minutes for lap in self.laps])

    @property
    def steps(self) -> Sample:
        """Steps."""
        return self.sample([float(lap.steps) for lap in self.laps])

    @property
    def core_minutes(self) -> Sample:
        """Core-minutes: minutes times the cores that the run could use."""
        return self.sample([lap.minutes * max(1, lap.run.cores) for lap in self.laps])

    @property
    def best_scores(self) -> Sample:
        """The best evaluation of each run; -inf for a run without one."""
        return _scores([lap.run.best_score() for lap in self.laps])

    @property
    def last_scores(self) -> Sample:
        """The last score of each run; -inf for a run without an evaluation."""
        return _scores([lap.last_score for lap in self.laps])

    def scores_at(self, minutes: float) -> Sample:
        """The last score of each run at that time; -inf for a run without an evaluation until then."""
        return _scores([lap.score_at(minutes) for lap in self.laps])


def _scores(scores: Sequence[float | None]) -> Sample:
    return Sample.complete([-math.inf if score is None else score for score in scores])


def read_lap(file: RaceFile, start: Start, runs_dir: Path) -> Lap:
    """Read a run's records; its measurement is empty if there are none."""
    folder = file.job(start).folder(runs_dir)
    conditions = file.environments[start.env_id]
    cell = Cell(
        start.entrant.algorithm, "", start.env_id, start.entrant.backend, max(1, conditions.workers), start.seed
    )
    run = measure(cell, folder)
    evaluation = None if conditions.score is None else run.reach(Reference(conditions.score, "the race's"))
    at = None if evaluation is None else (evaluation.seconds / 60, evaluation.steps)
    return Lap(start, folder, run, conditions.score, at)


def rank(laps: Sequence[Lap]) -> list[Result]:
    """One result per entrant with a finished run.

    Ordered by median time to the score, then those that never reached it by best score. If there is no score to reach,
    by last score.
    """
    finished = [lap for lap in laps if lap.run.complete]
    entrants = dict.fromkeys(lap.start.entrant for lap in finished)
    results = [Result(entrant, [lap for lap in finished if lap.start.entrant == entrant]) for entrant in entrants]
    return sorted(results, key=standing)


def standing(result: Result) -> tuple[float, float]:
    """What results in one environment are ordered by, the smallest first."""
    if all(lap.score is None for lap in result.laps):
        return -result.last_scores.median, 0.0
    return result.minutes.median, -result.best_scores.median


def equal_time(results: Sequence[Result]) -> float | None:
    """Minutes at which entrants with equal steps can be compared: when the last run of the fastest one ended.

    None if there is a score to reach, or if the slowest takes hardly longer.
    """
    if not results or any(lap.score is not None for result in results for lap in result.laps):
        return None
    fastest = min(results, key=lambda result: result.minutes.median)
    minutes = max(fastest.minutes.values)
    return minutes if minutes < CLOSE * max(result.minutes.median for result in results) else None


def mean_places(environments: Sequence[Sequence[Result]]) -> dict[Entrant, float]:
    """The mean place of each entrant over environments whose results are ranked, best first.

    Entrants with equal results share their places. One without a finished run in an environment is behind all others
    there.
    """
    places = [_places(ranked) for ranked in environments]
    entrants = {entrant for own in places for entrant in own}
    means = {entrant: fmean(own.get(entrant, len(own) + 1) for own in places) for entrant in entrants}
    return dict(sorted(means.items(), key=lambda item: (item[1], str(item[0]))))


def _places(ranked: Sequence[Result]) -> dict[Entrant, float]:
    standings = [standing(result) for result in ranked]
    return {
        result.entrant: fmean(place for place, other in enumerate(standings, 1) if other == own)
        for result, own in zip(ranked, standings, strict=True)
    }


def merits_of(entrant: Entrant, results: Sequence[Result]) -> tuple[list[float], bool]:
    """What the runs of an entrant are worth in an environment, from 0 to about 1, and whether by their scores.

    Scores are normalised: by a random player and a human in Atari, elsewhere by the lowest and the highest run. Where
    there is a score to reach, a run is worth the time of the soonest divided by its own; 0 if it never reached it.
    """
    (own,) = (result for result in results if result.entrant == entrant)
    laps = [lap for result in results for lap in result.laps]
    if any(lap.score is not None for lap in laps):
        soonest = min((minutes for result in results for minutes in result.minutes.as_infinite), default=math.inf)
        return [soonest / minutes if math.isfinite(minutes) else 0.0 for minutes in own.minutes.as_infinite], False
    scores = [(lap.start.env_id, score) for lap in own.laps if (score := lap.last_score) is not None]
    percents = [human_normalized(env_id, score) for env_id, score in scores]
    if None not in percents:
        return [percent / 100 for percent in percents if percent is not None], True
    all_scores = [score for lap in laps if (score := lap.last_score) is not None]
    return normalized([score for _, score in scores], min(all_scores), max(all_scores)), True


CLOSE = 0.9
"""Share of the longest time from which on times count as equal."""
MINUTE = {"minutes": 1.0, "seconds": 60.0}
"""A minute in each unit."""


def time_unit(results: Sequence[Result]) -> str:
    """Unit of time for the entrants of an environment: that of the latest known median."""
    medians = [median for result in results if math.isfinite(median := result.minutes.median)]
    return unit_of("minutes", 60 * max(medians, default=math.inf))[0]


def name_of(entrant: Entrant) -> str:
    """The name of an entrant in tables and legends."""
    name = NAMES.get(entrant.algorithm, entrant.algorithm)
    return f"{name}, {entrant.backend}" if entrant.named else name


def told_time(minutes: float, unit: str) -> str:
    """Minutes in minutes or seconds, with one decimal; with two digits if it is less than one."""
    time = minutes * MINUTE[unit]
    return f"{time:.1f}" if time >= 1 else f"{time:.2g}"


def told_score(score: float | None) -> str:
    """A score with four digits; nothing if there is none (None or -inf)."""
    return "" if score is None or not math.isfinite(score) else f"{score:.4g}"
