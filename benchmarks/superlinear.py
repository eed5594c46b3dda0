"""Do many workers need less data than one? The study of docs/results/superlinear.md, by its protocol.

    python benchmarks/superlinear.py runs/superlinear superlinear.csv --tune    # 90 runs: two core-hours
    python benchmarks/superlinear.py runs/superlinear superlinear.csv --count   # 30 runs as was chosen
    python benchmarks/superlinear.py runs/superlinear superlinear.csv --count --exploration equal
    python benchmarks/superlinear.py runs/superlinear superlinear.csv --figure superlinear.png
    python benchmarks/superlinear.py runs/confirm superlinear-confirm.csv --confirm    # 80 runs: four core-hours
    python benchmarks/superlinear.py runs/pong superlinear-pong.csv --pong    # 7 runs: fourteen core-hours

Each call prints the tables of the runs that there are. It may be interrupted at any time, and goes on when it is called
again, also on another machine with the CSV file alone: that has every evaluation of every finished run. Nothing is
counted before all tuning runs have been made. A best learning rate at the end of the list adds one more rate on that
side, for that number of workers; so `--tune` may have to be called more than once.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from asyncrl.core.devices import usable_cores
from asyncrl.core.statistics import Estimate, Sample, ratio
from asyncrl.plots import figures
from asyncrl.plots.figures import Line, Panel, save_figure
from asyncrl.studies.documents import read_csv, write_csv
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs
from asyncrl.studies.measure import Evaluation, Measurement, measure
from asyncrl.studies.study import Cell

WORKERS = (1, 4, 16)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
FURTHER = {1e-4: 3e-5, 1e-2: 3e-2}
"""The rate that is added if the one at an end of the list is the best."""
EXPLORATIONS = (50_000, 150_000)
"""Steps over which epsilon falls."""
TUNING_SEEDS, TUNING_STEPS, TUNING_SCORE = (101, 102, 103), 300_000, 3.5
SEEDS, STEPS = tuple(range(1, 11)), 600_000
CONFIRM_SEEDS, CONFIRM_WORKERS, CONFIRM_SCORE, CONFIRM_IN_A_ROW = tuple(range(201, 221)), (1, 16), 5.0, 3
"""The second plan: new seeds, two numbers of workers, one outcome."""
PERMUTATIONS = 100_000
PONG_STEPS, PONG_FROM = 4_000_000, 3_000_000
"""The third plan: the score is the mean of the evaluations between the two."""
PONG_WORDS = ("--preset", "paper", "--learning-rate-schedule", "0:1,1:0.95", "--total-steps", str(PONG_STEPS))
PONG_EPSILONS = {"0.1": 0.4, "0.01": 0.3, "0.5": 0.3}
"""The paper's final epsilons, each with its probability."""
PONG_PAPER = {1: -19.0, 4: -13.7, 16: -16.4}
"""The paper's scores after as many steps (figure 3), by its number of threads."""
SCORES = (2.0, 3.5, 5.0)
IN_A_ROW = (1, 3)
"""How many evaluations in a row must have the score."""
WORDS = (
    "--backend", "serial", "--envs-per-worker", "1", "--t-max", "5", "--optimizer", "rmsprop", "--optimizer-decay",
    "0.99", "--statistics", "shared", "--evaluation-interval-steps", "10000", "--evaluation-episodes", "20",
)  # fmt: skip
EQUAL = ("--exploration", "equal", "--epsilons", "0.1")
HOWS = ("drawn", "equal")


@dataclass(frozen=True)
class Setting:
    """What is chosen for a number of workers."""

    rate: float
    exploration: int

    @property
    def words(self) -> tuple[str, ...]:
        """Its flags."""
        return ("--learning-rate", str(self.rate), "--exploration-steps", str(self.exploration))


