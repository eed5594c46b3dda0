"""From records to throughput, data and time, and the laws of scaling, with numbers that can be checked by eye."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.studies.documents import write_csv, write_runs
from asyncrl.studies.measure import Evaluation, Measurement, measure_all
from asyncrl.studies.speedup import MEAN, Law, Point, choose_reference, fit_law, make_points, table_row
from asyncrl.studies.speedup_report import SpeedupResults, draw_time_split, summary
from asyncrl.studies.study import Cell, Reference
from tests.studies.made_up import make_study

CELL = Cell("a3c", "", "Catch", "local", 1, 1)
RANKS = ("collective",)


def find(points: list[Point], algorithm: str, env_id: str, backend: str, workers: int) -> Point:
    """The one point of that description."""
    (point,) = [
        p
        for p in points
        if (p.series.algorithm, p.env_id, p.backend, p.workers) == (algorithm, env_id, backend, workers)
    ]
    return point


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def values(point: Point) -> dict[str, float]:
    """The speed-ups without their intervals."""
    return {kind: estimate.value for kind, estimate in point.speedups.items()}


def test_the_three_speedups_are_kept_apart(tmp_path: Path) -> None:
    """Half the data at 1.5 times the rate is 3 times as fast; the serial backend tells the data only."""
    file = make_study(
        tmp_path,
        reaches=lambda cell: 4000 if cell.workers == 1 else 2000,
        rate=lambda cell: 100.0 if cell.workers == 1 else 150.0,
        workers=(1, 2),
    )
    points = make_points(measure_all(file))

    assert values(find(points, "a3c", "Catch", "local", 2)) == {
        "throughput": pytest.approx(1.5, rel=1e-3),
        "data": 2.0,
        "time": pytest.approx(3.0, rel=1e-3),
    }
    assert values(find(points, "a3c", "Catch", "serial", 2)) == {"data": 2.0}
    assert values(find(points, "a3c", "Catch", "local", 1)) == {"throughput": 1.0, "data": 1.0, "time": 1.0}


def test_the_clock_of_ranks_counts(tmp_path: Path) -> None:
    """A study of the collective backend has all three, and its figures are drawn from it."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0 * cell.workers, ("a3c",), ("Catch",), RANKS)
    runs = measure_all(file)
    points = make_points(runs)

    eight = find(points, "a3c", "Catch", "collective", 8)
    assert values(eight) == {"throughput": pytest.approx(8.0), "data": 1.0, "time": pytest.approx(8.0)}
    assert (eight.is_crowded, find(points, "a3c", "Catch", "collective", 4).is_crowded) == (True, False)
    results = SpeedupResults(runs, points)
    assert (results.clock_backend, results.data_backend) == RANKS * 2
    split = draw_time_split(results)
    assert split is not None
    assert {axes.get_xlabel() for axes in split.axes} == {"ranks"}
    assert "with 4 ranks" in summary(results, results.series[0])["throughput speed-up"]  # with a core for each


def test_the_mean_is_over_environments(tmp_path: Path) -> None:
    """2 in Catch and 4 in CartPole: 3."""
    file = make_study(
        tmp_path,
        reaches=lambda cell: 4000 if cell.workers == 1 else 2000 if cell.env_id == "Catch" else 1000,
        rate=lambda cell: 100.0,
        workers=(1, 2),
        backends=("serial",),
    )

    point = find(make_points(measure_all(file)), "a3c", MEAN, "serial", 2)
    assert values(point) == {"data": 3.0}
    assert (len(point.runs), point.reached) == (6, 6)


def test_censored_runs_are_shown_and_never_dropped(tmp_path: Path) -> None:
    """With 2 workers no run arrives within 10 000 steps: at most 4000 / 10 000, and the table says so."""
    file = make_study(
        tmp_path,
        reaches=lambda cell: 4000 if cell.workers == 1 else 99_999,
        rate=lambda cell: 100.0,
        algorithms=("a3c",),
        env_ids=("Catch",),
        workers=(1, 2),
        backends=("serial",),
    )
    runs = measure_all(file)
    points = make_points(runs)
    write_csv(tmp_path / "table.csv", [table_row(point, 0.0) for point in points])
    write_runs(tmp_path, [("", run) for run in runs])

    row = next(row for row in read(tmp_path / "table.csv") if row["workers"] == "2")
    assert (row["runs"], row["reached"], row["steps_to_reference"]) == ("3", "0", "> 10000")
    assert (row["data_speedup"], row["data_bound"]) == ("0.4", "<=")
    assert row["steps_per_second"] == row["seconds_to_reference"] == ""
    rows = [row for row in read(tmp_path / "runs.csv") if row["workers"] == "2"]
    assert [(row["steps"], row["steps_to_the_score"]) for row in rows] == [("10000", "")] * 3


