"""`python -m asyncrl sweep`: any settings over lists, grids or random draws.

A flag of the methods may have several values, and its name a plural s. All listed values are combined with each
other; settings that are drawn (`N log-uniform LOW HIGH` or `N uniform LOW HIGH`) vary together. A value of several
words is put in quotes. The paper's Figure 2, for one game:

    python -m asyncrl sweep --algorithms a3c --env-ids ALE/Breakout-v5 --learning-rates 50 log-uniform 1e-4 1e-2

The same line, given again, goes on where it was stopped. It writes one table and one figure. With --print-jobs it only
prints its runs as command lines, for GNU Parallel or a SLURM array; with --collect it only reports on what is there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl import pages
from asyncrl.commands.program import run_command
from asyncrl.commands.speedup import check_algorithms
from asyncrl.config.commandline import parse
from asyncrl.core.cores import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.studies.axes import Axis, Point, combine, group_words, make_axis, words_of
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs, run_state

TAKEN = ("seed", "runs_dir", "run_name", "resume", "quiet")
"""Settings of a run that are the sweep's own business."""


@dataclass(frozen=True)
class Config:
    """Runs over lists, grids and random draws of settings. Any flag of the methods may be given as well."""

    algorithms: tuple[str, ...] = ("a3c",)
    """Methods to run: pages of this package, or your own by their modules."""
    seeds: int = 1
    """Runs of each combination, with seeds 1, 2, ..."""
    draw_seed: int = 1
    """Seed of the random draws."""
    jobs: int = 0
    """Runs at a time, each with its share of the cores; 0: one per core with --backend serial, else one."""
    runs_dir: Path = Path("runs/sweep")
    """Folder of the runs, and of report/."""
    print_jobs: bool = False
    """Print the runs that are not finished as command lines, and make none."""
    collect: bool = False
    """Make no runs; report on those that are there."""


@dataclass(frozen=True)
class Trial:
    """One run of the sweep."""

    job: Job
    point: Point
    """Its settings, by field, those of all runs included."""
    seed: int


def main(words: Sequence[str] | None = None) -> int:
    """Run or resume the sweep that the command line says, then report; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    program = "asyncrl sweep"
    return run_command(program, lambda: sweep(words, program))


def sweep(words: Sequence[str], program: str) -> int:
    """The whole sweep; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    config, axes = understand(words, program)
    trials = make_trials(config, axes)
    if config.print_jobs:
        print_jobs(trials, config.runs_dir)
        return 0
    failures: list[str] = []
    with alone_in(config.runs_dir, print) as lock:
        if not config.collect:
            try_words(trials)
            slots = config.jobs or (len(usable_cores()) if ("--backend", ["serial"]) in group_words(words) else 1)
            failures = run_jobs([trial.job for trial in trials], config.runs_dir, slots, lock, print)
        from asyncrl.studies.sweep_report import Row, write_report

        rows = [Row.read(t.job.page, t.job.env_id, t.point, t.seed, t.job.folder(config.runs_dir)) for t in trials]
        report = write_report(rows, axes, config.runs_dir, shlex.join(["python", "-m", "asyncrl", "sweep", *words]))
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    print(report)
    return 1 if failures else 0


def understand(words: Sequence[str], program: str) -> tuple[Config, list[Axis]]:
    """The sweep's own settings and the axes. Raises UsageError."""
    if any(word in ("-h", "--help") for word in words):
        parse(Config, words, program)
    groups = group_words(words)
    own = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(Config)}
    mine = [word for flag, values in groups if flag in own for word in (flag, *values)]
    config = parse(Config, mine, program)
    check_algorithms(config.algorithms)
    if not config.algorithms or len(set(config.algorithms)) < len(config.algorithms):
        raise UsageError("--algorithms needs at least one and none twice")
    if config.seeds < 1 or config.jobs < 0 or config.draw_seed < 0:
        raise UsageError("--seeds must be at least 1, --jobs and --draw-seed not negative")
    fields = {name for algorithm in config.algorithms for name in settings_of(algorithm)}
    axes = [make_axis(flag, values, fields, config.draw_seed) for flag, values in groups if flag not in own]
    for axis in axes:
        if axis.field in TAKEN:
            raise UsageError(f"--{axis.field.replace('_', '-')} is the sweep's own business")
        if sum(other.field == axis.field for other in axes) > 1:
            raise UsageError(f"--{axis.field.replace('_', '-')} is given twice")
    return config, axes


def settings_of(algorithm: str) -> dict[str, bool]:
    """The settings of a method, and whether each is only on or off."""
    fields = dataclasses.fields(pages.load(pages.module_of(algorithm)).Config)
    return {field.name: field.type in (bool, "bool") for field in fields}


def make_trials(config: Config, axes: Sequence[Axis]) -> list[Trial]:
    """All runs: every method at every point with every seed."""
    return [
        make_trial(algorithm, point, seed, axes)
        for seed in range(1, config.seeds + 1)
        for point in combine(axes)
        for algorithm in config.algorithms
    ]


def make_trial(algorithm: str, point: Point, seed: int, axes: Sequence[Axis]) -> Trial:
    """One run. Its name tells what varies, and in a few letters of a hash everything else."""
    switches = [name for name, is_switch in settings_of(algorithm).items() if is_switch]
    settings = {field: value for field, value in point.items() if field != "env_id"}
    env_id = point.get("env_id") or pages.load(pages.module_of(algorithm)).Config.env_id
    words = (*words_of(settings, switches), "--seed", str(seed))
    varied = [f"{axis.field}={point[axis.field]}" for axis in axes if axis.varies and axis.field != "env_id"]
    told = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join([*varied, f"s{seed}"]))[:80]
    digest = hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]
    return Trial(Job(algorithm, env_id, f"{told}-{digest}", words), point, seed)


def try_words(trials: Sequence[Trial]) -> None:
    """Let the commands judge the words of all runs before any of them begins. Raises UsageError."""
    from asyncrl.commands.train import configure

    for trial in trials:
        if trial.seed == 1:
            configure(pages.module_of(trial.job.page), trial.job.arguments(Path("runs")))


def print_jobs(trials: Sequence[Trial], runs_dir: Path) -> None:
    """The runs that are left as command lines; those that were begun must be resumed or removed by hand."""
    for trial in trials:
        folder = trial.job.folder(runs_dir)
        if is_done(trial.job, runs_dir):
            continue
        if folder.exists():
            print(f"left out: {folder} was begun ({run_state(folder) or 'no status'})", file=sys.stderr)
        else:
            print(shlex.join(["python", "-m", "asyncrl", "train", trial.job.page, *trial.job.arguments(runs_dir)]))


if __name__ == "__main__":
    raise SystemExit(main())