@dataclass(frozen=True)
class Study:
    """One method on one game, in one folder."""

    folder: Path
    file: Path
    """Every evaluation of every finished run."""
    method: str
    env_id: str
    rows: dict[str, list[Evaluation]] = field(default_factory=dict)
    """The same, by the job in words."""

    def job(self, workers: int, setting: Setting, seed: int, steps: int, how: str) -> Job:
        """A run; `how` its workers explore: drawn or equal."""
        words = (*WORDS, *setting.words, *(EQUAL if how == "equal" else ()))
        words += ("--workers", str(workers), "--seed", str(seed), "--total-steps", str(steps))
        name = f"{how}-w{workers:02d}-r{setting.rate:g}-x{setting.exploration}-t{steps}-s{seed}"
        return Job(self.method, self.env_id, name, words)

    def read(self) -> None:
        """Read the file."""
        for row in read_csv(self.file):
            self.rows.setdefault(row["run"], []).append(Evaluation(int(row["steps"]), 0.0, float(row["score"])))

    def make(self, jobs: Sequence[Job], slots: int) -> None:
        """Make the runs that are missing; the file has each as soon as it has ended."""
        missing = [job for job in jobs if str(job) not in self.rows]

        def say(line: str) -> None:
            print(line, flush=True)
            done = [job for job in missing if str(job) not in self.rows and is_done(job, self.folder)]
            for job in done:
                cell = Cell(self.method, "", self.env_id, "serial", 0, 0)
                self.rows[str(job)] = list(measure(cell, job.folder(self.folder)).evaluations)
            if done:
                self._write()

        with alone_in(self.folder, print) as lock:
            run_jobs(missing, self.folder, slots, lock, say)

    def _write(self) -> None:
        rows = [(run, one) for run in sorted(self.rows) for one in self.rows[run]]
        write_csv(self.file, [{"run": run, "steps": one.steps, "score": round(one.score, 4)} for run, one in rows])

    def run(self, job: Job, workers: int, seed: int) -> Measurement:
        """The records of a run; its state is "" if it has not been made."""
        cell = Cell(self.method, "", self.env_id, "serial", workers, seed)
        if str(job) not in self.rows:
            return Measurement(cell, "")
        evaluations = tuple(self.rows[str(job)])
        return Measurement(cell, "finished", steps=evaluations[-1].steps, evaluations=evaluations)

    def tuning(self, workers: int, setting: Setting) -> list[Measurement]:
        """The tuning runs of a setting that are finished."""
        runs = [
            self.run(self.job(workers, setting, seed, TUNING_STEPS, "drawn"), workers, seed) for seed in TUNING_SEEDS
        ]
        return [run for run in runs if run.complete]

    def counted(self, workers: int, setting: Setting, how: str, seeds: Sequence[int] = SEEDS) -> list[Measurement]:
        """The counted runs that are finished."""
        runs = [self.run(self.job(workers, setting, seed, STEPS, how), workers, seed) for seed in seeds]
        return [run for run in runs if run.complete]

    def rates(self, workers: int) -> list[float]:
        """The learning rates to try: those of the list, and one more if the best one is at an end of it."""
        best = self.best([Setting(rate, steps) for rate in RATES for steps in EXPLORATIONS], workers)
        further = [] if best is None or best.rate not in FURTHER else [FURTHER[best.rate]]
        return sorted([*RATES, *further])

    def settings(self, workers: int) -> list[Setting]:
        """All settings to try."""
        return [Setting(rate, steps) for rate in self.rates(workers) for steps in EXPLORATIONS]

    def best(self, settings: Sequence[Setting], workers: int) -> Setting | None:
        """The one that is chosen among `settings`; None if runs are missing."""
        tried = {setting: self.tuning(workers, setting) for setting in settings}
        if any(len(runs) < len(TUNING_SEEDS) for runs in tried.values()):
            return None
        return min(settings, key=lambda setting: rank(tried[setting]))


def rank(runs: Sequence[Measurement]) -> tuple[float, float]:
    """By the median of the steps to the tuning score; if it is not reached in the median, by the last evaluations."""
    return arrivals(runs, TUNING_SCORE, 1).median, -statistics.fmean(last_scores(runs))


