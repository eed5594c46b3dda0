"""The plan of a speed-up study: its cells, the commands of their runs, and the file that stores both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.core.errors import UsageError
from asyncrl.storage.files import read_json, write_json
from asyncrl.studies.jobs import Job


@dataclass(frozen=True)
class Variant:
    """One side of an ablation."""

    label: str
    """Its name in figures and tables."""
    words: tuple[str, ...] = ()
    """The flags of its runs."""


PLAIN = Variant("")
ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "lock": (Variant("hogwild", ("--update", "hogwild")), Variant("locked", ("--update", "locked"))),
    "statistics": (
        Variant("shared", ("--statistics", "shared")),
        Variant("per-worker", ("--statistics", "per-worker")),
    ),
    "exploration": (
        Variant("diverse", ("--exploration", "drawn")),
        Variant("equal", ("--exploration", "equal")),
    ),
    "staleness": (
        Variant("equal-turns", ("--schedule", "round-robin")),
        Variant("unequal-turns", ("--delays", "1", "2", "4", "8", "16", "32", "64", "128")),
    ),
}
"""Predefined ablations, by their name for --ablation. `staleness`: with equal turns, every update of N workers is N - 1
updates old (its gradient or, with one-step methods, the parameters it was acted with). With turns that double in length
over each eight workers, the median is 1 to 5."""


@dataclass(frozen=True)
class Series:
    """One curve of a study: a method in one variant."""

    algorithm: str
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.variant}" if self.variant else self.algorithm


@dataclass(frozen=True)
class Cell:
    """One run of the study, identified by what distinguishes it from the others."""

    algorithm: str
    variant: str
    env_id: str
    backend: str
    workers: int
    seed: int

    @property
    def series(self) -> Series:
        """The curve it belongs to."""
        return Series(self.algorithm, self.variant)

    @property
    def run_name(self) -> str:
        """The name of its run; names sort by workers and seed."""
        name = f"{self.backend}-w{self.workers:02d}-s{self.seed}"
        return f"{name}-{self.variant}" if self.variant else name


@dataclass(frozen=True)
class Settings:
    """What all runs in an environment must have in common to be comparable."""

    max_steps: int
    max_seconds: float
    evaluation_interval_steps: int
    evaluation_episodes: int
    stop_at_reference: bool
    words: tuple[str, ...]
    """Flags for every run, from after `--` on the command line."""


@dataclass(frozen=True)
class Reference:
    """The score that runs are timed to."""

    score: float
    how: str
    """How it was chosen, in words."""
    evaluations: int = 1
    """Number of consecutive evaluations whose mean must reach it."""

    @property
    def in_mean(self) -> str:
        """Words after the score that say how many evaluations it is the mean of; empty for one."""
        return f" in the mean of {self.evaluations} consecutive evaluations" if self.evaluations > 1 else ""


References = Mapping[tuple[str, str], Reference]
"""By environment and method."""


class StudyFile:
    """study.json in the study's folder: settings and cells of all calls so far, and the reference scores.

    Later calls with the same folder may add cells (seeds, workers, methods, the other backend). Cells with other
    settings are refused, since they could not be compared.
    """

    def __init__(self, runs_dir: Path) -> None:
        self._path = runs_dir / "study.json"
        try:
            stored = read_json(self._path)
        except FileNotFoundError:
            stored = {"ablation": None, "commands": [], "environments": {}, "references": [], "cells": []}
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.ablation: str | None = stored["ablation"]
        self.commands: list[str] = stored["commands"]
        """The command lines of the study."""
        self.environments = {env: _settings(plain) for env, plain in stored["environments"].items()}
        self.references = {  # older studies do not store the number of evaluations, which was 1
            (entry["env_id"], entry["algorithm"]): Reference(entry["score"], entry["how"], entry.get("evaluations", 1))
            for entry in stored["references"]
        }
        self.cells = [Cell(**plain) for plain in stored["cells"]]

    def add(
        self,
        command: str,
        ablation: str,
        environments: Mapping[str, Settings],
        references: References,
        cells: Sequence[Cell],
    ) -> None:
        """Add the cells of one call to the study; call `save` to store them.

        Raises UsageError if they cannot be compared with the others.
        """
        if self.ablation is not None and self.ablation != ablation:
            raise UsageError(f"{self._path} is a study of --ablation {self.ablation}: choose another --runs-dir")
        for env_id, settings in environments.items():
            for name, before in dataclasses.asdict(self.environments.get(env_id, settings)).items():
                if before != (now := getattr(settings, name)):
                    raise UsageError(
                        f"{self._path} has {env_id} with {name} {before}, not {now}: choose another --runs-dir"
                    )
        for key, reference in references.items():
            before = self.references.get(key, reference)
            if (before.score, before.evaluations) != (reference.score, reference.evaluations):
                raise UsageError(
                    f"{self._path} has reference score {before.score:g} for {' '.join(key)} "
                    f"(--reference-evaluations {before.evaluations}), not another"
                )
        self.commands += [command] if command not in self.commands else []
        self.ablation = ablation
        self.references = {**references, **self.references}
        self.environments.update(environments)
        self.cells += [cell for cell in cells if cell not in set(self.cells)]

    def save(self) -> None:
        """Write the file."""
        references = [
            {"env_id": env_id, "algorithm": algorithm, **dataclasses.asdict(reference)}
            for (env_id, algorithm), reference in self.references.items()
        ]
        environments = {env_id: dataclasses.asdict(settings) for env_id, settings in self.environments.items()}
        cells = [dataclasses.asdict(cell) for cell in self.cells]
        write_json(
            self._path,
            {
                "ablation": self.ablation,
                "commands": self.commands,
                "environments": environments,
                "references": references,
                "cells": cells,
            },
        )

    def job(self, cell: Cell) -> Job:
        """The run of a cell. If runs stop at the reference score, it must be known."""
        settings = self.environments[cell.env_id]
        words = ["--workers", str(cell.workers), "--seed", str(cell.seed), "--backend", cell.backend]
        words += ["--total-steps", str(settings.max_steps), "--max-seconds", str(settings.max_seconds)]
        words += ["--evaluation-interval-steps", str(settings.evaluation_interval_steps)]
        words += ["--evaluation-episodes", str(settings.evaluation_episodes)]
        reference = self.references.get((cell.env_id, cell.algorithm))
        if settings.stop_at_reference and reference:
            words += ["--stop-at-score", str(reference.score)]
        words += [*self.variant(cell.variant).words, *settings.words]
        return Job(cell.algorithm, cell.env_id, cell.run_name, tuple(words))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The sides of the ablation; without one, a single variant without a label."""
        return ABLATIONS[self.ablation] if self.ablation else (PLAIN,)

    def variant(self, label: str) -> Variant:
        """The variant with that label."""
        return next(variant for variant in self.variants if variant.label == label)


def _settings(plain: dict[str, Any]) -> Settings:
    return Settings(**(plain | {"words": tuple(plain["words"])}))


def make_cells(
    algorithms: Sequence[str], ablation: str, env_ids: Sequence[str], backend: str, workers: Sequence[int], seeds: int
) -> list[Cell]:
    """All combinations, seed by seed: a study that is interrupted has some runs of everything."""
    variants = ABLATIONS[ablation] if ablation else (PLAIN,)
    return [
        Cell(algorithm, variant.label, env_id, backend, count, seed)
        for seed in range(1, seeds + 1)
        for env_id in env_ids
        for count in sorted(workers)
        for algorithm in algorithms
        for variant in variants
    ]
