"""Races: what is refused, what is compared, and what the report makes of it."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from asyncrl.commands import speedup
from asyncrl.commands.race import main
from asyncrl.core.errors import UsageError
from asyncrl.plots.figures import Panel
from asyncrl.studies import race
from asyncrl.studies.documents import time_text
from asyncrl.studies.measure import Measurement, measure, measure_all
from asyncrl.studies.race import Result, equal_time, mean_places, merits_of, names_of, rank, write_report
from asyncrl.studies.study import Cell, Reference, Settings, Study, StudyPlan

ENV = "Catch"
REFUSED = [
    (["--algorithms", "a3c", "a3c"], "--algorithms needs at least one value and none twice"),
    (["--algorithms", "a3c", "a3c@local"], "--algorithms needs at least one value and none twice"),
    (["--algorithms", "a4c"], "--algorithms: there is no algorithm 'a4c'"),
    (["--algorithms", "a3c@moon"], "a3c Catch moon"),
    (["--algorithms", "impala@collective"], "impala Catch collective"),
    (["--scores", "high"], "--scores takes numbers or none, got high"),
    (["--scores", "nan"], "--scores takes numbers or none, got nan"),
    (["--scores", "1", "2"], "--scores takes one value, or one for each of the 1 environments"),
    (["--seeds", "0"], "--seeds must be at least 1"),
    (["--max-minutes", "-1"], "--max-minutes and --total-steps must not be negative"),
    (["--", "--workers", "3"], "--workers is set by the study itself"),
    (["--", "--config", "mine.toml"], "the study would override settings of --config: give the other ones as flags"),
    (["--", "--no-such-flag"], "a3c Catch local"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_a_mistake_is_one_line_and_no_run_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Whatever is wrong is found before the first run."""
    given = ["--env-ids", ENV, "--runs-dir", str(tmp_path / "race")]
    given += [] if "--algorithms" in words else ["--algorithms", "a3c"]

    assert main([*given, *words]) == 2

    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("asyncrl race: error: ")
    assert said in lines[-1]
    assert not list((tmp_path / "race").glob("*/*/*"))


