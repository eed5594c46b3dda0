"""`python -m asyncrl speedup`: what do more workers buy?

Trains every combination of methods, environments, numbers of workers and seeds with the ordinary commands, and reports
three different speed-ups (docs/measuring.md): throughput (steps per second), data (steps to a reference score) and time
(seconds to it, the paper's Table 2). Flags after `--` go to every run:

    python -m asyncrl speedup --env-ids CartPole-v1 Catch --backend serial -- --envs-per-worker 1 --t-max 5

The study may be stopped or killed; the same command continues it, and finished runs are never repeated. Another command
may add seeds, workers, methods, environments or another backend to the same folder.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.catalog import GRADIENT_METHODS
from asyncrl.commands.program import run_command
from asyncrl.commands.study import (
    TAKEN,
    StudyConfig,
    StudyPlan,
    check_algorithms,
    check_different,
    conduct,
    score_of,
    split,
    spread,
)
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.measure import Measurement, measure
from asyncrl.studies.plan import ABLATIONS, Cell, Reference, Settings, StudyFile, make_cells
from asyncrl.studies.speedups import choose_reference


@dataclass(frozen=True)
class Config(StudyConfig):
    """A speed-up study. Flags after `--` go to every run."""

    algorithms: tuple[str, ...] = GRADIENT_METHODS
    """Methods to compare: algorithms of this package, or your own by their modules."""
    seeds: int = 5
    """Runs of each combination, with seeds 1, 2, ..."""
    runs_dir: Path = Path("runs/speedup")
    """Folder of the study: its runs, study.json, and report/."""
    env_ids: tuple[str, ...] = ("CartPole-v1", "Catch")
    """Environments to train on; speed-ups are averaged over them."""
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of workers; 1 must be among them."""
    backend: Literal["local", "serial", "collective"] = "local"
    """local, collective: all three speed-ups, up to the number of cores. serial: data, with any number of workers."""
    reference_score: tuple[str, ...] = ("auto",)
    """Score to reach: one for all environments, or one each; auto: from what one worker reaches."""
    reference_evaluations: int = 1
    """Number of consecutive evaluations whose mean must reach the score: more than 1 reduces the role of luck."""
    reference_fraction: float = 0.75
    """auto: how far from one worker's worst evaluation to its best."""
    total_steps: tuple[int, ...] = (200_000,)
    """Steps T of each run: one number for all environments, or one each."""
    max_seconds: float = 0.0
    """Longest training time of a run in seconds; 0: no limit."""
    evaluation_interval_steps: int = 0
    """Steps between two evaluations, so the resolution of the time to the score; 0: a hundredth of the run."""
    evaluation_episodes: int = 20
    """Whole episodes per evaluation."""
    stop_at_reference: bool = False
    """End a run once it has reached the reference score: cheaper, but its curve ends there."""
    ablation: Literal["none", "lock", "statistics", "exploration", "staleness"] = "none"
    """Compare two variants of each method: a predefined study."""
    price_per_core_hour: float = 0.0
    """Also report the money until the reference score."""


def main(words: Sequence[str] | None = None) -> int:
    """Run or resume the study that the command line says, then report; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    return run_command("asyncrl speedup", lambda: study(words))


def study(words: Sequence[str]) -> int:
    """The whole study; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    own, further = split(words, (*TAKEN, "evaluation_interval_steps"))
    config = parse(Config, own, "asyncrl speedup")
    check(config)
    split(words, [word[2:].replace("-", "_") for flags in ABLATIONS[config.ablation].values() for word in flags[:1]])
    given = spread("--reference-score", config.reference_score, config.env_ids)
    scores = [score_of("--reference-score", word, "auto") for word in given]
    fixed = {
        (env_id, algorithm): Reference(score, "given with --reference-score", config.reference_evaluations)
        for env_id, score in zip(config.env_ids, scores, strict=True)
        if score is not None
        for algorithm in config.algorithms
    }
    budgets = spread("--total-steps", config.total_steps, config.env_ids)
    environments = {
        env_id: Settings(
            steps,
            config.max_seconds,
            config.evaluation_interval_steps or max(1, steps // 100),
            config.evaluation_episodes,
            config.stop_at_reference,
            further,
        )
        for env_id, steps in zip(config.env_ids, budgets, strict=True)
    }
    cells = make_cells(config.algorithms, config.ablation, config.env_ids, config.backend, config.workers, config.seeds)

    def stages(file: StudyFile) -> Iterator[list[Cell]]:
        yield [cell for cell in cells if cell.workers == 1]
        set_references(file, config)
        yield [cell for cell in cells if cell.workers > 1]

    def report(file: StudyFile) -> Path:
        from asyncrl.studies.speedup_report import write_report

        return write_report(file, config.runs_dir, config.price_per_core_hour)

    command = shlex.join(["python", "-m", "asyncrl", "speedup", *words])
    return conduct(config, StudyPlan(command, environments, cells, fixed, config.ablation), stages, report)


def check(config: Config) -> None:
    """Raise UsageError for an impossible setting."""
    check_algorithms(config.algorithms)
    for name in ("algorithms", "env_ids", "workers"):
        check_different(name.replace("_", "-"), getattr(config, name))
    if 1 not in config.workers:
        raise UsageError("--workers must include 1: speed-ups are relative to one worker")
    if not 0 < config.reference_fraction <= 1:
        raise UsageError(f"--reference-fraction must lie in (0, 1], got {config.reference_fraction:g}")
    if config.reference_evaluations < 1:
        raise UsageError(f"--reference-evaluations must be at least 1, got {config.reference_evaluations}")
    if config.stop_at_reference and config.reference_evaluations > 1:
        raise UsageError("--stop-at-reference ends a run at a single evaluation: it takes --reference-evaluations 1")
    if config.ablation == "lock" and config.backend == "serial":
        raise UsageError("--ablation lock needs --backend local: workers of the serial backend never write at once")
    if config.ablation in ("lock", "statistics") and config.backend == "collective":
        raise UsageError(f"--ablation {config.ablation} is about one memory, and each rank has its own")
    if config.ablation == "staleness" and config.backend != "serial":
        raise UsageError("--ablation staleness needs --backend serial, whose schedule is given")
    found = {name: load(catalog.module_of(name)) for name in config.algorithms}
    without = [name for name, algorithm in found.items() if not hasattr(algorithm.Config, "exploration")]
    if config.ablation == "exploration" and without:
        raise UsageError(
            f"--ablation exploration is for the value-based methods: leave {', '.join(without)} out of --algorithms"
        )


def set_references(file: StudyFile, config: Config) -> None:
    """Set and store the reference scores from the runs with one worker, unless they are set already.

    Both variants of an ablation get the score of the first variant, so that they can be compared.
    """
    first = next(iter(file.variants))
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for cell in file.cells:
        if cell.workers == 1 and cell.variant == first and (cell.env_id, cell.algorithm) not in file.references:
            run = measure(cell, file.job(cell).folder(config.runs_dir))
            groups.setdefault((cell.env_id, cell.algorithm), []).append(run)
    for key, group in groups.items():
        if reference := choose_reference(group, config.reference_fraction, config.reference_evaluations):
            file.references[key] = reference
            print_line(f"{key[1]} on {key[0]}: reference score {reference.score:g}, {reference.how}")
    file.save()


if __name__ == "__main__":
    raise SystemExit(main())
