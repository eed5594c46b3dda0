"""Runs in the background that a test does harm to, and who is who in them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncrl.storage.records import RecordReader, read_records
from tests.support import status_of, the_run

# A suite started under nohup would hand down a SIGHUP that is ignored, and runs leave such a one alone.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

CATCH = ("--env-id", "Catch", "--quiet", "--evaluation-interval-steps", "1000", "--evaluation-episodes", "4")
SECONDS = 200.0
"""Longest wait for anything, on a crowded machine too: only a run that hangs takes so long."""


class Running:
    """A command and the processes below it."""

    def __init__(self, process: subprocess.Popen[str], runs_dir: Path) -> None:
        self.process = process
        self.runs_dir = runs_dir

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return the_run(self.runs_dir)

    @property
    def status(self) -> dict[str, Any]:
        """status.json; empty before there is one."""
        try:
            return status_of(self.folder)
        except (OSError, ValueError):
            return {}

    @property
    def restarts(self) -> int:
        """How often any worker was replaced, as status.json counts it."""
        return sum(self.status.get("worker_restarts", []))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events in the supervisor's records; none before there is a run."""
        if not list(self.runs_dir.glob("*/*/*/config.json")):
            return []
        return [row for row in read_records(self.folder / "supervisor.jsonl") if "event" in row]

    def everyone(self) -> list[psutil.Process]:
        """The command and all below it."""
        try:
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """Those that have a worker's records open."""
        return [child for child in self.everyone()[1:] if writes(child, r"worker-\d+\.jsonl")]

    def evaluator(self) -> psutil.Process:
        """The one that has the evaluator's records open, once it has: nobody waits for it when a run begins."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = [child for child in self.everyone()[1:] if writes(child, r"evaluator\.jsonl")]
            return bool(found)

        self.until(look, "the evaluator")
        return found[0]

    def fork_server(self) -> psutil.Process:
        """The one that starts the others."""
        return next(child for child in self.everyone()[1:] if is_fork_server(child))

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it; fail if the run ends before, or never gets there."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, f"the run ended before {what}: {self.status or self.errors()}"
            assert time.monotonic() < deadline, f"in vain: {what}"
            time.sleep(0.05)

    def ends_with(self, code: int) -> None:
        """The command ends by itself, with this exit code, and leaves no process."""
        processes = self.everyone()
        try:
            found = self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run does not end: {self.status}") from None
        assert found == code, (found, self.status, self.errors())
        assert gone(processes)

    def errors(self) -> str:
        """What it wrote on stderr; only once it has ended."""
        assert self.process.stderr is not None
        return "" if self.process.poll() is None or self.process.stderr.closed else self.process.stderr.read()


def writes(process: psutil.Process, name: str) -> bool:
    """Whether the process has a file of such a name open."""
    try:
        return any(re.search(rf"/{name}$", file.path) for file in process.open_files())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def actors(name: str) -> list[psutil.Process]:
    """Processes below this one in which Ray runs an actor of this class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(f"ray::{name}" in word for word in process.cmdline()):
                found.append(process)
    return found


def is_fork_server(process: psutil.Process) -> bool:
    """Whether the process is the interpreter's fork server, and not one of its forks, which have the same name."""
    try:
        parent = process.parent()
        words = " ".join(process.cmdline())
        return "forkserver" in words and (parent is None or "forkserver" not in " ".join(parent.cmdline()))
    except psutil.NoSuchProcess:
        return False


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of them end."""
    return psutil.wait_procs(processes, timeout=SECONDS)[1] == []


@contextmanager
def running(
    runs_dir: Path, *words: str, algorithm: str = "a3c", prefix: tuple[str, ...] = (), **options: Any
) -> Iterator[Running]:
    """A run in the background, by a command after `prefix`. Whatever is left of it at the end is killed."""
    command = [*prefix, sys.executable, "-m", f"asyncrl.{algorithm}", *words, "--runs-dir", str(runs_dir)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        yield Running(process, runs_dir)
    finally:
        try:
            left = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            left = []
        process.kill()
        kill(left)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def kill(processes: list[psutil.Process]) -> None:
    """Kill those that are left; without the command they also leave by themselves."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def training(runs_dir: Path, *words: str, **options: Any) -> Iterator[Running]:
    """A long run on Catch with two workers, yielded once it is training."""
    with running(runs_dir, *CATCH, "--workers", "2", "--total-steps", "1e9", *words, **options) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        yield run


def environment_of(folder: Path, source: str, name: str = "module") -> dict[str, str]:
    """Variables with which a command finds a module of this source, as `module:make`, and this package."""
    (folder / f"{name}.py").write_text(source)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}"}


def broken_by(folder: Path, source: str) -> dict[str, str]:
    """Variables with which every Python process of a command first runs this source: a file system that fails."""
    return environment_of(folder, source, "sitecustomize")


def import_here(folder: Path, source: str, patch: pytest.MonkeyPatch) -> None:
    """Let this process and its children find `module.py` of this source, too."""
    environment_of(folder, source)
    patch.syspath_prepend(str(folder))
    patch.delitem(sys.modules, "module", raising=False)


def check_written(run: Path) -> None:
    """Status, rows of workers and TensorBoard have all that a run has done."""
    from tests.storage.test_tensorboard import points

    status = status_of(run)
    assert status["unwritten"] == {"records": 0, "TensorBoard": 0}
    for worker, steps in enumerate(status["worker_steps"]):
        reader = RecordReader(run / f"worker-{worker:02d}.jsonl")
        assert sum(row.get("worker_steps", 0) for row in reader.read()) == steps
        assert reader.skipped == 0
    rows = [row for row in read_records(run / "supervisor.jsonl") if "event" not in row]
    assert [step for step, _ in points(run / "tb", "time/fps")] == [row["steps"] for row in rows]
