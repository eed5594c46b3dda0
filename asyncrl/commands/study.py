"""What `speedup`, `race` and `sweep` have in common: their flags, what they refuse, how they run and report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.jobs import Job, alone_in, run_jobs
from asyncrl.studies.plan import Cell, References, Settings, StudyFile
from asyncrl.studies.search_space import group_words

T = TypeVar("T")
TAKEN = (
    "workers", "seed", "backend", "total_steps", "max_seconds", "evaluation_episodes", "stop_at_score", "env_id",
    "runs_dir", "run_name", "resume", "quiet",
)  # fmt: skip
"""Settings of runs that a study sets itself."""


@dataclass(frozen=True)
class StudyConfig:
    """The flags of all studies."""

    algorithms: tuple[str, ...] = ("a3c",)
    """Methods to run: algorithms of this package, or your own by their modules."""
    seeds: int = 1
    """Runs of each combination, with seeds 1, 2, ..."""
    jobs: int = 0
    """Runs at a time, each with its share of the cores; 0: as many as do not disturb each other."""
    runs_dir: Path = Path("runs/study")
    """Folder of the study: its runs, and report/."""
    report_only: bool = False
    """Make no runs; report on what is there."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.jobs < 0:
            raise UsageError("--seeds must be at least 1, and --jobs not negative")


@dataclass(frozen=True)
class StudyPlan:
    """What one command adds to a study."""

    command: str
    environments: Mapping[str, Settings]
    cells: Sequence[Cell]
    references: References
    ablation: str = "none"


def conduct(
    config: StudyConfig,
    plan: StudyPlan,
    stages: Callable[[StudyFile], Iterable[Sequence[Cell]]],
    write_report: Callable[[StudyFile], Path],
) -> int:
    """Add to the study, make its runs stage by stage, and report; exit code 1 if a run failed.

    Raises UsageError before the first run is made.
    """
    failures: list[str] = []
    with alone_in(config.runs_dir, print_line) as lock:
        file = StudyFile(config.runs_dir)
        if any(
            bool(cell.workers) != bool(plan.cells[0].workers) for cell in file.cells
        ):  # a race has them as a setting
            raise UsageError(f"{config.runs_dir} holds another kind of study: choose another --runs-dir")
        if not config.report_only:
            file.add(plan.command, plan.environments, plan.cells, plan.references, plan.ablation)
            seen = {(cell.series, cell.env_id, cell.backend): cell for cell in plan.cells}
            try_jobs([file.job(cell) for cell in seen.values()])
            file.save()
            serial = all(cell.backend == "serial" for cell in plan.cells)
            slots = config.jobs or (len(usable_cores()) if serial else 1)
            for cells in stages(file):
                failures += run_jobs([file.job(cell) for cell in cells], config.runs_dir, slots, lock, print_line)
        elif not file.cells:
            raise UsageError(f"{config.runs_dir} holds no study to report on")
        report = write_report(file)
    return finish(report, failures)


def finish(report: Path, failures: Sequence[str]) -> int:
    """Say what failed and where the report is; returns the exit code."""
    for failure in failures:
        print_line(f"failed: {failure}", error=True)
    print_line(report)
    return 1 if failures else 0


def try_jobs(jobs: Iterable[Job]) -> set[str]:
    """Let the commands check the arguments of runs before any run begins; returns the kinds of their environments.

    Raises UsageError.
    """
    from asyncrl.commands.train import configure

    kinds: set[str] = set()
    for job in jobs:
        try:
            kinds.add(configure(catalog.module_of(job.algorithm), job.arguments(Path("runs"))).spaces.kind)
        except UsageError as error:
            raise UsageError(f"{job}: {error}") from None
    return kinds


def check_different(flag: str, values: Sequence[object]) -> None:
    """Raise UsageError if there are none, or one occurs twice."""
    if not values or len(set(values)) < len(values):
        raise UsageError(f"--{flag} needs at least one value and none twice")


def check_algorithms(algorithms: Sequence[str]) -> None:
    """Raise UsageError if one of them is no algorithm, or two would write into the same folders."""
    for algorithm in algorithms:
        try:
            load(catalog.module_of(algorithm))
        except UsageError as error:
            raise UsageError(f"--algorithms: {error}") from None
    folders = [catalog.short(catalog.module_of(algorithm)) for algorithm in set(algorithms)]
    if twice := sorted({folder for folder in folders if folders.count(folder) > 1}):
        raise UsageError(f"--algorithms has two algorithms called {twice[0]}, whose runs would share their folders")


def split(words: Sequence[str], taken: Collection[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words before and after the first `--`: those of the study and those for every run.

    Raises UsageError if the latter would override what the study sets itself, `taken`.
    """
    at = list(words).index("--") if "--" in words else len(words)
    for flag, _ in group_words(words[at + 1 :]):
        check_free(flag, taken)
    return list(words[:at]), tuple(words[at + 1 :])


def check_free(flag: str, taken: Collection[str]) -> None:
    """Raise UsageError if the study sets this flag of its runs itself."""
    if flag.removeprefix("--").replace("-", "_") in taken:
        raise UsageError(f"{flag} is set by the study itself")


def spread(flag: str, values: Sequence[T], env_ids: Sequence[str]) -> list[T]:
    """One value for each environment."""
    if len(values) not in (1, len(env_ids)):
        raise UsageError(f"{flag} takes one value, or one for each of the {len(env_ids)} environments")
    return list(values) * (len(env_ids) if len(values) == 1 else 1)


def score_of(flag: str, word: str, none: str) -> float | None:
    """A finite number, or None for the word `none`. Raises UsageError."""
    if word == none:
        return None
    try:
        score = float(word)
    except ValueError:
        score = float("nan")
    if not abs(score) < float("inf"):
        raise UsageError(f"{flag} takes numbers or {none}, got {word}")
    return score