def last_scores(runs: Sequence[Measurement]) -> list[float]:
    """The mean of the last three evaluations of each run."""
    return [statistics.fmean(evaluation.score for evaluation in run.evaluations[-3:]) for run in runs]


def arrivals(runs: Sequence[Measurement], score: float, in_a_row: int) -> Sample:
    """Steps to the first of so many evaluations in a row that all have the score."""
    found = [first_of(run.evaluations, score, in_a_row) for run in runs]
    steps = [run.steps if at is None else at.steps for run, at in zip(runs, found, strict=True)]
    return Sample(tuple(map(float, steps)), tuple(at is not None for at in found))


def first_of(evaluations: Sequence[Evaluation], score: float, in_a_row: int) -> Evaluation | None:
    """The first of `in_a_row` evaluations that all have the score; None if there are none."""
    for at in range(len(evaluations) - in_a_row + 1):
        if all(evaluation.score >= score for evaluation in evaluations[at : at + in_a_row]):
            return evaluations[at]
    return None


# ------------------------------------------------------------------------------------------------------------- reports


def told(sample: Sample) -> str:
    """A median and how many runs have it."""
    median = f"{sample.median:,.0f}" if math.isfinite(sample.median) else f"> {sample.bound:,.0f}"
    return f"{median} ({sum(sample.reached)} of {len(sample.values)})"


def print_tuning(study: Study) -> None:
    """Every setting tried, and which one is chosen."""
    columns = ("workers", "learning rate", "exploration", f"steps to {TUNING_SCORE:g}", "last three evaluations", "")
    print(f"\n| {' | '.join(columns)} |\n|{'--:|' * len(columns)}")
    for workers in WORKERS:
        settings = study.settings(workers)
        chosen = study.best(settings, workers)
        for setting in settings:
            if runs := study.tuning(workers, setting):
                scores = ", ".join(f"{score:.1f}" for score in last_scores(runs))
                mark = "chosen" if setting == chosen else ""
                steps = told(arrivals(runs, TUNING_SCORE, 1))
                print(f"| {workers} | {setting.rate:g} | {setting.exploration:,} | {steps} | {scores} | {mark} |")


def speedups(study: Study, chosen: dict[int, Setting], how: str, score: float, in_a_row: int) -> dict[int, Estimate]:
    """Data speed-up by number of workers."""
    one, *others = WORKERS
    samples = {n: arrivals(study.counted(n, chosen[n], how), score, in_a_row) for n in WORKERS}
    return {n: ratio(samples[one], samples[n]) for n in others if samples[n].values and samples[one].values}


def print_counted(study: Study, chosen: dict[int, Setting], how: str) -> None:
    """Steps to each score, and the speed-ups."""
    print(f"\n{how} epsilons: median steps (runs that have it), and data speed-up [95 %]")
    columns = [*(f"{n} workers" for n in WORKERS), *(f"speed-up of {n}" for n in WORKERS[1:])]
    print(f"\n| score | in a row | {' | '.join(columns)} |\n|--:|--:|{'--:|' * len(columns)}")
    for score in SCORES:
        for in_a_row in IN_A_ROW:
            cells = [told(arrivals(study.counted(n, chosen[n], how), score, in_a_row)) for n in WORKERS]
            cells += [str(estimate) for estimate in speedups(study, chosen, how, score, in_a_row).values()]
            print(f"| {score:g} | {in_a_row} | {' | '.join(cells)} |")


def print_tests(study: Study, chosen: dict[int, Setting]) -> None:
    """One worker against many, on the logarithm of steps: ratios of geometric means, and exact permutation tests."""
    from scipy import stats

    def steps(workers: int, how: str, score: float, in_a_row: int) -> NDArray[np.float64]:
        return np.log(arrivals(study.counted(workers, chosen[workers], how), score, in_a_row).values)

    print("\n| epsilons | score | in a row | geometric means, 1 over 16 workers | p |\n|---|--:|--:|--:|--:|")
    for how in ("drawn", "equal"):
        for score in SCORES:
            for in_a_row in IN_A_ROW:
                one, many = (steps(n, how, score, in_a_row) for n in (1, 16))
                interval = stats.ttest_ind(one, many, equal_var=False).confidence_interval()
                low, value, high = np.exp([interval.low, one.mean() - many.mean(), interval.high])
                told = f"{value:.2f} [{low:.2f}, {high:.2f}]"
                print(f"| {how} | {score:g} | {in_a_row} | {told} | {p_of_difference(one, many, math.inf):.2g} |")