def test_runs_that_failed_or_are_missing_are_listed_but_measure_nothing(tmp_path: Path) -> None:
    """Of three seeds one failed and one has no folder."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",), ("local",), (1,), seeds=3)
    folders = [file.job(cell).folder(tmp_path) for cell in file.cells]
    (folders[0] / "status.json").write_text('{"state": "failed"}')
    shutil.rmtree(folders[1])
    runs = measure_all(file)
    write_runs(tmp_path, [("", run) for run in runs])

    assert find(make_points(runs), "a3c", "Catch", "local", 1).runs == [runs[2]]
    assert [row["state"] for row in read(tmp_path / "runs.csv")] == ["failed", "not run", "finished"]


def test_replaced_workers_are_told(tmp_path: Path) -> None:
    """They cost time that is not the method's: the number is in runs.csv."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",), ("local",), (1,), seeds=1)
    folder = file.job(file.cells[0]).folder(tmp_path)
    (folder / "status.json").write_text('{"state": "finished", "worker_restarts": [2, 0, 1]}')
    write_runs(tmp_path, [("", run) for run in measure_all(file)])

    assert [row["restarts"] for row in read(tmp_path / "runs.csv")] == ["3"]


def test_more_workers_than_cores_are_marked(tmp_path: Path) -> None:
    """The made-up machine has 4 cores; in the serial backend nobody shares a core."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",))
    points = make_points(measure_all(file))

    assert [find(points, "a3c", "Catch", "local", n).is_crowded for n in (1, 4, 8)] == [False, False, True]
    assert not find(points, "a3c", "Catch", "serial", 8).is_crowded


def test_throughput_is_what_workers_did_while_they_worked(tmp_path: Path) -> None:
    """10 000 steps in 100 seconds; time per step and staleness are sums over the workers' rows."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",), ("local",), (2,), seeds=1)
    (run,) = measure_all(file)

    assert run.throughput == pytest.approx(100.0)
    assert run.phases["act"] == pytest.approx(2 * 2 * 2**0.2 / 10_000)
    assert run.staleness == {1: 180, 2: 20}
    assert run.reach == Evaluation(4000, 40.0, 1.0)
    assert replace(run, reference=Reference(1.5, "")).reach is None


