"""The runs of a sweep, and a search with Optuna: earlier results determine the next settings, and bad runs are stopped.

The state of a search is in the sweep's folder (`search.log`, Optuna's journal): the same command continues where it was
stopped.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.core.errors import UsageError
from asyncrl.storage.records import read_records
from asyncrl.studies.jobs import Job, RunningJobs, Say, Told, is_done, run_tasks
from asyncrl.studies.measure import Measurement, measure
from asyncrl.studies.search_space import Axis, Point, is_numeric
from asyncrl.studies.study import Cell

STORAGE = "search.log"
FEWEST_TRIALS = 5
"""Trials that must have ended before any is stopped early."""
FEWEST_EVALUATIONS = 2
"""Evaluations of a run before it may be stopped early."""
POINT, FAILURE = "point", "failure"
"""Our attributes of an Optuna trial: its settings as typed, and what went wrong."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    job: Job
    point: Point
    """Its settings by field, with those common to all runs."""
    run: Measurement

    @classmethod
    def of(cls, job: Job, point: Point, seed: int) -> Trial:
        """A run without results yet."""
        return cls(job, point, Measurement(Cell(job.algorithm, "", job.env_id, "", 0, seed), ""))

    def read(self, runs_dir: Path, state: str = "") -> Trial:
        """With what its records say; a non-empty `state` replaces theirs."""
        run = measure(self.run.cell, self.job.folder(runs_dir))
        return replace(self, run=replace(run, state=state or run.state))

    @property
    def best_score(self) -> float | None:
        """Best evaluation."""
        return self.run.best_score()

    @property
    def final_score(self) -> float | None:
        """Last evaluation, of the final parameters; None unless the run finished."""
        return self.run.last_score() if self.run.complete else None


@dataclass(frozen=True)
class SearchPlan:
    """How to search."""

    trials: int
    """Number of trials, with those of earlier commands."""
    seeds: int
    """Runs per trial; the trial's score is the mean of their best evaluations."""
    prune: bool
    """Stop a run whose best evaluation so far is below the median of the others at that time."""
    seed: int
    """Seed of the proposals."""
    slots: int
    """Trials at the same time."""


class Search:
    """The search of one method in one environment."""

    def __init__(
        self,
        name: str,
        axes: Sequence[Axis],
        whole: Collection[str],
        make: Callable[[Point, int], Trial],
        runs_dir: Path,
    ) -> None:
        """`whole` are the settings with integer values; `make` returns the run of a point and a seed."""
        self._name, self._axes, self._whole, self._make, self._runs_dir = name, axes, whole, make, runs_dir
        self._asking = threading.Lock()

    def run(self, plan: SearchPlan, lock: int, say: Say) -> list[str]:
        """Make the remaining trials, and report each with `say`; returns a line for each that failed."""
        study = self.study(plan)
        self._put_back(study)
        left = max(0, plan.trials - len(self._done(study)))
        say(f"{self._name}: {plan.trials} trials, {plan.trials - left} of them already finished")
        return run_tasks(
            [partial(self._try_one, study, plan)] * left, self._runs_dir, min(plan.slots, max(1, left)), lock, say
        )

    def points(self) -> list[tuple[Point, str]]:
        """The settings tried so far, in order, each with "pruned" if it was, else ""."""
        pruned = import_optuna().trial.TrialState.PRUNED
        return [
            (trial.user_attrs[POINT], "pruned" if trial.state == pruned else "") for trial in self._done(self.study())
        ]

    def study(self, plan: SearchPlan | None = None) -> Any:
        """Optuna's study, new or loaded."""
        optuna = import_optuna()
        backend = optuna.storages.journal.JournalFileBackend(str(self._runs_dir / STORAGE))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.create_study(storage=storage, study_name=self._name, direction="maximize", load_if_exists=True)
        if plan is not None:
            # A new seed for every command: the same one would propose the same settings again.
            study.sampler = optuna.samplers.TPESampler(seed=plan.seed + 1000 * len(study.trials))
            study.pruner = optuna.pruners.NopPruner()
            if plan.prune:
                study.pruner = optuna.pruners.MedianPruner(FEWEST_TRIALS, FEWEST_EVALUATIONS)
        return study

    def _try_one(self, study: Any, plan: SearchPlan, running: RunningJobs) -> Told:
        """One trial: ask for settings, make its runs, report their score."""
        states = import_optuna().trial.TrialState
        with self._asking:
            trial = study.ask()
            point = {axis.field: propose(trial, axis, axis.field in self._whole) for axis in self._axes}
            trial.set_user_attr(POINT, point)
        told = ", ".join(f"{axis.field} {point[axis.field]}" for axis in self._axes if axis.varies)
        scores = []
        for seed in range(1, plan.seeds + 1):
            made = self._make(point, seed)
            watch = Watch(trial, made.job.folder(self._runs_dir)) if plan.prune and seed == 1 else None
            failure = ""
            if not is_done(made.job, self._runs_dir):
                failure = running.run(made.job, watch.enough if watch else None)
            if running.stopping:
                return f"{told}: not finished", False  # `_put_back` proposes it again when the search is continued
            if watch is not None and watch.pruned:
                study.tell(trial, state=states.PRUNED)
                return f"{told}: stopped early", False
            score = made.read(self._runs_dir).best_score
            if failure or score is None:
                trial.set_user_attr(FAILURE, failure or "no evaluation")
                study.tell(trial, state=states.FAIL)
                return f"{made.job}: {failure or 'no evaluation'}", True
            scores.append(score)
        value = statistics.fmean(scores)
        study.tell(trial, value)
        return f"{told}: {value:.6g}, best so far {study.best_value:.6g}", False

    def _done(self, study: Any) -> list[Any]:
        """The study's trials that have ended by themselves."""
        states = import_optuna().trial.TrialState
        return [
            trial
            for trial in study.get_trials(deepcopy=False)
            if trial.state in (states.COMPLETE, states.PRUNED)
            or (trial.state == states.FAIL and FAILURE in trial.user_attrs)
        ]

    def _put_back(self, study: Any) -> None:
        """Propose the trials again that were active when a command was killed: no other one holds the study's lock."""
        states = import_optuna().trial.TrialState
        for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            study.tell(trial.number, state=states.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params)


