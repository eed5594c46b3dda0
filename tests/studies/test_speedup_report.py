"""Figures and reports of made-up studies: what they say, and that it can be read."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from asyncrl.catalog import ALGORITHMS
from asyncrl.core.statistics import Estimate
from asyncrl.plots.figures import COLOURS, align, colours_of
from asyncrl.studies.measure import measure_all
from asyncrl.studies.speedup import make_points
from asyncrl.studies.speedup_report import FIGURES as DRAWN
from asyncrl.studies.speedup_report import SpeedupResults, draw_laws, draw_speedups, summary, verdict, write_report
from asyncrl.studies.study import Cell, Study
from tests.studies.made_up import make_study

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FIGURES = {
    "speedup", "laws", "reach", "score-steps", "score-time", "staleness", "time-split", "cost",
}  # fmt: skip


def reaches(cell: Cell) -> int:
    """One-step Q needs half the data with eight workers; A3C with eight never arrives."""
    if cell.algorithm == "a3c":
        return 5000 + 100 * cell.seed if cell.workers < 8 else 99_999
    return (8000 + 100 * cell.seed) // (2 if cell.workers == 8 else 1)


def rate(cell: Cell) -> float:
    """A tenth of the work is serial."""
    return 100 / (0.1 + 0.9 / cell.workers)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that has a report."""
    folder = tmp_path_factory.mktemp("study")
    file = make_study(folder, reaches, rate, seeds=5)
    assert write_report(file, 0.05) == folder / "report" / "report.md"
    return folder


def test_a_report_has_everything_as_png_and_svg(runs_dir: Path) -> None:
    """The algorithms, the tables, every figure in both formats, none of them blank."""
    folder = runs_dir / "report"
    names = {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg")}

    assert {path.name for path in folder.iterdir()} == {f"report.{suffix}" for suffix in ("md", "html")} | {
        f"{name}.csv" for name in ("table", "runs", "evaluations")
    } | names
    for name in FIGURES:
        picture = imread(folder / f"{name}.png")
        assert picture.shape[1] >= 1000
        assert float(picture.std()) > 0.02, name


def results_of(file: Study, price_per_core_hour: float = 0.0) -> SpeedupResults:
    """What the report of a study shows."""
    runs = measure_all(file)
    return SpeedupResults(runs, make_points(runs), price_per_core_hour)


def test_the_report_says_what_was_found(runs_dir: Path) -> None:
    """Numbers, verdicts, censoring, cores, how the reference was chosen, and the command."""
    text = (runs_dir / "report" / "report.md").read_text()

    assert "of: A processor, AVX2 kernels, " in text
    assert "local on 4 cores" in text
    assert re.search(r"\| one-step Q \| 1.98 \[.* with 8 workers \(serial\) \| less: superlinear wherever ", text)
    assert re.search(r"\| A3C \| <= 0.5.* with 8 workers \(serial\) \| more, if the score is reached at all \|", text)
    assert " with 4 workers (local) |" in text
    assert "(5 of 5 censored)" in text
    assert "| Catch | A3C | 1.0 | made up | 1 |" in text
    assert "python -m asyncrl speedup" in text
    assert "| 0.100 |" in text
    assert re.search(r"\| wait \(\d+\.\d+ to \d+\.\d+\) \|", text)


def test_the_workers_of_the_collective_backend_are_called_ranks(tmp_path: Path) -> None:
    """In the tables, as on the axes."""
    file = make_study(tmp_path / "study", reaches, rate, ("one_step_q",), ("Catch",), ("collective",), seeds=5)
    results = results_of(file)

    row = summary(results, results.series[0])
    assert row["data speed-up"].endswith(" with 8 ranks (collective)")
    assert row["throughput speed-up"].endswith(" with 4 ranks (collective)")


@pytest.mark.parametrize("seeds", [1, 4])
def test_few_seeds_show_nothing(tmp_path: Path, seeds: int) -> None:
    """They have no interval."""
    file = make_study(tmp_path / "study", reaches, rate, ("one_step_q",), ("Catch",), ("serial",), seeds=seeds)
    results = results_of(file)

    assert summary(results, results.series[0])["data needed"] == "unknown: too few seeds"


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_is_no_ground_for_a_law_or_a_projection(tmp_path: Path, seeds: int) -> None:
    """What was measured is drawn all the same."""
    file = make_study(tmp_path / "study", reaches, rate, ("one_step_q",), seeds=seeds)
    results = results_of(file)

    figure = draw_speedups(results)
    assert figure is not None
    kinds = {axes.get_title().partition(":")[0] for axes in figure.axes if axes.get_visible()}
    assert kinds == {"throughput", "data", "time"} | ({"projection"} if seeds > 1 else set())
    assert (draw_laws(results) is None) == (seeds == 1)
    assert (summary(results, results.series[0])["serial fraction (Amdahl)"] == "") == (seeds == 1)


def test_methods_differ_in_colour() -> None:
    """Each has its own; the same method twice, or a user's algorithm, takes colours in turn."""
    assert len(set(colours_of(list(ALGORITHMS)))) == len(ALGORITHMS)
    assert colours_of(["ppo", "impala"]) == [COLOURS["ppo"], COLOURS["impala"]]
    assert colours_of(["ppo", "ppo", "my_package.my_algorithm"]) == ["C0", "C1", "C2"]


def test_figures_have_units_legends_and_readable_sizes(runs_dir: Path) -> None:
    """Every visible panel is labelled, no text is below 8 points, every figure but the histograms has a legend."""
    results = results_of(Study(runs_dir, "speedup"), 0.05)

    assert set(DRAWN) == FIGURES
    for name, (make, _) in DRAWN.items():
        figure = make(results)
        assert figure is not None
        assert bool(figure.legends) == (name != "staleness")
        labels = " ".join(axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes)
        assert re.search("seconds" if name == "score-time" else "workers|steps|minutes|updates", labels), name
        texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)]
        ticks = [tick for axes in figure.axes for tick in axes.get_xticklabels() + axes.get_yticklabels()]
        assert min(text.get_fontsize() for text in texts + ticks if text.get_text()) >= 8, name


