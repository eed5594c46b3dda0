"""Who has started this process, by what launchers leave in the environment."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrl.backends.collective.board import disagreement, first_line
from asyncrl.backends.collective.launch import launched, ranks_here, tcp_address
from asyncrl.core.errors import UsageError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "hostA", "MASTER_PORT": "29400"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "hostA,hostB", "SLURM_JOB_ID": "7"}
OF_SLURM = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "7.0"}
"""What SLURM's plugin for PMI adds to it."""


def test_nobody_has_started_a_command_that_was_typed() -> None:
    """Nor is a batch script of SLURM, which has a rank and no step, started by srun."""
    assert launched({}) is None
    assert launched({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}) is None


@pytest.mark.parametrize(
    ("environment", "by", "rank", "size", "address"),
    [
        (TORCHRUN, "torchrun", 3, 4, "tcp://hostA:29400"),
        (MPIRUN | {"MASTER_ADDR": "hostB", "MASTER_PORT": "5000"}, "mpirun", 1, 2, "tcp://hostB:5000"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "PMI", 0, 2, "tcp://h:1"),
        (SRUN | MPIRUN | {"MASTER_ADDR": "h", "MASTER_PORT": "1"}, "mpirun", 1, 2, "tcp://h:1"),
        (SRUN | OF_SLURM | {"MASTER_ADDR": "h", "MASTER_PORT": "1"}, "srun", 1, 2, "tcp://h:1"),
        (SRUN | {"PMI_RANK": "3", "PMI_SIZE": "8", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "PMI", 3, 8, "tcp://h:1"),
    ],
)
def test_each_launcher_is_recognised(environment: dict[str, str], by: str, rank: int, size: int, address: str) -> None:
    """The innermost where one has started the other."""
    launch = launched(environment)

    assert launch is not None
    assert (launch.by, launch.rank, launch.size, launch.address) == (by, rank, size, address)


@pytest.mark.parametrize(("environment", "host"), [(SRUN, "hostA"), (SRUN | OF_SLURM, "hostA"), (MPIRUN, "127.0.0.1")])
def test_where_to_meet_follows_from_the_job(environment: dict[str, str], host: str) -> None:
    """The first node of SLURM's step, or this machine; the port is the same for all of a job and another in others."""
    first = launched(environment)
    other = launched(environment | {"SLURM_JOB_ID": "8"})

    assert first is not None
    assert other is not None
    assert tcp_of(first.address)[0] == host
    assert 20_000 <= tcp_of(first.address)[1] < 30_000
    assert first.address != other.address


def tcp_of(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("environment", "here"),
    [
        ({}, 8),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}, 2),
        (MPIRUN, 2),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),2"}, 3),
        (TORCHRUN, 1),
    ],
)
def test_the_ranks_on_rank_0s_machine_are_counted(environment: dict[str, str], here: int) -> None:
    """All, if nobody else has started them; only rank 0, if its launcher does not say."""
    assert ranks_here(environment, 8) == here


def test_the_hosts_of_a_list_are_asked_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """node[07-09] is three of them."""
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$3" = "node[07-09]" ] && printf "node07\\nnode08\\nnode09\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    launch = launched(SRUN | {"SLURM_STEP_NODELIST": "node[07-09]"})

    assert launch is not None
    assert tcp_of(launch.address)[0] == "node07"


def test_the_flag_goes_before_the_launcher() -> None:
    """Also before torchrun's agent."""
    launch = launched(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, "tcp://hostC:1")

    assert launch is not None
    assert (launch.address, launch.agent) == ("tcp://hostC:1", False)


def test_each_attempt_of_torchrun_meets_at_a_place_of_its_own() -> None:
    """The agent's store outlives an attempt, and with it what the attempt before has written there."""
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"}
    first = launched(TORCHRUN | agent | {"TORCHELASTIC_RESTART_COUNT": "0"})
    second = launched(TORCHRUN | agent | {"TORCHELASTIC_RESTART_COUNT": "1"})

    assert first is not None
    assert second is not None
    assert first.agent
    assert first.attempt != second.attempt


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (MPIRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun does not say where rank 0 is: give --init-method tcp"),
        (TORCHRUN | {"RANK": "4"}, "reports an impossible rank: 4 of 4"),
        (TORCHRUN | {"RANK": "x"}, "RANK and WORLD_SIZE must be numbers"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(environment: dict[str, str], complaint: str) -> None:
    """Before anybody waits for anybody."""
    with pytest.raises(UsageError, match=complaint):
        launched(environment)


@pytest.mark.parametrize(
    "address", ["here", "tcp://host", "tcp://host:x", "tcp://host:\u00b2", "tcp://127.0.0.1:70000", "udp://h:1"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    """Anything else is a mistake."""
    with pytest.raises(UsageError, match=r"takes tcp://HOST:PORT or file://PATH, got"):
        tcp_address(address)


def test_a_host_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked up first: gloo would wait for it and then fill the screen."""
    look_up = socket.getaddrinfo

    def nobody(host: str, *more: Any, **options: Any) -> Any:
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    for host in ("nowhere.invalid", "node..cluster", ".cluster", 64 * "x" + ".cluster"):
        with pytest.raises(UsageError, match=rf"there is no host '{re.escape(host)}' \("):
            tcp_address(f"tcp://{host}:1")


def test_of_gloos_errors_one_line_is_kept() -> None:
    """What happened, not where in its source, nor what to try."""
    closed = "[/w/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:52966. This is"

    assert first_line(RuntimeError(closed + " typically caused by\na remote crash")) == (
        "Connection closed by peer [127.0.0.1]:52966"
    )
    assert first_line(RuntimeError()) == "RuntimeError"


def test_ranks_that_were_started_unlike_rank_0_are_told_apart() -> None:
    """By what they have installed, and by the first word that differs."""
    first = {"host": "a", "words": ["--seed", "1", "--gamma", "0.9"], "versions": {"torch": "2.13", "numpy": "2"}}
    same = first | {"host": "b"}

    assert disagreement(1, same, first) is None
    assert disagreement(2, same | {"words": ["--seed", "2", "--gamma", "0.9"]}, first) == (
        "rank 2 on b has different settings from rank 0: '--seed 2 --gamma' instead of '--seed 1 --gamma'"
    )
    assert disagreement(2, same | {"words": ["--seed", "1"]}, first) == (
        "rank 2 on b has different settings from rank 0: '1' instead of '1 --gamma 0.9'"
    )
    assert disagreement(3, same | {"versions": {"torch": "2.12", "numpy": "2"}}, first) == (
        "rank 3 on b has torch 2.12, rank 0 has 2.13"
    )


def test_one_thread_is_asked_for_before_numpy_and_torch_are_loaded(tmp_path: Path) -> None:
    """Whatever the launcher has set: a module of the package that needs neither is run as a command."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\n"
        "atexit.register(lambda: print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'],"
        " 'numpy' in sys.modules, 'torch' in sys.modules))\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "16", "OPENBLAS_NUM_THREADS": "16"}

    run = subprocess.run(
        [sys.executable, "-m", "asyncrl.core.devices"], capture_output=True, text=True, timeout=200, env=environment
    )

    assert run.stdout.split() == ["1", "1", "False", "False"], run
