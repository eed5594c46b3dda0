"""Environments that start simulators: no simulator outlives the process that has started it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest

from asyncrl.backends import process_trees
from tests.faults.running import SECONDS, Running, environment_of, running

pytestmark = pytest.mark.faults

SOURCE = """
import gymnasium, multiprocessing, os, subprocess, time
class Engine(gymnasium.Wrapper):
    made = 0
    def __init__(self, sleeps, trouble=""):
        super().__init__(gymnasium.make("CartPole-v1"))
        # Every second simulator leads a session of its own, as many do.
        self.simulator = subprocess.Popen(["sleep", str(sleeps)], start_new_session=Engine.made % 2 == 1)
        Engine.made += 1
        self.last = Engine.made % 2 == 0
        self.trouble = trouble if multiprocessing.current_process().name == "worker-00" else ""
        self.steps = 0
    def step(self, action):
        self.steps += 1
        if self.steps == 100 and self.trouble == "raises": raise RuntimeError("the engine has lost its connection")
        if self.steps == 100 and self.trouble == "hangs": time.sleep(10_000)
        return super().step(action)
    def close(self):
        if multiprocessing.parent_process() is None:  # the command's first look at it
            self.simulator.kill()
            self.simulator.wait()
        elif self.trouble == "raises":
            open(f"closed-{self.last}", "w").close()
            if self.last: time.sleep(10_000)
"""


class Engines(Running):
    """A run with two workers, of two environments each, and an evaluator with two."""

    def __init__(self, run: Running, sleeps: str) -> None:
        super().__init__(run.process, run.runs_dir)
        self._sleeps = sleeps
        self.first: set[psutil.Process] = set()
        """The six that lived when `all_run` was true."""

    def simulators(self) -> list[psutil.Process]:
        """All that live."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            if self._sleeps in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return [process for process in found if process.name() == "sleep"]

    def all_run(self) -> bool:
        """Whether everybody has its two simulators, and the run has begun."""
        self.first = set(self.simulators())
        return len(self.first) == 6 and self.status.get("steps", 0) > 0


@contextmanager
def engines(folder: Path, *words: str, trouble: str = "") -> Iterator[Engines]:
    """A run in the background whose simulators can be told from all others."""
    sleeps = f"{random.randint(10**6, 10**7)}.{os.getpid()}"
    more = ["--env-kwargs", f"sleeps='{sleeps}'", f"trouble={trouble}", "--workers", "2", "--envs-per-worker", "2"]
    more += ["--evaluation-episodes", "2", "--evaluation-interval-steps", "0", "--quiet", "--total-steps", "1e9"]
    options = {"env": environment_of(folder, SOURCE), "cwd": folder}
    with running(folder / "runs", "--env-id", "module:Engine", *more, *words, **options) as run:
        found = Engines(run, sleeps)
        try:
            yield found
        finally:
            run.process.kill()
            for simulator in found.simulators():
                simulator.kill()


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true, after the end of a run too."""
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_family_ends_alone() -> None:
    """Not those whose heads have ids that begin with the same digits, nor those of another command."""
    one, other = "a-99999912", "a-999999123"  # no process has such an id
    names = ["", f"{one};", f"b-9;{one};", f"{other};", "b-99999912;"]
    started = [subprocess.Popen(["sleep", "1000"], env={process_trees.VARIABLE: name}) for name in names]
    try:
        process_trees.end([one])

        assert [process.wait(SECONDS) for process in started[1:3]] == [-signal.SIGKILL] * 2
        assert [process.poll() for process in (started[0], *started[3:])] == [None] * 3
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_simulators_end_with_a_killed_worker_and_after_ctrl_c(tmp_path: Path) -> None:
    """Those of the worker alone; then all."""
    with engines(tmp_path) as run:
        run.until(run.all_run, "the simulators")
        before = run.simulators()
        victim = run.workers()[0]
        own = [simulator for simulator in before if simulator.ppid() == victim.pid]
        victim.kill()
        run.until(lambda: run.restarts == 1, "the loss")

        assert len(own) == 2
        assert not set(own) & set(run.simulators())
        assert set(before) - set(own) <= set(run.simulators())

        run.process.send_signal(signal.SIGINT)
        run.ends_with(130)

        assert run.simulators() == []


def test_simulators_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """Nobody is left who could end them but the workers; the folder of the fork server's socket goes too."""
    others = set(Path(gettempdir()).glob("asyncrl-*"))  # a killed process of the same number may have left one
    with engines(tmp_path) as run:
        run.until(run.all_run, "the simulators")
        folders = list({*Path(gettempdir()).glob(f"asyncrl-{run.process.pid}-*")} - others)
        run.process.kill()
        run.process.wait()

        assert soon(lambda: run.simulators() == [])
        assert len(folders) == 1
        assert soon(lambda: not folders[0].exists())


@pytest.mark.slow
def test_a_worker_that_raises_closes_its_environments_and_may_hang_there(tmp_path: Path) -> None:
    """The first close ends, the second does not: the worker is killed, and what it raised is told all the same."""
    with engines(tmp_path, trouble="raises") as run:
        run.ends_with(1)

        assert "the engine has lost its connection" in run.status["reason"]
        assert (tmp_path / "closed-False").exists()
        assert (tmp_path / "closed-True").exists()
        assert run.simulators() == []


@pytest.mark.slow
def test_simulators_that_close_leaves_end_with_the_run(tmp_path: Path) -> None:
    """A normal end, of environments whose close() ends nothing."""
    with engines(tmp_path, "--total-steps", "1000") as run:
        run.ends_with(0)

        assert run.simulators() == []


@pytest.mark.slow
def test_simulators_end_with_a_worker_that_hangs(tmp_path: Path) -> None:
    """Its successor hangs as well, after as many steps, with its own two."""
    with engines(tmp_path, "--hang-seconds", "10", trouble="hangs") as run:
        run.until(run.all_run, "the simulators")
        run.until(lambda: len(run.first - set(run.simulators())) == 2, "the end of the worker's two simulators")
        run.until(lambda: run.restarts >= 1, "the loss")

        assert len(run.first & set(run.simulators())) == 4
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)
        assert run.simulators() == []


@pytest.mark.slow
def test_ctrl_z_stops_everybody_and_leaves_nobody_to_a_killed_command(tmp_path: Path) -> None:
    """All go on together, stopped for longer than a hang may take though they were; stopped again, all end."""
    with engines(tmp_path, "--hang-seconds", "10") as run:
        run.until(run.all_run, "the simulators")
        everyone = [run.everyone()[0], *run.workers(), run.evaluator()]

        def stopped() -> bool:
            return all(process.status() == psutil.STATUS_STOPPED for process in everyone)

        run.process.send_signal(signal.SIGTSTP)
        run.until(stopped, "everybody stopped")
        time.sleep(12)
        run.process.send_signal(signal.SIGCONT)
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "steps afterwards")
        run.until(lambda: not any(process.status() == psutil.STATUS_STOPPED for process in everyone), "everybody")

        assert run.restarts == run.status["evaluator_restarts"] == 0

        run.process.send_signal(signal.SIGTSTP)
        run.until(stopped, "everybody stopped again")
        run.process.kill()
        run.process.wait()

        assert psutil.wait_procs(everyone, timeout=SECONDS)[1] == []
        assert soon(lambda: run.simulators() == [])