class Watch:
    """Watches the evaluations of a run, and asks Optuna whether to stop it."""

    def __init__(self, trial: Any, folder: Path) -> None:
        self._trial, self._file, self._seen = trial, folder / "evaluator.jsonl", 0
        self.pruned = False

    def enough(self) -> bool:
        """Report new evaluations; returns whether to stop the run."""
        scores = [row["mean"] for row in read_records(self._file) if row.get("mean") is not None]
        while self._seen < len(scores):
            self._seen += 1
            self._trial.report(max(scores[: self._seen]), self._seen)
            self.pruned = self.pruned or self._trial.should_prune()
        return self.pruned


def import_optuna() -> Any:
    """Import Optuna, without its log. Raises UsageError if it is missing."""
    try:
        import optuna
    except ImportError:
        raise UsageError('a search needs Optuna: pip install "asyncrl[search]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose(trial: Any, axis: Axis, whole: bool) -> str:
    """A value of the axis, as typed on the command line."""
    if axis.bounds is None:
        return str(trial.suggest_categorical(axis.field, list(axis.values))) if axis.varies else axis.values[0]
    low, high = axis.bounds
    log = axis.drawn == "log-uniform"
    if whole:
        return str(trial.suggest_int(axis.field, round(low), round(high), log=log))
    return f"{trial.suggest_float(axis.field, low, high, log=log):.6g}"


def importances(rows: Sequence[tuple[Mapping[str, str], float]], axes: Sequence[Axis]) -> dict[str, float]:
    """How much each axis determines whether a score is among the better ones (PED-ANOVA, Watanabe et al. 2023).

    `rows` are settings and scores. Empty without Optuna, or with too few scores.
    """
    tried = {axis.field: [point[axis.field] for point, _ in rows] for axis in axes}
    axes = [axis for axis in axes if len(set(tried[axis.field])) > 1]
    if len(rows) < 2 * FEWEST_TRIALS or not axes or len({score for _, score in rows}) == 1:
        return {}
    try:
        optuna = import_optuna()
    except UsageError:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions: dict[str, Any] = {}
    for axis in axes:
        values = tried[axis.field]
        if numeric := is_numeric(values):
            ends = min(map(float, values)), max(map(float, values))
            distributions[axis.field] = optuna.distributions.FloatDistribution(*ends, log=axis.drawn == "log-uniform")
        else:
            distributions[axis.field] = optuna.distributions.CategoricalDistribution(sorted(set(values)))
        tried[axis.field] = [float(value) if numeric else value for value in values]  # type: ignore[misc]
    for i, (_, score) in enumerate(rows):
        params = {name: tried[name][i] for name in distributions}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return found
