"""The documentation and the program say the same."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncrl.algorithm import algorithm_of
from asyncrl.catalog import ALGORITHMS, module_of
from asyncrl.commands.train import main
from asyncrl.storage.records import read_records
from asyncrl.storage.tensorboard import shown
from tests.support import the_run

ROOT = Path(__file__).parent.parent
METRICS = (ROOT / "docs" / "metrics.md").read_text()


def documented(section: str) -> set[str]:
    """The keys in the first column of the table under a heading."""
    text = METRICS.split(f"## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Short runs with everything in them: one with a policy, one with action values, two with a learner, one with a
    replay memory, one rank."""
    words = ["--env-id", "Catch", "--total-steps", "3000", "--quiet"]
    serial, rank = ["--workers", "2", "--backend", "serial"], ["--workers", "1", "--backend", "collective"]
    pages = {"a3c": serial, "one_step_q": serial, "impala": serial, "ppo": serial, "reinforce": rank}
    pages["apex"] = [*serial, "--warmup-steps", "500"]
    for page in ("apex_dpg", "sac"):
        pages[page] = [*serial, "--env-id", "Pendulum-v1", "--warmup-steps", "500", "--minibatch", "32"]
    pages["a2c"] = [*rank, "--reduce", "gradients"]
    found = []
    for page, more in pages.items():
        folder = tmp_path_factory.mktemp("runs")
        own = [*words, *more, "--runs-dir", str(folder)]
        assert main(f"asyncrl.{page}", [*own, "--evaluation-interval-steps", "1000"]) == 0
        found.append(the_run(folder))
    return found


@pytest.fixture
def run(runs: list[Path]) -> Path:
    """The first of them."""
    return runs[0]


def test_status_keys_are_documented(run: Path) -> None:
    """All of status.json, and nothing else but the traceback of a failure."""
    assert documented("status.json") == set(json.loads((run / "status.json").read_text())) | {"traceback"}


def test_metrics_are_documented(runs: list[Path]) -> None:
    """All tags of TensorBoard and all keys of supervisor.jsonl."""
    all_tags = set()
    for run in runs:
        accumulator = EventAccumulator(str(run / "tb"))
        accumulator.Reload()
        tags = set(accumulator.Tags()["scalars"])
        keys = {key for row in read_records(run / "supervisor.jsonl") for key in row if "/" in key}
        assert {shown(key) for key in keys} <= tags
        all_tags |= tags

    learners = {key for key in documented("learner.jsonl") if "/" in key}
    assert {shown(key) for key in documented("supervisor.jsonl and TensorBoard") | learners} == all_tags
    assert {"learner/rollout_age_mean", "train/approx_kl"} <= learners


def test_worker_keys_are_documented(runs: list[Path]) -> None:
    """Every key of a worker's rows."""
    keys = {key for run in runs for row in read_records(run / "worker-00.jsonl") for key in row}

    assert documented("worker-NN.jsonl") == keys


def test_learner_keys_are_documented(runs: list[Path]) -> None:
    """Every key of a learner's rows."""
    rows = [row for run in runs for row in read_records(run / "learner.jsonl")]
    keys = {key for row in rows for key in (*row, *row.get("replay", ()))}

    assert {key for key in documented("learner.jsonl") if "/" not in key} == keys


def test_evaluation_keys_are_documented(run: Path) -> None:
    """Every key of an evaluation."""
    keys = {key for row in read_records(run / "evaluator.jsonl") for key in row}

    assert documented("evaluator.jsonl") == keys


def test_every_setting_has_its_help() -> None:
    """A sentence under each field: it is the help of the flag."""
    configs = [algorithm_of(module_of(name)).Config for name in ALGORITHMS]
    for cls in {cls for config in configs for cls in config.__mro__[:-1]}:
        source = Path(str(__import__(cls.__module__, fromlist=["x"]).__file__)).read_text()
        for field in dataclasses.fields(cls):
            if field.name in cls.__annotations__:
                assert re.search(rf" {field.name}: .*\n +\"\"\"\S[^\n]+\"\"\"\n", source), field.name


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("faults", "requeue 1234\n"),
        ("deploying", "requeue 1234_3\n"),
        ("clusters", "requeue 1234\n"),
        ("ray", "requeue 1234\n"),
    ],
)
@pytest.mark.parametrize(
    ("code", "preempted", "queued_again"),
    [
        (138, "None", True),
        (143, "None", False),
        (143, "2026-11-22T17:51:35", True),
        (0, "None", False),
        (2, "None", False),
    ],
)
def test_the_batch_scripts_queue_a_job_again_that_slurm_has_stopped(
    tmp_path: Path, code: int, preempted: str, queued_again: bool, page: str, asked: str
) -> None:
    """Near its time limit by SIGUSR1, which makes 138, or pre-empted by SIGTERM, which makes 143; not if cancelled."""
    assert asked_for(tmp_path, page, code, preempted) == (asked if queued_again else "")


