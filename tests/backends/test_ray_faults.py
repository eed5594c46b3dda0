"""Runs on a Ray cluster that machines join and leave: what becomes of them when a part of it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from asyncrl.backends.processes import start_context
from asyncrl.commands.train import main
from asyncrl.config.run_config import RunConfig
from asyncrl.doctor.hosts import examine
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.networks import ADDRESSES, HOSTS, ip, on, two_hosts
from tests.faults.running import CATCH, Running, actors, gone, running, writes
from tests.support import status_of

ENDLESS = (
    *CATCH, "--backend", "ray", "--workers", "1", "--total-steps", "1e9", "--evaluation-interval-steps", "0",
)  # fmt: skip


def test_auto_has_room_for_sixteen_hosts() -> None:
    """Fewer only where so many would be more workers than any run may have."""
    assert RunConfig(backend="ray", hosts="auto", workers=3).all_workers == 48
    assert RunConfig(backend="ray", hosts="auto", workers=1000).most_hosts == 10
    assert RunConfig(backend="ray", hosts=40, workers=3).most_hosts == 40


def steps_on(run: Running, host: int) -> int:
    """Steps of a host that has one worker."""
    worker_steps = run.status.get("worker_steps", [])
    return worker_steps[host] if worker_steps else 0


def goes_on(run: Running, host: int) -> None:
    """Wait until a host has made steps from now on."""
    before = steps_on(run, host)
    run.until(lambda: steps_on(run, host) > before, f"further steps on host {host}")


def count(run: Running, event: str) -> int:
    """How often an event is in the supervisor's records."""
    return [row["event"] for row in run.events].count(event)


def kill(node: Any, name: str) -> None:
    """Kill what Ray has started for a node: gcs_server or raylet. Ray's workers take a zombie for a living raylet."""
    (info,) = node.all_processes[name]
    info.process.kill()
    info.process.wait()


@pytest.mark.slow
@pytest.mark.faults
def test_with_auto_a_machine_joins_later_and_is_lost_and_the_run_goes_on(tmp_path: Path, cluster: Any) -> None:
    """It begins with the one machine there is. A worker that is killed on the second is replaced there and counted."""
    with running(tmp_path, *ENDLESS, "--address", cluster.address, "--hosts", "auto") as run:
        run.until(lambda: steps_on(run, 0) > 0, "steps on the first machine")
        assert len(run.status["worker_steps"]) == 16

        second = cluster.add_node(num_cpus=1)
        run.until(lambda: steps_on(run, 1) > 0, "steps on the second machine")
        assert count(run, "host_joined") == 1

        raylet = psutil.Process(second.all_processes["raylet"][0].process.pid)
        there = raylet.children(recursive=True)
        (worker,) = [process for process in there if writes(process, r"worker-\d+\.jsonl")]
        worker.send_signal(signal.SIGKILL)
        run.until(lambda: run.restarts == 1, "the worker's replacement")
        assert run.status["worker_restarts"][1] == 1
        goes_on(run, 1)

        there = raylet.children(recursive=True)
        kill(second, "raylet")
        run.until(lambda: count(run, "host_lost") == 1, "the loss of the second machine")
        goes_on(run, 0)
        assert gone(there)

        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)
        assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"]
        assert gone(actors("Host") + actors("Shard"))


