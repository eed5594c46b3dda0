"""`python -m asyncrl speedup`: what do more workers buy?

Trains every combination of methods, environments, numbers of workers and seeds with the ordinary commands, and reports
three different speed-ups (docs/measuring.md): throughput (steps per second), data (steps to a reference score) and time
(seconds to it, the paper's Table 2). Flags after `--` go to every run:

    python -m asyncrl speedup --env-ids CartPole-v1 Catch --backend serial -- --envs-per-worker 1 --t-max 5

The study may be stopped or killed; the same command continues it, and finished runs are never repeated. Another command
may add seeds, workers, methods, environments or another backend to the same folder.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from asyncrl import pages
from asyncrl.algorithm import load
from asyncrl.commands.program import run_command
from asyncrl.config.commandline import parse
from asyncrl.core.cores import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.pages import GRADIENT_PAGES
from asyncrl.studies.axes import group_words
from asyncrl.studies.jobs import alone_in, run_jobs
from asyncrl.studies.measure import Measurement, measure
from asyncrl.studies.plan import ABLATIONS, Cell, Reference, Settings, StudyFile, make_cells
from asyncrl.studies.speedups import choose_reference

T = TypeVar("T")
TAKEN = (
    "workers", "seed", "backend", "total_steps", "max_seconds", "evaluation_interval_steps", "evaluation_episodes",
    "stop_at_score", "env_id", "runs_dir", "run_name", "resume", "quiet",
)  # fmt: skip
"""Settings of runs that the study sets itself, besides those that its ablation compares."""


@dataclass(frozen=True)
class Config:
    """A speed-up study. Flags after `--` go to every run."""

    algorithms: tuple[str, ...] = GRADIENT_PAGES
    """Methods to compare: pages of this package, or your own by their modules."""
    env_ids: tuple[str, ...] = ("CartPole-v1", "Catch")
    """Environments to train on; speed-ups are averaged over them."""
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of workers; 1 must be among them."""
    seeds: int = 5
    """Runs of each combination, with seeds 1, 2, ..."""
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
    jobs: int = 0
    """Runs at a time, each with its share of the cores; 0: local and collective 1, serial one per core."""
    price_per_core_hour: float = 0.0
    """Also report the money until the reference score."""
    runs_dir: Path = Path("runs/speedup")
    """Folder of the study: its runs, study.json, and report/."""
    report_only: bool = False
    """Make no runs; report on what is there."""


