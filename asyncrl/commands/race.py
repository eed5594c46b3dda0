"""`python -m asyncrl race`: which way of running in parallel is best for a problem?

Every entrant gets the same environments, cores, time and seeds; then a report shows which ones reached the score, after
how many minutes, steps and core-minutes. Flags after `--` go to every run:

    python -m asyncrl race --env-ids ALE/Pong-v5 --scores 18 --max-minutes 15

An entrant is an algorithm, or one on another backend: `a3c@collective`. Runs follow one another, so that each
has the machine to itself, seed by seed. A race may be stopped or killed; the same command continues it, and finished
runs are never repeated. Another command may add entrants, seeds and environments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from asyncrl.commands.program import run_command
from asyncrl.commands.study import StudyConfig, check_different, conduct_cells, parse_study, spread, spread_scores
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.studies.study import Settings, Study, StudyPlan, make_cells


@dataclass(frozen=True)
class Config(StudyConfig):
    """A race to a score. Flags after `--` go to every run."""

    algorithms: tuple[str, ...] = ("a3c", "a2c", "ppo", "impala", "gorila", "apex")
    """Entrants: algorithms of this package or your own; append @BACKEND to override --backend."""
    seeds: int = 3
    """Runs per entrant, with seeds 1, 2, ..."""
    runs_dir: Path = Path("runs/race")
    """Folder of the race: its runs, study.json and report/."""
    env_ids: tuple[str, ...] = ("CartPole-v1",)
    """Environments to train on; each is a separate race."""
    scores: tuple[str, ...] = ("475",)
    """Score to reach, one for all environments or one each; none: compare only the learning curves."""
    backend: str = "local"
    """Backend of the entrants. serial: reproducible, but its times are meaningless."""
    workers: int = 0
    """Workers of each run; 0: each algorithm's default."""
    max_minutes: float = 15.0
    """Maximum training time of a run in minutes; 0: no limit."""
    total_steps: tuple[int, ...] = (0,)
    """Steps T of each run, one number for all environments, or one each; 0: the algorithm's default."""
    evaluation_episodes: int = 10
    """Episodes per evaluation."""
    evaluation_policy: Literal["greedy", "sampled", "own"] = "greedy"
    """Policy of all evaluations: the best action, or actions sampled as by workers. own: the algorithm's default."""
    stop_at_score: bool = True
    """End a run once it has reached the score."""


def main(words: Sequence[str]) -> int:
    """Run or resume the race that the command line says, then report; returns the exit code."""
    return run_command("asyncrl race", lambda: race(words))


def race(words: Sequence[str]) -> int:
    """The whole race; exit code 1 if a run failed. Raises UsageError before the first run is made."""
    config, further, command = parse_study(Config, words, "race", "evaluation_policy")
    named = [word.partition("@") for word in config.algorithms]
    entrants = [(algorithm, backend or config.backend) for algorithm, _, backend in named]
    check_different("algorithms", entrants)
    if config.workers < 0:
        raise UsageError("--workers must not be negative")
    if not 0 <= config.max_minutes < math.inf or any(steps < 0 for steps in config.total_steps):
        raise UsageError("--max-minutes and --total-steps must not be negative")
    scores = spread_scores("--scores", config.scores, config.env_ids, "none")
    steps = spread("--total-steps", config.total_steps, config.env_ids)
    environments = {
        env_id: Settings(
            most, 60 * config.max_minutes, 0, config.evaluation_episodes, config.stop_at_score and score is not None,
            further, config.workers, config.evaluation_policy, score,
        )
        for env_id, score, most in zip(config.env_ids, scores, steps, strict=True)
    }  # fmt: skip
    cells = make_cells(entrants, "none", config.env_ids, (0,), config.seeds)

    def report(study: Study) -> Path:
        from asyncrl.studies.race import write_report

        return write_report(study, print_line)

    plan = StudyPlan(command, environments, cells)
    return conduct_cells("race", config, plan, lambda study: [cells], report)