@pytest.mark.slow
@pytest.mark.faults
def test_without_the_head_the_run_fails_in_one_line_and_the_local_backend_resumes_it(
    tmp_path: Path, two_nodes: Any
) -> None:
    """Ray ends the driver without an exception, then the nodes and their actors."""
    with running(tmp_path, *ENDLESS, "--address", two_nodes.address, "--hosts", "2") as run:
        run.until(lambda: min(steps_on(run, 0), steps_on(run, 1)) > 0, "steps on both machines")
        there = actors("Host") + actors("Shard")
        kill(two_nodes.head_node, "gcs_server")
        run.ends_with(1)
        assert len(there) == 3
        assert gone(there)

        status = run.status
        assert status["state"] == "failed"
        assert "head of the cluster" in status["reason"]
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"] > 0
        folder = run.folder

    further = ["--backend", "local", "--total-steps", str(status["steps"] + 1000)]
    assert main("asyncrl.a3c", ["--resume", str(folder), *further]) == 0
    assert status_of(folder)["state"] == "finished"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A small file system at a folder; skips where none can be mounted."""
    words = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if os.getuid() or subprocess.run(words, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.faults
def test_a_disk_that_fills_up_on_one_host_does_not_end_the_run(tmp_path: Path, cluster: Any) -> None:
    """The rows of its worker wait until there is room."""
    with TemporaryDirectory() as short, small_disk(Path(short)) as disk:  # names of sockets must be short
        cluster.add_node(num_cpus=1, env_vars={"TMPDIR": str(disk)})
        with running(tmp_path / "runs", *ENDLESS, "--address", cluster.address, "--hosts", "2") as run:
            run.until(lambda: min(steps_on(run, 0), steps_on(run, 1)) > 0, "steps on both machines")
            with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
                while True:
                    filler.write(bytes(4096))
            goes_on(run, 1)
            (disk / "filler").unlink()
            rows = len(read_records(run.folder / "worker-01.jsonl"))
            run.until(lambda: len(read_records(run.folder / "worker-01.jsonl")) > rows, "rows of its worker")
            run.process.send_signal(signal.SIGINT)
            run.ends_with(130)

        assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"] > 0
        assert gone(actors("Host") + actors("Shard"))


@contextmanager
def ray_on_two_hosts(environment: dict[str, str]) -> Iterator[str]:
    """A cluster with a node on each host of `two_hosts`, each in a process namespace of its own; yields its address."""
    address = f"{ADDRESSES[0]}:6379"
    apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    start = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", "--disable-usage-stats")
    places = (("--head", "--port=6379", "--include-dashboard=false"), (f"--address={address}",))
    with ExitStack() as stack:
        # Short names: the paths of Ray's sockets may have 107 characters.
        folders = [stack.enter_context(TemporaryDirectory(prefix="r", dir="/tmp")) for _ in HOSTS]
        for number, (host, own, folder, place) in enumerate(zip(HOSTS, ADDRESSES, folders, places, strict=True)):
            ip("-n", host, "route", "add", "default", "dev", f"arl-t{number}")  # by it Ray's driver finds its own node
            words = [*on(host), *apart, *start, *place, f"--node-ip-address={own}", f"--temp-dir={folder}"]
            node = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(node.wait)
            stack.callback(node.kill)  # and all in its namespace with it
        yield address


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.usefixtures("needs_ray")
def test_a_link_that_is_cut_for_five_seconds_costs_no_host(tmp_path: Path) -> None:
    """Both go on with what they have, and exchange again when it is mended. The cluster wants a token."""
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_worker_niceness": "0"}
    with two_hosts() as wire, ray_on_two_hosts(environment) as address:
        words = (*ENDLESS, "--address", address, "--hosts", "2")
        with running(tmp_path, *words, prefix=on(HOSTS[0]), env=environment) as run:
            run.until(lambda: min(steps_on(run, 0), steps_on(run, 1)) > 0, "steps on both hosts")
            wire.cut()
            time.sleep(5)
            goes_on(run, 0)
            wire.mend()
            goes_on(run, 1)
            assert [row["event"] for row in run.events if row["event"].startswith("host")] == []

            run.process.send_signal(signal.SIGTERM)
            run.ends_with(143)
            assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"]


@pytest.mark.slow
def test_the_doctor_looks_at_each_machine_and_leaves_nothing(two_nodes: Any) -> None:
    """Only the missing token is noted; without the cluster it says so in one finding."""
    found = examine(start_context("asyncrl.a3c"), two_nodes.address, workers=2, needed=2**20, parameters=10_000)

    assert [one.check for one in found if one.verdict != "ok"] == ["Ray requires a token"]
    assert found[0].figure.count("cores") == 2
    assert gone(actors("Probe") + actors("Shard"))

    (failed,) = examine(start_context("asyncrl.a3c"), "127.0.0.1:1", workers=2, needed=2**20, parameters=10_000)
    assert failed.verdict == "FAIL"
    assert "there is no Ray cluster at 127.0.0.1:1" in failed.figure