def test_points_with_more_workers_than_cores_are_open(runs_dir: Path) -> None:
    """In the throughput panel: filled up to 4 workers, open with 8."""
    figure = draw_speedups(results_of(Study(runs_dir, "speedup")))

    assert figure is not None
    (axes,) = [axes for axes in figure.axes if axes.get_title().startswith("throughput")]
    faces = {
        round(float(np.asarray(line.get_xdata())[0])): line.get_markerfacecolor()
        for line in axes.lines
        if line.get_marker() == "o"
    }
    assert [faces[count] == "white" for count in (1, 2, 4, 8)] == [False, False, False, True]


def test_a_curve_that_ends_early_keeps_its_last_score() -> None:
    """Points begin where both have begun, at 1, and end where the longer one ends, at 5."""
    x, scores = align([[(0.0, 0.0), (2.0, 4.0)], [(1.0, 1.0), (5.0, 5.0)]])

    assert x.tolist() == [1.0, 2.0, 5.0]
    assert scores.tolist() == [[2.0, 4.0, 4.0], [1.0, 2.0, 5.0]]


class Pictures(html.parser.HTMLParser):
    """Collects where the pictures of an algorithm come from, and whatever else it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.others: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag == "img":
            self.sources.append(found.get("src") or "")
        elif tag in ("link", "script", "iframe") or "src" in found:
            self.others.append(tag)


def test_the_html_report_needs_nothing_beside_it(runs_dir: Path) -> None:
    """Pictures are inside, and nothing else is loaded."""
    algorithm = Pictures()
    algorithm.feed((runs_dir / "report" / "report.html").read_text())

    assert len(algorithm.sources) == len(FIGURES)
    assert all(source.startswith("data:image/png;base64,") for source in algorithm.sources)
    assert algorithm.others == []


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs chromium, chromium-browser or google-chrome on the PATH")
def test_the_html_report_opens_in_a_browser_with_its_figures(runs_dir: Path, tmp_path: Path) -> None:
    """Headless: no error on the console, and every picture has the width of its PNG."""
    algorithm = tmp_path / "report.html"
    probe = "<script>document.title = [...document.images].map(i => i.naturalWidth).join(' ')</script>"
    algorithm.write_text((runs_dir / "report" / "report.html").read_text().replace("</body>", probe + "</body>"))

    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--dump-dom",
            str(algorithm),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    found = re.search(r"<title>([\d ]+)</title>", done.stdout)
    assert found is not None
    widths = [int(width) for width in found[1].split()]
    assert len(widths) == len(FIGURES)
    assert min(widths) >= 1000


@pytest.mark.parametrize(
    ("value", "words"), [(0.5, "more, if the score is reached at all"), (2.4, "unknown: runs ended too early")]
)
def test_an_upper_bound_says_something_only_below_one(value: float, words: str) -> None:
    """Runs that ended before they reached the score, each with fewer steps than one worker's: they may need fewer."""
    assert verdict(Estimate(value, 0.0, value, bound="<=")) == words
