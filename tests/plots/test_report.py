"""One page of HTML about runs."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from asyncrl.commands.report import main
from asyncrl.commands.train import main as train
from asyncrl.plots.charts import histogram, line_chart, thinned
from asyncrl.plots.report import make_page, read_runs, workers
from tests.support import evaluations_of, status_of, the_run

WORDS = ["--env-id", "Catch", "--workers", "2", "--total-steps", "1500", "--backend", "serial", "--quiet"]
WORDS += ["--evaluation-interval-steps", "500", "--evaluation-episodes", "3", "--record-interval-seconds", "0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of three kinds, which the tests only read: workers that learn, a learner, a replay memory."""
    made = []
    for page, more in {
        "a3c": ["--entropy-weights", "0.1", "0.2"],
        "ppo": [],
        "apex": ["--warmup-steps", "200"],
    }.items():
        folder = tmp_path_factory.mktemp("runs")
        assert train(f"asyncrl.{page}", [*WORDS, *more, "--runs-dir", str(folder)]) == 0
        made.append(the_run(folder))
    return made


class Tags(HTMLParser):
    """Which tags are open, and what would be loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.elsewhere += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def section(page: str, title: str) -> str:
    """The text of a section."""
    (found,) = (text for text in page.split("<section>") if text.startswith(f"<h2>{title}</h2>"))
    return found


def test_the_page_is_whole_and_needs_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    """Tags are closed, charts are valid XML, nothing is loaded, and no path of this machine is told."""
    out = tmp_path / "new" / "report.html"
    assert main([*map(str, runs), "--out", str(out)]) == 0

    page = out.read_text()
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.elsewhere) == ([], [])
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) > 8
    for chart in charts:
        ElementTree.fromstring(chart)
    assert "http" not in re.sub(r'xmlns(:xlink)?="http://www.w3.org/[a-z0-9/]*"', "", page)
    assert str(runs[0].parent) not in page


def test_it_says_of_a_run_what_its_records_say(runs: list[Path]) -> None:
    """Its end, each evaluation with the best one marked, and where the time went, which adds up to all of it."""
    page = make_page(read_runs(runs[:1]))
    evaluations, status = evaluations_of(runs[0]), status_of(runs[0])

    assert "a3c on Catch" in page
    assert f"{status['state']}: {status['reason']}" in page
    told = section(page, "Evaluations")
    for row in evaluations:
        assert f">{row['steps']:,}<" in told
    assert f">{max(row['mean'] for row in evaluations):.4g} ★<" in told
    shares = re.findall(r"([\d.]+) %</span>", section(page, "Where the time went"))
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)
    assert "Staleness of workers" in page
    assert "none: no process was lost" in section(page, "Faults")


def test_workers_are_told_apart_by_their_exploration(runs: list[Path]) -> None:
    """With the steps that each of them made."""
    told = section(make_page(read_runs(runs[:1])), "Workers")

    assert "entropy\xa0weight\xa00.1<" in told
    assert "entropy\xa0weight\xa00.2<" in told
    for steps in status_of(runs[0])["worker_steps"]:
        assert f"<td class=n>{steps:,}</td>" in told


def test_runs_stand_side_by_side_by_what_tells_them_apart(runs: list[Path]) -> None:
    """Settings that differ are shown for each, others once; each kind of age has its chart."""
    page = make_page(read_runs(runs), "Three <methods>")

    assert "<h1>Three &lt;methods&gt;</h1>" in page
    differing, same = section(page, "Settings").split("<details>")
    assert "<td>entropy_weights</td>" in differing
    assert "<td>env_id</td>" in same
    ages = section(page, "Staleness of training data")
    assert "Staleness of workers" in ages
    assert "Age of rollouts" in ages
    assert "Age of samples" in ages
    assert "all runs" in section(page, "Machine")


def test_methods_are_compared_run_against_run(runs: list[Path], tmp_path: Path) -> None:
    """Copies with made-up evaluations: PPO's two runs are above A3C's; with one method there is nothing to compare."""
    copies = []
    for number, (page, score) in enumerate((("a3c", 0.0), ("a3c", 1.0), ("ppo", 3.0), ("ppo", 4.0))):
        copies.append(tmp_path / f"{page}-{number}")
        shutil.copytree(runs[("a3c", "ppo").index(page)], copies[-1])
        row = {"steps": 100, "seconds": 1.0, "mean": score, "returns": [score], "lengths": [9]}
        (copies[-1] / "evaluator.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(4)))

    told = section(make_page(read_runs(copies)), "Pairwise comparison")
    assert "<td>a3c</td><td class=n>2</td><td class=n>0.12</td><td class=n>0.88</td><td class=n></td>" in told
    assert "<td>ppo</td><td class=n>2</td><td class=n>0.88</td><td class=n>0.12</td><td class=n>1.00</td>" in told
    assert "Pairwise comparison" not in make_page(read_runs(copies[:2]))


def test_seeds_of_one_method_are_named_by_their_seed(runs: list[Path], tmp_path: Path) -> None:
    """And runs that differ in nothing by their folders."""
    copies = [Path(shutil.copytree(runs[0], tmp_path / name)) for name in ("one", "two")]
    assert [run.name for run in read_runs(copies)] == ["one", "two"]

    stored = json.loads((copies[1] / "config.json").read_text())
    stored["config"]["seed"] = 9
    (copies[1] / "config.json").write_text(json.dumps(stored))
    assert [run.name for run in read_runs(copies)] == ["a3c, seed 1", "a3c, seed 9"]


NASTY = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>'&"


class Built(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, tuple[str, ...]]] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add((tag, tuple(name for name, _ in attributes)))
        self.text += " ".join(value or "" for name, value in attributes if name in ("title", "aria-label"))

    def handle_data(self, data: str) -> None:
        self.text += data


def spoilt(data: dict[str, Any]) -> dict[str, Any]:
    """The same with the nasty text in every text, and as a key."""
    return {key: NASTY if isinstance(value, str) and key != "event" else value for key, value in data.items()} | {
        NASTY: NASTY
    }


def test_nothing_that_a_folder_says_becomes_html(runs: list[Path], tmp_path: Path) -> None:
    """Whichever of its texts, keys and settings is a script; what is no number where one should be is one line."""
    copies = [Path(shutil.copytree(run, tmp_path / run.parent.parent.name)) for run in runs]
    plain = Built(make_page(read_runs(copies)))
    for copy in copies:
        stored = json.loads((copy / "config.json").read_text())
        config = {key: value if key == "workers" else NASTY for key, value in stored["config"].items()}
        environment = spoilt(stored["environment"])
        (copy / "config.json").write_text(
            json.dumps({"algorithm": NASTY, "config": config, "environment": environment})
        )
        status = spoilt(status_of(copy)) | {"traceback": NASTY, "unrecorded": {NASTY: 3}}
        (copy / "status.json").write_text(json.dumps(status))
        (copy / "host.json").write_text(json.dumps(spoilt(json.loads((copy / "host.json").read_text()))))
        for file in copy.glob("*.jsonl"):
            rows = [spoilt(json.loads(line)) | {"time": {NASTY: 1.0}} for line in file.read_text().splitlines()]
            rows = [row | ({"exploration": {NASTY: 1.0}} if "exploration" in row else {}) for row in rows]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with (copy / "supervisor.jsonl").open("a") as opened:
            opened.write(json.dumps({"event": NASTY, "who": NASTY, "cause": NASTY}) + "\n")
            opened.write(json.dumps({"event": "lost", "who": NASTY, "cause": NASTY}) + "\n")

    for some in (copies, copies[:1]):
        page = make_page(read_runs(some), NASTY)
        built = Built(page)
        assert {tag for tag, _ in built.tags} <= {tag for tag, _ in plain.tags} | {"pre"}
        assert not any("onerror" in names or "src" in names for _, names in built.tags)
        assert built.text.count("<script>alert(1)</script>") > 20


def test_records_that_are_no_numbers_are_one_line(
    runs: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback."""
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    (run / "status.json").write_text(json.dumps(status_of(run) | {"steps": NASTY}))

    assert main([str(run), "--out", str(tmp_path / "report.html")]) == 2
    assert capfd.readouterr().err.startswith("asyncrl report: error: the records of these runs cannot be shown: ")
    assert not (tmp_path / "report.html").exists()


