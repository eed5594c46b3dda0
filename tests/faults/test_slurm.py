"""A job of SLURM on two nodes: the batch script of the documents trains, and goes on after one of its ranks is killed.

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
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncrl.storage.records import read_records
from tests.faults.networks import ADDRESSES, HOSTS, on, two_hosts
from tests.faults.running import SECONDS
from tests.support import status_of, the_run

pytestmark = [pytest.mark.slow, pytest.mark.faults]
DOCUMENT = Path(__file__).parents[2] / "docs" / "clusters.md"
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
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

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
            started = subprocess.Popen(words, env=made.environment, stdout=log, stderr=log)
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


def batch_script(folder: Path) -> str:
    """The documents' script, with a smaller problem that has no end, but a short one in the second attempt."""
    text = DOCUMENT.read_text()
    script = next(block for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "#SBATCH" in block)
    here = {
        "python -m": f"{sys.executable} -m",
        "--env-id CartPole-v1": f"--env-id Catch --quiet --evaluation-interval-steps 0 --runs-dir {folder}/runs",
        "--total-steps 300_000": "--total-steps 1e9 --max-seconds $((SLURM_RESTART_COUNT ? 2 : 0))",
    }
    for written, instead in here.items():
        assert script.count(written) == 1
        script = script.replace(written, instead)
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
    """It resumes at the step where it was."""

    def status() -> dict[str, Any]:
        found = list(tmp_path.glob("runs/*/*/*/status.json"))
        return status_of(found[0].parent) if found else {}

    with cluster(tmp_path) as slurm:
        (tmp_path / "job.sh").write_text(batch_script(tmp_path))
        job = slurm.ask("sbatch", "--parsable", f"--output={tmp_path}/job.log", f"{tmp_path}/job.sh").strip()
        slurm.until(lambda: status().get("steps", 0) > 0, "the first steps")
        rank_of(tmp_path, 1).kill()
        slurm.until(lambda: status()["state"] == "failed", "the end of the first attempt")
        first = status()
        slurm.until(lambda: "JobState=COMPLETED" in slurm.ask("scontrol", "show", "job", job), "the end of the job")

    assert f"rank 1 on {socket.gethostname()} gave no sign of life" in first["reason"]
    assert (status()["state"], status()["part"]) == ("finished", 1)
    assert status()["steps"] > first["steps"] > 0
    events = read_records(the_run(tmp_path / "runs") / "supervisor.jsonl")
    assert [row["steps"] for row in events if row.get("event") == "resumed"] == [first["steps"]]
