"""Runs as jobs: ordinary commands, several at a time, each on its share of the cores.

A study may be killed at any moment. A finished run is never repeated. An interrupted one is started afresh, because a
resumed run would differ from an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from asyncrl.catalog import short
from asyncrl.core.devices import usable_cores
from asyncrl.core.errors import UsageError
from asyncrl.storage.holding import holding, is_held
from asyncrl.storage.run_folder import LOCK, make_folders, read_status, remove_folders, run_path

Say = Callable[[str], None]
Told = tuple[str, bool]
"""The result of a task as a line, and whether it failed."""
LOOK_SECONDS = 1.0
"""Interval between checks of a run that may be stopped early."""


@dataclass(frozen=True)
class Job:
    """One run of one algorithm."""

    algorithm: str
    """The method, such as "a3c", or the module of a user's own algorithm."""
    env_id: str
    name: str
    """Name of the run's folder, always the same for the same job."""
    words: tuple[str, ...]
    """Further flags and values."""

    def arguments(self, runs_dir: Path) -> list[str]:
        """The words after `python -m asyncrl train <algorithm>`."""
        place = ("--runs-dir", str(runs_dir), "--run-name", self.name, "--quiet")
        return ["--env-id", self.env_id, *self.words, *place]

    def command(self, runs_dir: Path) -> list[str]:
        """The whole command line."""
        return ["python", "-m", "asyncrl", "train", self.algorithm, *self.arguments(runs_dir)]

    def folder(self, runs_dir: Path) -> Path:
        """The run's folder."""
        return run_path(runs_dir, short(self.algorithm), self.env_id, self.name)

    def __str__(self) -> str:
        return f"{self.algorithm} {self.env_id} {self.name}"


def is_done(job: Job, runs_dir: Path) -> bool:
    """Whether the run has reached its end."""
    return read_status(job.folder(runs_dir)).get("state") == "finished"


def share_cores(cores: Sequence[int], slots: int) -> list[list[int]]:
    """A share of the cores for each slot: adjacent, as equal as possible; one core each if there are more slots."""
    if slots > len(cores):
        return [[cores[slot % len(cores)]] for slot in range(slots)]
    bounds = [slot * len(cores) // slots for slot in range(slots + 1)]
    return [list(cores[low:high]) for low, high in itertools.pairwise(bounds)]


@contextlib.contextmanager
def alone_in(runs_dir: Path, say: Say) -> Iterator[int]:
    """Hold the study's lock; yields its file descriptor, which jobs inherit.

    If a study is killed, its runs continue, and they hold the lock until the last one has ended. The next study waits
    for that, and finds them finished. A study that is refused leaves no folder behind.
    """
    made: list[Path] = []
    lock = runs_dir / "study.lock"
    try:
        make_folders(runs_dir, made)
    except OSError as error:
        remove_folders(made)
        raise UsageError(f"cannot write into {runs_dir}: {error.strerror}") from error
    try:
        with holding(lock, say, waits=f"waiting for runs that are still active in {runs_dir}") as hold:
            yield hold.fileno()
    except (UsageError, SystemExit):
        if made and list(runs_dir.iterdir()) in ([], [lock]):
            lock.unlink(missing_ok=True)
            remove_folders(made)
        raise


def run_jobs(jobs: Sequence[Job], runs_dir: Path, slots: int, lock: int, say: Say) -> list[str]:
    """Make the runs that are not finished yet, `slots` at a time; returns a line for each that failed.

    `lock` comes from `alone_in`. On Ctrl-C or SIGTERM all runs are stopped before KeyboardInterrupt is raised. Raises
    UsageError if a command rejects its arguments.
    """
    waiting = [job for job in jobs if not is_done(job, runs_dir)]
    runs = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
    say(f"{runs}, {len(jobs) - len(waiting)} of them already finished; {slots} at a time")

    def task(job: Job, running: RunningJobs) -> Told:
        began = time.monotonic()
        failure = running.run(job)
        return f"{job}: {failure or 'finished'} after {time.monotonic() - began:.0f} s", bool(failure)

    return run_tasks([partial(task, job) for job in waiting], runs_dir, slots, lock, say)


def run_tasks(
    tasks: Sequence[Callable[[RunningJobs], Told]], runs_dir: Path, slots: int, lock: int, say: Say
) -> list[str]:
    """Run tasks that make runs, `slots` at a time, each on its share of the cores; otherwise like `run_jobs`."""
    shares: SimpleQueue[list[int]] = SimpleQueue()
    for share in share_cores(usable_cores(), slots):
        shares.put(share)
    running = RunningJobs(runs_dir, lock)
    failures = []
    # Restricts a thread, and every process it starts from now on, to some cores (if the system can).
    keep_to: Callable[[int, list[int]], None] = getattr(os, "sched_setaffinity", lambda *_: None)
    with ThreadPoolExecutor(slots, initializer=lambda: keep_to(0, shares.get())) as pool, _sigterm_as_interrupt():
        futures: list[Future[Told]] = []
        try:
            futures.extend(pool.submit(task, running) for task in tasks)
            for count, future in enumerate(as_completed(futures), 1):
                line, failed = future.result()
                say(f"[{count}/{len(tasks)}] {line}")
                failures += [line] if failed else []
        except BaseException:
            running.stop()
            for future in futures:
                future.cancel()
            raise
    return failures


class RunningJobs:
    """The active runs."""

    def __init__(self, runs_dir: Path, lock: int) -> None:
        self._runs_dir = runs_dir
        self._lock = lock
        self._guard = threading.Lock()
        self.stopping = False
        """Whether no more runs may begin."""
        self._going: set[subprocess.Popen[str]] = set()

    def run(self, job: Job, enough: Callable[[], bool] | None = None) -> str:
        """Make one run; returns what went wrong, "" if nothing did.

        `enough` is called every second. When it returns True the run is stopped in order, which is not a failure.
        """
        folder = job.folder(self._runs_dir)
        with self._guard:
            if self.stopping:
                return "not started"
            if is_held(folder / LOCK):  # a run of a study that was killed, where locks are not inherited
                return "another process is training there"
            try:
                if folder.exists():
                    if not folder.parent.resolve().is_relative_to(self._runs_dir.resolve()):
                        return f"{folder} is not removed: a link leads to it, from {self._runs_dir} to elsewhere"
                    shutil.rmtree(folder)
            except OSError as error:
                return f"{folder} cannot be removed: {error.strerror or error}"
            process = subprocess.Popen(
                [sys.executable, *job.command(self._runs_dir)[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, errors="replace", pass_fds=(self._lock,),
            )  # fmt: skip
            self._going.add(process)
        said, cut = None, False
        while said is None:
            try:
                _, said = process.communicate(timeout=LOOK_SECONDS if enough and not cut else None)
            except subprocess.TimeoutExpired:
                if enough and enough():
                    process.terminate()
                    cut = True
        with self._guard:
            self._going.discard(process)
        last = said.strip().splitlines()[-1:]
        if process.returncode == 2:
            raise UsageError(f"{job}: {last[0] if last else 'refused'}")
        if process.returncode == 0 or cut:
            return ""
        return f"ended with code {process.returncode}" + (f" ({last[0]})" if last else "")

    def stop(self) -> None:
        """Ask all runs to stop, and begin no more."""
        with self._guard:
            self.stopping = True
            for process in self._going:
                process.terminate()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM stop the study like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