@pytest.mark.parametrize(
    ("page", "restarts", "asked"),
    [
        ("clusters", 4, "requeue 1234\n"),
        ("clusters", 5, ""),
        ("faults", 0, ""),
        ("ray", 4, "requeue 1234\n"),
        ("ray", 5, ""),
    ],
)
def test_a_job_that_cannot_go_on_is_queued_again_five_times(
    tmp_path: Path, page: str, restarts: int, asked: str
) -> None:
    """Ranks need each other, Ray its head. A run on one node replaces its workers: what ends it would be repeated."""
    for code in (1, 137):
        assert asked_for(tmp_path, page, code, "None", restarts) == asked


def asked_for(tmp_path: Path, page: str, code: int, preempted: str, restarts: int = 0) -> str:
    """What a page's batch script asks of SLURM when its run ends with `code`, which is the script's own in any case."""
    script = next(
        block for block in re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
        if "#SBATCH" in block
    )  # fmt: skip
    asked = tmp_path / "asked"
    asked.write_text("")
    scontrol = f'[ "$1" = show ] && echo " PreemptTime={preempted}" || echo "$@" > {asked}'
    for name, text in {"srun": f"exit {code}", "scontrol": scontrol, "ray": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "1234", "SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": "3"}
    here = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_RESTART_COUNT": str(restarts),
    }

    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=os.environ | slurm | here, timeout=200)
    assert run.returncode == code
    return asked.read_text()


def test_the_readme_shows_real_pictures_and_pages() -> None:
    """Every local link of README and docs leads somewhere."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_of_the_documentation_is_listed() -> None:
    """By one of the pages from which the site makes its tables of contents (LISTS in docs/conf.py)."""
    docs = ROOT / "docs"
    listed = {docs / "index.md"}
    for page in ("index.md", "results/README.md", "results/speedup/README.md"):
        links = re.findall(r"\]\((?!https?://)([^)#]+\.md)", (docs / page).read_text())
        listed |= {(docs / page).parent / link for link in links}

    assert {page for page in docs.rglob("*.md") if "_build" not in page.parts} - listed == set()


OPTIONAL = {
    "box2d": "LunarLander|BipedalWalker",
    "export": "--onnx|onnxruntime",
    "minatar": "MinAtar/",
    "minigrid": "MiniGrid-",
    "mujoco": "HalfCheetah|Ant-v|Hopper|Walker2d|Humanoid|InvertedPendulum",
    "pandas": r"pandas|frame\(\)",
    "ray": "--backend ray",
    "search": "--trials",
    "video": r"\.mp4|\.mkv|\.mov",
}
"""Extras, and a package without one, by what needs them in an example."""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_a_page_tells_what_its_examples_need_besides_the_package(page: Path) -> None:
    """By the command that installs it; for pages with results the list of all of them does so."""
    text = page.read_text()
    code = "\n".join(re.findall(r"```(?:bash|python)\n(.*?)```", text, re.DOTALL))
    installed = re.findall(r"pip\s+install\s+-c\s+constraints\.txt\s+(?:-e\s+\"\.\[([\w,]+)\]\"|(pandas))", text)
    told = {name for extras, package in installed for name in (*extras.split(","), package)}

    assert {name for name, use in OPTIONAL.items() if re.search(use, code)} <= told


def test_every_fault_names_tests_that_exist() -> None:
    """The last cell of each row of docs/faults.md, unless it says that there is none."""
    text = (ROOT / "docs" / "faults.md").read_text()
    tables = re.findall(r"^\| fault \|.*\| test \|\n\|-.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    for row in "".join(tables).splitlines():
        cells = row.strip("| ").split(" | ")
        names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cells[-1])
        assert len(cells) == 4, row
        assert cells[-1] == "none" or len(names) == cells[-1].count("::") > 0, row
        for file, name in names:
            found = re.search(rf"^ *(def|class) {name}\b|^{name} = ", (ROOT / file).read_text(), re.MULTILINE)
            assert found, f"{file}::{name}"
