"""Jobs: shares of the cores, and that a finished run is never made again."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.errors import UsageError
from asyncrl.studies import jobs
from asyncrl.studies.jobs import Job, alone_in, is_done, run_jobs, share_cores


@pytest.mark.parametrize(
    ("cores", "slots", "shares"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
        ([4, 6], 2, [[4], [6]]),
        ([0, 1], 3, [[0], [1], [0]]),
        ([0, 1, 2], 1, [[0, 1, 2]]),
    ],
)
def test_cores_are_shared_fairly(cores: list[int], slots: int, shares: list[list[int]]) -> None:
    """Each core belongs to one slot, and the slots have as many as each other, give or take one."""
    assert share_cores(cores, slots) == shares


def silent(line: str) -> None:
    """Say nothing."""


def finish(folder: Path) -> None:
    """Make it look as if the run had ended."""
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": "finished"}))
    (folder / "mark").touch()


def test_finished_runs_are_never_repeated(tmp_path: Path) -> None:
    """The command of this job would refuse its words; it is not asked."""
    job = Job("a3c", "Nowhere-v0", "one", ("--no-such-flag",))
    finish(job.folder(tmp_path))

    with alone_in(tmp_path, silent) as lock:
        assert run_jobs([job], tmp_path, 1, lock, silent) == []
    assert (job.folder(tmp_path) / "mark").exists()


def test_words_that_a_command_refuses_end_the_study(tmp_path: Path) -> None:
    """Its own line is told, and the folders made for the study are gone."""
    job = Job("n_step_q", "Catch", "one", ("--no-such-flag",))
    runs_dir = tmp_path / "runs" / "study"

    with (
        pytest.raises(UsageError, match="n_step_q Catch one: asyncrl n_step_q: error:"),
        alone_in(runs_dir, silent) as lock,
    ):
        run_jobs([job], runs_dir, 1, lock, silent)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A file where the folder should be stays what it is."""
    place = tmp_path / "file"
    place.write_text("mine")

    for runs_dir in (place, place / "study"):
        with pytest.raises(UsageError, match=f"cannot write into {runs_dir}: "), alone_in(runs_dir, silent):
            pass
    assert place.read_text() == "mine"


def test_a_file_system_without_locks_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of clusters are."""

    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)

    with alone_in(tmp_path, silent) as lock:
        assert lock >= 0


def test_the_lock_is_held_while_the_study_goes_on(tmp_path: Path) -> None:
    """A second study of the same folder finds it taken; afterwards it is free."""

    def take() -> None:
        with open(tmp_path / "study.lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with alone_in(tmp_path, silent), pytest.raises(BlockingIOError):
        take()
    take()


def test_an_interrupt_while_tasks_are_handed_out_stops_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As any later one does."""
    stopped: list[bool] = []
    monkeypatch.setattr(jobs.RunningJobs, "stop", lambda self: stopped.append(True))

    class Tasks(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.run_tasks(Tasks(), tmp_path, 1, 0, silent)
    assert stopped == [True]


def test_a_folder_that_cannot_be_removed_fails_its_run_alone(tmp_path: Path) -> None:
    """Here a link leads to it."""
    first, second = (Job("a3c", "Catch", name, ()) for name in ("one", "two"))
    place = first.folder(tmp_path)
    place.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    finish(second.folder(tmp_path))

    with alone_in(tmp_path, silent) as lock:
        (failure,) = run_jobs([first, second], tmp_path, 1, lock, silent)

    assert failure.startswith(f"{first}: {place} cannot be removed: ")


@pytest.mark.slow
def test_a_run_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    """And the cores of the slot are all that it gets."""
    job = Job("a3c", "Catch", "one", ("--workers", "1", "--total-steps", "200", "--backend", "serial"))
    folder = job.folder(tmp_path)
    finish(folder)
    (folder / "status.json").write_text(json.dumps({"state": "running"}))

    with alone_in(tmp_path, silent) as lock:
        assert run_jobs([job], tmp_path, 1, lock, silent) == []

    assert is_done(job, tmp_path)
    assert not (folder / "mark").exists()
    host = json.loads((folder / "host.json").read_text())
    assert host["cores_usable"] == len(os.sched_getaffinity(0))


def test_no_folder_is_removed_that_only_a_link_leads_to(tmp_path: Path) -> None:
    """A study may be a stranger's, and the link above the run may lead to one's own runs."""
    job = Job("a3c", "Catch", "one", ())
    own, study = tmp_path / "own", tmp_path / "study"
    place = job.folder(own)
    finish(place)
    (place / "status.json").write_text(json.dumps({"state": "failed"}))
    study.mkdir()
    (study / "a3c").symlink_to(own / "a3c")

    with alone_in(study, silent) as lock:
        (failure,) = run_jobs([job], study, 1, lock, silent)

    assert "is not removed: a link leads to it" in failure
    assert (place / "mark").exists()