def test_a_run_that_was_killed_at_its_start_has_a_page(runs: list[Path], tmp_path: Path) -> None:
    """Nothing but config.json is there."""
    (tmp_path / "run").mkdir()
    shutil.copy(runs[0] / "config.json", tmp_path / "run")

    page = make_page(read_runs([tmp_path / "run"]))
    assert "no status" in page
    assert "none yet" in section(page, "Evaluations")


def test_faults_are_told_with_their_cause(runs: list[Path], tmp_path: Path) -> None:
    """A worker that was replaced, gradients that were dropped, steps that nobody wrote down, a traceback."""
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    status = status_of(run) | {"dropped_gradients": 3, "traceback": "ValueError: <lamp>", "unrecorded": {"steps": 40}}
    (run / "status.json").write_text(json.dumps(status))
    with (run / "supervisor.jsonl").open("a") as file:
        event = {"event": "restarted", "who": 1, "cause": "killed by signal 9", "steps": 700, "seconds": 65.0}
        file.write(json.dumps(event) + "\n")

    told = section(make_page(read_runs([run])), "Faults")
    assert "3 dropped gradients; 40 steps not recorded" in told
    assert "<td>restarted</td><td>1</td><td>killed by signal 9</td><td class=n>700</td><td class=n>1:05</td>" in told
    assert "ValueError: &lt;lamp&gt;" in told


