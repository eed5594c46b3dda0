"""Learning curves, from records to a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from asyncrl.commands.plot import main
from asyncrl.core.errors import UsageError
from asyncrl.plots import curves
from asyncrl.plots.curves import RunData, draw_curves, label_curves, read_references
from asyncrl.plots.figures import Line, Panel, draw, save_figure, unit_of


def make_run(folder: Path, scores: list[float], **settings: Any) -> Path:
    """A run folder with evaluations every 100 000 steps and 60 seconds."""
    folder.mkdir(parents=True)
    config = {"env_id": "Catch", "workers": 2, "seed": 1, "run_name": folder.name} | settings
    (folder / "config.json").write_text(json.dumps({"algorithm": "asyncrl.a3c", "config": config}))
    rows = [
        {"steps": 100_000 * i, "frames": 400_000 * i, "seconds": 60.0 * i, "mean": score, "returns": [score]}
        for i, score in enumerate(scores)
    ]
    (folder / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_curves_are_named_by_what_differs(tmp_path: Path) -> None:
    """Seeds of one setting share a name; what is equal in all is not told."""
    runs = [
        make_run(tmp_path / name, [0.0, 1.0], workers=workers, seed=seed)
        for name, workers, seed in (("a", 2, 1), ("b", 2, 2), ("c", 4, 1))
    ]

    assert label_curves([RunData(run) for run in runs]) == ["workers 2", "workers 2", "workers 4"]


def test_settings_that_change_no_result_tell_no_runs_apart(tmp_path: Path) -> None:
    """Three seeds, one of them tracked and watched less closely."""
    runs = [make_run(tmp_path / f"{seed}", [0.0], seed=seed, track="", hang_seconds=60.0) for seed in (1, 2)]
    runs.append(make_run(tmp_path / "3", [0.0], seed=3, track="wandb", track_project="x", hang_seconds=600.0))

    assert len(set(label_curves([RunData(run) for run in runs]))) == 1


def test_settings_that_differ_together_are_told_once(tmp_path: Path) -> None:
    """Two methods with defaults of their own: the method's name says it all."""
    runs = [
        make_run(tmp_path / algorithm, [0.0, 1.0], t_max=t_max, learning_rate=t_max / 10)
        for algorithm, t_max in (("a", 5), ("b", 8))
    ]
    for run, algorithm in zip(runs, ("asyncrl.a3c", "asyncrl.n_step_q"), strict=True):
        stored = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(stored | {"algorithm": algorithm}))

    assert label_curves([RunData(run) for run in runs]) == ["a3c", "n_step_q"]


def test_curves_of_another_program_do_not_hide_what_differs(tmp_path: Path) -> None:
    """It has none of the settings: only its name tells, and the others are told apart as if it were not there."""
    runs = [make_run(tmp_path / str(workers), [0.0, 1.0], workers=workers) for workers in (2, 4)]
    other = make_run(tmp_path / "other", [0.0, 1.0])
    (other / "config.json").write_text(json.dumps({"algorithm": "Other", "config": {"env_id": "Catch", "seed": 1}}))

    labels = label_curves([RunData(run) for run in (*runs, other)])

    assert labels == ["a3c, workers 2", "a3c, workers 4", "Other"]


def test_settings_of_hosts_tell_only_runs_with_hosts_apart(tmp_path: Path) -> None:
    """Two seeds of the local backend, made with different defaults, are one setting; two on hosts are two."""
    settings = [{"backend": "local"}, {"backend": "ray"}]
    local, on_hosts = (
        [
            RunData(make_run(tmp_path / f"{own['backend']}-{updates}", [0.0], exchange_updates=updates, **own))
            for updates in (4, 32)
        ]
        for own in settings
    )

    assert len(set(label_curves(local))) == 1
    assert label_curves(on_hosts) == ["exchange_updates 4", "exchange_updates 32"]


@pytest.mark.parametrize(
    ("axis", "label", "last"),
    [("steps", "agent steps, all workers (thousands)", 200.0), ("minutes", "wall clock (minutes)", 2.0)],
)
def test_axes_have_units_and_the_recorded_points(tmp_path: Path, axis: str, label: str, last: float) -> None:
    """Three evaluations: the line has them, in the unit the label names."""
    figure = draw_curves([RunData(make_run(tmp_path / "run", [0.0, 0.5, 1.0]))], axis)

    (axes,) = figure.axes
    assert axes.get_xlabel() == label
    assert "raw return" in axes.get_ylabel()
    assert list(axes.lines[0].get_xdata())[-1] == last
    assert list(axes.lines[0].get_ydata()) == [0.0, 0.5, 1.0]
    save_figure(figure, tmp_path / "figure.png")


