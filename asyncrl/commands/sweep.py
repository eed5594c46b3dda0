r"""`python -m asyncrl sweep`: any settings over lists, grids, random draws, or by a search.

A method's flag may take several values, and its name may end in a plural s. All combinations of listed values are run;
drawn settings (`N log-uniform LOW HIGH` or `N uniform LOW HIGH`) vary together. Quote a value of several words. The
paper's Figure 2, for one game:

    python -m asyncrl sweep --algorithms a3c --env-ids ALE/Breakout-v5 --learning-rates 50 log-uniform 1e-4 1e-2

With --trials N it searches instead: Optuna proposes N settings one after the other, based on earlier results, from
lists and from bounds (`log-uniform LOW HIGH` or `uniform LOW HIGH`); --prune stops bad runs early:

    python -m asyncrl sweep --algorithms ppo --env-ids CartPole-v1 --learning-rate log-uniform 1e-5 1e-2 \
        --t-max 8 32 128 --total-steps 100_000 --trials 30 --prune

The same command continues where it was stopped. It writes one page with a table and figures. With --print-jobs it only
prints its runs as command lines, for GNU Parallel or a SLURM array; with --report-only it starts no runs.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from asyncrl import catalog
from asyncrl.algorithm import load
from asyncrl.commands.program import run_command
from asyncrl.commands.study import (
    StudyConfig,
    check_algorithms,
    check_free,
    command_of,
    conduct,
    conduct_cells,
    slots_for,
)
from asyncrl.config.commandline import parse, understood
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.storage.run_folder import read_status
from asyncrl.studies.jobs import Job, is_done
from asyncrl.studies.search import Axis, Search, combine, group_words, import_optuna, make_axis, variants_of
from asyncrl.studies.study import Cell, Point, Settings, Study, StudyPlan, words_of

TAKEN = ("seed", "env_id", "runs_dir", "run_name", "resume", "quiet")
"""Settings of runs that the sweep sets itself."""


@dataclass(frozen=True)
class Config(StudyConfig):
    """Train over lists, grids, random samples or a search of settings.

    Accepts all settings of the algorithms, but not --n-envs, --config and --trust.
    """

    runs_dir: Path = Path("runs/sweep")
    """Folder of the runs and of report/."""
    trials: int = 0
    """Search: number of settings that Optuna proposes per algorithm and environment; 0: try all combinations."""
    prune: bool = False
    """Search: stop a run whose evaluations are below the median of the other runs."""
    draw_seed: int = 1
    """Seed of the random samples and of a search."""
    print_jobs: bool = False
    """Print unfinished runs as command lines instead of starting them."""


def main(words: Sequence[str]) -> int:
    """Run or resume the sweep that the command line says, then report; returns the exit code."""
    return run_command("asyncrl sweep", lambda: sweep(words))


def sweep(words: Sequence[str]) -> int:
    """The whole sweep; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    config, axes = understand(words, "asyncrl sweep")
    if config.trials:
        import_optuna()
        if config.print_jobs:
            raise UsageError("--print-jobs is for sweeps without --trials: a search proposes one run after another")
        return search(config, axes, words)
    plan = make_plan(config, axes, words)
    if config.print_jobs:
        print_jobs(config.runs_dir, plan)
        return 0
    elsewhere = plan if axes or config.env_ids else None
    return conduct_cells("sweep", config, plan, lambda study: [plan.cells], report, elsewhere)


def search(config: Config, axes: Sequence[Axis], words: Sequence[str]) -> int:
    """Search with Optuna, separately for each method and environment: their scores are not comparable."""

    def run(study: Study, lock: int) -> list[str]:
        pairs = [(algorithm, env_id) for algorithm in config.algorithms for env_id in env_ids_of(algorithm, config)]
        slots = slots_for("sweep", config, [job for pair in pairs for job in corners(*pair, axes)])
        searches = []
        for algorithm, env_id in pairs:
            whole = [name for name, kind in settings_of(algorithm).items() if kind is int]
            settings = config.trials, config.seeds, config.prune, config.draw_seed
            one = Search(study, command_of("sweep", words), algorithm, env_id, axes, whole, *settings, refused)
            one.optuna()  # refuses another search, before the first run
            searches.append(one)
        return [failure for one in searches for failure in one.run(slots, lock, print_line)]

    return conduct("sweep", config, run, report)


def refused(job: Job) -> str:
    """Why a run of these settings would be refused, whatever room there is; "" if it would not."""
    from asyncrl.commands.train import configure

    try:
        configure(catalog.module_of(job.algorithm), job.arguments(Path("runs")))
    except UsageError as error:
        return str(error)
    return ""


