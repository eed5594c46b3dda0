"""Weights & Biases and MLflow are told of a run; here modules with as much of their surface as is used."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import asyncrl
from asyncrl.core.extras import to_install
from asyncrl.storage import files
from asyncrl.storage.tracking import Tracker
from tests.support import status_of

TINY: dict[str, Any] = {
    "env_id": "Catch", "backend": "serial", "workers": 2, "total_steps": 600, "evaluation_interval_steps": 300,
    "evaluation_episodes": 2, "run_name": "one",
}  # fmt: skip


class FakeWandb:
    """What wandb.init returns, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.rows: list[dict[str, float]] = []
        self.settings: dict[str, Any] = {}
        self.finished = 0
        self.broken = False
        self.config = SimpleNamespace(update=lambda values, allow_val_change: self.settings.update(values))
        self.id = "an-id"

    def init(self, **settings: Any) -> FakeWandb:
        self.asked.append(settings)
        return self

    def define_metric(self, name: str, **settings: Any) -> None:
        pass

    def log(self, row: dict[str, float]) -> None:
        if self.broken:
            raise ConnectionError("nobody is there")
        self.rows.append(row)

    def finish(self) -> None:
        self.finished += 1


class FakeMlflow:
    """MLflow's client, and what it was told."""

    def __init__(self) -> None:
        self.experiments: list[str] = []
        self.runs: list[str] = []
        self.params: dict[str, str] = {}
        self.metrics: list[tuple[str, float, int]] = []
        self.terminated = 0

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def create_run(self, experiment: str, run_name: str) -> Any:
        assert experiment == "7"
        self.runs.append(run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="run-1"))

    def get_run(self, key: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params=self.params))

    def log_batch(self, key: str, metrics: Any = (), params: Any = ()) -> None:
        assert key == "run-1"
        self.params |= {param.key: param.value for param in params}
        self.metrics += [(metric.key, metric.value, metric.step) for metric in metrics]

    def set_terminated(self, key: str) -> None:
        self.terminated += 1


