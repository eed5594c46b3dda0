"""Callbacks: what they are told, how they stop a run, record and save, and what happens when they break."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import asyncrl
from asyncrl.runtime.protocols import name_of
from asyncrl.storage.records import read_records
from asyncrl.storage.run_folder import RunFolder
from tests.support import status_of
from tests.test_api import ENDLESS, ROOT, TINY, run_script

SOME: dict[str, Any] = TINY | {"env_id": "Catch", "evaluation_interval_steps": 400}


class Diary(asyncrl.Callback):
    """Writes down everything, and in which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()

    def _note(self, name: str, thing: Any) -> None:
        self.calls.append((name, thing))
        self.threads.add(threading.current_thread().name)

    def of(self, name: str) -> list[Any]:
        return [thing for called, thing in self.calls if called == name]

    def on_begin(self, run: asyncrl.Running) -> None:
        self._note("begin", (run.state, run.path))

    def on_progress(self, run: asyncrl.Running) -> None:
        self._note("progress", run.progress)

    def on_episode(self, run: asyncrl.Running, episode: asyncrl.Episode) -> None:
        self._note("episode", episode)

    def on_evaluation(self, run: asyncrl.Running, evaluation: asyncrl.Evaluation) -> None:
        self._note("evaluation", evaluation)

    def on_end(self, run: asyncrl.Running) -> None:
        self._note("end", (run.state, run.reason, run.progress.best_score))


@pytest.mark.parametrize("backend", ["serial", "local"])
def test_callbacks_are_told_everything_in_the_calling_process(tmp_path: Path, backend: str) -> None:
    """The workers' episodes too, each of them, as their records have them."""
    diary, other = Diary(), Diary()
    run = asyncrl.train("a3c", **SOME | {"backend": backend}, runs_dir=tmp_path, callback=[diary, other])

    names = [name for name, _ in diary.calls]
    assert (names[0], names[-1]) == ("begin", "end")
    assert (names.count("begin"), names.count("end")) == (1, 1)
    assert diary.of("begin") == [("running", run.path)]
    assert diary.of("end") == [("finished", "total_steps reached", run.best_score)]
    assert diary.of("evaluation") == run.evaluations()
    assert diary.of("progress")[-1].steps == status_of(run.path)["steps"]
    folder = RunFolder(run.path)
    rows = [(worker, row) for worker in range(2) for row in read_records(folder.records_file(name_of(worker)))]
    played = [asyncrl.Episode(worker, *episode) for worker, row in rows for episode in row.get("episodes", ())]
    assert sorted(map(str, diary.of("episode"))) == sorted(map(str, played))
    assert len(played) > 10
    assert [name for name, _ in other.calls] == names
    assert diary.threads == {"MainThread"}


class Recording(asyncrl.Callback):
    """Records a number and saves a checkpoint with each evaluation, and stops at the second."""

    def __init__(self, copies: Path) -> None:
        self.copies, self.seen = copies, 0

    def on_evaluation(self, run: asyncrl.Running, evaluation: asyncrl.Evaluation) -> None:
        self.seen += 1
        run.record("custom/seen", self.seen)
        saved = run.save()
        assert saved is not None
        shutil.copytree(saved, self.copies / saved.name)
        assert f"_{run.steps:012d}" in saved.name
        if self.seen == 2:
            run.stop("two are enough")

    def on_end(self, run: asyncrl.Running) -> None:
        with pytest.raises(asyncrl.UsageError, match="custom/late cannot be recorded: the run has ended"):
            run.record("custom/late", 1.0)


def test_a_callback_records_saves_and_stops(tmp_path: Path) -> None:
    """Its numbers are in TensorBoard and in the records, the reason of the end in status.json."""
    run = asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path / "runs", callback=Recording(tmp_path))

    assert (run.state, run.reason) == ("stopped", "two are enough")
    assert status_of(run.path)["reason"] == "two are enough"
    events = [row for row in read_records(RunFolder(run.path).supervisor_file) if row.get("event") == "recorded"]
    assert [row["values"] for row in events] == [{"custom/seen": 1.0}, {"custom/seen": 2.0}]
    board = EventAccumulator(str(run.path / "tb"))
    board.Reload()
    assert [(point.step, point.value) for point in board.Scalars("custom/seen")] == [
        (row["steps"], row["values"]["custom/seen"]) for row in events
    ]
    copies = sorted(path.name for path in tmp_path.glob("step_*"))
    assert [int(name.split("_")[1]) for name in copies] == [row["steps"] for row in events]


class Failing(asyncrl.Callback):
    """Raises at the first evaluation."""

    def on_evaluation(self, run: asyncrl.Running, evaluation: asyncrl.Evaluation) -> None:
        raise ValueError("no score like this")


class Strict(asyncrl.Callback):
    """Returns False at the first evaluation, and raises at the end."""

    def on_evaluation(self, run: asyncrl.Running, evaluation: asyncrl.Evaluation) -> bool:
        return False

    def on_end(self, run: asyncrl.Running) -> None:
        raise ZeroDivisionError(run.state)


