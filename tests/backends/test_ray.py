"""Runs on Ray: alone on this machine, and on a cluster of two raylets that get hurt. Skipped where Ray is missing."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncrl.commands.train import main
from asyncrl.core.extras import to_install
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.running import CATCH, Running, actors, environment_of, gone, running
from tests.support import evaluations_of, status_of, the_run

RAY = ("--backend", "ray", "--workers", "1")
ALONE = (*CATCH, *RAY, "--total-steps", "1e9", "--evaluation-interval-steps", "0")
ENDLESS = (*ALONE, "--hosts", "2")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--backend", "local", "--hosts", "2"), "--hosts is for --backend ray"),
        (("--backend", "serial", "--address", "auto"), "--address is for --backend ray"),
        (("--backend", "local", "--push", "every-update"), "--push is for --backend ray"),
        (("--backend", "ray", "--statistics", "per-worker"), "--statistics is for --backend local and serial"),
    ],
)
def test_what_hosts_cannot_do_is_refused_in_one_line(
    tmp_path: Path, words: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and nothing is made."""
    assert main("asyncrl.a3c", [*CATCH, *words, "--runs-dir", str(tmp_path)]) == 2

    (line,) = capfd.readouterr().err.strip().splitlines()
    assert re.search(complaint, line)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algorithm", "words", "complaint"),
    [
        ("apex", ("--checkpoint-replay",), "--checkpoint-replay needs a single machine"),
        (
            "apex",
            ("--hosts", "2", "--memory-steps", "700", "--warmup-steps", "0", "--workers", "2"),
            "must be at least",
        ),
        ("apex", ("--hosts", "auto"), "--hosts auto is not for methods with a replay memory"),
        ("apex", ("--replay-hosts", "2"), "--replay-hosts must be at most --hosts"),
        ("apex", ("--backend", "local", "--replay-hosts", "1"), "--replay-hosts is for --backend ray"),
        ("a3c", ("--replay-hosts", "1"), "--replay-hosts"),
        ("gorila", ("--layout", "bundled", "--replay-hosts", "1"), "with --layout bundled each host has its own"),
        ("gorila", ("--learners", "2", "--replay-hosts", "1"), "with several --learners each host has its own"),
        ("apex", ("--replay-hosts", "1", "--checkpoint-replay"), "--checkpoint-replay needs a single machine"),
        ("gorila", ("--layout", "bundled", "--hosts", "auto"), "--hosts auto is not for methods with a replay memory"),
        ("gorila", ("--layout", "bundled", "--checkpoint-replay"), "--checkpoint-replay needs a single machine"),
        ("gorila", ("--layout", "bundled", "--learners", "2"), "--learners are for --layout unbundled"),
        (
            "gorila",
            ("--learners", "2", "--learner-resource", "gpu"),
            "in asyncrl gorila each host has its own learners",
        ),
        ("gorila", ("--push", "exchange"), "in asyncrl gorila one learner does; with several --learners or"),
        ("gorila", ("--parameter-shards", "2"), "in asyncrl gorila one learner does; with several --learners or"),
        (
            "impala",
            ("--push", "every-update"),
            "--push is for methods whose workers learn; in asyncrl impala one learner does",
        ),
        (
            "impala",
            ("--parameter-shards", "2"),
            "for methods whose workers learn; in asyncrl impala one learner does",
        ),
        ("a3c", ("--learner-resource", "gpu"), "is for methods with a learner; in asyncrl a3c workers learn"),
    ],
)
def test_what_hosts_cannot_do_with_a_method_is_said(
    tmp_path: Path, algorithm: str, words: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, whether Ray is there or not."""
    assert main(f"asyncrl.{algorithm}", [*CATCH, "--backend", "ray", *words, "--runs-dir", str(tmp_path)]) == 2

    (line,) = capfd.readouterr().err.strip().splitlines()
    assert complaint in line


def test_without_ray_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is made."""
    monkeypatch.setattr("asyncrl.backends.ray.importlib.util.find_spec", lambda name: None)

    assert main("asyncrl.a3c", [*CATCH, "--backend", "ray", "--runs-dir", str(tmp_path)]) == 2

    assert to_install("ray") in capfd.readouterr().err
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
def test_a_call_that_raises_is_not_taken_for_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone, or not filled yet, is asked again; one that raises would raise for ever."""
    import ray

    from asyncrl.backends.ray.actors import RayWire
    from asyncrl.runtime.link import Empty

    def receive(error: Exception) -> list[tuple[Any, Any]]:
        def get(call: object) -> None:
            raise error

        monkeypatch.setattr(ray, "get", get)
        monkeypatch.setattr(ray, "wait", lambda calls, timeout: (calls, []))
        return RayWire([]).receive(["call"], 0.0)

    def raised(cause: Exception) -> Exception:
        error: Exception = ray.exceptions.RayTaskError("exchange", "it is wrong", cause).as_instanceof_cause()
        return error

    assert receive(ray.exceptions.ActorDiedError()) == [("call", None)]
    assert receive(raised(Empty())) == [("call", None)]
    with pytest.raises(ValueError, match="wrong"):
        receive(raised(ValueError("it is wrong")))


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
def test_a_run_on_a_cluster_of_its_own_goes_on_as_a_local_one_and_back(tmp_path: Path) -> None:
    """Every step is in a row, the last evaluation is of the last theta, and checkpoints fit both backends."""
    words = [*CATCH, "--runs-dir", str(tmp_path), "--seed", "3"]
    assert main("asyncrl.a3c", [*words, *RAY, "--total-steps", "3000", "--parameter-shards", "2"]) == 0
    run = the_run(tmp_path)
    first = status_of(run)

    assert (first["state"], first["reason"]) == ("finished", "total_steps reached")
    assert first["steps"] >= 3000
    rows = [row for row in read_records(run / "worker-00.jsonl") if "worker_steps" in row]
    assert sum(row["worker_steps"] for row in rows) == first["steps"] == sum(first["worker_steps"])
    assert sum(row["updates"] for row in rows) == first["updates"] > 10
    assert evaluations_of(run)[-1]["steps"] == first["steps"]
    assert load_newest(run / "checkpoints")[0].updates == first["updates"]
    assert sum(row["exchanges"] for row in read_records(run / "host-0.jsonl")) > 2

    for backend, steps in (("local", 4500), ("ray", 6000)):
        assert main("asyncrl.a3c", ["--resume", str(run), "--backend", backend, "--total-steps", str(steps)]) == 0
        status = status_of(run)
        assert status["state"] == "finished"
        assert status["steps"] >= steps
        assert status["updates"] > first["updates"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.parametrize("kind", [("--layout", "bundled"), ("--learners", "2")], ids=["bundled", "unbundled"])
def test_gorila_pushes_every_update_and_goes_on_as_a_local_run_and_back(tmp_path: Path, kind: tuple[str, ...]) -> None:
    """Every update of workers or learners is in a row, and the optimiser's statistics are in the checkpoint."""
    memory = ("--memory-steps", "10000", "--warmup-steps", "1000", "--replay-ratio", "0.1", "--minibatch", "8")
    words = [*CATCH, *memory, *kind, "--parameter-shards", "2", "--runs-dir", str(tmp_path)]
    assert main("asyncrl.gorila", [*words, *RAY, "--workers", "2", "--total-steps", "3000"]) == 0
    run = the_run(tmp_path)
    first = status_of(run)

    assert (first["state"], first["reason"]) == ("finished", "total_steps reached")
    writers = [*run.glob("worker-*.jsonl"), *run.glob("learner*.jsonl")]
    assert len(writers) == (2 if "bundled" in kind else 4)
    rows = [row for file in writers for row in read_records(file)]
    assert sum(row.get("worker_steps", 0) for row in rows) == first["steps"] == sum(first["worker_steps"])
    assert sum(row.get("updates", 0) for row in rows) == first["updates"] > 50
    hosts = read_records(run / "host-0.jsonl")
    assert sum(row["gradients"] for row in hosts) == 2 * first["updates"]  # each shard counts them
    newest = load_newest(run / "checkpoints")[0]
    assert newest.updates == first["updates"]
    assert newest.tensors["statistics"].abs().max() > 0

    for backend, steps in (("local", 4500), ("ray", 6000)):
        resumed = ["--resume", str(run), "--backend", backend, "--total-steps", str(steps)]
        assert main("asyncrl.gorila", resumed) == 0
        status = status_of(run)
        assert (status["state"], status["steps"] >= steps) == ("finished", True)
        assert status["updates"] > first["updates"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
def test_a_learner_learns_from_a_host_and_the_run_goes_on_as_a_local_one_and_back(tmp_path: Path) -> None:
    """Every step is in a row, every rollout has an age, the last evaluation is of the last theta."""
    words = [*CATCH, "--runs-dir", str(tmp_path), "--seed", "3"]
    assert main("asyncrl.impala", [*words, *RAY, "--total-steps", "3000"]) == 0
    run = the_run(tmp_path)
    first = status_of(run)

    assert (first["state"], first["reason"]) == ("finished", "total_steps reached")
    rows = [row for row in read_records(run / "worker-00.jsonl") if "worker_steps" in row]
    assert sum(row["worker_steps"] for row in rows) == first["steps"] == sum(first["worker_steps"]) >= 3000
    learnt = [row for row in read_records(run / "learner.jsonl") if "updates" in row]
    assert sum(row["updates"] for row in learnt) == first["updates"] > 10
    rollouts = sum(row["rollouts"] for row in read_records(run / "host-0.jsonl"))
    assert sum(sum(row["rollout_age_counts"].values()) for row in learnt) == rollouts > 10
    assert evaluations_of(run)[-1]["steps"] == first["steps"]
    newest = load_newest(run / "checkpoints")[0]
    assert (newest.steps, newest.updates) == (first["steps"], first["updates"])
    assert newest.tensors["statistics"].abs().max() > 0

    for backend, steps in (("local", 4500), ("ray", 6000)):
        assert main("asyncrl.impala", ["--resume", str(run), "--backend", backend, "--total-steps", str(steps)]) == 0
        status = status_of(run)
        assert (status["state"], status["steps"] >= steps) == ("finished", True)
        assert status["updates"] > first["updates"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_ray")
@pytest.mark.parametrize("where", [(), ("--replay-hosts", "1")], ids=["learner", "replay host"])
def test_the_replay_memory_is_beside_the_learner_or_in_a_replay_host(tmp_path: Path, where: tuple[str, ...]) -> None:
    """Ape-X makes the updates that its replay ratio asks for, and no more."""
    memory = ("--memory-steps", "10000", "--warmup-steps", "1000", "--replay-ratio", "0.1")
    words = [*CATCH, *RAY, "--total-steps", "3000", *memory, *where, "--runs-dir", str(tmp_path)]
    assert main("asyncrl.apex", words) == 0

    run = the_run(tmp_path)
    status = status_of(run)
    assert (status["state"], status["reason"]) == ("finished", "total_steps reached")
    rows = [row for row in read_records(run / "worker-00.jsonl") if "worker_steps" in row]
    assert sum(row["worker_steps"] for row in rows) == status["steps"]
    assert status["updates"] == (status["steps"] - 1000) // 10
    (*_, last) = [row for row in read_records(run / "learner.jsonl") if "replay" in row]
    assert last["replay"]["memory_fill"] > 0.2
    assert load_newest(run / "checkpoints")[0].updates == status["updates"]


@pytest.mark.slow
@pytest.mark.faults
def test_learning_goes_on_from_the_other_memory_when_a_replay_host_is_killed(tmp_path: Path, two_nodes: Any) -> None:
    """Its successor is filled anew, the loss is said once, and the run stops when asked as if nothing had happened."""
    memory = ("--memory-steps", "8000", "--warmup-steps", "400", "--replay-ratio", "1")
    words = (*ENDLESS, "--replay-hosts", "2", *memory, "--address", two_nodes.address)
    with running(tmp_path, *words, algorithm="apex") as run:
        run.until(lambda: run.status.get("updates", 0) > 0, "updates from the first steps")
        first, second = actors("ReplayHost")
        second.send_signal(signal.SIGKILL)
        before = run.status["updates"]
        run.until(lambda: any(row["event"] == "replay_host_lost" for row in run.events), "the loss of the memory")
        run.until(lambda: run.status["updates"] > before, "more updates")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        (event,) = [row for row in run.events if row["event"] in ("replay_host_lost", "restarted", "host_lost")]
        assert re.fullmatch(r"was lost with its process, and [\d,]+ steps are lost with it", event["cause"])
        assert run.status["state"] == "stopped"
        learnt = [row for row in read_records(run.folder / "learner.jsonl") if "updates" in row]
        assert sum(row["updates"] for row in learnt) == run.status["updates"] <= run.status["steps"] - 400
        rows = [row for worker in (0, 1) for row in read_records(run.folder / f"worker-{worker:02}.jsonl")]
        assert sum(row.get("worker_steps", 0) for row in rows) == run.status["steps"]
        assert gone([first])


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.usefixtures("needs_ray")
def test_a_learner_that_is_stopped_is_replaced_like_a_dead_one(tmp_path: Path) -> None:
    """After --hang-seconds without an answer; T and the number of updates go on."""
    with running(tmp_path, *ALONE, "--hang-seconds", "20", algorithm="impala") as run:
        run.until(lambda: run.status.get("updates", 0) > 0, "updates")
        (learner,) = actors("LearnerHost")
        learner.send_signal(signal.SIGSTOP)
        run.until(lambda: any(row["event"] == "restarted" for row in run.events), "the learner's successor")
        assert gone([learner])
        before = run.status
        run.until(
            lambda: all(run.status[key] > before[key] for key in ("steps", "updates")), "more steps and more updates"
        )

        (event, *_) = [row for row in run.events if row["event"] == "restarted"]
        assert event["who"] == "learner"
        assert event["cause"].startswith("did not answer for 20 seconds, and ")
        assert run.status["learner_restarts"] >= 1


HANGING = """
import os, pathlib, time
from asyncrl import impala

class Hanging(impala.Impala):
    def loss(self, rollout):
        mark = pathlib.Path(os.environ["HANG"])
        if mark.exists():
            mark.unlink()
            time.sleep(10_000)
        return super().loss(rollout)
"""
"""IMPALA whose learner hangs where it finds a file."""


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.usefixtures("needs_ray")
def test_a_learner_that_hangs_is_replaced_though_its_process_answers(tmp_path: Path) -> None:
    """After --hang-seconds without progress; steps and updates go on."""
    mark = tmp_path / "hang"
    environment = environment_of(tmp_path, HANGING) | {"HANG": str(mark)}
    words = ("train", "module", *ALONE, "--hang-seconds", "20")
    with running(tmp_path / "runs", *words, algorithm="__main__", env=environment) as run:
        run.until(lambda: run.status.get("updates", 0) > 0, "updates")
        mark.touch()
        run.until(lambda: any(row["event"] == "restarted" for row in run.events), "the learner's successor")
        before = run.status
        run.until(
            lambda: all(run.status[key] > before[key] for key in ("steps", "updates")), "more steps and more updates"
        )

        (event, *_) = [row for row in run.events if row["event"] == "restarted"]
        assert event["cause"].startswith("made no progress for 20 seconds, and ")


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.usefixtures("needs_ray")
def test_a_shard_and_a_host_that_are_stopped_are_replaced_like_dead_ones_until_there_were_too_many(
    tmp_path: Path,
) -> None:
    """After --hang-seconds without an answer. When no machine is left that may have a host the run ends at once."""
    words = (*ALONE, "--hang-seconds", "20", "--hosts", "auto", "--worker-restarts", "1")
    with running(tmp_path, *words) as run:
        run.until(lambda: run.status.get("updates", 0) > 0, "updates")
        (shard,) = actors("Shard")
        shard.send_signal(signal.SIGSTOP)
        run.until(lambda: any(row["event"] == "shard_lost" for row in run.events), "the shard's successor")
        before = run.status["updates"]
        run.until(lambda: run.status["updates"] > before, "more updates")
        assert gone([shard])

        (host,) = actors("Host")
        host.send_signal(signal.SIGSTOP)
        run.until(lambda: any(row["event"] == "host_joined" for row in run.events), "another host")
        (event, *_) = [row for row in run.events if row["event"] == "host_lost"]
        assert event["cause"] == "did not answer for 20 seconds"
        assert gone([host])  # Ray kills a process that does not react after some seconds; its successor may be faster

        before = run.status["steps"]
        run.until(lambda: run.status["steps"] > before, "its steps")
        (host,) = actors("Host")
        host.send_signal(signal.SIGKILL)
        run.ends_with(1)
        assert run.status["reason"].startswith("all hosts failed too often: host 0 on ")


def on_two_hosts(run: Running) -> None:
    """Wait until both hosts have learnt something."""
    run.until(lambda: all(steps > 0 for steps in run.status.get("worker_steps", [0])), "steps on both hosts")


def lose_a_host(run: Running) -> None:
    """Kill a host, and wait until another has taken its place and all workers make steps."""
    actors("Host")[0].send_signal(signal.SIGKILL)
    run.until(lambda: [row["event"] for row in run.events].count("host_joined") == 1, "another in its place")
    before = run.status["worker_steps"]
    run.until(
        lambda: all(now > then for now, then in zip(run.status["worker_steps"], before, strict=True)),
        "steps on both hosts again",
    )


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("push", ["exchange", "every-update"])
def test_a_run_on_two_hosts_outlives_a_worker_a_host_and_a_shard_and_stops_when_asked(
    tmp_path: Path, two_nodes: Any, push: str
) -> None:
    """Each is replaced; T goes on; a signal ends the run with a checkpoint of the last update."""
    words = (*ENDLESS, "--address", two_nodes.address, "--push", push)
    with running(tmp_path / "runs", *words) as run:
        on_two_hosts(run)

        (shard,) = actors("Shard")
        before = run.status["updates"]
        shard.send_signal(signal.SIGKILL)
        run.until(lambda: any(row["event"] == "shard_lost" for row in run.events), "the shard's successor")
        run.until(lambda: run.status["updates"] > before + 100, "updates after the shard's end")
        (event,) = [row for row in run.events if row["event"] == "shard_lost"]
        assert event["cause"] == "was lost with its process"

        lose_a_host(run)

        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)
        status = run.status
        assert status["state"] == "stopped"
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"] > 0


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ["impala", "a2c"])
def test_a_run_with_a_learner_on_two_hosts_outlives_the_learner_and_a_host(
    tmp_path: Path, two_nodes: Any, algorithm: str
) -> None:
    """Each is replaced, T and the number of updates never fall, and a signal ends the run with a checkpoint."""
    words = (*ENDLESS, "--address", two_nodes.address)
    with running(tmp_path / "runs", *words, algorithm=algorithm) as run:
        on_two_hosts(run)
        counted: list[tuple[int, int]] = []

        def further(steps: int) -> bool:
            status = run.status
            counted.append((status["steps"], status["updates"]))
            return bool(status["steps"] > steps)

        (learner,) = actors("LearnerHost")
        learner.send_signal(signal.SIGKILL)
        run.until(lambda: any(row["event"] == "restarted" for row in run.events), "the learner's successor")
        before = run.status
        run.until(lambda: further(before["steps"] + 2000) and run.status["updates"] > before["updates"], "more updates")
        assert run.status["learner_restarts"] == 1

        lose_a_host(run)
        assert counted == sorted(counted)

        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)
        status = run.status
        assert status["state"] == "stopped"
        newest = load_newest(run.folder / "checkpoints")[0]
        assert (newest.steps, newest.updates) == (status["steps"], status["updates"])


@pytest.mark.slow
@pytest.mark.faults
def test_when_the_driver_is_killed_the_run_fails_with_a_checkpoint(tmp_path: Path, two_nodes: Any) -> None:
    """Ray does so itself, without a word, when the head of a cluster is lost."""
    words = (*ENDLESS, "--address", two_nodes.address)
    with running(tmp_path / "runs", *words) as run:
        on_two_hosts(run)
        driver = next(one for one in run.everyone()[1:] if any("host-0.jsonl" in f.path for f in one.open_files()))
        driver.send_signal(signal.SIGKILL)
        run.ends_with(1)

        status = run.status
        assert status["state"] == "failed"
        assert "Ray's driver was killed by SIGKILL" in status["reason"]
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"] > 0
