"""The processes of a run on one machine: what is said while they begin, and with how many threads they compute."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from asyncrl.api.training import conclude
from asyncrl.backends import processes
from asyncrl.backends.outcome import Outcome, Signals
from asyncrl.backends.processes import Child, end_all, start, start_context
from asyncrl.core.updates import UpdateRule
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import UNKNOWN, Clock
from asyncrl.runtime.monitor import Monitor, View
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import NotSaved
from asyncrl.storage.run_folder import RunFolder
from tests.seams.running import train
from tests.support import make_run, status_of


def test_after_a_second_signal_nobody_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not leave is killed at once."""
    monkeypatch.setattr(processes, "LEAVE_SECONDS", 1e6)
    child = start_context("asyncrl.a3c").Process(target=time.sleep, args=(1e6,))  # type: ignore[attr-defined]
    start(child)

    end_all([child], Signals([signal.SIGINT, signal.SIGINT]), make_run(tmp_path).spec.folder)

    assert child.exitcode == -signal.SIGKILL


def test_a_run_begins_when_all_are_ready_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is told how many workers are ready, the learner not among them. At the first checkpoint no worker has
    made a step and no learner has begun an update, however long the save takes."""
    run = make_run(tmp_path, "a2c", backend="local", workers=3, total_steps=400, evaluation_interval_steps=0)
    save, saved, counts = checkpoints.save, list[bool](), list[tuple[int, int]]()

    def watched(*words: Any, **options: Any) -> Path:
        saved.append(run.handles.clock.started())
        return save(*words, **options)

    monkeypatch.setattr(checkpoints, "save", watched)
    monkeypatch.setattr(View, "count", lambda view, *numbers: counts.append(numbers))

    train(run)

    assert counts == sorted(counts)
    assert {total for _, total in counts} == {3}
    assert saved == [False, True]
    first, _ = checkpoints.find(run.spec.folder.checkpoints)
    assert (checkpoints.load(first).steps, checkpoints.load(first).updates) == (0, 0)


@dataclass(frozen=True)
class Watching(UpdateRule):
    """Writes down with how many threads its process computes."""

    file: str = ""

    def apply(self, *words: Any) -> None:  # type: ignore[override]
        """As any rule."""
        Path(self.file).write_text(str(torch.get_num_threads()))
        super().apply(*words)


@pytest.mark.parametrize(("settings", "threads"), [({}, 1), ({"learner_threads": 3}, 3)])
def test_the_learner_computes_with_as_many_threads_as_it_is_given(
    tmp_path: Path, settings: dict[str, Any], threads: int
) -> None:
    """In its own process; here, where the supervisor would be, nothing changes."""
    before = torch.get_num_threads()
    run = make_run(tmp_path, "a2c", backend="local", total_steps=400, evaluation_interval_steps=0, **settings)
    config = run.spec.config
    rule = Watching(**vars(config.update_rule), file=str(tmp_path / "threads"))
    store = SharedStore(
        run.handles.store.snapshot(), replace(config.descent, rule=rule), config.workers, run.handles.clock
    )

    train(replace(run, handles=replace(run.handles, store=store)))

    assert (tmp_path / "threads").read_text() == str(threads)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("number", "told"), [(errno.ENOSPC, "is full"), (errno.EIO, "is failing"), (errno.ESTALE, "is failing")]
)
def test_a_process_that_could_not_save_a_checkpoint_says_so(tmp_path: Path, number: int, told: str) -> None:
    """An evaluator saves the best one. Other errors of files are exceptions like any other."""
    run = make_run(tmp_path)
    process, child = cast(Any, SimpleNamespace(exitcode=1)), Child.of(run, EVALUATOR)
    for error, cause in (
        (NotSaved(7, OSError(number, os.strerror(number))), f"could not save a checkpoint: the disk {told}"),
        (OSError(number, "of user code"), f"raised OSError: [Errno {number}] of user code"),
    ):
        run.handles.clock.explain(EVALUATOR, UNKNOWN)
        with pytest.raises(OSError), child.explaining():  # noqa: PT011
            raise error

        assert child.end_of(process).cause == cause


class FailingFolder(RunFolder):
    """On a disk that fails."""

    def stack_file(self, role: str) -> Path:
        """Not there."""
        raise OSError(errno.EIO, "Input/output error")


def test_the_end_of_a_run_does_not_depend_on_files_of_stacks() -> None:
    """Nothing is to be seen there if the disk fails."""
    end_all([], Signals(), FailingFolder(Path("/nowhere")))


def test_a_process_that_cannot_open_a_file_for_its_stack_works_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails as it starts."""
    for name in ("begin", "keep_freed_memory"):
        monkeypatch.setattr(processes, name, lambda *_: None)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"exit with code {code}"))
    done: list[int] = []

    processes._main(Child(0, "worker-00", Clock(1, 10), FailingFolder(Path("/nowhere"))), "", done.append, (3,))

    assert done == [3]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: you tried to allocate 9 bytes")])
def test_a_run_without_memory_for_its_last_checkpoint_has_a_last_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Python's way to say so, and torch's."""

    def fail(_: Monitor) -> bool:
        raise error

    run = make_run(tmp_path)
    monkeypatch.setattr(Monitor, "save_checkpoint", fail)
    conclude(Outcome("finished", "", 0), Monitor(run))

    status = status_of(run.spec.folder.path)
    reason = str(error) or "MemoryError"
    assert (status["state"], status["reason"]) == ("failed", f"could not save the end of the run: {reason}")
