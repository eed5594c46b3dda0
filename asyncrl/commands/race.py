"""`python -m asyncrl race`: which way of running in parallel is best for a problem?

Every entrant gets the same environments, cores, time and seeds; then a report shows which ones reached the score, after
how many minutes, steps and core-minutes. Flags after `--` go to every run:

    python -m asyncrl race --env-ids ALE/Pong-v5 --scores 18 --max-minutes 15

An entrant is a page, or a page on another backend: `a3c@collective`. Runs are made one after the other, so that each
has the machine to itself, seed by seed. A race may be stopped or killed; the same command continues it, and finished
runs are never repeated. Another command may add entrants, seeds and environments.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl import pages
from asyncrl.commands.program import run_command
from asyncrl.commands.speedup import check_algorithms, split, spread
from asyncrl.config.commandline import parse
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.axes import group_words
from asyncrl.studies.jobs import alone_in, run_jobs
from asyncrl.studies.races import Conditions, Entrant, RaceFile, Start

TAKEN = (
    "workers", "seed", "backend", "total_steps", "max_seconds", "evaluation_episodes", "evaluation_policy",
    "stop_at_score", "env_id", "runs_dir", "run_name", "resume", "quiet",
)  # fmt: skip
"""Settings of runs that the race sets itself."""


@dataclass(frozen=True)
class Config:
    """A race to a score. Flags after `--` go to every run."""

    algorithms: tuple[str, ...] = ("a3c", "a2c", "ppo", "impala", "gorila", "apex")
    """Entrants: pages of this package or your own, followed by @BACKEND to use another backend than --backend."""
    env_ids: tuple[str, ...] = ("CartPole-v1",)
    """Environments to train on, each a separate race."""
    scores: tuple[str, ...] = ("475",)
    """Score to reach, one for all environments or one each; none: only the curves are compared."""
    backend: str = "local"
    """Where the entrants run. serial: repeatable, but its minutes are meaningless."""
    workers: int = 0
    """Workers of each run; 0: each page's default."""
    seeds: int = 3
    """Runs of each entrant, with seeds 1, 2, ..."""
    max_minutes: float = 15.0
    """Longest training time of a run in minutes; 0: no limit."""
    total_steps: tuple[int, ...] = (0,)
    """Steps T of each run, one number for all environments, or one each; 0: the page's default."""
    evaluation_episodes: int = 10
    """Whole episodes per evaluation."""
    evaluation_policy: Literal["greedy", "sampled", "own"] = "greedy"
    """One rule for all entrants: the best action, or actions as workers draw them. own: each method's default."""
    stop_at_score: bool = True
    """End a run once it has reached the score."""
    jobs: int = 1
    """Runs at a time, each with its share of the cores."""
    runs_dir: Path = Path("runs/race")
    """Folder of the race: its runs, race.json, and report/."""
    report_only: bool = False
    """Make no runs; report on what is there."""


def main(words: Sequence[str] | None = None) -> int:
    """Run or resume the race that the command line says, then report; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    program = "asyncrl race"
    own, further = split(words)
    command = shlex.join(["python", "-m", "asyncrl", "race", *words])
    return run_command(program, lambda: race(parse(Config, own, program), further, command))


def race(config: Config, further: Sequence[str], command: str) -> int:
    """The whole race; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    entrants = check(config, further)
    conditions = conditions_of(config, further)
    starts = [
        Start(entrant, env_id, seed)
        for seed in range(1, config.seeds + 1)
        for env_id in config.env_ids
        for entrant in entrants
    ]
    failures: list[str] = []
    with alone_in(config.runs_dir, print_line) as lock:
        file = RaceFile(config.runs_dir)
        if not config.report_only:
            file.add(command, conditions, starts)
            try_words(file, starts)
            file.save()
            failures = run_jobs([file.job(start) for start in starts], config.runs_dir, config.jobs, lock, print_line)
        elif not file.starts:
            raise UsageError(f"{config.runs_dir} holds no race to report on")
        from asyncrl.studies.race_report import write_report

        report = write_report(file, config.runs_dir, print_line)
    for failure in failures:
        print_line(f"failed: {failure}", error=True)
    print_line(report)
    return 1 if failures else 0


def check(config: Config, further: Sequence[str]) -> list[Entrant]:
    """The entrants. Raises UsageError for an impossible setting."""
    entrants = [Entrant.of(word, config.backend) for word in config.algorithms]
    check_algorithms([entrant.algorithm for entrant in entrants])
    for name, values in (("algorithms", entrants), ("env-ids", config.env_ids)):
        if not values or len(set(values)) < len(values):
            raise UsageError(f"--{name} needs at least one value and none twice")
    if config.seeds < 1 or config.jobs < 1 or config.workers < 0:
        raise UsageError("--seeds and --jobs must be at least 1, and --workers not negative")
    if not 0 <= config.max_minutes < math.inf or any(steps < 0 for steps in config.total_steps):
        raise UsageError("--max-minutes and --total-steps must not be negative")
    for flag, _ in group_words(further):
        if flag.removeprefix("--").replace("-", "_") in TAKEN:
            raise UsageError(f"{flag} is set by the race itself and cannot be given after --")
    return entrants


def conditions_of(config: Config, further: Sequence[str]) -> dict[str, Conditions]:
    """The common conditions of all entrants, by environment. Raises UsageError."""
    scores = [_score(word) for word in spread("--scores", config.scores, config.env_ids)]
    steps = spread("--total-steps", config.total_steps, config.env_ids)
    return {
        env_id: Conditions(
            score,
            config.max_minutes,
            most,
            config.workers,
            config.evaluation_episodes,
            config.stop_at_score and score is not None,
            tuple(further),
            config.evaluation_policy,
        )
        for env_id, score, most in zip(config.env_ids, scores, steps, strict=True)
    }


def _score(word: str) -> float | None:
    try:
        score = None if word == "none" else float(word)
    except ValueError:
        score = math.nan
    if score is not None and not math.isfinite(score):
        raise UsageError(f"--scores takes numbers or none, got {word}")
    return score


def try_words(file: RaceFile, starts: Sequence[Start]) -> None:
    """Let each command check its arguments before any run begins. Raises UsageError."""
    from asyncrl.commands.train import configure

    for start in {(start.entrant, start.env_id): start for start in starts}.values():
        job = file.job(start)
        try:
            configure(pages.module_of(job.page), job.arguments(Path("runs")))
        except UsageError as error:
            raise UsageError(f"{start.entrant} on {start.env_id}: {error}") from None


if __name__ == "__main__":
    raise SystemExit(main())
