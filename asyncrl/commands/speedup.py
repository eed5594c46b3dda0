"""`python -m asyncrl speedup`: how much faster is training with more workers?

Trains every combination of methods, environments, numbers of workers and seeds with the ordinary commands, and reports
three different speed-ups (docs/measuring.md): throughput (steps per second), data (steps to a reference score) and time
(seconds to it, the paper's Table 2). Flags after `--` go to every run:

    python -m asyncrl speedup --env-ids CartPole-v1 Catch --backend serial -- --envs-per-worker 1 --t-max 5

The study may be stopped or killed; the same command continues it, and finished runs are never repeated. Another command
may add seeds, workers, methods, environments or another backend to the same folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.catalog import GRADIENT_METHODS
from asyncrl.commands.program import run_command
from asyncrl.commands.study import StudyConfig, check_free, conduct_cells, parse_study, spread, spread_scores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.measure import Measurement, measure_all
from asyncrl.studies.speedup import choose_reference
from asyncrl.studies.study import ABLATIONS, Cell, Reference, Settings, Study, StudyPlan, make_cells


@dataclass(frozen=True)
class Config(StudyConfig):
    """A speed-up study. Flags after `--` go to every run."""

    algorithms: tuple[str, ...] = GRADIENT_METHODS
    """Algorithms to compare: those of this package, or your own, named by their modules."""
    seeds: int = 5
    """Runs per combination, with seeds 1, 2, ..."""
    runs_dir: Path = Path("runs/speedup")
    """Folder of the study: its runs, study.json, and report/."""
    env_ids: tuple[str, ...] = ("CartPole-v1", "Catch")
    """Environments to train on; speed-ups are averaged over them."""
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of workers; 1 must be among them."""
    backend: Literal["local", "serial", "collective"] = "local"
    """local, collective: all three speed-ups, up to the number of cores. serial: data only, any number of workers."""
    reference_score: tuple[str, ...] = ("auto",)
    """Score to reach: one for all environments, or one each; auto: derived from the runs with one worker."""
    reference_evaluations: int = 1
    """Number of consecutive evaluations whose mean must reach the score; more than 1 reduces the effect of chance."""
    reference_fraction: float = 0.75
    """auto: position of the score between the worst (0) and the best (1) evaluation of one worker."""
    total_steps: tuple[int, ...] = (200_000,)
    """Steps T of each run: one number for all environments, or one each."""
    max_seconds: float = 0.0
    """Maximum training time of a run in seconds; 0: no limit."""
    evaluation_interval_steps: int = 0
    """Steps between evaluations, the resolution of the time to the score; 0: a hundredth of the run."""
    evaluation_episodes: int = 20
    """Episodes per evaluation."""
    stop_at_reference: bool = False
    """End a run when it reaches the reference score. This is cheaper, but the curve ends there."""
    ablation: Literal["none", "lock", "statistics", "exploration", "staleness"] = "none"
    """Predefined study that compares two variants of each algorithm."""
    price_per_core_hour: float = 0.0
    """Price of a core-hour; if given, the report includes the cost of reaching the score."""


def main(words: Sequence[str]) -> int:
    """Run or resume the study that the command line says, then report; returns the exit code."""
    return run_command("asyncrl speedup", lambda: study(words))


def study(words: Sequence[str]) -> int:
    """The whole study; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    config, further, command = parse_study(Config, words, "speedup", "evaluation_interval_steps")
    check(config)
    variants = ABLATIONS[config.ablation].variants
    check_free(further, [name for variant in variants.values() for name in variant])
    scores = spread_scores("--reference-score", config.reference_score, config.env_ids, "auto")
    budgets = spread("--total-steps", config.total_steps, config.env_ids)
    fixed = {
        (env_id, algorithm): Reference(score, "given with --reference-score", config.reference_evaluations)
        for env_id, score in zip(config.env_ids, scores, strict=True)
        if score is not None
        for algorithm in config.algorithms
    }
    environments = {
        env_id: Settings(
            steps, config.max_seconds, config.evaluation_interval_steps or max(1, steps // 100),
            config.evaluation_episodes, config.stop_at_reference, further,
        )
        for env_id, steps in zip(config.env_ids, budgets, strict=True)
    }  # fmt: skip
    entrants = [(algorithm, config.backend) for algorithm in config.algorithms]
    cells = make_cells(entrants, config.ablation, config.env_ids, config.workers, config.seeds)

    def stages(study: Study) -> Iterator[list[Cell]]:
        yield [cell for cell in cells if cell.workers == 1]
        set_references(study, config)
        yield [cell for cell in cells if cell.workers > 1]

    def report(study: Study) -> Path:
        from asyncrl.studies.speedup_report import write_report

        return write_report(study, config.price_per_core_hour)

    plan = StudyPlan(command, environments, cells, fixed, config.ablation)
    return conduct_cells("speedup", config, plan, stages, report)


def check(config: Config) -> None:
    """Raise UsageError for an impossible setting."""
    if 1 not in config.workers or min(config.workers) < 1:
        raise UsageError("--workers must be positive and include 1: speed-ups are relative to one worker")
    if min(config.total_steps, default=0) < 1:
        raise UsageError("--total-steps must be at least 1")
    for name in ("max_seconds", "evaluation_interval_steps", "price_per_core_hour"):
        if getattr(config, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must not be negative")
    if not 0 < config.reference_fraction <= 1:
        raise UsageError(f"--reference-fraction must lie in (0, 1], got {config.reference_fraction:g}")
    if config.reference_evaluations < 1:
        raise UsageError(f"--reference-evaluations must be at least 1, got {config.reference_evaluations}")
    if config.stop_at_reference and config.reference_evaluations > 1:
        raise UsageError("--stop-at-reference ends a run at a single evaluation: it requires --reference-evaluations 1")
    backends = ABLATIONS[config.ablation].backends
    if config.backend not in backends:
        raise UsageError(f"--ablation {config.ablation} needs --backend {' or '.join(backends)}")
    found = {name: load(catalog.module_of(name)) for name in config.algorithms}
    without = [name for name, algorithm in found.items() if not hasattr(algorithm.Config, "exploration")]
    if config.ablation == "exploration" and without:
        raise UsageError(
            f"--ablation exploration is for the value-based methods: leave {', '.join(without)} out of --algorithms"
        )


def set_references(study: Study, config: Config) -> None:
    """Set and store the reference scores from the runs with one worker, unless they are set already.

    Both variants of an ablation get the score of the first variant, so that they can be compared.
    """
    first = next(iter(ABLATIONS[study.ablation].variants))
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for run in measure_all(study):
        if run.cell.workers == 1 and run.cell.variant == first and run.reference is None:
            groups.setdefault((run.cell.env_id, run.cell.algorithm), []).append(run)
    for key, group in groups.items():
        if reference := choose_reference(group, config.reference_fraction, config.reference_evaluations):
            study.references[key] = reference
            print_line(f"{key[1]} on {key[0]}: reference score {reference.score:g}, {reference.how}")
    study.save()
