"""The results of a race: when each run reached the score, and what it scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from asyncrl.core.statistics import Sample, normalized
from asyncrl.plots.figures import method_name, unit_of
from asyncrl.studies.measure import LAST, Group, Measurement
from asyncrl.studies.scores import human_normalized
from asyncrl.studies.study import Cell

CLOSE = 0.9
"""Share of the longest time from which on times count as equal."""


@dataclass(frozen=True)
class Result(Group):
    """All finished runs of an entrant in an environment."""

    name: str
    """A method, with its backend if there are several."""

    @property
    def core_seconds(self) -> Sample:
        """Seconds times the cores that the run could use."""
        seconds = self.seconds
        values = [time * max(1, run.cores) for time, run in zip(seconds.values, self.runs, strict=True)]
        return Sample(tuple(values), seconds.reached)

    @property
    def best_scores(self) -> Sample:
        """The best evaluation of each run; -inf for a run without one."""
        return _scores([run.best_score() for run in self.runs])

    def last_scores(self, seconds: float = math.inf) -> Sample:
        """The mean of each run's last evaluations at that time, or at its end; -inf for a run without any."""
        return _scores([run.last_score(LAST, seconds) for run in self.runs])

    @property
    def standing(self) -> tuple[float, float]:
        """Results are ordered by it, the smallest first.

        By median time to the score, then those that never reached it by best score. If there is no score to reach, by
        last score.
        """
        if self.reference is None:
            return -self.last_scores().median, 0.0
        return self.seconds.median, -self.best_scores.median


def _scores(scores: Sequence[float | None]) -> Sample:
    return Sample.complete([-math.inf if score is None else score for score in scores])


def names_of(cells: Sequence[Cell]) -> list[str]:
    """The entrant that each cell is a run of: its method, with its backend if the race has several."""
    several = len({cell.backend for cell in cells}) > 1
    return [method_name(cell.algorithm) + (f", {cell.backend}" if several else "") for cell in cells]


def rank(runs: Sequence[tuple[str, Measurement]], env_id: str) -> list[Result]:
    """The results in an environment, best first, of all entrants with a finished run; `runs` with their names."""
    groups: dict[str, list[Measurement]] = {}
    for name, run in runs:
        if run.cell.env_id == env_id and run.complete:
            groups.setdefault(name, []).append(run)
    return sorted((Result(own, name) for name, own in groups.items()), key=lambda result: result.standing)


def equal_time(results: Sequence[Result]) -> float | None:
    """Seconds at which entrants with equal steps can be compared: when the last run of the fastest one ended.

    None if there is a score to reach, or if the slowest takes hardly longer.
    """
    if not results or results[0].reference:
        return None
    fastest = min(results, key=lambda result: result.seconds.median)
    seconds = max(fastest.seconds.values)
    return seconds if seconds < CLOSE * max(result.seconds.median for result in results) else None


def mean_places(environments: Sequence[Sequence[Result]]) -> dict[str, float]:
    """The mean place of each entrant over environments, best first.

    Entrants with equal results share their places. One without a finished run in an environment is behind all others
    there.
    """
    places: list[dict[str, float]] = []
    for results in environments:
        standings = [result.standing for result in results]
        shared = [fmean(i for i, other in enumerate(standings, 1) if other == own) for own in standings]
        places.append(dict(zip([result.name for result in results], shared, strict=True)))
    names = {name for own in places for name in own}
    means = {name: fmean(own.get(name, len(own) + 1) for own in places) for name in names}
    return dict(sorted(means.items(), key=lambda item: (item[1], item[0])))


def merits_of(result: Result, results: Sequence[Result]) -> list[float]:
    """What the runs of a result are worth among all results of its environment, from 0 to about 1.

    Scores are normalised: by a random player and a human in Atari, elsewhere by the lowest and the highest run. Where
    there is a score to reach, a run is worth the time of the soonest divided by its own; 0 if it never reached it.
    """
    if result.reference:
        soonest = min(seconds for other in results for seconds in other.seconds.as_infinite)
        return [soonest / seconds if math.isfinite(seconds) else 0.0 for seconds in result.seconds.as_infinite]
    scores, *others = ([s for s in one.last_scores().values if math.isfinite(s)] for one in (result, *results))
    percents = [human_normalized(result.runs[0].cell.env_id, score) for score in scores]
    known = [percent / 100 for percent in percents if percent is not None]
    together = [score for own in others for score in own]
    return known if len(known) == len(percents) else normalized(scores, min(together), max(together))


def time_unit(results: Sequence[Result]) -> tuple[str, float]:
    """Unit of time for the entrants of an environment, and its seconds: that of the latest known median."""
    medians = [median for result in results if math.isfinite(median := result.seconds.median)]
    return unit_of("minutes", max(medians, default=math.inf))