def made_up(runs_dir: Path, score: float | None = 1.0, env_ids: Sequence[str] = (ENV,)) -> Study:
    """PPO reaches 1 after 1, 2 and 3 minutes; A3C after 4, with two runs of 5 minutes that never do."""
    runs_dir.mkdir()
    file = Study(runs_dir, "race")
    cells = [
        Cell(algorithm, "", env_id, "local", 0, seed)
        for seed in (1, 2, 3)
        for env_id in env_ids
        for algorithm in ("a3c", "ppo")
    ]
    settings = Settings(0, 300.0, 0, 10, score is not None, (), 2, "greedy", score)
    file.add(StudyPlan("python -m asyncrl race", dict.fromkeys(env_ids, settings), cells))
    file.save()
    minutes = {("ppo", 1): 1, ("ppo", 2): 2, ("ppo", 3): 3, ("a3c", 1): 4}
    for cell in cells:
        at = minutes.get((cell.algorithm, cell.seed))
        folder = file.folder(cell)
        folder.mkdir(parents=True)
        (folder / "status.json").write_text(json.dumps({"state": "finished"}))
        (folder / "host.json").write_text(json.dumps({"cores_usable": 2}))
        (folder / "config.json").write_text(json.dumps({"algorithm": f"asyncrl.{cell.algorithm}", "config": {}}))
        rows = [
            {"steps": 6000 * m, "seconds": 60.0 * m, "mean": 1.0 if m == at else 0.25, "cpu_share": 0.0}
            for m in range(1, (at or 5) + 1)
        ]
        (folder / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        work = {"steps": rows[-1]["steps"], "seconds": rows[-1]["seconds"], "worker_steps": 1, "time": {}}
        (folder / "worker-00.jsonl").write_text(json.dumps(work) + "\n")
    return file


def reported(folder: Path, score: float | None) -> Study:
    """A race with its report."""
    file = made_up(folder / "race", score)
    write_report(file, lambda said: None)
    return file


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A race to a score of 1, which the tests only read."""
    return reported(tmp_path_factory.mktemp("scored"), 1.0)


@pytest.fixture(scope="module")
def unscored(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same without a score to reach."""
    return reported(tmp_path_factory.mktemp("unscored"), None)


def text_of(file: Study) -> str:
    """Its report."""
    return (file.runs_dir / "report" / "report.md").read_text()


def ranked(file: Study) -> list[Result]:
    """The results in the first environment."""
    named = list(zip(names_of(file.cells), measure_all(file), strict=True))
    return rank(named, ENV)


def test_the_soonest_median_is_first_and_a_run_that_never_arrived_is_not_left_out(scored: Study) -> None:
    """Two of A3C's three runs are censored, so its median is only known to be more than what they had."""
    ppo, a3c = ranked(scored)

    assert (ppo.name, ppo.reached, ppo.seconds.median, ppo.steps.median) == ("PPO", 3, 120.0, 12_000.0)
    assert ppo.core_seconds.median == 240.0
    assert (a3c.name, a3c.reached) == ("A3C", 1)
    assert a3c.seconds.median == float("inf")
    assert a3c.seconds.bound == 300.0


def test_the_report_has_a_table_all_runs_and_the_pictures(tmp_path: Path) -> None:
    """The table in words, every run in the CSV file."""
    file = made_up(tmp_path / "race")
    said: list[str] = []

    report = write_report(file, said.append)

    text = report.read_text()
    assert (
        "| PPO | 3 of 3 | 2.0 (1.0, 2.0, 3.0) | 12,000 (6,000, 12,000, 18,000) | 4.0 (2.0, 4.0, 6.0) | 100 | 1 |"
        in text
    )
    assert "| A3C | 1 of 3 | > 5.0 (4.0, > 5.0, > 5.0) | > 30,000 (24,000, > 30,000, > 30,000) |" in text
    assert said[0].splitlines()[0] == "Catch to 1"
    pictures = {path.name for path in report.parent.glob("*.png")}
    assert pictures == {"Catch-curves.png", "Catch-arrivals.png", "profiles.png"}
    with open(report.parent / "runs.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["entrant"], row["seed"], row["steps_to_the_score"]) for row in rows] == [
        ("A3C", "1", "24000"), ("PPO", "1", "6000"), ("A3C", "2", ""),
        ("PPO", "2", "12000"), ("A3C", "3", ""), ("PPO", "3", "18000"),
    ]  # fmt: skip


def test_the_learning_curves_are_written_as_a_table(scored: Study) -> None:
    """PPO with seed 2 has 0.25 after a minute and reaches 1 after two."""
    with open(scored.runs_dir / "report" / "evaluations.csv", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if (row["entrant"], row["seed"]) == ("PPO", "2")]
    assert [(row["environment"], row["backend"]) for row in rows] == [("Catch", "local")] * 2
    assert [(row["steps"], row["seconds"], row["score"]) for row in rows] == [
        ("6000", "60.0", "0.25"), ("12000", "120.0", "1"),
    ]  # fmt: skip


def test_without_a_score_to_reach_the_last_scores_are_compared(unscored: Study) -> None:
    """No run is censored: each has its mean of the last three evaluations and its whole time.

    PPO's runs end in 1, (0.25 + 1) / 2 and (0.25 + 0.25 + 1) / 3; A3C's in 0.5, 0.25 and 0.25.
    """
    text = text_of(unscored)

    assert "| minutes | steps | core-minutes | steps per second | best score |" in text
    ppo, a3c = text.index("| PPO | 0.625 (0.5, 0.625, 1) |"), text.index("| A3C | 0.25 (0.25, 0.25, 0.5) |")
    assert ppo < a3c
    pictures = {path.name for path in (unscored.runs_dir / "report").glob("*.png")}
    assert pictures == {"Catch-curves.png", "Catch-scores.png", "profiles.png"}


def test_at_equal_time_the_slower_has_what_it_had_then(unscored: Study) -> None:
    """PPO's runs end after 1, 2 and 3 minutes, so A3C is also asked what it had after 3.

    Its first run has its 1 only in the fourth minute, so all three had 0.25.
    """
    ppo, a3c = ranked(unscored)
    text = text_of(unscored)

    assert equal_time([ppo, a3c]) == 180.0
    assert ppo.last_scores(180.0) == ppo.last_scores()
    assert a3c.last_scores(180.0).values == (0.25, 0.25, 0.25)
    assert a3c.last_scores(30.0).values == (-math.inf,) * 3
    assert "| entrant | last score | score after 3.0 minutes | minutes |" in text
    assert "| A3C | 0.25 (0.25, 0.25, 0.5) | 0.25 (0.25, 0.25, 0.25) | 5.0 (" in text


def test_entrants_that_take_equally_long_are_compared_once(scored: Study, unscored: Study) -> None:
    """Nor is there an equal time where a score is to be reached."""
    a3c = ranked(unscored)[1]

    assert equal_time([a3c]) is None
    assert equal_time([]) is None
    assert equal_time(ranked(scored)) is None


@pytest.mark.parametrize(("score", "ppo", "a3c"), [(None, "0.625", "0.25"), (1.0, "2.0", "> 5.0")])
def test_several_environments_are_seen_beside_each_other(
    tmp_path: Path, score: float | None, ppo: str, a3c: str
) -> None:
    """A column of medians each; PPO has no finished run in the second, so there its place is behind A3C's."""
    file = made_up(tmp_path / "race", score, (ENV, "Chain", "Maze"))
    for cell in file.cells:
        if (cell.algorithm, cell.env_id) == ("ppo", "Chain"):
            (file.folder(cell) / "status.json").write_text(json.dumps({"state": "failed"}))

    text = write_report(file, lambda said: None).read_text()

    lines = [line.split(" | ") for line in text.splitlines()]
    titles, *rows = (
        [cell.strip("| ") for cell in line] for line in lines if line[0] in ("| entrant", "| PPO", "| A3C")
    )
    found = {row[0]: dict(zip(titles, row, strict=True)) for row in rows[:2]}
    unit = "" if score is None else " (minutes)"
    medians = {name: [row[f"{env_id}{unit}"] for env_id in (ENV, "Chain", "Maze")] for name, row in found.items()}
    assert medians == {"PPO": [ppo, "", ppo], "A3C": [a3c] * 3}
    assert {name: row["mean rank"] for name, row in found.items()} == {"PPO": "1.3", "A3C": "1.7"}
    assert text.index("## All environments") < text.index("## Catch")
    assert (tmp_path / "race" / "report" / "overview.png").stat().st_size > 0


def test_equal_results_share_their_places(tmp_path: Path) -> None:
    """Both have 0.25 at the end of all runs: nobody is first."""
    file = made_up(tmp_path / "race", score=None)
    for cell in file.cells:
        rows = [{"steps": 6000 * m, "seconds": 60.0 * m, "mean": 0.25, "cpu_share": 0.0} for m in range(1, 4)]
        evaluations = file.folder(cell) / "evaluator.jsonl"
        evaluations.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert set(mean_places([ranked(file)]).values()) == {1.5}


def test_entrants_on_several_backends_are_named_by_them() -> None:
    """On one backend the method's name says it all."""
    cells = [Cell(algorithm, "", ENV, backend, 0, 1) for algorithm, backend in (("a3c", "local"), ("ppo", "local"))]
    assert names_of(cells) == ["A3C", "PPO"]
    assert names_of([*cells, Cell("a3c", "", ENV, "serial", 0, 1)]) == ["A3C, local", "PPO, local", "A3C, serial"]


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    """It would have no width."""
    file = made_up(tmp_path / "race")
    file.cells = [cell for cell in file.cells if cell.seed == 1]

    text = write_report(file, lambda said: None).read_text()

    assert "| PPO | 1 of 1 | 1.0 | 6,000 | 2.0 | 100 | 1 |" in text


def test_one_environment_has_no_overview(scored: Study) -> None:
    """Its own table says it all."""
    assert "All environments" not in text_of(scored)


def test_runs_under_other_conditions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another score in the same folder: nothing of the race changes."""
    made_up(tmp_path / "race")
    before = (tmp_path / "race" / "study.json").read_text()
    words = ["--algorithms", "a2c", "--env-ids", ENV, "--max-minutes", "5", "--workers", "2"]

    assert main([*words, "--scores", "2", "--runs-dir", str(tmp_path / "race")]) == 2

    assert "has Catch with score 1.0, not 2.0: choose another --runs-dir" in capsys.readouterr().err
    assert (tmp_path / "race" / "study.json").read_text() == before


def test_a_race_is_not_reported_on_as_a_study_of_speed_ups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both have the same file."""
    made_up(tmp_path / "race")

    assert speedup.main(["--report-only", "--runs-dir", str(tmp_path / "race")]) == 2

    assert "is a race, not a speedup" in capsys.readouterr().err


def test_a_race_runs_and_the_same_line_repeats_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two algorithms on Catch, each on a backend of its own; the second call finds both finished."""
    words = ["--algorithms", "a3c@serial", "ppo", "--backend", "serial", "--env-ids", ENV, "--scores", "none"]
    words += ["--seeds", "1", "--workers", "2", "--total-steps", "600", "--runs-dir", str(tmp_path)]
    further = ["--", "--evaluation-interval-steps", "300", "--t-max", "8"]

    assert main([*words, *further]) == 0
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/status.json")}
    assert main([*words, *further]) == 0

    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    assert sorted(path.parent.name for path in runs) == ["serial-s1", "serial-s1"]
    assert "2 runs, 2 of them already finished" in capsys.readouterr().out
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| Catch | serial | A3C | 1 |  | finished |" in text
    assert "| Catch | serial | PPO | 1 |  | finished |" in text


@pytest.mark.parametrize(
    ("time", "text"), [(12.34, "12.3"), (1.0, "1.0"), (0.512, "0.51"), (0.00191, "0.0019"), (0.0, "0")]
)
def test_times_keep_two_digits_below_one(time: float, text: str) -> None:
    assert time_text(time) == text


def test_a_short_race_is_told_in_seconds(tmp_path: Path) -> None:
    """The only known median is half a minute: tables and figures have seconds, also for the runs that took longer."""
    file = made_up(tmp_path / "race")
    for cell in file.cells:
        if cell.algorithm == "ppo":
            evaluations = file.folder(cell) / "evaluator.jsonl"
            rows = [{"steps": 6000, "seconds": 30.0, "mean": 1.0, "cpu_share": 0.0}]
            evaluations.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said: list[str] = []

    text = write_report(file, said.append).read_text()

    assert "| entrant | reached | seconds | steps | core-seconds |" in text
    assert "| PPO | 3 of 3 | 30.0 (30.0, 30.0, 30.0) |" in text
    assert "| A3C | 1 of 3 | > 300.0 (240.0, > 300.0, > 300.0) |" in text


def test_all_entrants_are_evaluated_by_one_rule(scored: Study, tmp_path: Path) -> None:
    """The rule is a flag of every run and stands in the report; with `own` each method keeps its default."""
    file = made_up(tmp_path / "race")

    words = [file.job(cell).words for cell in file.cells]
    assert all("--evaluation-policy greedy" in " ".join(own) for own in words)
    assert "means of 10 whole episodes with the best actions." in text_of(scored)
    file.environments[ENV] = replace(file.environments[ENV], evaluation_policy="own")
    assert all("--evaluation-policy" not in file.job(cell).words for cell in file.cells)


def test_runs_are_compared_one_by_one(scored: Study) -> None:
    """PPO's runs are all sooner than A3C's; the worth of a time is that of the soonest run divided by it."""
    results, text = ranked(scored), text_of(scored)

    merits = {result.name: merits_of(result, results) for result in results}
    assert merits == {"PPO": pytest.approx([1.0, 1 / 2, 1 / 3]), "A3C": pytest.approx([1 / 4, 0, 0])}
    assert "| method | runs | interquartile mean | optimality gap | better than A3C | better than PPO |" in text
    assert "| PPO | 3 | 0.61 | 0.39 | 1.00 |  |" in text
    assert "| A3C | 3 | 0.08 | 0.92 |  | 0.00 |" in text


def test_last_scores_are_normalised_by_the_races_own_runs(unscored: Study) -> None:
    """The lowest run of the environment is 0 and the highest 1."""
    results, text = ranked(unscored), text_of(unscored)

    scores = {result.name: result.last_scores().values for result in results}
    lowest, highest = (each(sum(scores.values(), ())) for each in (min, max))
    for result in results:
        expected = [(score - lowest) / (highest - lowest) for score in scores[result.name]]
        assert merits_of(result, results) == pytest.approx(expected)
    assert "| method | runs | interquartile mean | optimality gap |" in text


def test_curves_are_of_finished_runs(tmp_path: Path) -> None:
    """As the tables are: one that failed soon would be held at its first score."""
    file = made_up(tmp_path / "race", score=None)
    for cell in file.cells:
        if cell.seed > 1:
            (file.folder(cell) / "status.json").write_text(json.dumps({"state": "failed"}))
    drawn: dict[str, int] = {}

    def curves(groups: dict[str, list[Measurement]], *more: object, **titles: object) -> Panel:
        drawn.update({name: len(runs) for name, runs in groups.items()})
        return Panel([], "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race, "learning_curves", curves)
        write_report(file, lambda said: None)

    assert drawn == {"A3C": 1, "PPO": 1}


@pytest.mark.parametrize("without", [("a3c",), ("a3c", "ppo")])
def test_runs_without_evaluations_are_not_compared(tmp_path: Path, without: tuple[str, ...]) -> None:
    """They finished, so they are in the tables."""
    file = made_up(tmp_path / "race", score=None)
    for cell in file.cells:
        if cell.algorithm in without:
            (file.folder(cell) / "evaluator.jsonl").unlink()

    text = write_report(file, lambda said: None).read_text()

    assert "Pairwise comparison" not in text
    assert "nan" not in text
    assert "| A3C |" in text


@pytest.mark.parametrize("second", [("mine.a3c", "my_env:Make"), ("a3c", "my_env_Make")])
def test_different_runs_never_share_a_folder(tmp_path: Path, second: tuple[str, str]) -> None:
    """Nothing is added to the race that is there."""
    file = Study(tmp_path, "race")
    first, other = (Cell(*own, "local", 0, 1) for own in (("a3c", "", "my_env:Make"), (second[0], "", second[1])))
    file.add(StudyPlan("one", {first.env_id: Settings()}, [first]))

    with pytest.raises(UsageError, match=r"would share .*: choose another --runs-dir"):
        file.add(StudyPlan("two", {other.env_id: Settings()}, [other]))

    assert (file.cells, file.commands) == ([first], ["one"])


def test_a_run_that_was_resumed_is_measured_as_it_was_made_last(tmp_path: Path) -> None:
    """Killed at 450 steps and resumed from 200: what it made anew counts, but its best checkpoint is the older one."""
    cell = Cell("a3c", "", ENV, "local", 0, 1)
    steps = [100, 200, 300, 400, 210, 310, 410]
    evaluations = [{"steps": at, "seconds": at / 10, "mean": own} for at, own in zip(steps, range(7), strict=True)]
    evaluations[3]["mean"] = 9.0
    work = [{"steps": at, "seconds": at / 10, "worker_steps": 100, "time": {"act": 1.0}} for at in (*steps[:4], 300)]
    for name, rows in (("evaluator.jsonl", evaluations), ("worker-00.jsonl", work)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "status.json").write_text(json.dumps({"state": "finished", "best_score": 9.0}))

    run = measure(cell, tmp_path, Reference(9.0, "given"))

    assert [(each.steps, each.score) for each in run.evaluations] == [(100, 0), (200, 1), (210, 4), (310, 5), (410, 6)]
    assert (run.best_score(), run.best_score(2), run.reach, run.last_score()) == (9.0, 5.5, None, 6.0)
    assert (run.steps, run.seconds) == (300, 30.0)


def test_a_study_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here a folder lies in the place of the file."""
    (tmp_path / "study.json").mkdir()

    assert main(["--report-only", "--runs-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("study.json: Is a directory\n")


def test_help_for_the_runs_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is that of the first method."""
    with pytest.raises(SystemExit):
        main(["--algorithms", "a3c", "--env-ids", ENV, "--runs-dir", str(tmp_path / "race"), "--", "--help"])

    assert "--t-max" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_where_workers_take_turns_steps_decide_and_not_the_clock(tmp_path: Path) -> None:
    """PPO, ahead in seconds, needs ten times the steps that it has in the other races: A3C's best run is the best."""
    file = made_up(tmp_path / "race")
    cells = [replace(cell, backend="serial") for cell in file.cells]
    turned = Study(tmp_path / "turns", "race")
    turned.runs_dir.mkdir()
    turned.add(StudyPlan("python -m asyncrl race", file.environments, cells))
    turned.save()
    for cell, own in zip(file.cells, cells, strict=True):
        shutil.copytree(file.folder(cell), turned.folder(own))
        if own.algorithm == "ppo":
            records = turned.folder(own) / "evaluator.jsonl"
            rows = [json.loads(line) for line in records.read_text().splitlines()]
            records.write_text("".join(json.dumps(row | {"steps": 10 * row["steps"]}) + "\n" for row in rows))
    write_report(turned, lambda said: None)

    results = ranked(turned)
    merits = {result.name: merits_of(result, results) for result in results}
    assert merits == {"PPO": pytest.approx([24 / 60, 24 / 120, 24 / 180]), "A3C": pytest.approx([1.0, 0, 0])}
    assert equal_time(results) is None
    assert "compare steps" in text_of(turned)
