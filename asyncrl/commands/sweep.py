r"""`python -m asyncrl sweep`: any settings over lists, grids, random draws, or by a search.

A flag of the methods may have several values, and its name a plural s. All combinations of listed values are run;
drawn settings (`N log-uniform LOW HIGH` or `N uniform LOW HIGH`) vary together. Quote a value of several words. The
paper's Figure 2, for one game:

    python -m asyncrl sweep --algorithms a3c --env-ids ALE/Breakout-v5 --learning-rates 50 log-uniform 1e-4 1e-2

With --trials N it searches instead: Optuna proposes N settings one after the other, based on earlier results, from
lists and from bounds (`log-uniform LOW HIGH` or `uniform LOW HIGH`); --prune stops bad runs early:

    python -m asyncrl sweep --algorithms ppo --env-ids CartPole-v1 --learning-rate log-uniform 1e-5 1e-2 \
        --t-max 8 32 128 --total-steps 100_000 --trials 30 --prune

The same command continues where it was stopped. It writes one page with a table and figures. With --print-jobs it only
prints its runs as command lines, for GNU Parallel or a SLURM array; with --report-only it makes no runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.commands.program import run_command
from asyncrl.commands.study import StudyConfig, check_algorithms, check_free, conduct, try_jobs
from asyncrl.config.commandline import parse, understood
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.storage.run_folder import read_status
from asyncrl.studies.jobs import Job, is_done, run_jobs
from asyncrl.studies.search import Search, SearchPlan, Trial, import_optuna
from asyncrl.studies.search_space import Axis, Point, combine, group_words, make_axis, words_of
from asyncrl.studies.study import Study

SHOWN = 5
"""Number of best runs printed on the terminal."""
TAKEN = ("seed", "runs_dir", "run_name", "resume", "quiet")
"""Settings of runs that the sweep sets itself."""


@dataclass(frozen=True)
class Config(StudyConfig):
    """Make runs over lists, grids, random draws or a search of settings. Accepts all flags of the methods."""

    runs_dir: Path = Path("runs/sweep")
    """Folder of the runs, and of report/."""
    trials: int = 0
    """Search: how many settings Optuna proposes for each method and environment; 0: all combinations instead."""
    prune: bool = False
    """Search: stop a run whose evaluations are below the median of the others."""
    draw_seed: int = 1
    """Seed of the random draws, and of a search."""
    print_jobs: bool = False
    """Print the runs that are not finished as command lines, and make none."""


def main(words: Sequence[str] | None = None) -> int:
    """Run or resume the sweep that the command line says, then report; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    program = "asyncrl sweep"
    return run_command(program, lambda: sweep(words, program))


def sweep(words: Sequence[str], program: str) -> int:
    """The whole sweep; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    config, axes = understand(words, program)
    if config.trials:
        import_optuna()
        if config.print_jobs:
            raise UsageError("--print-jobs is for sweeps without --trials: a search proposes one run after the other")
        return search(config, axes, words)
    trials = make_trials(config, axes)
    if config.print_jobs:
        print_jobs(trials, config.runs_dir)
        return 0

    def run(study: Study, command: str, lock: int) -> list[str]:
        slots = slots_for(config, axes, try_jobs(trial.job for trial in trials if trial.run.cell.seed == 1))
        add(study, command)
        return run_jobs([trial.job for trial in trials], config.runs_dir, slots, lock, print_line)

    def rows() -> list[Trial]:
        return [trial.read(config.runs_dir) for trial in trials]

    return conduct("sweep", config, words, run, lambda study, command: report(rows(), axes, config.runs_dir, command))


def search(config: Config, axes: Sequence[Axis], words: Sequence[str]) -> int:
    """Search with Optuna, separately for each method and environment: their scores are not comparable.

    Raises UsageError if there is nothing to report on.
    """
    searches = {
        (algorithm, env_id): make_search(algorithm, env_id, config, axes)
        for algorithm in config.algorithms
        for env_id in env_ids_of(algorithm, axes)
    }

    def run(study: Study, command: str, lock: int) -> list[str]:
        slots = slots_for(config, axes, try_jobs(trial.job for s in searches for trial in corners(*s, axes)))
        add(study, command)
        plan = SearchPlan(config.trials, config.seeds, config.prune, config.draw_seed, slots)
        return [failure for one in searches.values() for failure in one.run(plan, lock, print_line)]

    def report_trials(study: Study, command: str) -> Path:
        rows = [
            make_trial(algorithm, point, seed, axes).read(config.runs_dir, state)
            for (algorithm, _), one in searches.items()
            for point, state in one.points()
            for seed in range(1, 2 if state else config.seeds + 1)
        ]
        if not rows:
            raise UsageError(f"{config.runs_dir} holds no trials to report on")
        return report(rows, axes, config.runs_dir, command)

    return conduct("sweep", config, words, run, report_trials)


def add(study: Study, command: str) -> None:
    """Store what was asked for."""
    study.add(command, {}, ())
    study.save()


def make_search(algorithm: str, env_id: str, config: Config, axes: Sequence[Axis]) -> Search:
    """The search of a method in an environment."""
    own = [replace(axis, values=(env_id,)) if axis.field == "env_id" else axis for axis in axes]
    whole = [name for name, kind in settings_of(algorithm).items() if kind is int]
    return Search(
        f"{algorithm} {env_id}", own, whole, lambda point, seed: make_trial(algorithm, point, seed, axes),
        config.runs_dir,
    )  # fmt: skip


def env_ids_of(algorithm: str, axes: Sequence[Axis]) -> tuple[str, ...]:
    """The environments given by the axes, or the method's default."""
    named = [axis.values for axis in axes if axis.field == "env_id"]
    return named[0] if named else (load(catalog.module_of(algorithm)).Config.env_id,)