def main(words: Sequence[str] | None = None) -> int:
    """Run or resume the study that the command line says, then report; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    program = "asyncrl speedup"
    own, further = split(words)
    command = shlex.join(["python", "-m", "asyncrl", "speedup", *words])
    return run_command(program, lambda: study(parse(Config, own, program), further, command))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before and after the first `--`."""
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def study(config: Config, further: Sequence[str], command: str) -> int:
    """The whole study; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    check(config)
    check_further(config, further)
    scores = given_scores(config)
    fixed = {
        (env_id, algorithm): Reference(score, "given with --reference-score", config.reference_evaluations)
        for env_id, score in scores.items()
        for algorithm in config.algorithms
    }
    ablation = "" if config.ablation == "none" else config.ablation
    cells = make_cells(config.algorithms, ablation, config.env_ids, config.backend, config.workers, config.seeds)
    budgets = spread("--total-steps", config.total_steps, config.env_ids)
    environments = {
        env_id: Settings(
            steps,
            config.max_seconds,
            config.evaluation_interval_steps or max(1, steps // 100),
            config.evaluation_episodes,
            config.stop_at_reference,
            tuple(further),
        )
        for env_id, steps in zip(config.env_ids, budgets, strict=True)
    }
    failures: list[str] = []
    with alone_in(config.runs_dir, print_line) as lock:
        file = StudyFile(config.runs_dir)
        if not config.report_only:
            file.add(command, ablation, environments, fixed, cells)
            try_words(file, cells)
            file.save()
            slots = config.jobs or (len(usable_cores()) if config.backend == "serial" else 1)

            def make(some: list[Cell]) -> list[str]:
                return run_jobs([file.job(cell) for cell in some], config.runs_dir, slots, lock, print_line)

            failures = make([cell for cell in cells if cell.workers == 1])
            set_references(file, config)
            failures += make([cell for cell in cells if cell.workers > 1])
        elif not file.cells:
            raise UsageError(f"{config.runs_dir} holds no study to report on")
        from asyncrl.studies.report import write_report

        report = write_report(file, config.runs_dir, config.price_per_core_hour)
    for failure in failures:
        print_line(f"failed: {failure}", error=True)
    print_line(report)
    return 1 if failures else 0


def check(config: Config) -> None:
    """Raise UsageError for an impossible setting."""
    check_algorithms(config.algorithms)
    for name in ("algorithms", "env_ids", "workers"):
        values = getattr(config, name)
        if not values or len(set(values)) < len(values):
            raise UsageError(f"--{name.replace('_', '-')} needs at least one value and none twice")
    if 1 not in config.workers:
        raise UsageError("--workers must include 1: speed-ups are relative to one worker")
    if config.seeds < 1 or config.jobs < 0:
        raise UsageError("--seeds must be at least 1, and --jobs not negative")
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
    modules = {algorithm: load(pages.module_of(algorithm)) for algorithm in config.algorithms}
    without = [algorithm for algorithm, page in modules.items() if not hasattr(page.Config, "exploration")]
    if config.ablation == "exploration" and without:
        raise UsageError(
            f"--ablation exploration is for the value-based methods: leave {', '.join(without)} out of --algorithms"
        )


def check_algorithms(algorithms: Sequence[str]) -> None:
    """Raise UsageError if one of them is no page, or two would write into the same folders."""
    for algorithm in algorithms:
        try:
            load(pages.module_of(algorithm))
        except UsageError as error:
            raise UsageError(f"--algorithms: {error}") from None
    folders = [pages.short(pages.module_of(algorithm)) for algorithm in set(algorithms)]
    if twice := sorted({folder for folder in folders if folders.count(folder) > 1}):
        raise UsageError(f"--algorithms has two pages called {twice[0]}, whose runs would share their folders")


def check_further(config: Config, further: Sequence[str]) -> None:
    """Raise UsageError if the flags for the runs would override what the study sets itself."""
    compared = [word for variant in ABLATIONS.get(config.ablation, ()) for word in variant.words]
    for flag, _ in group_words(further):
        name = flag.removeprefix("--").replace("-", "_")
        if name in TAKEN or flag.replace("_", "-") in compared:
            raise UsageError(f"{flag} is set by the study itself and cannot be given after --")


def given_scores(config: Config) -> dict[str, float]:
    """The reference scores from the command line, by environment; empty for auto. Raises UsageError."""
    words = spread("--reference-score", config.reference_score, config.env_ids)
    try:
        scores = {env: float(score) for env, score in zip(config.env_ids, words, strict=True) if score != "auto"}
        if not all(map(math.isfinite, scores.values())):
            raise ValueError
        return scores
    except ValueError:
        raise UsageError(f"--reference-score takes numbers or auto, got {' '.join(config.reference_score)}") from None


def spread(flag: str, values: Sequence[T], env_ids: Sequence[str]) -> list[T]:
    """One value for each environment."""
    if len(values) not in (1, len(env_ids)):
        raise UsageError(f"{flag} takes one value, or one for each of the {len(env_ids)} environments")
    return list(values) * (len(env_ids) if len(values) == 1 else 1)


def try_words(file: StudyFile, cells: Sequence[Cell]) -> None:
    """Let each command check its arguments before any run begins. Raises UsageError."""
    from asyncrl.commands.train import configure

    seen = {(cell.series, cell.env_id): cell for cell in cells}
    for cell in seen.values():
        job = file.job(cell)
        configure(pages.module_of(job.page), job.arguments(Path("runs")))


def set_references(file: StudyFile, config: Config) -> None:
    """Set and store the reference scores from the runs with one worker, unless they are set already.

    Both variants of an ablation get the score of the first variant, so that they can be compared.
    """
    first = file.variants[0].label
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
