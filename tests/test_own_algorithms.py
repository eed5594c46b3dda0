"""An algorithm in a user's own package does all that the package's own do, by the commands a user types."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import asyncrl
from asyncrl import catalog
from asyncrl.__main__ import main
from asyncrl.a3c import A3C
from asyncrl.algorithm import GRADIENT, IN_STEP, MEMORY, QUEUE, load, name_of_class
from asyncrl.catalog import ALGORITHMS, GRADIENT_METHODS
from asyncrl.commands.train import configure
from asyncrl.core.errors import UsageError
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout
from asyncrl.ppo import PPO
from tests.support import evaluations_of, status_of, the_run

Refused: TypeAlias = Callable[..., str]
ROOT = Path(__file__).parent.parent
ALGORITHM = '''"""The policy gradient without a baseline, on A3C's network."""

from dataclasses import dataclass

from asyncrl.a3c import A3C


class Scaled(A3C):
    """A3C with another loss."""

    @dataclass(frozen=True)
    class Config(A3C.Config):
        """My own algorithm."""

        scale: float = 1.0
        """Factor of the loss."""

    def loss(self, rollout):
        loss, metrics = super().loss(rollout)
        return self.config.scale * loss, metrics


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("my_package.my_algorithm"))
'''
TRAIN = (
    "--env-id", "Catch", "--total-steps", "2000", "--workers", "2", "--evaluation-interval-steps", "1000",
    "--evaluation-episodes", "2", "--runs-dir", "runs",
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package in it, from which commands are typed."""
    home = tmp_path_factory.mktemp("home")
    (home / "my_package").mkdir()
    (home / "my_package" / "__init__.py").write_text("")
    (home / "my_package" / "my_algorithm.py").write_text(ALGORITHM)
    (home / "my_package" / "other.py").write_text("import asyncrl\n")
    return home


def python(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m words...` there."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=home, env=environment, capture_output=True, text=True, timeout=500
    )


def does(home: Path, *words: str) -> str:
    """What a command that succeeds prints."""
    done = python(home, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refuses(home: Path, *words: str) -> str:
    """The one line of a command that does not."""
    done = python(home, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


@pytest.fixture
def refused(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Refused]:
    """The one line of a command that is typed there and does not begin; in this process."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    before = signal.getsignal(signal.SIGINT)

    def type_it(*words: str) -> str:
        code = main(words)
        out, error = capfd.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1), error
        return error

    yield type_it
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    """A run of that algorithm, in processes."""
    does(home, "asyncrl", "train", "my_package.my_algorithm", *TRAIN, "--scale", "0.5")
    return the_run(home / "runs")


def test_it_trains_in_a_folder_of_its_own_name(run: Path) -> None:
    """With its own settings."""
    assert status_of(run)["state"] == "finished"
    assert run.parent.parent.name == "my_algorithm"
    stored = json.loads((run / "config.json").read_text())
    assert (stored["algorithm"], stored["config"]["scale"]) == ("my_package.my_algorithm", 0.5)


def test_it_is_evaluated_and_plotted(home: Path, run: Path) -> None:
    """By its run alone."""
    result = json.loads(does(home, "asyncrl", "evaluate", str(run), "--episodes", "3", "--json"))

    assert (result["algorithm"], len(result["returns"])) == ("my_algorithm", 3)
    does(home, "asyncrl", "plot", str(run), "--out", "curve.png")
    assert (home / "curve.png").stat().st_size > 0


def test_it_is_resumed_by_running_its_module(home: Path, run: Path) -> None:
    """The two lines at its bottom are the command."""
    before = len(evaluations_of(run))
    out = does(home, "my_package.my_algorithm", "--resume", str(run), "--total-steps", "4000")

    assert "resumed at" in out
    assert status_of(run)["steps"] >= 4000
    assert len(evaluations_of(run)) > before


def test_its_help_names_its_own_settings(home: Path) -> None:
    """And the command that was typed."""
    out = does(home, "asyncrl", "train", "my_package.my_algorithm", "--help")

    assert out.startswith("usage: asyncrl train my_package.my_algorithm ")
    assert "--scale" in out


def test_it_takes_part_in_a_speedup_study(home: Path) -> None:
    """Beside an algorithm of the package."""
    words = ("--env-ids", "Catch", "--workers", "1", "--seeds", "1", "--total-steps", "1500", "--backend", "serial")
    words += ("--evaluation-episodes", "2", "--runs-dir", "study", "--algorithms", "a3c", "my_package.my_algorithm")
    done = python(home, "asyncrl", "speedup", *words, "--evaluation-interval-steps", "500")

    assert (done.returncode, done.stderr) == (0, "")
    states = {file.parents[2].name: status_of(file.parent) for file in home.glob("study/*/*/*/status.json")}
    assert set(states) == {"a3c", "my_algorithm"}
    assert "my_package.my_algorithm" in (home / "study" / "report" / "report.md").read_text()


def test_it_takes_part_in_a_sweep(home: Path) -> None:
    """Over a setting of its own."""
    words = (
        "--algorithms",
        "my_package.my_algorithm",
        "--env-ids",
        "Catch",
        "--total-steps",
        "500",
        "--scales",
        "0.5",
        "1",
    )
    words += ("--runs-dir", "sweep", "--backend", "serial", "--workers", "1", "--evaluation-episodes", "1")
    lines = does(home, "asyncrl", "sweep", *words, "--print-jobs").splitlines()
    assert [line.split()[:5] for line in lines] == [["python", "-m", "asyncrl", "train", "my_package.my_algorithm"]] * 2

    does(home, "asyncrl", "sweep", *words)

    assert len(list(home.glob("sweep/my_algorithm/Catch/*/status.json"))) == 2


def test_two_algorithms_whose_runs_would_share_a_folder_are_refused(home: Path, refused: Refused) -> None:
    """The last part of the module is the folder's name."""
    (home / "a3c_of_mine").mkdir()
    (home / "a3c_of_mine" / "a3c.py").write_text(ALGORITHM)

    line = refused("sweep", "--algorithms", "a3c", "a3c_of_mine.a3c", "--env-ids", "Catch")
    assert "two algorithms called a3c" in line


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [
        ("my_package.none", "asyncrl train my_package.none: error: there is no algorithm 'my_package.none'"),
        ("none.my_algorithm", "there is no algorithm"),
        ("../my_algorithm", "there is no algorithm"),
        ("my_package.other", "my_package.other has no algorithm: no class of its own"),
        ("asyncrl.core.losses", "asyncrl.core.losses has no algorithm: no class of its own"),
        ("--workers", "name an algorithm first"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_one_line(refused: Refused, algorithm: str, line: str) -> None:
    """One that is not there, and modules that are something else."""
    assert line in refused("train", algorithm, "--env-id", "Catch")


def test_a_algorithm_that_cannot_be_imported_says_why(home: Path, refused: Refused) -> None:
    """The exception, without a traceback."""
    (home / "my_package" / "broken.py").write_text("import asyncrl\nraise OSError('no network')\n")

    line = refused("train", "my_package.broken")
    assert "importing it failed: OSError: no network" in line


def test_a_run_of_a_algorithm_that_is_not_here_cannot_be_evaluated(home: Path, run: Path, tmp_path: Path) -> None:
    """The line names the module; from another folder it is not importable."""
    line = refuses(tmp_path, "asyncrl", "evaluate", str(run))

    assert "is a run of 'my_package.my_algorithm', which cannot be used: there is no algorithm" in line


def test_the_packages_own_algorithms_are_found_by_looking() -> None:
    """Each module that is a command; the gradient methods are those that say so."""
    algorithms = {name: load(catalog.module_of(name)) for name in ALGORITHMS}

    gradient = {name for name, algorithm in algorithms.items() if algorithm.experience == GRADIENT}
    assert gradient == {*GRADIENT_METHODS, "reinforce"}
    assert {algorithm.experience for algorithm in algorithms.values()} == {GRADIENT, IN_STEP, QUEUE, MEMORY}
    assert [catalog.name_of(name_of_class(algorithm)) for algorithm in algorithms.values()] == list(ALGORITHMS)


OWN = """
from asyncrl.a3c import A3C

class First(A3C):
    experience = "nowhere"

class Second(A3C):
    pass

class Third(A3C):
    whole_episodes = looks_ahead = True
"""


def test_an_algorithm_is_named_by_its_module_or_by_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with two needs the class's name; a place for experience that does not exist is told."""
    (tmp_path / "two_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()

    with pytest.raises(
        UsageError, match=r"several algorithms: two_of_mine:First, two_of_mine:Second, two_of_mine:Third$"
    ):
        load("two_of_mine")
    known = "'gradient', 'in step', 'queue', 'replay'"
    with pytest.raises(UsageError, match=f"experience must be one of {known}, not 'nowhere'"):
        load("two_of_mine:First")
    second = load("two_of_mine:Second")
    assert (second.__name__, name_of_class(second)) == ("Second", "two_of_mine:Second")
    with pytest.raises(UsageError, match="Third has whole_episodes, which is for workers that learn and do not look"):
        configure("two_of_mine:Third", ["--env-id", "Catch"])
    with pytest.raises(UsageError, match="the module two_of_mine has no Missing"):
        load("two_of_mine:Missing")


def test_a_class_that_no_other_process_can_import_trains_in_processes(tmp_path: Path) -> None:
    """With settings of its own; wherever a program defines it, here within a function."""

    class Local(A3C):
        @dataclass(frozen=True)
        class Config(A3C.Config):
            scale: float = 1.0

        def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
            loss, metrics = super().loss(rollout)
            return self.config.scale * loss, metrics  # type: ignore[attr-defined]

    settings = {"env_id": "Catch", "workers": 1, "total_steps": 500, "evaluation_episodes": 1}
    run = asyncrl.train(Local, scale=0.5, runs_dir=tmp_path, **settings)

    assert run.state == "finished"
    assert json.loads((run.path / "config.json").read_text())["config"]["scale"] == 0.5


class Quitting(PPO):
    """Ends the program as soon as somebody makes an agent."""

    def __init__(self, *arguments: Any) -> None:
        sys.exit(0)


class QuittingConfig(PPO):
    """The same when its settings are checked."""

    @dataclass(frozen=True)
    class Config(PPO.Config):
        """Like PPO's."""

        def check(self) -> None:
            sys.exit(0)


class Buffered(A3C):
    """Has batch norm in its body, whose running moments nobody shares."""

    @classmethod
    def make_network(cls, config: Any, spaces: Any) -> Any:
        network = super().make_network(config, spaces)
        network.trunk.normal = torch.nn.BatchNorm1d(4)
        return network


class Double(A3C):
    """Computes in float64."""

    @classmethod
    def make_network(cls, config: Any, spaces: Any) -> Any:
        return super().make_network(config, spaces).double()


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [
        (Quitting, r"Quitting's initial_state\(\): SystemExit: 0"),
        (QuittingConfig, "QuittingConfig's Config: SystemExit: 0"),
        (Buffered, "the network of .*Buffered has buffers, as batch norm does; only parameters are shared"),
        (Double, "the network of .*Double has parameters that are not float32"),
    ],
)
def test_an_algorithm_that_cannot_be_trained_is_one_line_and_leaves_nothing(
    algorithm: type[asyncrl.Algorithm], line: str, tmp_path: Path
) -> None:
    """Nor does it end the program."""
    with pytest.raises(UsageError, match=line):
        asyncrl.train(algorithm, env_id="Catch", backend="serial", total_steps=100, runs_dir=tmp_path)

    assert list(tmp_path.iterdir()) == []