def test_updates_by_learners_are_counted_and_a_bundled_learners_time_is_its_workers(tmp_path: Path) -> None:
    """Its rows are in the worker's file, without steps; another process's learner has a file, and its own time."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",), ("local",), (2,), seeds=1)
    folder = file.job(file.cells[0]).folder(tmp_path)
    with (folder / "worker-01.jsonl").open("a") as records:
        records.write('{"steps": 10000, "seconds": 100, "staleness_counts": {"1": 5}, "time": {"take": 3.0}}\n')
    (folder / "learner.jsonl").write_text(
        '{"steps": 10000, "seconds": 100, "staleness_counts": {"0": 7}, "time": {"take": 50.0}}\n'
    )
    (run,) = measure_all(file)

    assert run.staleness == {0: 7, 1: 185, 2: 20}
    assert run.phases["take"] == pytest.approx(3.0 / 10_000)


def test_one_lucky_evaluation_does_not_reach_a_mean_of_several() -> None:
    """Scores 0 9 0 3 6 6: 6 is reached at once by luck, and by the mean of three evaluations not even at the end."""
    scores = (0.0, 9.0, 0.0, 3.0, 6.0, 6.0)
    curve = tuple(Evaluation(100 * (i + 1), float(i), score) for i, score in enumerate(scores))
    run = Measurement(CELL, "finished", evaluations=curve)

    assert replace(run, reference=Reference(6.0, "")).reach == Evaluation(200, 1.0, 9.0)
    assert [mean.score for mean in run.means(3)] == [3.0, 4.0, 3.0, 5.0]
    assert replace(run, reference=Reference(5.0, "", 3)).reach == Evaluation(600, 5.0, 5.0)
    assert replace(run, reference=Reference(6.0, "", 3)).reach is None
    assert (run.best_score(), run.best_score(3), run.best_score(7)) == (9.0, 5.0, None)
    reference = choose_reference([run], 1.0, 3)
    assert reference is not None
    assert (reference.score, reference.evaluations) == (5.0, 3)


def test_auto_takes_a_fraction_of_the_way_to_the_median_seeds_best() -> None:
    """From -1 to the bests 1, 3 and 100 of three seeds: three quarters of the way from -1 to 3 is 2."""
    runs = [
        Measurement(CELL, "finished", evaluations=(Evaluation(1, 1.0, low), Evaluation(2, 2.0, best)))
        for low, best in ((-1.0, 1.0), (0.0, 3.0), (0.0, 100.0))
    ]

    reference = choose_reference(runs, 0.75)
    assert reference is not None
    assert reference.score == 2.0
    assert "0.75 of the way" in reference.how
    assert choose_reference([replace(runs[0], state="failed")], 0.75) is None


def test_a_reference_is_not_rounded_beyond_what_was_reached() -> None:
    """123.456 would be 123.5."""
    runs = [Measurement(CELL, "finished", evaluations=(Evaluation(1, 1.0, 0.0), Evaluation(2, 2.0, 123.456)))]

    reference = choose_reference(runs, 1.0)
    assert reference is not None
    assert reference.score == 123.456


def test_environments_are_resampled_independently(tmp_path: Path) -> None:
    """The same runs in two of them: the interval of the mean is narrower than that of either."""
    file = make_study(
        tmp_path,
        reaches=lambda cell: 1000 * cell.seed if cell.workers == 1 else 1000,
        rate=lambda cell: 100.0,
        algorithms=("a3c",),
        workers=(1, 2),
        backends=("serial",),
        seeds=9,
    )
    points = make_points(measure_all(file))

    one, other, both = (
        find(points, "a3c", env, "serial", 2).speedups["data"] for env in ("Catch", "CartPole-v1", MEAN)
    )
    assert one.value == other.value == both.value == 5.0
    assert one.resamples != other.resamples
    assert both.high - both.low < min(one.high - one.low, other.high - other.low)


def test_money_is_cores_times_time(tmp_path: Path) -> None:
    """At 0.36 per core and hour: 8 workers on 4 cores for 40 seconds are 4 x 40 x 0.0001."""
    file = make_study(tmp_path, lambda cell: 4000, lambda cell: 100.0, ("a3c",), ("Catch",), ("local",))
    points = make_points(measure_all(file))

    assert find(points, "a3c", "Catch", "local", 8).cost(0.36) == pytest.approx(0.016)
    assert find(points, "a3c", "Catch", "local", 1).cost(0.36) == pytest.approx(0.004)


COUNTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])


def points_of(speedups: Sequence[float], counts: Sequence[float] = tuple(COUNTS)) -> list[tuple[int, float]]:
    """Numbers of workers with their speed-ups."""
    return [(int(n), float(s)) for n, s in zip(counts, speedups, strict=True)]


def test_laws_by_hand() -> None:
    """A tenth is serial: 1 / (0.1 + 0.9 / 4) = 3.0769 with 4 workers; with coherence 4 / (1 + 0.1 * 3 + 0.01 * 12)."""
    four = np.array([4.0])

    assert Law(0.1).speedup(four) == pytest.approx(1 / 0.325)
    assert Law(0.1, 0.01).speedup(four) == pytest.approx(4 / 1.42)


@pytest.mark.parametrize(("contention", "coherence"), [(0.05, 0.002), (0.0, 0.01), (0.2, 0.0), (0.0, 0.0)])
def test_contention_and_coherence_are_recovered(contention: float, coherence: float) -> None:
    """Exactly, also where one of them or both are 0; noise of 3 % moves them little."""
    truth = Law(contention, coherence).speedup(COUNTS)
    noisy = truth * (1 + 0.03 * np.random.default_rng(0).standard_normal(len(COUNTS)))

    assert fit_law(points_of(Law(contention).speedup(COUNTS)), 1).contention == pytest.approx(contention, abs=1e-9)
    for speedups, room in ((truth, 1e-9), (noisy, 0.02)):
        law = fit_law(points_of(speedups), 2)
        assert (law.contention, law.coherence) == (
            pytest.approx(contention, abs=room),
            pytest.approx(coherence, abs=room),
        )


def test_more_than_linear_is_no_negative_contention() -> None:
    """The paper's one-step Q-learning: the laws can say no more than "ideal"."""
    assert fit_law(points_of([1.0, 3.0, 6.3, 13.3, 24.1], [1, 2, 4, 8, 16]), 2) == Law(0.0, 0.0)


def test_two_coefficients_need_two_points() -> None:
    """With 1 and 2 workers only Amdahl's law can be fitted: 2 / 1.6 - 1 = 0.25."""
    two = [(1, 1.0), (2, 1.6)]

    assert fit_law(two, 1).contention == pytest.approx(0.25)
    with pytest.raises(ValueError, match="2 coefficients"):
        fit_law(two, 2)