CONFIRM_SETTING = Setting(3e-3, 50_000)
"""What the first plan chose for one worker and for sixteen."""


def confirm_jobs(study: Study) -> list[Job]:
    """The runs of the second plan, seed by seed."""
    return [
        study.job(workers, CONFIRM_SETTING, seed, STEPS, how)
        for seed in CONFIRM_SEEDS for workers in CONFIRM_WORKERS for how in HOWS
    ]  # fmt: skip


def print_confirmation(study: Study) -> None:
    """The second plan's outcome: two permutation tests, once all runs are made."""
    samples = {
        (workers, how): arrivals(
            study.counted(workers, CONFIRM_SETTING, how, CONFIRM_SEEDS), CONFIRM_SCORE, CONFIRM_IN_A_ROW
        )
        for workers in CONFIRM_WORKERS for how in HOWS
    }  # fmt: skip
    for (workers, how), sample in samples.items():
        print(f"{workers} workers, {how} epsilons: {len(sample.values)} of {len(CONFIRM_SEEDS)} runs")
    if any(len(sample.values) < len(CONFIRM_SEEDS) for sample in samples.values()):
        return  # nothing is looked at before
    print(f"\n| workers | epsilons | median steps to {CONFIRM_SCORE:g} in {CONFIRM_IN_A_ROW} evaluations in a row |")
    print("|--:|---|--:|")
    for (workers, how), sample in samples.items():
        print(f"| {workers} | {how} | {told(sample)} |")
    steps = {key: np.log(sample.values) for key, sample in samples.items()}
    one, many = CONFIRM_WORKERS
    drawn = steps[one, "drawn"], steps[many, "drawn"]
    print(
        f"\ndrawn epsilons, {ratio(samples[one, 'drawn'], samples[many, 'drawn'])}: p = {p_of_difference(*drawn):.2g}"
    )
    cells = np.stack([[steps[workers, how] for how in HOWS] for workers in CONFIRM_WORKERS])
    interaction, p = p_of_interaction(cells)
    print(f"interaction, a ratio of ratios of geometric means of {math.exp(interaction):.2f}: p = {p:.2g}")


def p_of_difference(one: NDArray[np.float64], many: NDArray[np.float64], resamples: float = PERMUTATIONS) -> float:
    """Two-sided permutation test of a difference of means; exact if `resamples` are infinite."""
    from scipy import stats

    test = stats.permutation_test(
        (one, many), lambda x, y, axis: x.mean(axis) - y.mean(axis), n_resamples=resamples, vectorized=True, rng=0
    )
    return float(test.pvalue)


def p_of_interaction(cells: NDArray[np.float64]) -> tuple[float, float]:
    """The interaction of logarithms `[2, 2, n]` (workers, epsilons, seeds), and its two-sided p.

    The residuals of the additive model are permuted (ter Braak 1992), so effects of workers and of epsilons alone may
    be as large as they like.
    """
    means = cells.mean(-1, keepdims=True)
    additive = means.mean(1, keepdims=True) + means.mean(0, keepdims=True) - means.mean()
    found = contrast(cells)
    random, residuals = np.random.default_rng(0), (cells - additive).ravel()
    shuffled = np.stack([random.permutation(residuals) for _ in range(PERMUTATIONS)]).reshape(-1, *cells.shape)
    return float(found), float((1 + np.sum(np.abs(contrast(additive + shuffled)) >= abs(found))) / (1 + PERMUTATIONS))