def test_seeds_share_a_colour_and_one_legend_entry(tmp_path: Path) -> None:
    """Two runs that differ in their seed only."""
    curves = [RunData(make_run(tmp_path / str(seed), [0.0, 1.0], seed=seed)) for seed in (1, 2)]

    figure = draw_curves(curves)

    (axes,) = figure.axes
    assert len({line.get_color() for line in axes.lines}) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a3c, 2 workers (2 seeds)"]
    save_figure(figure, tmp_path / "figure.svg")


def test_the_strong_line_is_the_median_as_far_as_all_seeds_go(tmp_path: Path) -> None:
    """Three seeds, one of them shorter: medians of (0, 2, 4), (1, 3, 8); the band from 0 to 4 and from 1 to 8."""
    scores = ([0.0, 1.0], [2.0, 8.0, 9.0], [4.0, 3.0, 5.0])
    curves = [RunData(make_run(tmp_path / str(i), part, seed=i)) for i, part in enumerate(scores)]

    figure = draw_curves(curves)

    (axes,) = figure.axes
    median = next(line for line in axes.lines if "3 seeds" in str(line.get_label()))
    assert list(median.get_xdata()) == [0.0, 100.0]
    assert list(median.get_ydata()) == [2.0, 3.0]
    (band,) = axes.collections
    assert {(0.0, 0.0), (0.0, 4.0), (100.0, 1.0), (100.0, 8.0)} <= {tuple(p) for p in band.get_paths()[0].vertices}
    save_figure(figure, tmp_path / "figure.png")