def test_numpys_false_ends_a_run_too(tmp_path: Path) -> None:
    """As comparisons of means give it."""
    run = asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path, on_evaluation=lambda row: np.mean(row["returns"]) > 1e9)

    assert (run.state, run.reason) == ("stopped", "on_evaluation returned False")


def test_a_callback_that_breaks_ends_the_run_in_order_and_is_named(tmp_path: Path) -> None:
    """The others hear of the end; in the background it is raised where the run is waited for."""
    diary = Diary()
    with pytest.raises(ValueError, match="no score like this") as raised:
        asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path, run_name="a", callback=[Failing(), diary])
    assert re.match(r"raised by the callback Failing.on_evaluation at step [4-9]\d\d;", raised.value.__notes__[0])
    reason = "Failing.on_evaluation raised ValueError: no score like this"
    assert [end[:2] for end in diary.of("end")] == [("stopped", reason)]
    assert diary.of("evaluation") == []
    assert list((tmp_path / "a3c" / "Catch" / "a" / "checkpoints").glob("step_*"))

    with pytest.raises(ZeroDivisionError, match="stopped"):
        asyncrl.train("a3c", **ENDLESS, runs_dir=tmp_path, run_name="b", callback=Strict())
    assert status_of(tmp_path / "a3c" / "Catch" / "b")["reason"] == "Strict.on_evaluation returned False"

    training = asyncrl.training("a3c", **ENDLESS, runs_dir=tmp_path, run_name="c", callback=(diary, Failing()))
    assert next(training)["steps"] >= 400
    with pytest.raises(ValueError, match="no score like this"):
        training.run  # noqa: B018
    assert diary.threads == {"MainThread", "asyncrl-training"}


class Waiting(asyncrl.Callback):
    """Stops the run that it follows as the program would."""

    training: asyncrl.Training | None = None

    def on_evaluation(self, run: asyncrl.Running, evaluation: asyncrl.Evaluation) -> None:
        if self.training is not None:
            self.training.stop()


@pytest.mark.timeout(60)
def test_a_callback_cannot_wait_for_its_own_run(tmp_path: Path) -> None:
    """It would wait for ever. The run ends, and one line says how else to stop it."""
    callback = Waiting()
    callback.training = asyncrl.training("a3c", **ENDLESS, runs_dir=tmp_path, run_name="a", callback=callback)

    with pytest.raises(asyncrl.UsageError, match=r"cannot wait for its own run: use run\.stop\(\), or return False"):
        callback.training.run  # noqa: B018

    assert status_of(tmp_path / "a3c" / "Catch" / "a")["state"] == "stopped"


def test_a_failed_run_is_told_to_callbacks_and_raised(tmp_path: Path) -> None:
    """Here it breaks in its third step, after it has begun."""
    diary = Diary()
    settings = TINY | {"env_id": "tests.test_api:Breaking", "backend": "local"}

    with pytest.raises(asyncrl.RunFailed, match="the light went out"):
        asyncrl.train("a3c", **settings, runs_dir=tmp_path, callback=diary)

    ((state, reason, _),) = diary.of("end")
    assert state == "failed"
    assert "the light went out" in reason


@pytest.mark.parametrize(
    ("callback", "line"),
    [(Diary, "got the class Diary"), ([print], "got a builtin_function_or_method"), ([None], "got a NoneType")],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, callback: Any, line: str) -> None:
    """Before anything begins."""
    with pytest.raises(asyncrl.UsageError, match=f"callback takes objects derived from asyncrl.Callback, {line}"):
        asyncrl.train("a3c", **SOME, runs_dir=tmp_path, callback=callback)
    with pytest.raises(asyncrl.UsageError, match=line):
        asyncrl.training("a3c", **SOME, runs_dir=tmp_path, callback=callback)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["on_evaluation", "on_progress"])
def test_what_is_no_function_is_refused(tmp_path: Path, name: str) -> None:
    """As what is no callback."""
    with pytest.raises(asyncrl.UsageError, match=f"{name} takes a function, got 3"):
        asyncrl.train("a3c", **SOME, runs_dir=tmp_path, **{name: 3})
    assert list(tmp_path.iterdir()) == []


def test_the_callbacks_of_the_documentation_work(tmp_path: Path) -> None:
    """Every program in docs/callbacks.md, one after the other, as it stands there."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "callbacks.md").read_text(), re.DOTALL)

    done = run_script(tmp_path, "\n".join(programs))

    assert done.stderr == ""
    assert len(programs) == 6
    assert list((tmp_path / "kept").glob("step_*"))


class Playing(asyncrl.Callback):
    """Turns gradients off to play, and forgets to turn them on again."""

    calls = 0

    def on_evaluation(self, run: Any, evaluation: Any) -> None:
        self.calls += 1
        torch.set_grad_enabled(False)


def test_a_callback_that_turns_gradients_off_harms_nobody(tmp_path: Path) -> None:
    """Workers of a serial run are in the same process."""
    playing = Playing()
    asyncrl.train(
        "a3c", env_id="Catch", backend="serial", workers=1, total_steps=400, evaluation_interval_steps=100,
        evaluation_episodes=1, runs_dir=tmp_path, callback=playing,
    )  # fmt: skip

    assert playing.calls > 2
    assert torch.is_grad_enabled()
