"""What `speedup`, `race` and `sweep` have in common: their flags, what they refuse, how they run and report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.config.commandline import parse, understood
from asyncrl.config.settings import parse_number
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.jobs import Job, alone_in, run_jobs
from asyncrl.studies.search import group_words
from asyncrl.studies.study import Cell, Kind, Study, StudyPlan

T = TypeVar("T")
C = TypeVar("C", bound="StudyConfig")
TAKEN = (
    "workers", "seed", "backend", "total_steps", "max_seconds", "evaluation_episodes", "stop_at_score", "env_id",
    "runs_dir", "run_name", "resume", "quiet",
)  # fmt: skip
"""Settings of runs that a study sets itself."""


@dataclass(frozen=True)
class StudyConfig:
    """The flags of all studies."""

    algorithms: tuple[str, ...] = ("a3c",)
    """Algorithms to run: those of this package, or your own, named by their modules."""
    env_ids: tuple[str, ...] = ()
    """Environments to train on; empty: the default of each algorithm."""
    seeds: int = 1
    """Runs per combination, with seeds 1, 2, ..."""
    jobs: int = 0
    """Concurrent runs, each on its share of the cores; 0: as many as fit without disturbing each other."""
    runs_dir: Path = Path("runs/study")
    """Folder of the study: its runs, and report/."""
    report_only: bool = False
    """Start no runs; report on the existing ones."""

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.jobs < 0:
            raise UsageError("--seeds must be at least 1, and --jobs not negative")
        if getattr(self, "evaluation_episodes", 1) < 1:
            raise UsageError("--evaluation-episodes must be at least 1")
        for name in ("algorithms", "env_ids", "workers"):
            values = getattr(self, name, None)
            if isinstance(values, tuple) and (values or getattr(type(self), name)):  # a sweep needs no environments
                check_different(name.replace("_", "-"), values)


def conduct(
    kind: Kind,
    config: StudyConfig,
    run: Callable[[Study, int], list[str]],
    write_report: Callable[[Study], Path],
    elsewhere: StudyPlan | None = None,
) -> int:
    """Make the runs of a study and report on them; exit code 1 if a run failed.

    `run` gets the study and its lock, and returns a line for each run that failed; `write_report` writes the report,
    also on what was made `elsewhere` and copied here. Raises UsageError before the first run is made.
    """
    with alone_in(config.runs_dir, print_line) as lock:
        study = Study(config.runs_dir, kind)
        failures = [] if config.report_only else run(study, lock)
        if config.report_only and elsewhere:
            study.add(elsewhere)
        there = [cell for cell in study.cells if study.folder(cell).exists()] if config.report_only else study.cells
        if not there:
            raise UsageError(f"{config.runs_dir} contains no study to report on")
        path = write_report(study)
    for failure in failures:
        print_line(f"failed: {failure}", error=True)
    print_line(path)
    return 1 if failures else 0


def conduct_cells(
    kind: Kind,
    config: StudyConfig,
    plan: StudyPlan,
    stages: Callable[[Study], Iterable[Sequence[Cell]]],
    write_report: Callable[[Study], Path],
    elsewhere: StudyPlan | None = None,
) -> int:
    """Like `conduct`, for a study whose cells are known: they are added to study.json, and run stage by stage."""

    def run(study: Study, lock: int) -> list[str]:
        study.add(plan)
        tried = {(cell.series, cell.env_id, cell.backend): cell for cell in plan.cells}.values()
        slots = slots_for(kind, config, [study.job(cell) for cell in tried])
        study.save()
        return [
            failure
            for cells in stages(study)
            for failure in run_jobs([study.job(cell) for cell in cells], config.runs_dir, slots, lock, print_line)
        ]

    return conduct(kind, config, run, write_report, elsewhere)


def command_of(kind: Kind, words: Sequence[str]) -> str:
    """The command line of a study."""
    return shlex.join(["python", "-m", "asyncrl", kind, *words])


def slots_for(kind: Kind, config: StudyConfig, jobs: Sequence[Job]) -> int:
    """Number of runs at a time. First the commands check the arguments of the jobs. Raises UsageError.

    A run with the serial backend needs one core, any other all of them. But in a small environment more workers hardly
    speed a run up, and several runs together use all cores. So each run of a sweep gets one core there, and by default
    two workers.
    """
    from asyncrl.commands.train import configure

    kinds, cores = set(), len(usable_cores())
    for job in jobs:
        try:
            kinds.add(configure(catalog.module_of(job.algorithm), job.arguments(Path("runs"))).spaces.kind)
        except UsageError as error:
            raise UsageError(f"{job}: {error}") from None
    given = {flag for job in jobs for flag, _ in group_words(job.words)}
    if config.jobs:
        return config.jobs
    if all("--backend serial" in " ".join(job.words) for job in jobs):
        return cores
    if kind == "sweep" and cores > 1 and not {"--workers", "--backend"} & given and not {"atari", "screen"} & kinds:
        print_line(f"small environments: {cores} runs at a time, one core each; --jobs 1 gives each run all cores")
        return cores
    return 1


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


def parse_study(config: type[C], words: Sequence[str], kind: Kind, *taken: str) -> tuple[C, tuple[str, ...], str]:
    """What the words before the first `--` say; those after it, which are for every run; and the whole command line.

    Raises UsageError, also if the second would override what the study sets itself: `TAKEN`, and `taken`.
    """
    at = list(words).index("--") if "--" in words else len(words)
    further = tuple(understood(words[at + 1 :]))
    check_free(further, (*TAKEN, *taken))
    parsed = parse(config, list(words[:at]), f"asyncrl {kind}")
    check_algorithms([word.partition("@")[0] for word in parsed.algorithms])
    return parsed, further, command_of(kind, words)


def check_free(words: Sequence[str], taken: Collection[str]) -> None:
    """Raise UsageError if the study sets one of the flags among the words itself, or would override a file's."""
    for flag, _ in group_words(words):
        if flag == "--config":
            raise UsageError("the study would override settings of --config: give the other ones as flags")
        if flag.removeprefix("--").replace("-", "_") in taken:
            raise UsageError(f"{flag} is set by the study itself")


def spread(flag: str, values: Sequence[T], env_ids: Sequence[str]) -> list[T]:
    """One value for each environment."""
    if len(values) not in (1, len(env_ids)):
        raise UsageError(f"{flag} takes one value, or one for each of the {len(env_ids)} environments")
    return list(values) * (len(env_ids) if len(values) == 1 else 1)


def spread_scores(flag: str, words: Sequence[str], env_ids: Sequence[str], none: str) -> list[float | None]:
    """A finite score for each environment, or None for the word `none`. Raises UsageError."""
    scores: list[float | None] = []
    for word in spread(flag, words, env_ids):
        try:
            scores.append(None if word == none else parse_number(word))
        except ValueError:
            raise UsageError(f"{flag} takes numbers or {none}, got {word}") from None
    return scores