def contrast(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """(one - many) with drawn epsilons minus the same with equal ones, of cells `[..., 2, 2, n]`."""
    means = cells.mean(-1)
    difference: NDArray[np.float64] = (means[..., 0, 0] - means[..., 1, 0]) - (means[..., 0, 1] - means[..., 1, 1])
    return difference


def pong_jobs() -> list[Job]:
    """The runs of the third plan: many workers by number and seed, one worker by its epsilon."""
    words = {f"w{n:02d}-s{seed}": ("--workers", str(n), "--seed", str(seed)) for n in (4, 16) for seed in (1, 2)} | {
        f"one-{epsilon}": ("--workers", "1", "--seed", "1", "--exploration", "equal", "--epsilons", epsilon)
        for epsilon in PONG_EPSILONS
    }
    return [Job("one_step_q", "ALE/Pong-v5", name, (*PONG_WORDS, *own)) for name, own in words.items()]


def print_pong(study: Study) -> None:
    """The third plan's outcome: the score of each run, and what one worker has on average."""
    scores = {
        job.name: statistics.fmean(at.score for at in study.rows[str(job)] if at.steps >= PONG_FROM)
        for job in pong_jobs() if str(job) in study.rows
    }  # fmt: skip
    print("\n| run | mean score from 3 to 4 million steps |\n|---|--:|")
    for name, score in scores.items():
        print(f"| {name} | {score:.1f} |")
    if all(f"one-{epsilon}" in scores for epsilon in PONG_EPSILONS):
        average = sum(scores[f"one-{epsilon}"] * share for epsilon, share in PONG_EPSILONS.items())
        print(f"| one worker on average | {average:.1f} |")


def draw_pong(study: Study, path: Path) -> None:
    """The evaluations of the third plan's runs, and the paper's scores after as many steps, in their colours."""
    marks = []
    for i, workers in enumerate(WORKERS):
        name = "one-" if workers == 1 else f"w{workers:02d}-"
        for job in [one for one in pong_jobs() if one.name.startswith(name)]:
            at = study.rows.get(str(job), ())
            x, y = [one.steps / 1e6 for one in at], [one.score for one in at]
            marks.append(Line(x, y, f"C{i}", f"{workers} worker{'s' * (workers > 1)}", width=1.0))
    for i, workers in enumerate(WORKERS):
        name = f"the paper, {workers} thread{'s' * (workers > 1)}"
        marks.append(Line([PONG_STEPS / 1e6], [PONG_PAPER[workers]], f"C{i}", name, "", "*", size=11))
    save_figure(figures.draw([[Panel(marks, "million steps", "score")]], 3.4), path)


def draw(study: Study, chosen: dict[int, Setting], path: Path) -> None:
    """Score over learning rate for each number of workers; the speed-ups by one and by three evaluations."""
    figure, (left, *others) = plt.subplots(
        1, 1 + len(IN_A_ROW), figsize=(15, 4.4), layout="constrained", width_ratios=(1.3, *[1] * len(IN_A_ROW))
    )
    for i, workers in enumerate(WORKERS):
        draw_rates(left, study, workers, f"C{i}")
    left.set_xscale("log")
    left.set_xlabel("learning rate")
    left.set_ylabel("mean of the last three evaluations")
    left.legend(frameon=False, fontsize=8)
    for axes in others[1:]:
        axes.sharey(others[0])
    for axes, in_a_row in zip(others, IN_A_ROW, strict=True):
        for i, how in enumerate(("drawn", "equal")):
            if all(len(study.counted(n, chosen[n], how)) == len(SEEDS) for n in WORKERS):
                draw_speedups(axes, study, chosen, how, in_a_row, f"C{3 + i}")
        axes.axhline(1.0, color="0.5", linewidth=1, linestyle=":")
        axes.set_xticks(range(len(SCORES)), [f"score {score:g}" for score in SCORES])
        axes.set_title(f"{in_a_row} evaluation{'s in a row' * (in_a_row > 1)}", fontsize=10)
    others[0].set_ylabel("data speed-up over one worker")
    others[0].legend(frameon=False, fontsize=8)
    for axes in (left, *others):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def draw_rates(axes: Axes, study: Study, workers: int, colour: str) -> None:
    """A line per length of exploration: means over seeds, and the seeds."""
    for steps, style in zip(EXPLORATIONS, ("-", "--"), strict=True):
        runs = {rate: study.tuning(workers, Setting(rate, steps)) for rate in study.rates(workers)}
        scores = {rate: last_scores(own) for rate, own in runs.items() if own}
        label = f"{workers} worker{'s' * (workers > 1)}, exploration {steps:,}"
        axes.plot(list(scores), [statistics.fmean(own) for own in scores.values()], style, color=colour, label=label)
        for rate, own in scores.items():
            axes.plot([rate] * len(own), own, ".", color=colour, alpha=0.4)


def draw_speedups(axes: Axes, study: Study, chosen: dict[int, Setting], how: str, in_a_row: int, colour: str) -> None:
    """Points with intervals: 4 and 16 workers beside each other."""
    for place, score in enumerate(SCORES):
        for workers, estimate in speedups(study, chosen, how, score, in_a_row).items():
            at = place + {4: -0.1, 16: 0.1}[workers] + (0.04 if how == "equal" else 0.0)
            axes.plot([at, at], [estimate.low, estimate.high], color=colour)
            label = f"{workers} workers, {how} epsilons" if place == 0 else None
            axes.plot(at, estimate.value, {4: "o", 16: "s"}[workers], color=colour, label=label)


def main() -> None:
    """Make the runs that are asked for, then print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the runs are")
    parser.add_argument("file", type=Path, help="CSV file of all evaluations")
    parser.add_argument("--tune", action="store_true", help="make the tuning runs that are missing")
    parser.add_argument("--count", action="store_true", help="make the counted runs that are missing")
    parser.add_argument("--confirm", action="store_true", help="the second plan: make its missing runs, and test")
    parser.add_argument("--pong", action="store_true", help="the third plan: make its missing runs, and show")
    parser.add_argument("--exploration", choices=HOWS, default="drawn", help="of the counted runs")
    parser.add_argument("--method", choices=("one_step_q", "one_step_sarsa"), default="one_step_q")
    parser.add_argument("--env-id", default="MinAtar/Breakout-v0")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one per core")
    parser.add_argument("--figure", type=Path, help="draw it here")
    arguments = parser.parse_args()
    study = Study(arguments.folder, arguments.file, arguments.method, arguments.env_id)
    study.read()
    slots = arguments.jobs or len(usable_cores())

    if arguments.pong:
        study.make(pong_jobs(), slots)
        print_pong(study)
        if arguments.figure:
            draw_pong(study, arguments.figure)
        return
    if arguments.confirm:
        study.make(confirm_jobs(study), slots)
        print_confirmation(study)
        return
    if arguments.tune:
        jobs = [
            study.job(n, setting, seed, TUNING_STEPS, "drawn")
            for seed in TUNING_SEEDS for n in WORKERS for setting in study.settings(n)
        ]  # fmt: skip
        study.make(jobs, slots)
    chosen = {n: best for n in WORKERS if (best := study.best(study.settings(n), n)) is not None}
    if arguments.count:
        if len(chosen) < len(WORKERS):
            parser.error("tuning runs are missing: --tune makes them")
        jobs = [study.job(n, chosen[n], seed, STEPS, arguments.exploration) for seed in SEEDS for n in WORKERS]
        study.make(jobs, slots)
    print_tuning(study)
    if len(chosen) == len(WORKERS):
        for how in HOWS:
            if any(study.counted(n, chosen[n], how) for n in WORKERS):
                print_counted(study, chosen, how)
        if all(study.counted(n, chosen[n], how) for n in WORKERS for how in HOWS):
            print_tests(study, chosen)
    if arguments.figure:
        if len(chosen) < len(WORKERS):
            parser.error("tuning runs are missing: --tune makes them")
        draw(study, chosen, arguments.figure)


if __name__ == "__main__":
    main()
