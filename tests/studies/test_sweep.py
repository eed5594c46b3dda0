"""Sweeps: the runs they consist of, their table and figure."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncrl.commands.sweep import main, make_plan, understand
from asyncrl.studies.measure import Evaluation, Measurement
from asyncrl.studies.study import Cell, Point
from asyncrl.studies.sweep_report import SweepResults, draw_parallel, draw_scores, final_score

RATES = ("--learning-rates", "4", "log-uniform", "1e-4", "1e-2")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The command lines that --print-jobs prints, as words."""
    assert main([*words, "--print-jobs"]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_jobs_are_printed_as_plain_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two methods, two environments, four rates, two seeds: 32 lines, each with a run name of its own."""
    words = ("--algorithms", "a3c", "one_step_q", "--env-ids", "Catch", "Chain", *RATES, "--seeds", "2")
    lines = printed(capsys, *words, "--runs-dir", str(tmp_path))

    assert len(lines) == 32
    assert {line[4] for line in lines} == {"a3c", "one_step_q"}
    names = {(line[4], line[line.index("--env-id") + 1], line[line.index("--run-name") + 1]) for line in lines}
    assert len(names) == 32
    rates = {line[line.index("--learning-rate") + 1] for line in lines}
    assert len(rates) == 4
    assert all(1e-4 < float(rate) < 1e-2 for rate in rates)


def test_a_larger_sweep_holds_the_runs_of_the_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    """More draws and more seeds: the earlier names are among the later, so that nothing is repeated."""
    few = printed(capsys, "--env-ids", "Catch", *RATES)
    many = printed(capsys, "--env-ids", "Catch", "--learning-rates", "9", *RATES[2:], "--seeds", "3")

    assert len(many) == 27
    assert all(line in many for line in few)


def test_other_settings_are_other_runs() -> None:
    """Also if they do not vary within the sweep: a finished run is never mistaken for another."""

    def names(steps: str) -> set[str]:
        config, axes = understand(["--env-ids", "Catch", "--total-steps", steps], "asyncrl sweep")
        return {cell.run_name for cell in make_plan(config, axes, ()).cells}

    assert names("1000") != names("2000")


@pytest.mark.parametrize("words", [["--env_ids", "Catch", "Chain"], ["--env_id", "Catch"], ["--env-id=Catch"]])
def test_flags_of_the_sweep_may_be_written_otherwise(tmp_path: Path, words: list[str]) -> None:
    """With underscores, or in the singular: they are no settings of runs, whose folders would be others."""
    config, axes = understand([*words, "--runs_dir", str(tmp_path), "--t_max", "5"], "asyncrl sweep")

    assert config.env_ids == (("Catch", "Chain") if "Chain" in words else ("Catch",))
    assert (config.runs_dir, [axis.field for axis in axes]) == (tmp_path, ["t_max"])


def test_a_mistyped_folder_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor reported on."""
    place = tmp_path / "mistyped"

    assert main(["--env-ids", "Catch", *RATES, "--report-only", "--runs-dir", str(place)]) == 2

    assert f"{place} contains no study to report on" in capsys.readouterr().err
    assert not place.exists()


def finish(runs_dir: Path, line: list[str], score: float) -> Path:
    """Make it look as if the run of a printed line had ended with a score."""
    algorithm, env_id = line[4], line[line.index("--env-id") + 1]
    folder = runs_dir / algorithm / env_id / line[line.index("--run-name") + 1]
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": "finished", "steps": 1000}))
    rows = [{"steps": 500, "mean": score + 1}, {"steps": 1000, "mean": score}]
    (folder / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_what_other_machines_wrote_is_collected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three of four runs are there: one table with all four, one figure with three dots and a cross."""
    words = ("--env-ids", "Catch", *RATES, "--runs-dir", str(tmp_path))
    lines = printed(capsys, *words)
    for i, line in enumerate(lines[:3]):
        finish(tmp_path, line, score=float(i))

    assert printed(capsys, *words) == lines[3:]
    assert main([*words, "--report-only"]) == 0

    with open(tmp_path / "report" / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["state"], row["best"], row["final"]) for row in rows] == [
        ("finished", "3", "2"), ("finished", "2", "1"), ("finished", "1", "0"), ("not run", "", ""),
    ]  # fmt: skip
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "report.md", "report.html", "table.csv", "scores.png", "scores.svg", "parallel.png", "parallel.svg",
    }  # fmt: skip
    assert "4 runs (3 finished, 1 not run)" in (tmp_path / "report" / "report.md").read_text()


def test_the_figure_is_the_papers_scatter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A panel per environment, score over a logarithmic learning rate, a dot per run, a colour per method."""
    words = ["--algorithms", "a3c", "n_step_q", "--env-ids", "Catch", "Chain", *RATES]
    config, axes = understand(words, "asyncrl sweep")
    plan = make_plan(config, axes, ())
    runs = [Measurement(cell, "finished", evaluations=(Evaluation(1000, 1.0, 1.0),)) for cell in plan.cells]

    figure = draw_scores(SweepResults(runs, plan.variants))

    assert [panel.get_title() for panel in figure.axes] == ["Catch", "Chain"]
    for panel in figure.axes:
        assert (panel.get_xlabel(), panel.get_xscale()) == ("learning rate", "log")
        assert "raw return" in panel.get_ylabel()
        dots = [line for line in panel.lines if line.get_marker() == "o"]
        assert [len(np.asarray(line.get_xdata())) for line in dots] == [4, 4]
        assert {line.get_linestyle() for line in dots} == {"None"}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A3C", "n-step Q"]
    figure.draw_without_rendering()
    assert all(panel.get_position().height > 0.6 for panel in figure.axes)  # and no empty room below


def test_runs_of_a_sweep_are_evaluated_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every 100 000 steps whatever their length, unless the sweep says something else."""
    for given, expected in (("--t-max", "100000"), ("--evaluation-interval-steps", "7")):
        words = ["--env-ids", "Catch", "--total-steps", "1000", "9000", given, "7", "--runs-dir", str(tmp_path / given)]
        lines = printed(capsys, *words)

        assert [line[line.index("--total-steps") + 1] for line in lines] == ["1000", "9000"]
        assert [line[line.index("--evaluation-interval-steps") + 1] for line in lines] == [expected] * 2
        assert all(line.count("--evaluation-interval-steps") == 1 for line in lines)


@pytest.mark.parametrize(("score", "limits"), [(0.2, (0.0, 0.4)), (0.0, (-1.0, 1.0)), (-21.0, (-42.0, 0.0))])
def test_equal_scores_are_not_magnified(score: float, limits: tuple[float, float]) -> None:
    """The axis has 0 on it; that of a rate is logarithmic, with the rates as they were given."""
    config, axes = understand(["--env-ids", "Catch", "--learning-rates", "1e-4", "1e-3"], "asyncrl sweep")
    plan = make_plan(config, axes, ())
    runs = [Measurement(cell, "finished", evaluations=(Evaluation(1000, 1.0, score),)) for cell in plan.cells]

    (panel,) = draw_scores(SweepResults(runs, plan.variants)).axes

    assert panel.get_ylim() == pytest.approx(limits)
    assert panel.get_xscale() == "log"
    assert [text.get_text() for text in panel.get_xticklabels()] == ["1e-4", "1e-3"]


def made_up(scores: dict[tuple[str, str, int], float], variants: dict[str, Point]) -> SweepResults:
    """Finished runs of A3C with one evaluation each, by variant, environment and seed."""
    cells = {Cell("a3c", variant, env_id, "", 0, seed): score for (variant, env_id, seed), score in scores.items()}
    runs = [Measurement(cell, "finished", evaluations=(Evaluation(9, 1.0, own),)) for cell, own in cells.items()]
    return SweepResults(runs, variants)


def test_seeds_have_their_numbers_where_nothing_else_varies() -> None:
    """Also if there are many, on an axis that is not logarithmic."""
    for seeds in (3, 9):
        figure = draw_scores(made_up({("x", "Catch", seed): 1.0 for seed in range(1, seeds + 1)}, {"x": {}}))
        (panel,) = figure.axes
        figure.draw_without_rendering()

        assert (panel.get_xlabel(), panel.get_xscale()) == ("seed", "linear")
        assert panel.get_xlim()[0] > 0
        if seeds == 3:
            assert [text.get_text() for text in panel.get_xticklabels()] == ["1", "2", "3"]


def test_many_environments_are_in_rows() -> None:
    """Three abreast."""
    figure = draw_scores(made_up({("x", f"Env{i}", 1): 1.0 for i in range(4)}, {"x": {}}))

    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == ["Env0", "Env1", "Env2", "Env3"]
    assert len({round(panel.get_position().y0, 3) for panel in shown}) == 2


def test_equal_scores_are_all_best() -> None:
    """Lines of parallel coordinates end at the top, where their score is written."""
    variants: dict[str, Point] = {name: {"t_max": name} for name in ("1", "2", "3")}
    (panel,) = draw_parallel(made_up({(name, "Catch", 1): 500.0 for name in variants}, variants)).axes

    lines = [line for line in panel.lines if len(np.asarray(line.get_xdata())) == 2 and line.get_alpha() == 0.8]
    assert [np.asarray(line.get_ydata())[-1] for line in lines] == [1.0] * 3


def test_a_run_that_was_stopped_has_no_final_score() -> None:
    """Its last evaluation is not of a whole training."""
    stopped = Measurement(Cell("a3c", "", "Catch", "", 0, 1), "stopped", evaluations=(Evaluation(500, 1.0, 3.0),))

    assert (stopped.best_score(), final_score(stopped)) == (3.0, None)
    assert final_score(replace(stopped, state="finished")) == 3.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-ids", "Catch", "--t-max", "5", "0"], "--t-max must be at least 1"),
        (["--env-ids", "Nowhere-v0"], "Nowhere"),
        (["--algorithms", "ppo", "--env-ids", "Catch", "--learner-device", "cuda:77"], "cuda:77"),
    ],
)
def test_jobs_that_this_machine_would_refuse_are_printed_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Another machine may have what they need."""
    assert main([*words, "--print-jobs", "--runs-dir", str(tmp_path)]) == 0

    captured = capfd.readouterr()
    assert "would be refused here: " in captured.err
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert len(captured.out.splitlines()) == (2 if "--t-max" in words else 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-ids", "Catch", "--learning-rat", "1"], "there is no --learning-rat"),
        (["--env-ids", "Catch", "--seed", "1", "2"], "--seed is set by the study itself"),
        (["--env-ids", "Catch", "--t-max", "5", "0"], "--t-max must be at least 1"),
        (["--env-ids", "Catch", "--t-max", "5", "--t-maxs", "6"], "--t-max is given twice"),
        (["--algorithms", "a4c"], "a4c"),
        (["--algorithms"], "--algorithms needs at least one value and none twice"),
        (["--algorithms", "a3c", "a3c"], "--algorithms needs at least one value and none twice"),
        (["--env-kwargs", "name=it's"], '--env-kwargs cannot be split into words at "name=it\'s"'),
        (["Catch"], "unexpected word 'Catch'"),
        (["--env-id", "Catch", "--env-ids", "Chain"], "--env-ids is given twice"),
        (["--algorithms", "one_step_q", "--double-q", "perhaps"], "--double-q takes True or False, got 'perhaps'"),
    ],
)
def test_mistakes_are_one_line_before_any_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Exit code 2, and no run has been made."""
    assert main([*words, "--runs-dir", str(tmp_path)]) == 2

    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*/*/*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_runs_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rates; given again with three, one more run is made."""
    words = ["--env-ids", "Catch", "--total-steps", "500", "--backend", "serial", "--workers", "1"]
    words += ["--evaluation-episodes", "2", "--runs-dir", str(tmp_path), "--learning-rates", "1e-3", "1e-2"]

    assert main(words) == 0
    assert "2 runs, 0 of them already finished" in capsys.readouterr().out
    assert main([*words, "1e-1"]) == 0
    assert "3 runs, 2 of them already finished" in capsys.readouterr().out

    with open(tmp_path / "report" / "table.csv", newline="") as file:
        found = {(row["learning_rate"], row["state"]) for row in csv.DictReader(file)}
    assert found == {(rate, "finished") for rate in ("1e-3", "1e-2", "1e-1")}
