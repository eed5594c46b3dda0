"""The plan of a race: its entrants, their common conditions, and the file that stores both."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from asyncrl.core.errors import UsageError
from asyncrl.storage.files import read_json, write_json
from asyncrl.studies.jobs import Job

OWN = "own"
"""Each method is evaluated as its own defaults have it."""


@dataclass(frozen=True)
class Entrant:
    """A page on a backend."""

    algorithm: str
    backend: str
    named: bool = field(default=False, compare=False)
    """Whether its name includes the backend."""

    @classmethod
    def of(cls, word: str, backend: str) -> Entrant:
        """From the command line: a page, or page@backend."""
        algorithm, at, named = word.partition("@")
        return cls(algorithm, named or backend, bool(at))

    def __str__(self) -> str:
        return f"{self.algorithm}@{self.backend}" if self.named else self.algorithm


@dataclass(frozen=True)
class Conditions:
    """The common conditions of all entrants in an environment."""

    score: float | None
    """The score to reach; None: only the curves are compared."""
    max_minutes: float
    """0: no limit."""
    max_steps: int
    """0: the page's default."""
    workers: int
    """0: the page's default."""
    evaluation_episodes: int
    stop_at_score: bool
    words: tuple[str, ...]
    """Flags for every run, from after `--` on the command line."""
    evaluation_policy: str
    """greedy or sampled for all entrants alike; own: as each method's defaults have it."""


@dataclass(frozen=True)
class Start:
    """One run of the race."""

    entrant: Entrant
    env_id: str
    seed: int


def name_apart(starts: Sequence[Start]) -> list[Start]:
    """The same runs; entrants that are one page on several backends get names that include the backend."""
    entrants = {start.entrant for start in starts}
    counts = Counter(entrant.algorithm for entrant in entrants)
    several = {algorithm for algorithm, count in counts.items() if count > 1}
    return [
        replace(start, entrant=replace(start.entrant, named=True)) if start.entrant.algorithm in several else start
        for start in starts
    ]


class RaceFile:
    """race.json in the race's folder: conditions and runs of all calls so far.

    Later calls may add entrants, seeds and environments. Runs under other conditions are refused, since they could not
    be compared.
    """

    def __init__(self, runs_dir: Path) -> None:
        self._path = runs_dir / "race.json"
        try:
            stored = read_json(self._path)
        except FileNotFoundError:
            stored = {"commands": [], "environments": {}, "starts": []}
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.commands: list[str] = stored["commands"]
        """The command lines of the race."""
        self.environments = {
            env_id: Conditions(**(plain | {"words": tuple(plain["words"])}))
            for env_id, plain in stored["environments"].items()
        }
        self.starts = [Start(Entrant(**plain["entrant"]), plain["env_id"], plain["seed"]) for plain in stored["starts"]]

    def add(self, command: str, environments: Mapping[str, Conditions], starts: Sequence[Start]) -> None:
        """Add the runs of one call to the race; call `save` to store them.

        Raises UsageError if they cannot be compared with the others.
        """
        for env_id, conditions in environments.items():
            for name, before in dataclasses.asdict(self.environments.get(env_id, conditions)).items():
                if before != (now := getattr(conditions, name)):
                    raise UsageError(
                        f"{self._path} has {env_id} with {name} {before}, not {now}: choose another --runs-dir"
                    )
        self.commands += [command] if command not in self.commands else []
        self.environments.update(environments)
        self.starts = name_apart([*self.starts, *(start for start in starts if start not in set(self.starts))])

    def save(self) -> None:
        """Write the file."""
        plain = {
            "commands": self.commands,
            "environments": {env_id: dataclasses.asdict(own) for env_id, own in self.environments.items()},
            "starts": [dataclasses.asdict(start) for start in self.starts],
        }
        write_json(self._path, plain)

    def job(self, start: Start) -> Job:
        """The run of a start."""
        conditions = self.environments[start.env_id]
        words = ["--seed", str(start.seed), "--backend", start.entrant.backend]
        words += ["--evaluation-episodes", str(conditions.evaluation_episodes)]
        words += ["--max-seconds", str(60 * conditions.max_minutes)] if conditions.max_minutes else []
        words += ["--total-steps", str(conditions.max_steps)] if conditions.max_steps else []
        words += ["--workers", str(conditions.workers)] if conditions.workers else []
        words += ["--stop-at-score", str(conditions.score)] if conditions.stop_at_score else []
        if conditions.evaluation_policy != OWN:
            words += ["--evaluation-policy", conditions.evaluation_policy]
        name = f"{start.entrant.backend}-s{start.seed}"
        return Job(start.entrant.algorithm, start.env_id, name, (*words, *conditions.words))
