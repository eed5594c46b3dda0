"""Runs on Ray whose theta counts its own updates: what status, manifest and records say of it after faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl.storage.records import read_records
from tests.counting import updates_saved
from tests.faults.running import CATCH, Running, actors, gone, running

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("needs_ray")]
WORDS = (*CATCH, "--backend", "ray", "--workers", "1", "--total-steps", "1e9", "--evaluation-interval-steps", "0")
WORDS += ("--update", "locked")
"""Without the lock an exchange and a worker's update may overwrite each other, so theta would not count exactly."""


@contextmanager
def counting(folder: Path, *words: str, algorithm: str = "counting_a3c", loud: bool = False) -> Iterator[Running]:
    """A run of an algorithm that counts, once it has made updates. `loud`: what it prints is in the file `out`."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    own = [word for word in (*WORDS, *words) if not (loud and word == "--quiet")]
    prefix = ("sh", "-c", f'exec "$@" > {folder / "out"}', "sh") if loud else ()
    command = ("train", f"tests.counting.{algorithm}", *own)
    with running(folder / "runs", *command, algorithm="__main__", prefix=prefix, env=environment) as run:
        further(run, 20)
        yield run


def further(run: Running, updates: int) -> None:
    """Wait for so many updates more."""
    before = run.status.get("updates", 0)
    run.until(lambda: run.status.get("updates", 0) >= before + updates, f"{updates} more updates")


def events_of(run: Running, *kinds: str) -> list[dict[str, object]]:
    """Events of these kinds."""
    return [row for row in run.events if row["event"] in kinds]


def stop(run: Running) -> tuple[list[int], int, int]:
    """Stop it; what theta itself counts, and the numbers of updates and lost updates that all files agree on."""
    run.process.send_signal(signal.SIGTERM)
    run.ends_with(143)
    status = run.status
    in_theta, in_manifest = updates_saved(run.folder)
    (*_, newest) = [row for row in read_records(run.folder / "supervisor.jsonl") if "async/updates_lost" in row]
    assert status["updates"] == in_manifest == newest["updates"]
    assert status["updates_lost"] == newest["async/updates_lost"]
    return in_theta, status["updates"], status["updates_lost"]


def made(run: Running) -> int:
    """Updates that all workers have made, by their own records."""
    rows = [row for file in run.folder.glob("worker-*.jsonl") for row in read_records(file)]
    return sum(row.get("updates", 0) for row in rows) + int(run.status["unrecorded"]["updates"])


@pytest.mark.parametrize(("push", "shards"), [("exchange", 1), ("exchange", 2), ("every-update", 2)])
def test_what_a_killed_shard_has_lost_is_counted_and_all_else_is_in_theta(
    tmp_path: Path, push: str, shards: int
) -> None:
    """The same shard at least twice: it comes back with fewer updates than it had, which are counted as lost.

    One that is killed just after it was copied may have lost nothing, so it is killed again until it has.
    """
    with counting(tmp_path, "--push", push, "--parameter-shards", str(shards)) as run:
        spared, times = actors("Shard")[:-1], 0
        while times < 2 or run.status["updates_lost"] == 0:
            times += 1
            (victim,) = set(actors("Shard")).difference(spared)  # Ray may restart it in a process that is older
            victim.send_signal(signal.SIGKILL)
            run.until(lambda: len(events_of(run, "shard_lost")) == times, "the shard's loss")  # noqa: B023
            further(run, 50)
        in_theta, updates, lost = stop(run)

        assert in_theta[0] == updates
        assert in_theta[-1] == (updates if shards == 1 else made(run))
        assert updates + lost == made(run)
        assert lost > 0
        for event in events_of(run, "shard_lost"):
            assert event["cause"] == "was lost with its process"


def test_what_a_mute_host_has_brought_to_one_of_two_shards_is_counted_as_lost(tmp_path: Path) -> None:
    """It is killed after --hang-seconds, and another takes its place."""
    with counting(tmp_path, "--hang-seconds", "10", "--parameter-shards", "2") as run:
        (host,) = actors("Host")
        host.send_signal(signal.SIGSTOP)
        run.until(lambda: len(events_of(run, "host_joined")) == 1, "another host")
        assert gone([host])
        further(run, 50)
        in_theta, updates, lost = stop(run)

        # Workers' records say nothing here: those of the killed host end with its last report, before its last delta.
        assert in_theta[0] == updates
        assert in_theta[-1] == updates + lost


def test_what_a_killed_learner_has_lost_is_counted(tmp_path: Path) -> None:
    """Its successor continues from the driver's copy."""
    with counting(tmp_path, algorithm="counting_impala") as run:
        (learner,) = actors("LearnerHost")
        learner.send_signal(signal.SIGKILL)
        run.until(lambda: len(events_of(run, "restarted")) == 1, "the learner's successor")
        further(run, 50)
        in_theta, updates, lost = stop(run)

        assert in_theta == [updates]
        (event,) = events_of(run, "restarted")
        assert str(event["cause"]).endswith(f"and {lost:,} updates are lost with it")


@pytest.mark.parametrize("algorithm", ["counting_a3c", "counting_impala"])
def test_a_run_that_was_suspended_loses_nobody(tmp_path: Path, algorithm: str) -> None:
    """All of its processes and Ray's, for longer than --hang-seconds."""
    with counting(tmp_path, "--hang-seconds", "8", algorithm=algorithm) as run:
        everyone = run.everyone()
        for process in everyone:
            process.suspend()
        time.sleep(14)
        for process in reversed(everyone):
            process.resume()
        further(run, 100)
        time.sleep(8)
        further(run, 100)

        lost = [row for row in run.events if "lost" in row["event"] or row.get("who") == "learner"]
        assert lost == []
        in_theta, updates, _ = stop(run)
        assert in_theta == [updates]


def test_a_shard_that_does_not_answer_is_named_and_what_is_known_late_is_no_burst(tmp_path: Path) -> None:
    """Stopped for some seconds, and continued."""
    with counting(tmp_path, loud=True) as run:
        run.until(lambda: run.status["seconds"] > 8, "some seconds")
        before = max(row.get("time/fps", 0) for row in read_records(run.folder / "supervisor.jsonl"))
        (shard,) = actors("Shard")
        out = tmp_path / "out"
        name = f"shard 0 on {os.uname().nodename}"
        shard.send_signal(signal.SIGSTOP)
        run.until(lambda: f"{name} has not answered for 5 seconds" in out.read_text(), "the line")
        time.sleep(6)
        shard.send_signal(signal.SIGCONT)
        run.until(lambda: f"{name} answers again" in out.read_text(), "the other line")
        further(run, 100)

        assert out.read_text().count("has not answered") == 1
        after = max(row.get("time/fps", 0) for row in read_records(run.folder / "supervisor.jsonl"))
        assert after < 4 * before
        in_theta, updates, lost = stop(run)
        assert (in_theta, lost) == ([updates], 0)
