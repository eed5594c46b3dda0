"""The settings of a sweep: lists, random draws, or a search with Optuna.

`--flag value value ...` is a list, `--flag N log-uniform LOW HIGH` draws, and `--flag log-uniform LOW HIGH` bounds a
search. In a search earlier results determine the next settings, and bad runs are stopped. Its state is in the sweep's
folder (`search.log`, Optuna's journal): the same command continues where it was stopped.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import re
import shlex
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.core.errors import UsageError
from asyncrl.core.extras import imported
from asyncrl.storage.records import read_records
from asyncrl.studies.jobs import Job, RunningJobs, Say, Told, is_done, run_tasks
from asyncrl.studies.measure import measure
from asyncrl.studies.study import Cell, Point, Settings, Study, StudyPlan, words_of

DISTRIBUTIONS = ("log-uniform", "uniform")
MOST_DRAWS = 100_000
WIDE = 8
"""From this ratio of the largest value to the smallest on, an axis is logarithmic."""
STORAGE = "search.log"
FEWEST_TRIALS = 5
"""Trials that must have ended before any is stopped early."""
FEWEST_EVALUATIONS = 2
"""Evaluations of a run before it may be stopped early."""
FAILURE = "failure"
"""Our attribute of an Optuna trial: what went wrong."""
AMONG = "among"
"""Our attribute of an Optuna study: what it searches among."""


@dataclass(frozen=True)
class Axis:
    """One setting and the values it takes."""

    field: str
    """Name of the setting, such as "learning_rate"."""
    values: tuple[str, ...]
    """As on a command line; a value of several words is one text with spaces."""
    drawn: str = ""
    """The distribution the values were drawn from, if any; all drawn axes vary together."""
    bounds: tuple[float, float] | None = None
    """The range of a search. Such an axis has no values of its own."""

    @property
    def varies(self) -> bool:
        """Whether it takes more than one value."""
        return len(self.values) > 1 or self.bounds is not None

    @property
    def flag(self) -> str:
        """As on a command line."""
        return f"--{self.field.replace('_', '-')}"


def is_numeric(values: Sequence[str]) -> bool:
    """Whether all are numbers."""
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False


def is_logarithmic(values: Sequence[str]) -> bool:
    """Whether they are numbers that span more than a factor of 8, so that they belong on a logarithmic axis."""
    numbers = [float(value) for value in values] if is_numeric(values) else [0.0]
    return min(numbers) > 0 and max(numbers) > WIDE * min(numbers)


def group_words(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Flags with the words that follow them. Raises UsageError for a word before the first flag."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            groups.append((flag, [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise UsageError(f"unexpected word {word!r}")
    return groups


def make_axis(flag: str, words: Sequence[str], fields: Mapping[str, Any], seed: int) -> Axis:
    """The axis that a flag and its words describe; a flag may be in the plural. Raises UsageError if there is none.

    `fields` has the type of each setting: what is drawn for an int is rounded. `seed` is for random draws. The first
    values drawn are the same however many are asked for.
    """
    name = flag.removeprefix("--").replace("-", "_")
    negated = name.removeprefix("no_")
    if not words and name not in fields and negated in fields:
        return Axis(negated, ("False",))
    field = next((candidate for candidate in (name, name.removesuffix("s")) if candidate in fields), None)
    if field is None:
        near = difflib.get_close_matches(name, [*fields, *(f"{field}s" for field in fields)], n=1)
        raise UsageError(
            f"there is no {flag}" + "".join(f"; perhaps you meant --{other.replace('_', '-')}" for other in near)
        )
    if fields[field] is bool:
        words = [word.capitalize() for word in words] or ["True"]
        if wrong := [word for word in words if word not in ("True", "False")]:
            raise UsageError(f"{flag} takes True or False, got {wrong[0].lower()!r}")
    if not words:
        raise UsageError(f"{flag} needs a value")
    if len(words) == 4 and words[1] in DISTRIBUTIONS:
        values = draw(flag, words, (seed, *field.encode()))
        whole = tuple(str(round(float(value))) for value in values) if fields[field] is int else values
        return Axis(field, whole, drawn=words[1])
    if len(words) == 3 and words[0] in DISTRIBUTIONS:
        draw(flag, ["1", *words], (seed,))  # checks the bounds
        return Axis(field, (), words[0], (float(words[1]), float(words[2])))
    if len(set(words)) < len(words):
        raise UsageError(f"{flag} has a value twice")
    for word in words:
        try:
            shlex.split(word)
        except ValueError as error:
            raise UsageError(f"{flag} cannot be split into words at {word!r}: {error}") from None
    return Axis(field, tuple(words))


def draw(flag: str, words: Sequence[str], seed: Sequence[int]) -> tuple[str, ...]:
    """Values for `N log-uniform LOW HIGH` or `N uniform LOW HIGH`."""
    try:
        count, low, high = int(words[0]), float(words[2]), float(words[3])
    except ValueError:
        raise UsageError(f"{flag} takes N {words[1]} LOW HIGH, got {' '.join(words)}") from None
    least = 0.0 if words[1] == "log-uniform" else -np.inf
    if not (1 <= count <= MOST_DRAWS and least < low < high < np.inf):
        raise UsageError(f"{flag} needs at least one draw and LOW below HIGH, above 0 if log-uniform")
    uniform = np.random.default_rng(list(seed)).random(count)
    values = low * (high / low) ** uniform if words[1] == "log-uniform" else low + (high - low) * uniform
    return tuple(f"{value:.6g}" for value in values)


def combine(axes: Sequence[Axis]) -> list[Point]:
    """All combinations of the listed axes; drawn axes are zipped instead, as in a random search.

    Raises UsageError if drawn axes have different numbers of values, or none because they are for a search.
    """
    for axis in axes:
        if axis.bounds is not None:
            raise UsageError(f"{axis.flag} has bounds but no number of draws: give one, or --trials for a search")
    drawn = [axis for axis in axes if axis.drawn]
    if len({len(axis.values) for axis in drawn}) > 1:
        flags = " and ".join(axis.flag for axis in drawn)
        raise UsageError(f"drawn settings vary together: give {flags} the same number of draws")
    listed = [axis for axis in axes if not axis.drawn]
    names = [axis.field for axis in (*listed, *drawn)]
    together = list(zip(*(axis.values for axis in drawn), strict=True)) or [()]
    return [
        dict(zip(names, (*values, *draws), strict=True))
        for values in itertools.product(*(axis.values for axis in listed))
        for draws in together
    ]


def variants_of(points: Sequence[Point], axes: Sequence[Axis]) -> dict[str, Point]:
    """The points by names for their runs: the settings that vary, and a short hash of all, as they may be too long."""
    named = {}
    for point in points:
        told = "-".join(f"{axis.field}={point[axis.field]}" for axis in axes if axis.varies)
        digest = hashlib.sha256(shlex.join(words_of(point)).encode()).hexdigest()[:8]
        named["-".join(filter(None, (re.sub(r"[^A-Za-z0-9_.+=-]+", "_", told)[:80], digest)))] = point
    return named


@dataclass(frozen=True)
class Search:
    """The search of one method in one environment, whose runs become cells of the study."""

    study: Study
    command: str
    algorithm: str
    env_id: str
    axes: Sequence[Axis]
    whole: Collection[str]
    """Settings with integer values."""
    trials: int
    """Number of trials, with those of earlier commands."""
    seeds: int
    """Runs per trial; the trial's score is the mean of their best evaluations."""
    prune: bool
    """Stop a run whose best evaluation so far is below the median of the others at that time."""
    draw_seed: int
    """Seed of the proposals."""
    refuses: Callable[[Job], str] = lambda job: ""
    """Why the settings of a run are impossible together; "" if they are not."""
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _making: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    """Trials may have the same settings, and so the same runs: the second one waits for the first."""

    def run(self, slots: int, lock: int, say: Say) -> list[str]:
        """Make the remaining trials, `slots` at a time, and report each; returns a line for each that failed."""
        optuna = self.optuna()
        optuna.set_user_attr(AMONG, self._among())
        self._put_back(optuna)
        states, trials = import_optuna().trial.TrialState, optuna.get_trials(deepcopy=False)
        ended = (states.COMPLETE, states.PRUNED)
        left = max(0, self.trials - sum(one.state in ended or FAILURE in one.user_attrs for one in trials))
        say(f"{self.algorithm} {self.env_id}: {self.trials} trials, {self.trials - left} of them already finished")
        return run_tasks([partial(self._try_one, optuna)] * left, self.study.runs_dir, slots, lock, say)

    def optuna(self) -> Any:
        """Optuna's study, new or loaded. Raises UsageError if it is a search among other settings."""
        optuna = import_optuna()
        backend = optuna.storages.journal.JournalFileBackend(str(self.study.runs_dir / STORAGE))
        found = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name=f"{self.algorithm} {self.env_id}",
            direction="maximize", load_if_exists=True,
        )  # fmt: skip
        if found.user_attrs.get(AMONG, self._among()) != self._among():
            raise UsageError(
                f"{self.study.runs_dir} has a search of {found.study_name} among other settings: "
                "choose another --runs-dir"
            )
        # A new seed for every command: the same one would propose the same settings again.
        found.sampler = optuna.samplers.TPESampler(seed=self.draw_seed + 1000 * len(found.trials))
        found.pruner = optuna.pruners.MedianPruner(FEWEST_TRIALS, FEWEST_EVALUATIONS)
        return found

    def _among(self) -> str:
        """What the search is among: the settings with their values or bounds, and the seeds of a trial."""
        axes = sorted((astuple(axis) for axis in self.axes), key=itemgetter(0))
        return json.dumps([axes, self.seeds])

    def _try_one(self, optuna: Any, running: RunningJobs) -> Told:
        """One trial: ask for settings, make its runs, report their score."""
        states = import_optuna().trial.TrialState
        with self._asking:
            trial = optuna.ask()
            try:
                point = {axis.field: propose(trial, axis, axis.field in self.whole) for axis in self.axes}
            except ValueError as error:
                optuna.tell(trial, state=states.FAIL)
                raise UsageError(
                    f"no trial can be proposed ({error}); a search among other values needs another --runs-dir"
                ) from None
        told = ", ".join(f"{axis.field} {point[axis.field]}" for axis in self.axes if axis.varies)
        scores = []
        for seed in range(1, self.seeds + 1):
            cell = self._add(point, seed)
            job, folder = self.study.job(cell), self.study.folder(cell)
            watch = Watch(trial, folder) if self.prune and seed == 1 else None
            with self._asking:
                making = self._making[job.name]
            with making:
                try:
                    done = is_done(job, self.study.runs_dir)
                    failure = "" if done else running.run(job, watch.enough if watch else None)
                except UsageError:
                    failure = self.refuses(job)
                    if not failure:  # the machine is to blame, not these settings: the trial is made again later
                        raise
            if running.stopping:
                return f"{told}: not finished", False  # `_put_back` proposes it again when the search is continued
            if watch is not None and watch.pruned:
                optuna.tell(trial, state=states.PRUNED)
                return f"{told}: stopped early", False
            score = measure(cell, folder).best_score()
            if failure or score is None:
                trial.set_user_attr(FAILURE, failure or "no evaluation")
                optuna.tell(trial, state=states.FAIL)
                return f"{job}: {failure or 'no evaluation'}", True
            scores.append(score)
        value = statistics.fmean(scores)
        optuna.tell(trial, value)
        return f"{told}: {value:.6g}, best so far {optuna.best_value:.6g}", False

    def _add(self, point: Point, seed: int) -> Cell:
        """Store a run in the study."""
        variants = variants_of([point], self.axes)
        cell = Cell(self.algorithm, next(iter(variants)), self.env_id, "", 0, seed)
        with self._asking:
            self.study.add(StudyPlan(self.command, {self.env_id: Settings()}, [cell], variants=variants))
            self.study.save()
        return cell

    def _put_back(self, optuna: Any) -> None:
        """Propose the trials again that were active when a command was killed: no other one holds the study's lock."""
        states = import_optuna().trial.TrialState
        for trial in optuna.get_trials(deepcopy=False, states=(states.RUNNING,)):
            optuna.tell(trial.number, state=states.FAIL)
            if trial.params:
                optuna.enqueue_trial(trial.params)


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
    optuna = imported("optuna", "a search needs Optuna", "search")
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


def importances(rows: Sequence[tuple[Point, float]], fields: Sequence[str]) -> dict[str, float]:
    """How much each setting determines whether a score is among the better ones (PED-ANOVA, Watanabe et al. 2023).

    `rows` are settings and scores. Empty without Optuna, or with too few scores.
    """
    tried: dict[str, list[Any]] = {name: [point.get(name, "") for point, _ in rows] for name in fields}
    tried = {name: values for name, values in tried.items() if len(set(values)) > 1}
    if len(rows) < 2 * FEWEST_TRIALS or not tried or len({score for _, score in rows}) == 1:
        return {}
    try:
        optuna = import_optuna()
    except UsageError:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions: dict[str, Any] = {}
    for name, values in tried.items():
        if is_numeric(values):
            tried[name] = numbers = [float(value) for value in values]
            log = is_logarithmic(values)
            distributions[name] = optuna.distributions.FloatDistribution(min(numbers), max(numbers), log=log)
        else:
            distributions[name] = optuna.distributions.CategoricalDistribution(sorted(set(values)))
    for i, (_, score) in enumerate(rows):
        params = {name: values[i] for name, values in tried.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return found
