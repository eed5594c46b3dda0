"""Groups of ranks as launchers start them, on two hosts: what becomes of everybody when one of them is lost."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from asyncrl.storage.checkpoints import load_newest
from tests.faults.networks import ADDRESSES, HOSTS, Wire, on, two_hosts
from tests.faults.running import SECONDS, gone, kill
from tests.support import free_port, status_of, the_run

pytestmark = [pytest.mark.slow, pytest.mark.faults]
WORDS = (
    "--env-id", "Catch", "--backend", "collective", "--quiet", "--total-steps", "1e9",
    "--evaluation-interval-steps", "0",
)  # fmt: skip
HOST = socket.gethostname()


class Group:
    """Two launched ranks of A3C that train."""

    def __init__(self, runs_dir: Path, seconds: int, address: str, prefixes: tuple[tuple[str, ...], ...]) -> None:
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(free_port())}
        place["ASYNCRL_SECRET"] = secrets.token_hex(16)
        words = ["--runs-dir", str(runs_dir), "--collective-timeout-seconds", str(seconds)]
        command = [sys.executable, "-m", "asyncrl.a3c", *WORDS, *words]
        self.runs_dir = runs_dir
        self.ranks = [
            subprocess.Popen(
                [*prefix, *command], env=os.environ | place | {"RANK": str(rank)}, text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            )
            for rank, prefix in enumerate(prefixes)
        ]  # fmt: skip

    def await_training(self) -> list[psutil.Process]:
        """Wait until a checkpoint can have steps in it; gives all processes there are."""
        deadline = time.monotonic() + SECONDS
        while not self._steps():
            assert time.monotonic() < deadline, "no steps were made"
            assert all(rank.poll() is None for rank in self.ranks), [rank.poll() for rank in self.ranks]
            time.sleep(0.05)
        return [
            process
            for rank in self.ranks
            for process in (psutil.Process(rank.pid), *psutil.Process(rank.pid).children(recursive=True))
        ]

    def _steps(self) -> int:
        try:
            return int(status_of(the_run(self.runs_dir)).get("steps", 0))
        except (OSError, ValueError):
            return 0

    def code_of(self, rank: int) -> int:
        """How a rank has ended, in bounded time."""
        return self.ranks[rank].wait(timeout=SECONDS)

    def said(self, rank: int) -> str:
        """What it wrote on stderr."""
        return self.ranks[rank].communicate(timeout=SECONDS)[1]

    def kill(self) -> None:
        """End what is left."""
        for rank in self.ranks:
            try:
                left = psutil.Process(rank.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                left = []
            rank.kill()
            kill(left)
            rank.wait()
            assert rank.stderr is not None
            rank.stderr.close()


@contextmanager
def group(
    runs_dir: Path, seconds: int = 5, address: str = "127.0.0.1", prefixes: tuple[tuple[str, ...], ...] = ((), ())
) -> Iterator[Group]:
    """Two ranks that wait for each other for so many seconds; what is left of them at the end is killed."""
    started = Group(runs_dir, seconds, address, prefixes)
    try:
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize(
    "cut",
    [Wire.cut, lambda wire: wire.cut_from(1), lambda wire: wire.cut_from(0)],
    ids=["both directions", "towards rank 0", "away from rank 0"],
)
def test_a_cut_link_ends_the_run_on_both_hosts(tmp_path: Path, cut: Callable[[Wire], None]) -> None:
    """Rank 0 names the rank and its host, and saves; the other, which nobody can tell, ends itself."""
    with ExitStack() as stack:
        wire = stack.enter_context(two_hosts())
        prefixes = tuple(on(host) for host in HOSTS)
        ranks = stack.enter_context(group(tmp_path, 5, ADDRESSES[0], prefixes))
        processes = ranks.await_training()
        cut(wire)

        assert [ranks.code_of(0), ranks.code_of(1)] == [1, 1]
        assert gone(processes)
        status = status_of(the_run(tmp_path))
        assert re.search(r"^rank 1 on \S+ stopped responding", status["reason"]), status["reason"]
        assert load_newest(the_run(tmp_path) / "checkpoints")[0].steps == status["steps"] > 0


def test_without_rank_0_the_others_leave_and_say_so(tmp_path: Path) -> None:
    """Killed without a word; its evaluator goes with it."""
    with group(tmp_path) as ranks:
        processes = ranks.await_training()
        ranks.ranks[0].send_signal(signal.SIGKILL)

        assert ranks.code_of(1) == 1
        (line,) = ranks.said(1).splitlines()
        assert line.startswith(f"asyncrl: rank 1 on {HOST}: rank 0 at 127.0.0.1 is gone, which ends the run")
        assert gone(processes)
        load_newest(the_run(tmp_path) / "checkpoints")


def test_a_rank_0_that_is_stopped_is_given_up(tmp_path: Path) -> None:
    """It cannot say anything, so the next one does. When it goes on, it finds the others gone and saves."""
    with group(tmp_path) as ranks:
        processes = ranks.await_training()
        ranks.ranks[0].send_signal(signal.SIGSTOP)

        assert ranks.code_of(1) == 1
        (line,) = ranks.said(1).splitlines()
        assert line.startswith(f"asyncrl: rank 1 on {HOST}: rank 0 at 127.0.0.1 does not answer: it hangs, or")
        ranks.ranks[0].send_signal(signal.SIGCONT)
        assert ranks.code_of(0) == 1
        assert load_newest(the_run(tmp_path) / "checkpoints")[0].steps == status_of(the_run(tmp_path))["steps"] > 0
        assert gone(processes)


def test_a_rank_that_is_stopped_is_given_up(tmp_path: Path) -> None:
    """SIGSTOP: it lives, and does nothing. When it goes on, it finds the run over and leaves."""
    with group(tmp_path) as ranks:
        processes = ranks.await_training()
        ranks.ranks[1].send_signal(signal.SIGSTOP)

        assert ranks.code_of(0) == 1
        status = status_of(the_run(tmp_path))
        assert "rank 1 on" in status["reason"]
        assert load_newest(the_run(tmp_path) / "checkpoints")[0].steps == status["steps"] > 0
        ranks.ranks[1].send_signal(signal.SIGCONT)
        assert ranks.code_of(1) == 1
        assert gone(processes)


def test_ctrl_c_ends_rank_0_while_another_is_stopped(tmp_path: Path) -> None:
    """It does not wait for the end of the exchange."""
    with group(tmp_path, seconds=1000) as ranks:
        ranks.await_training()
        ranks.ranks[1].send_signal(signal.SIGSTOP)
        ranks.ranks[0].send_signal(signal.SIGINT)

        assert ranks.code_of(0) == 130
        assert load_newest(the_run(tmp_path) / "checkpoints")[0].steps == status_of(the_run(tmp_path))["steps"]


def test_mpirun_starts_ranks(tmp_path: Path) -> None:
    """By Open MPI's own variables, without an address or a secret: all are on this machine."""
    if not shutil.which("mpirun"):
        pytest.skip("there is no mpirun")
    command = ["mpirun", "--oversubscribe", "-np", "2", sys.executable, "-m", "asyncrl.a3c", *WORDS]
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    done = subprocess.run(
        [*command, "--total-steps", "2000", "--runs-dir", str(tmp_path)],
        env=os.environ | allowed, capture_output=True, text=True, timeout=2 * SECONDS,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert status_of(the_run(tmp_path))["state"] == "finished"
    assert status_of(the_run(tmp_path))["worker_steps"][1] >= 1000