def corners(algorithm: str, env_id: str, axes: Sequence[Axis]) -> list[Trial]:
    """Runs at both ends of all bounds and with every listed value, for the commands to check."""
    kinds = settings_of(algorithm)
    ends = {axis.field: axis.ends(kinds.get(axis.field) is int) for axis in axes} | {"env_id": (env_id,)}
    longest = max(map(len, ends.values()))
    points = [{field: own[min(i, len(own) - 1)] for field, own in ends.items()} for i in range(longest)]
    return [make_trial(algorithm, point, 1, axes) for point in points]


def slots_for(config: Config, axes: Sequence[Axis], kinds: Collection[str]) -> int:
    """Number of runs at a time.

    In a small environment more workers hardly speed a run up, and several runs together use all cores. So each run gets
    one core, and by default two workers.
    """
    cores = len(usable_cores())
    if config.jobs:
        return config.jobs
    given = {axis.field: axis.values for axis in axes}
    if given.get("backend") == ("serial",):
        return cores
    if cores > 1 and not {"workers", "backend"} & given.keys() and not {"atari", "screen"} & set(kinds):
        print_line(f"small environments: {cores} runs at a time, on a core each; --jobs 1 gives each run all cores")
        return cores
    return 1


def report(rows: Sequence[Trial], axes: Sequence[Axis], runs_dir: Path, command: str) -> Path:
    """Write the report, and print the best rows of each environment."""
    from asyncrl.studies.documents import plain_table
    from asyncrl.studies.sweep_report import cells_of, ranked, write_report

    for env_id in dict.fromkeys(row.job.env_id for row in rows):
        own = [row for row in ranked(rows) if row.job.env_id == env_id and row.best_score is not None]
        if own:
            print_line(f"best of {len(own)} runs in {env_id}:\n{plain_table(cells_of(own[:SHOWN], axes))}")
    return write_report(rows, axes, runs_dir, command)


def understand(words: Sequence[str], program: str) -> tuple[Config, list[Axis]]:
    """The sweep's own settings and the axes. Raises UsageError."""
    if any(word in ("-h", "--help") for word in words):
        parse(Config, words, program)
    groups = group_words(understood(words))
    own = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(Config)}
    mine = [word for flag, values in groups if flag in own for word in (flag, *values)]
    config = parse(Config, mine, program)
    check_algorithms(config.algorithms)
    if config.draw_seed < 0 or config.trials < 0:
        raise UsageError("--draw-seed and --trials must not be negative")
    if config.prune and not config.trials:
        raise UsageError("--prune is for a search: give --trials")
    fields = {name: kind is bool for algorithm in config.algorithms for name, kind in settings_of(algorithm).items()}
    axes = [make_axis(flag, values, fields, config.draw_seed) for flag, values in groups if flag not in own]
    for axis in axes:
        if config.trials and axis.drawn and axis.bounds is None:
            raise UsageError(f"a search takes no count: {axis.flag} {axis.drawn} LOW HIGH")
        check_free([axis.flag], TAKEN)
        if sum(other.field == axis.field for other in axes) > 1:
            raise UsageError(f"{axis.flag} is given twice")
    return config, axes


def settings_of(algorithm: str) -> dict[str, Any]:
    """The settings of a method, and their types."""
    return get_type_hints(load(catalog.module_of(algorithm)).Config)


def make_trials(config: Config, axes: Sequence[Axis]) -> list[Trial]:
    """All runs: every method at every point with every seed."""
    return [
        make_trial(algorithm, point, seed, axes)
        for seed in range(1, config.seeds + 1)
        for point in combine(axes)
        for algorithm in config.algorithms
    ]


def make_trial(algorithm: str, point: Point, seed: int, axes: Sequence[Axis]) -> Trial:
    """One run. Its name has the settings that vary, and a short hash of all others."""
    switches = [name for name, kind in settings_of(algorithm).items() if kind is bool]
    settings = {field: value for field, value in point.items() if field != "env_id"}
    env_id = point.get("env_id") or load(catalog.module_of(algorithm)).Config.env_id
    words = (*words_of(settings, switches), "--seed", str(seed))
    varied = [f"{axis.field}={point[axis.field]}" for axis in axes if axis.varies and axis.field != "env_id"]
    told = re.sub(r"[^A-Za-z0-9_.+=-]+", "_", "-".join([*varied, f"s{seed}"]))[:80]
    digest = hashlib.sha256(shlex.join(words).encode()).hexdigest()[:8]
    return Trial.of(Job(algorithm, env_id, f"{told}-{digest}", words), point, seed)


def print_jobs(trials: Sequence[Trial], runs_dir: Path) -> None:
    """Print the remaining runs as command lines; runs that were begun must be resumed or removed by hand."""
    for job in (trial.job for trial in trials if not is_done(trial.job, runs_dir)):
        folder = job.folder(runs_dir)
        if folder.exists():
            state = read_status(folder).get("state", "no status")
            print_line(f"left out: {folder} was begun ({state})", error=True)
        else:
            print_line(shlex.join(job.command(runs_dir)))


if __name__ == "__main__":
    raise SystemExit(main())