def test_hosts_are_told_as_well(runs: list[Path], tmp_path: Path) -> None:
    """Their losses, and the workers of all of them; --workers are those of one."""
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    shutil.copy(run / "worker-00.jsonl", run / "worker-07.jsonl")
    with (run / "supervisor.jsonl").open("a") as file:
        for event in ({"event": "host_lost", "host": 1}, {"event": "shard_lost", "shard": 0}):
            file.write(json.dumps(event | {"cause": "its machine went down", "steps": 700, "seconds": 65.0}) + "\n")

    (data,) = read_runs([run])
    page = make_page([data])

    assert list(data.workers)[-1] == 7
    assert len(data.workers) == 1 + len(read_runs(runs[:1])[0].workers)
    told = section(page, "Faults")
    assert "<td>host_lost</td><td>host 1</td><td>its machine went down</td>" in told
    assert "<td>shard_lost</td><td>shard 0</td><td>its machine went down</td>" in told


def test_a_run_that_was_resumed_has_what_it_made_last(runs: list[Path], tmp_path: Path) -> None:
    """Killed after 1,200 steps, and made anew from its checkpoint at 501; named twice, it is still one run."""
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    for file in run.glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        killed = [row for row in rows if row.get("steps", 0) <= 1200]
        resumed = [{"event": "resumed", "steps": 501}] if file.stem == "supervisor" else []
        rows = killed + resumed + [row for row in rows if row.get("steps", 0) > 501]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (once,), (data,) = read_runs(runs[:1]), read_runs([run])

    for found, plain in ((data.evaluations, once.evaluations), (data.rows, once.rows)):
        assert [row["steps"] for row in found] == [row["steps"] for row in plain]
    assert [row["steps"] for row in workers(data)] == [row["steps"] for row in workers(once)]
    assert any(row["event"] == "resumed" for row in data.faults)
    assert main([str(run), f"{run}/", "--out", str(tmp_path / "report.html")]) == 0
    assert "a3c on Catch" in (tmp_path / "report.html").read_text()
    assert "1: run" not in (tmp_path / "report.html").read_text()


def test_records_that_cannot_be_read_are_one_line(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a folder lies in the place of a file."""
    run = Path(shutil.copytree(runs[0], tmp_path / "run"))
    (run / "worker-00.jsonl").unlink()
    (run / "worker-00.jsonl").mkdir()

    assert main([str(run), "--out", str(tmp_path / "report.html")]) == 2
    assert capsys.readouterr().err.endswith("worker-00.jsonl: Is a directory\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "give the folder of at least one run"), (["nowhere"], "nowhere is not a run: no such folder")],
)
def test_mistakes_are_told_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is written."""
    assert main(words) == 2
    assert said in capsys.readouterr().err


class TestCharts:
    """Curves and histograms as SVG."""

    def test_a_long_curve_becomes_means_of_neighbours(self) -> None:
        """So that its shape stays."""
        assert thinned([(float(i), 2.0 * i) for i in range(100)], most=10)[0] == (4.5, 9.0)
        assert thinned([(0.0, 1.0)]) == [(0.0, 1.0)]

    def test_a_curve_goes_up_where_its_values_do(self) -> None:
        """Of one point and of a flat line there is a chart as well, and of none there is none."""
        chart = line_chart([([(0.0, 0.0), (10.0, 1.0)], {"colour": "#123456", "marker": "o"})], "steps")
        (path,) = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #123456', chart)
        (x1, y1), (x2, y2) = re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)
        assert float(x1) < float(x2)
        assert float(y1) > float(y2)
        assert line_chart([([(5.0, 3.0)], {})], "steps")
        assert line_chart([([], {})], "steps") == ""

    def test_a_robust_axis_is_not_that_of_one_outlier(self) -> None:
        """Which is drawn beyond its edge."""
        points = [(float(i), 1000.0 if i == 0 else float(i % 2)) for i in range(100)]
        assert ">1000</text>" in line_chart([(points, {})], "steps")
        assert ">1000</text>" not in line_chart([(points, {})], "steps", robust=True)

    def test_bars_are_shares_and_the_last_takes_the_tail(self) -> None:
        """Nine of ten are 0; a single one of 1,000 updates does not stretch the axis."""
        chart = histogram([("#123456", {0: 900, 1: 95, 5: 4, 1000: 1})], "updates")
        bars = re.findall(r'<path d="([^"]*)"[^>]*style="fill: #123456', chart)
        heights = [max(ys) - min(ys) for ys in ([float(y) for y in re.findall(r"[ML] \S+ (\S+)", d)] for d in bars)]
        assert len(bars) == 2
        assert heights[0] == pytest.approx(9 * heights[1], rel=1e-3)
        assert histogram([("#123456", {})], "updates") == ""
