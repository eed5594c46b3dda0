"""A study: a grid of runs, their command lines, and the file that stores them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from asyncrl.core.errors import UsageError
from asyncrl.storage.files import read_json, write_json
from asyncrl.studies.jobs import Job

Kind = Literal["race", "speedup", "sweep"]
Point = Mapping[str, str]
"""Settings of runs by field, as typed; a value of several words is one text with spaces, a switch is True or False."""
EVALUATION_INTERVAL = "--evaluation-interval-steps"
CLOCKED = ("local", "collective")
"""Backends whose workers run at the same time, so that their clock counts."""
OWN = "own"
"""Each method is evaluated as its own defaults have it."""


@dataclass(frozen=True)
class Ablation:
    """A predefined comparison of variants."""

    variants: Mapping[str, Point]
    """The settings of each variant's runs, by its label."""
    backends: tuple[str, ...] = ("local", "serial", "collective")
    """Backends in which the variants differ."""


ABLATIONS = {
    "none": Ablation({"": {}}),
    "lock": Ablation({name: {"update": name} for name in ("hogwild", "locked")}, ("local",)),
    "statistics": Ablation({name: {"statistics": name} for name in ("shared", "per-worker")}, ("local", "serial")),
    "exploration": Ablation({"diverse": {"exploration": "drawn"}, "equal": {"exploration": "equal"}}),
    "staleness": Ablation(
        {"equal-turns": {"schedule": "round-robin"}, "unequal-turns": {"delays": "1 2 4 8 16 32 64 128"}}, ("serial",)
    ),
}
"""`staleness`: with equal turns, every update of N workers is N - 1 updates old (its gradient or, with one-step
methods, the parameters it was acted with). With turns that double in length over each eight workers, the median is 1 to
5."""


@dataclass(frozen=True)
class Series:
    """One curve of a study: a method in one variant."""

    algorithm: str
    variant: str = ""


@dataclass(frozen=True)
class Cell:
    """One run of a study, identified by what distinguishes it from the others."""

    algorithm: str
    variant: str
    env_id: str
    backend: str
    """"" for a sweep: that of its variant."""
    workers: int
    """0: those of the settings."""
    seed: int

    @property
    def series(self) -> Series:
        """The curve it belongs to."""
        return Series(self.algorithm, self.variant)

    @property
    def run_name(self) -> str:
        """The name of its run; names sort by workers and seed."""
        workers = f"w{self.workers:02d}" if self.workers else ""
        return "-".join(part for part in (self.backend, workers, f"s{self.seed}", self.variant) if part)


@dataclass(frozen=True)
class Reference:
    """The score that runs are timed to."""

    score: float
    how: str
    """How it was chosen, in words."""
    evaluations: int = 1
    """Number of consecutive evaluations whose mean must reach it."""


@dataclass(frozen=True)
class Settings:
    """What all runs in an environment must have in common to be comparable. A 0 is the method's default.

    The runs of a sweep have nothing in common but what their variants say.
    """

    max_steps: int = 0
    max_seconds: float = 0.0
    evaluation_interval_steps: int = 0
    evaluation_episodes: int = 0
    stop_at_reference: bool = False
    words: tuple[str, ...] = ()
    """Flags for every run, from after `--` on the command line."""
    workers: int = 0
    evaluation_policy: str = OWN
    """greedy or sampled for all methods alike; own: as each method's defaults have it."""
    score: float | None = None
    """The reference score of all methods, if it is a setting, as in a race."""


References = Mapping[tuple[str, str], Reference]
"""By environment and method."""


@dataclass(frozen=True)
class StudyPlan:
    """What one command adds to a study."""

    command: str
    environments: Mapping[str, Settings]
    cells: Sequence[Cell]
    references: References = field(default_factory=dict)
    ablation: str = "none"
    variants: Mapping[str, Point] = field(default_factory=dict)
    """Settings by variant; empty: those of the ablation."""