def put(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Let a module of that name be there."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    put(monkeypatch, "wandb", init=fake.init)
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    put(monkeypatch, "mlflow", MlflowClient=lambda: fake)
    put(
        monkeypatch, "mlflow.entities",
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )  # fmt: skip
    return fake


def test_both_are_told_settings_scores_and_the_end(tmp_path: Path, wandb: FakeWandb, mlflow: FakeMlflow) -> None:
    """What TensorBoard is told, at the same steps; a run that goes on is the same run there."""
    run = asyncrl.train("a3c", **TINY, runs_dir=tmp_path, track=["wandb", "mlflow"], track_project="mine")

    scores = [(row["steps"], row["mean"]) for row in run.evaluations()]
    assert [(row["steps"], row["eval/mean_reward"]) for row in wandb.rows if "eval/mean_reward" in row] == scores
    assert [(step, value) for tag, value, step in mlflow.metrics if tag == "eval/mean_reward"] == scores
    assert (wandb.settings["algorithm"], wandb.settings["workers"]) == ("asyncrl.a3c", 2)
    assert (mlflow.params["algorithm"], mlflow.params["workers"]) == ("asyncrl.a3c", "2")
    assert "runs_dir" not in wandb.settings
    assert (wandb.asked[0]["project"], wandb.asked[0]["name"], wandb.asked[0]["id"]) == ("mine", "a3c Catch one", None)
    assert (mlflow.experiments, mlflow.runs) == (["mine"], ["a3c Catch one"])
    assert (wandb.finished, mlflow.terminated) == (1, 1)
    assert json.loads((run.path / "tracking.json").read_text()) == {"wandb": "an-id", "mlflow": "run-1"}

    asyncrl.train("a3c", resume=run.path, total_steps=900)

    assert (wandb.asked[1]["id"], wandb.asked[1]["resume"]) == ("an-id", "allow")
    assert mlflow.runs == ["a3c Catch one"]
    assert mlflow.params["total_steps"] == "600"  # what stands there cannot be changed


def test_a_tracker_that_fails_ends_nothing(tmp_path: Path, wandb: FakeWandb, capfd: pytest.CaptureFixture[str]) -> None:
    """One line says so, and at the end another one how much it was not told; so does status.json."""
    wandb.broken = True
    run = asyncrl.train("a3c", **TINY, runs_dir=tmp_path, track=["wandb"], quiet=False)

    out, errors = capfd.readouterr()
    assert (run.state, errors, wandb.finished) == ("finished", "", 1)
    assert out.count("wandb cannot be written now (ConnectionError: nobody is there); the run continues") == 1
    calls = status_of(run.path)["unwritten"]["wandb"]
    assert calls > 2
    assert out.count(f"could not be written: {calls} wandb calls (ConnectionError: nobody is there)\n") == 1


def test_a_tracker_that_fails_for_a_while_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with longer and longer pauses; one call that it always refuses does not keep the others back."""
    told: list[int] = []
    down = True
    now = [0.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])

    class Remote(Tracker):
        def _scalars(self, values: Mapping[str, float], step: int) -> None:
            if down or step == 2:
                raise ConnectionError("nobody is there")
            told.append(step)

    remote = Remote("", "", Path(), None)
    remote.scalars({}, 1)
    down = False
    remote.scalars({}, 2)
    assert told == []
    tried = []
    for step in range(3, 100):
        now[0] += 10.0
        remote.scalars({}, step)
        tried.append(len(told))
    assert told == [1, *range(3, 100)]
    assert remote.missing == 1
    assert len(set(tried)) < 97  # there were pauses


def test_each_call_is_tried_three_times_in_a_long_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings, which are sent once, no less than the numbers after them."""
    tries: Counter[str] = Counter()
    now = [0.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: now[0])

    class Remote(Tracker):
        def _hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
            tries["hparams"] += 1
            raise ConnectionError("nobody is there")

        def _scalars(self, values: Mapping[str, float], step: int) -> None:
            tries[f"step {step}"] += 1
            raise ConnectionError("nobody is there")

    remote = Remote("", "", Path(), None)
    remote.hparams({}, [])
    for step in range(1800):
        now[0] += 2.0
        remote.scalars({}, step)

    *given_up, _ = tries.values()
    assert len(given_up) >= 2
    assert set(given_up) == {3}


def test_a_tracker_that_cannot_begin_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow: FakeMlflow
) -> None:
    """Nor does the one that had begun go on."""

    def init(**settings: Any) -> None:
        raise PermissionError("who are you?")

    put(monkeypatch, "wandb", init=init)

    with pytest.raises(asyncrl.UsageError, match=r"--track wandb failed: PermissionError: who are you\?"):
        asyncrl.train("a3c", **TINY, runs_dir=tmp_path, track=["mlflow", "wandb"])

    assert mlflow.terminated == 1
    assert not list(tmp_path.glob("*/*/*"))


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a folder is made; and a name that is none is refused."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(asyncrl.UsageError, match=re.escape(f"--track wandb needs its package: {to_install('wandb')}")):
        asyncrl.train("a3c", **TINY, runs_dir=tmp_path, track=["wandb"])
    with pytest.raises(asyncrl.UsageError, match="--track takes wandb or mlflow, got 'comet'"):
        asyncrl.train("a3c", **TINY, runs_dir=tmp_path, track=["comet"])
    assert list(tmp_path.iterdir()) == []


def test_nobody_is_told_unless_asked_to(tmp_path: Path, wandb: FakeWandb) -> None:
    """Nor is anything imported."""
    run = asyncrl.train("a3c", **TINY | {"total_steps": 100}, runs_dir=tmp_path)

    assert (status_of(run.path)["state"], wandb.asked) == ("finished", [])
    assert not (run.path / "tracking.json").exists()