def test_a_run_that_was_resumed_goes_on_from_there(tmp_path: Path) -> None:
    """It was killed at 450 steps, after its checkpoint at 200; the best evaluation is still the run's best."""
    folder = make_run(tmp_path / "run", [])
    steps = {100: 1, 200: 2, 300: 3, 400: 9} | {210: -10, 310: -9, 410: -8}
    rows = [{"steps": at, "seconds": at / 10, "mean": score} for at, score in steps.items()]
    (folder / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    run = RunData(folder)
    (line,) = draw_curves([run]).axes[0].lines

    assert list(line.get_xdata()) == pytest.approx([0.1, 0.2, 0.21, 0.31, 0.41])
    assert list(line.get_ydata()) == [1, 2, -10, -9, -8]
    assert run.best == 9


def test_a_run_that_is_named_twice_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is named: it is not two seeds."""
    run = make_run(tmp_path / "run", [0.0, 1.0])
    (tmp_path / "link").symlink_to(run)
    drawn: list[int] = []
    monkeypatch.setattr(curves, "draw_curves", lambda runs, *more: drawn.append(len(runs)) or Figure())

    assert main([str(run), f"{run}/../run/", str(tmp_path / "link"), "--out", str(tmp_path / "out.png")]) == 0

    assert drawn == [1]


@pytest.mark.parametrize(("count", "length", "columns"), [(2, 3, 2), (5, 10, 5), (4, 24, 3), (40, 24, 3), (256, 70, 1)])
def test_a_legend_is_as_wide_as_the_figure_which_grows_with_it(count: int, length: int, columns: int) -> None:
    """The panel keeps its height; a legend of two rows has room anyway."""
    lines = [Line([0, 1], [0, i], "C0", f"{i:0{length}}") for i in range(count)]
    figure = draw([[Panel(lines, "x", "y")]], 4.0, 8.0)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()

    assert len({round(text.get_window_extent().x0) for text in figure.legends[0].get_texts()}) == columns
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    panel = figure.axes[0].get_window_extent()
    assert panel.y0 > box.y1
    assert panel.height / figure.dpi > 3.7
    assert figure.get_figheight() == 4.9 or count > 5


def test_references_lie_on_the_same_axis(tmp_path: Path) -> None:
    """Steps in thousands like the runs'; two labels, two lines, of which one has a single point, which is drawn."""
    file = tmp_path / "others.csv"
    file.write_text("label,steps,score\nthey,0,1\nthey,100000,5\nothers,0,2\n", encoding="utf-8-sig")
    curve = RunData(make_run(tmp_path / "run", [0.0, 1.0]))

    figure = draw_curves([curve], references=read_references(file))

    (axes,) = figure.axes
    lines = {str(line.get_label()): line for line in axes.lines}
    assert list(lines["they"].get_xdata()) == [0.0, 100.0]
    assert list(lines["they"].get_ydata()) == [1.0, 5.0]
    assert [lines[name].get_marker() for name in ("they", "others")] == ["", "o"]
    save_figure(figure, tmp_path / "figure.png")
    assert [one.points for one in read_references(file, "steps", until=50_000)] == [[(0.0, 1.0)], [(0.0, 2.0)]]


def test_large_counts_are_in_millions() -> None:
    """Millions from a million on, minutes from two minutes on."""
    assert unit_of("steps", 2e6) == ("millions", 1e6)
    assert unit_of("steps", 2e5) == ("thousands", 1e3)
    assert unit_of("minutes", 2e6) == ("minutes", 60.0)
    assert unit_of("minutes", 100.0) == ("seconds", 1.0)


def test_the_command_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A PNG with something in it, whose path is printed."""
    run = make_run(tmp_path / "run", [0.0, 1.0])

    assert main([str(run), "--x", "frames", "--out", str(tmp_path / "sub" / "out.png")]) == 0

    assert capsys.readouterr().out.strip() == str(tmp_path / "sub" / "out.png")
    picture = imread(tmp_path / "sub" / "out.png")
    assert picture.shape[0] > 300
    assert float(picture.std()) > 0.01


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{tmp}/nowhere"], "is not a run: no such folder"),
        (["{tmp}/empty", "{tmp}/empty"], "none of these runs has an evaluation yet"),
        (["{tmp}/run", "{tmp}/empty", "{tmp}/nowhere"], "is not a run: no such folder"),
        (["{tmp}/run", "--x", "hours"], "--x takes steps, frames or minutes, got 'hours'"),
        (["{tmp}/run", "--out", "{tmp}/out.abc"], "cannot write"),
        (["{tmp}/run", "--out", "."], "cannot write .: name a file"),
        (["{tmp}/run", "--out", ""], "cannot write .: name a file"),
        (["{tmp}/run", "--out", "/"], "cannot write /: name a file"),
        (["{tmp}/run", "--out", "{tmp}/.."], "/..: name a file"),
        (["{tmp}/odd"], "evaluator.jsonl: Is a directory"),
        (["{tmp}/run", "--reference", "{tmp}/none.csv"], "none.csv cannot be read: No such file or directory"),
        (["{tmp}/run", "--reference", "{tmp}/empty.csv"], "has no rows"),
        (["{tmp}/run", "--reference", "{tmp}/words.csv"], "is not a file of reference curves"),
        (["{tmp}/run", "--x", "minutes", "--reference", "{tmp}/steps.csv"], "the reference they has no minutes"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Exit code 2 and what is wrong."""
    make_run(tmp_path / "run", [0.0, 1.0])
    make_run(tmp_path / "empty", [])
    (make_run(tmp_path / "odd", []) / "evaluator.jsonl").unlink()
    (tmp_path / "odd" / "evaluator.jsonl").mkdir()
    (tmp_path / "empty.csv").write_text("label,steps,score\n")
    (tmp_path / "words.csv").write_text("label,steps,score\nthey,many,5\n")
    (tmp_path / "steps.csv").write_text("label,steps,score\nthey,1,5\n")

    assert main([word.format(tmp=tmp_path) for word in words]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_without_evaluations_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each: `plot runs/a3c/CartPole-v1/*` must not wait for the run that has just begun."""
    runs = [make_run(tmp_path / "a", [0.0, 1.0]), make_run(tmp_path / "b", []), make_run(tmp_path / "c", [1.0])]

    assert main([*map(str, runs), "--out", str(tmp_path / "out.png")]) == 0

    out, error = capsys.readouterr()
    assert out == f"{tmp_path / 'out.png'}\n"
    assert error == f"skipped: {runs[1]} has no evaluations yet\n"
    assert imread(tmp_path / "out.png").shape[0] > 300


def test_a_run_whose_config_is_torn_is_refused(tmp_path: Path) -> None:
    """Rather than a traceback."""
    run = make_run(tmp_path / "run", [1.0])
    (run / "config.json").write_text("{")

    with pytest.raises(UsageError, match=r"config\.json cannot be read"):
        RunData(run)


def test_what_is_no_run_of_ours_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a figure without a suffix has the name that is told."""
    run = make_run(tmp_path / "run", [0.0, 1.0])
    assert main([str(run), "--out", str(tmp_path / "curves")]) == 0
    assert Path(capsys.readouterr().out.strip()).stat().st_size > 1000
    (run / "config.json").write_text(json.dumps({"algorithm": "a3c", "config": {}}))

    assert main([str(run), "--out", str(tmp_path / "curves")]) == 2

    assert "the records of these runs cannot be shown: " in capsys.readouterr().err


def test_a_figure_needs_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    """One line."""
    assert main([]) == 2
    assert capfd.readouterr().err == "asyncrl plot: error: give the folder of at least one run\n"