class Study:
    """study.json in the study's folder: its kind, the commands so far, settings and cells, and the reference scores.

    Later commands with the same folder may add cells (seeds, workers, methods, other backends or variants). Cells with
    other settings are refused, since they could not be compared.
    """

    def __init__(self, runs_dir: Path, kind: Kind) -> None:
        """Read the file, if there is one. Raises UsageError if it is that of another kind of study."""
        self.runs_dir, self._path = runs_dir, runs_dir / "study.json"
        try:
            self._take(read_json(self._path), kind)
        except FileNotFoundError:
            self._take({"kind": kind}, kind)
        except ValueError as error:
            raise UsageError(str(error)) from None
        except (TypeError, LookupError, AttributeError) as error:  # of another version, or of something else
            raise UsageError(f"{self._path} cannot be used ({type(error).__name__}: {error})") from None

    def _take(self, stored: dict[str, Any], kind: Kind) -> None:
        self.cells = [Cell(**plain) for plain in stored.get("cells", ())]
        # The files of older versions have no kind, and "" for no ablation. Only a race's cells have no workers.
        self.kind = stored.get("kind") or ("race" if self.cells and not self.cells[0].workers else "speedup")
        if self.kind != kind:
            raise UsageError(f"{self.runs_dir} is a {self.kind}, not a {kind}: choose another --runs-dir")
        self.ablation = stored.get("ablation") or "none"
        self.variants: dict[str, Point] = stored.get("variants") or dict(ABLATIONS[self.ablation].variants)
        self.commands: list[str] = stored.get("commands", [])
        """The command lines of the study."""
        self.environments = {
            env_id: Settings(**(plain | {"words": tuple(plain["words"])}))
            for env_id, plain in stored.get("environments", {}).items()
        }
        self.references = {
            (plain.pop("env_id"), plain.pop("algorithm")): Reference(**plain) for plain in stored.get("references", ())
        }

    def add(self, plan: StudyPlan) -> None:
        """Add the cells of one command; `save` stores them. Raises UsageError if they are not comparable."""
        if self.environments and self.ablation != plan.ablation:
            raise UsageError(f"{self._path} is a study of --ablation {self.ablation}: choose another --runs-dir")
        for env_id, settings in plan.environments.items():
            for name, before in dataclasses.asdict(self.environments.get(env_id, settings)).items():
                if before != (now := getattr(settings, name)):
                    raise UsageError(
                        f"{self._path} has {env_id} with {name} {before}, not {now}: choose another --runs-dir"
                    )
        for key, reference in plan.references.items():
            known = self.references.get(key, reference)
            if (known.score, known.evaluations) != (reference.score, reference.evaluations):
                raise UsageError(
                    f"{self._path} has reference score {known.score:g} for {' '.join(key)} "
                    f"(--reference-evaluations {known.evaluations}): choose another --runs-dir"
                )
        cells = list(dict.fromkeys((*self.cells, *plan.cells)))
        owners: dict[Path, Cell] = {}
        for cell in cells:
            if (other := owners.setdefault(self.folder(cell), cell)) != cell:
                runs = f"{other.algorithm} on {other.env_id} and of {cell.algorithm} on {cell.env_id}"
                raise UsageError(f"runs of {runs} would share {self.folder(cell)}: choose another --runs-dir")
        self.commands += [plan.command] if plan.command not in self.commands else []
        self.ablation = plan.ablation
        self.variants = {**self.variants, **(plan.variants or ABLATIONS[plan.ablation].variants)}
        self.references = {**plan.references, **self.references}
        self.environments.update(plan.environments)
        self.cells = cells

    def save(self) -> None:
        """Write the file."""
        plain = {
            "kind": self.kind,
            "ablation": self.ablation,
            "variants": self.variants,
            "commands": self.commands,
            "environments": {env_id: dataclasses.asdict(own) for env_id, own in self.environments.items()},
            "references": [
                {"env_id": env_id, "algorithm": algorithm, **dataclasses.asdict(reference)}
                for (env_id, algorithm), reference in self.references.items()
            ],
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
        }
        write_json(self._path, plain)

    def reference(self, cell: Cell) -> Reference | None:
        """The score that the run of a cell is timed to, if it is known."""
        score = self.environments[cell.env_id].score
        return self.references.get((cell.env_id, cell.algorithm)) if score is None else Reference(score, "given")

    def job(self, cell: Cell) -> Job:
        """The run of a cell. If runs stop at the reference score, it must be known."""
        settings, reference = self.environments[cell.env_id], self.reference(cell)
        flags = {
            "--backend": cell.backend,
            "--evaluation-episodes": settings.evaluation_episodes,
            "--workers": cell.workers or settings.workers,
            "--total-steps": settings.max_steps,
            "--max-seconds": settings.max_seconds,
            EVALUATION_INTERVAL: settings.evaluation_interval_steps,
            "--evaluation-policy": "" if settings.evaluation_policy == OWN else settings.evaluation_policy,
            "--stop-at-score": str(reference.score) if settings.stop_at_reference and reference else "",
        }
        words = ["--seed", str(cell.seed)]
        words += [word for flag, value in flags.items() if value for word in (flag, str(value))]
        words += [*words_of(self.variants[cell.variant]), *settings.words]
        if EVALUATION_INTERVAL not in [word.partition("=")[0].replace("_", "-") for word in words]:
            words += [EVALUATION_INTERVAL, "100000"]  # auto would not be the same for runs of different lengths
        return Job(cell.algorithm, cell.env_id, cell.run_name, tuple(words))

    def folder(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return Job(cell.algorithm, cell.env_id, cell.run_name, ()).folder(self.runs_dir)


def words_of(point: Point) -> list[str]:
    """Settings as flags and values."""
    words = []
    for name, value in point.items():
        flag = name.replace("_", "-")
        if value in ("True", "False"):
            words.append(f"--{'' if value == 'True' else 'no-'}{flag}")
        else:
            words += [f"--{flag}", *shlex.split(value)]
    return words


def make_cells(
    entrants: Sequence[tuple[str, str]], ablation: str, env_ids: Sequence[str], workers: Sequence[int], seeds: int
) -> list[Cell]:
    """All combinations, seed by seed: a study that is interrupted has some runs of everything.

    `entrants` are algorithms with their backends.
    """
    return [
        Cell(algorithm, variant, env_id, backend, count, seed)
        for seed in range(1, seeds + 1)
        for env_id in env_ids
        for count in sorted(workers)
        for algorithm, backend in entrants
        for variant in ABLATIONS[ablation].variants
    ]
