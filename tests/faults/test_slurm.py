"""Jobs of SLURM on two nodes: the batch scripts of the documents train, and go on without a rank or a node.

Controller, nodes and their keys are the test's own, in network namespaces of this machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.networks import ADDRESSES, HOSTS, on, two_hosts
from tests.faults.running import SECONDS
from tests.support import status_of, the_run

pytestmark = [pytest.mark.slow, pytest.mark.faults]
DOCUMENTS = Path(__file__).parents[2] / "docs"
CONFIGURATION = """\
ClusterName=asyncrl
SlurmctldHost={machine}({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdTimeout=30
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeAddr={addresses[0]} NodeHostname={machine} Port=17001 CPUs=1
NodeName=n2 NodeAddr={addresses[1]} NodeHostname={machine} Port=17002 CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE
"""
"""A job that is queued again waits for `cred_expire` seconds, two minutes by default."""


class Cluster:
    """Two nodes that take jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, script: str) -> str:
        """Queue a job that writes to job.log; returns its number."""
        (self.folder / "job.sh").write_text(script)
        words = ("sbatch", "--parsable", f"--chdir={self.folder}", f"--output={self.folder}/job.log")
        return self.ask(*words, f"{self.folder}/job.sh").strip()

    def status(self) -> dict[str, Any]:
        """The status of the run that a job has begun."""
        found = list(self.folder.glob("runs/*/*/*/status.json"))
        return status_of(found[0].parent) if found else {}

    def ask(self, *words: str) -> str:
        """What a command of SLURM answers."""
        return subprocess.run([*on(HOSTS[0]), *words], env=self.environment, capture_output=True, text=True).stdout

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            logs = [log.read_text()[-2000:] for log in self.folder.glob("*.log")]
            assert time.monotonic() < deadline, f"in vain: {what}: {logs}"
            time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """SLURM on two hosts; nothing of it is left afterwards. Skips the test where it cannot run."""
    if missing := [name for name in ("slurmctld", "slurmd", "munged", "unshare") if not shutil.which(name)]:
        pytest.skip(f"needs SLURM (slurm-wlm, munge): there is no {missing[0]}")
    made = Cluster(folder)
    files = {
        "slurm.conf": CONFIGURATION.format(machine=socket.gethostname(), folder=folder, addresses=ADDRESSES),
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n",
        "hosts": f"127.0.0.1 localhost\n{ADDRESSES[0]} n1\n{ADDRESSES[1]} n2\n",
        "munge.key": secrets.token_hex(64),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    (folder / "state").mkdir()
    munge = [f"--{name}={folder}/munge.{end}" for name, end in (
        ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
    )]  # fmt: skip
    # A process namespace each: whatever a node has started ends with it.
    alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
    node = f"mount --bind {folder}/hosts /etc/hosts; slurmd -D -N "
    with ExitStack() as stack:
        stack.enter_context(two_hosts())
        for name, words in {
            "munged": ["munged", "--foreground", "--force", *munge],
            "slurmctld": [*on(HOSTS[0]), "slurmctld", "-D", "-i"],
            "n1": [*on(HOSTS[0]), *alone, f"{node} n1"],
            "n2": [*on(HOSTS[1]), *alone, f"{node} n2"],
        }.items():
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            made.started[name] = started = subprocess.Popen(words, env=made.environment, stdout=log, stderr=log)
            stack.callback(started.wait)
            stack.callback(started.kill)
            if name == "munged":
                made.until((folder / "munge.socket").exists, "munge's socket")
        deadline = time.monotonic() + 60
        while made.ask("sinfo", "--noheader", "--format=%D %t").strip() != "2 idle":
            if time.monotonic() > deadline:
                pytest.skip(f"SLURM does not start here: {(folder / 'n1.log').read_text()[-500:]}")
            time.sleep(0.2)
        yield made


def batch_script(page: str, instead: dict[str, str]) -> str:
    """The script of a page of the documents, on Catch and with other words in place of its own."""
    text = (DOCUMENTS / f"{page}.md").read_text()
    script = next(block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "#SBATCH" in block)
    small = {
        " python -m": f" {sys.executable} -m",
        "--env-id CartPole-v1": "--env-id Catch --quiet --evaluation-interval-steps 0",
    }
    for written, other in (small | instead).items():
        assert script.count(written) == 1
        script = script.replace(written, other)
    return script


def rank_of(folder: Path, rank: int) -> psutil.Process:
    """The process of a rank, found by what SLURM has told it."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            told = process.environ()
            here = told.get("SLURM_CONF") == str(folder / "slurm.conf") and told.get("SLURM_PROCID") == str(rank)
            if here and process.cmdline()[:3] == [sys.executable, "-m", "asyncrl.a3c"]:
                return process
    raise AssertionError(f"rank {rank} does not run")


def test_a_job_whose_rank_is_killed_is_queued_again_and_finishes(tmp_path: Path) -> None:
    """It resumes at the step where it was. The second attempt is short, the first has no end."""
    endless = {"--total-steps 300_000": "--total-steps 1e9 --max-seconds $((SLURM_RESTART_COUNT ? 2 : 0))"}
    with cluster(tmp_path) as slurm:
        job = slurm.submit(batch_script("clusters", endless))
        slurm.until(lambda: slurm.status().get("steps", 0) > 0, "the first steps")
        rank_of(tmp_path, 1).kill()
        slurm.until(lambda: slurm.status()["state"] == "failed", "the end of the first attempt")
        first = slurm.status()
        slurm.until(lambda: "JobState=COMPLETED" in slurm.ask("scontrol", "show", "job", job), "the end of the job")

    status = status_of(the_run(tmp_path / "runs"))
    assert f"rank 1 on {socket.gethostname()} stopped responding" in first["reason"]
    assert (status["state"], status["part"]) == ("finished", 1)
    assert status["steps"] > first["steps"] > 0
    events = read_records(the_run(tmp_path / "runs") / "supervisor.jsonl")
    assert [row["steps"] for row in events if row.get("event") == "resumed"] == [first["steps"]]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_job_on_ray_goes_on_without_a_node_that_is_lost(tmp_path: Path) -> None:
    """Ray misses the node. Afterwards SIGTERM ends the run with a checkpoint, and the job is not queued again."""
    small = {"--cpus-per-task=8": "--cpus-per-task=1", "--total-steps 1e6": "--total-steps 1e9"}

    def lost() -> list[int]:
        events = read_records(the_run(tmp_path / "runs") / "supervisor.jsonl")
        return [row["steps"] for row in events if row.get("event") == "host_lost"]

    with cluster(tmp_path) as slurm, TemporaryDirectory(prefix="r", dir="/tmp") as short:  # for the paths of sockets
        slurm.environment["RAY_TMPDIR"] = short
        job = slurm.submit(batch_script("ray", small))
        slurm.until(lambda: min(slurm.status().get("worker_steps", [0])) > 0, "steps on both nodes")
        slurm.started["n2"].kill()
        slurm.until(lambda: bool(lost()), "the loss of the second node")
        slurm.until(lambda: slurm.status()["steps"] > lost()[0], "further steps")
        rank_of(tmp_path, 0).terminate()
        slurm.until(lambda: "JobState=FAILED" in slurm.ask("scontrol", "show", "job", job), "the end of the job")
        assert "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=143:0" in slurm.ask("scontrol", "show", "job", job)

    folder = the_run(tmp_path / "runs")
    assert load_newest(folder / "checkpoints")[0].steps == status_of(folder)["steps"] > lost()[0]