def report(study: Study) -> Path:
    """Write the report, and print the best runs."""
    from asyncrl.studies.sweep_report import write_report

    return write_report(study, print_line)


def env_ids_of(algorithm: str, config: Config) -> tuple[str, ...]:
    """The environments, or the method's default."""
    return config.env_ids or (load(catalog.module_of(algorithm)).Config.env_id,)


def corners(algorithm: str, env_id: str, axes: Sequence[Axis]) -> list[Job]:
    """Runs at both ends of all bounds and with every listed value, for the commands to check."""
    kinds = settings_of(algorithm)
    ends = {
        axis.field: [str(round(bound)) if kinds.get(axis.field) is int else f"{bound:.6g}" for bound in axis.bounds]
        if axis.bounds
        else axis.values
        for axis in axes
    }
    points: list[Point] = [
        {name: own[min(i, len(own) - 1)] for name, own in ends.items()}
        for i in range(max(map(len, ends.values()), default=1))
    ]
    return [Job(algorithm, env_id, "search", tuple(words_of(point))) for point in points]


def understand(words: Sequence[str], program: str) -> tuple[Config, list[Axis]]:
    """The sweep's own settings and the axes. Raises UsageError."""
    if any(word in ("-h", "--help") for word in words):
        parse(Config, words, program)
    plain = [(flag.replace("_", "-"), values) for flag, values in group_words(understood(words))]
    groups = [("--env-ids" if flag == "--env-id" else flag, values) for flag, values in plain]
    own = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(Config)}
    given = [flag for flag, _ in groups if flag in own]
    if twice := [flag for flag in given if given.count(flag) > 1]:
        raise UsageError(f"{twice[0]} is given twice")
    mine = [word for flag, values in groups if flag in own for word in (flag, *values)]
    config = parse(Config, mine, program)
    check_algorithms(config.algorithms)
    if config.draw_seed < 0 or config.trials < 0:
        raise UsageError("--draw-seed and --trials must not be negative")
    if config.prune and not config.trials:
        raise UsageError("--prune is for a search: give --trials")
    fields = {name: kind for algorithm in config.algorithms for name, kind in settings_of(algorithm).items()}
    axes = [make_axis(flag, values, fields, config.draw_seed) for flag, values in groups if flag not in own]
    for axis in axes:
        if config.trials and axis.drawn and axis.bounds is None:
            raise UsageError(f"a search takes no number of draws: write {axis.flag} {axis.drawn} LOW HIGH")
        check_free([axis.flag], TAKEN)
        if sum(other.field == axis.field for other in axes) > 1:
            raise UsageError(f"{axis.flag} is given twice")
    return config, axes


def settings_of(algorithm: str) -> dict[str, Any]:
    """The settings of a method, and their types."""
    hints = get_type_hints(load(catalog.module_of(algorithm)).Config)
    return {name: int if get_args(kind)[:1] == (int,) else kind for name, kind in hints.items()}  # int or auto


def make_plan(config: Config, axes: Sequence[Axis], words: Sequence[str]) -> StudyPlan:
    """All runs: every method at every point with every seed."""
    variants = variants_of(combine(axes), axes)
    cells = [
        Cell(algorithm, label, env_id, "", 0, seed)
        for seed in range(1, config.seeds + 1)
        for label in variants
        for algorithm in config.algorithms
        for env_id in env_ids_of(algorithm, config)
    ]
    environments = {cell.env_id: Settings() for cell in cells}
    return StudyPlan(command_of("sweep", words), environments, cells, variants=variants)


def print_jobs(runs_dir: Path, plan: StudyPlan) -> None:
    """Print the remaining runs as command lines; runs that were begun must be resumed or removed by hand.

    What this machine would refuse is told beside them: another one, with a GPU for example, may take it.
    """
    study = Study(runs_dir, "sweep")
    study.add(plan)
    left = [cell for cell in plan.cells if not study.folder(cell).exists()]
    for cell in {(cell.series, cell.env_id): cell for cell in left}.values():
        if trouble := refused(job := study.job(cell)):
            print_line(f"would be refused here: {job}: {trouble}", error=True)
    for cell in plan.cells:
        job, folder = study.job(cell), study.folder(cell)
        if is_done(job, runs_dir):
            continue
        if folder.exists():
            state = read_status(folder).get("state", "no status")
            print_line(f"skipped: {folder} was already started ({state})", error=True)
        else:
            print_line(shlex.join(job.command(runs_dir)))
