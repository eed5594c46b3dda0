"""Runs of ranks: real processes and real gloo, few of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from asyncrl import api
from asyncrl.api import resume
from asyncrl.backends.collective import board
from asyncrl.backends.collective.ranks import beginning_of, spec_from
from asyncrl.commands.train import main
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.runtime.run import Run
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.files import plain
from asyncrl.storage.records import read_records
from tests.backends.meeting import boards_of
from tests.backends.test_seals import KEYS, write_as_stranger
from tests.faults.running import SECONDS, environment_of, running
from tests.support import evaluations_of, free_port, make_run, status_of, the_run

CATCH = ("--env-id", "Catch", "--backend", "collective", "--quiet", "--evaluation-episodes", "4")
HOST = socket.gethostname()
SECRET = b"only ranks know it"


def counted(run: Path) -> dict[str, Any]:
    """What the ranks' rows add up to."""
    files = sorted(run.glob("worker-*.jsonl"))
    rows = [[row for row in read_records(file) if "time" in row] for file in files]
    return {
        "steps": sum(row["worker_steps"] for own in rows for row in own),
        "updates": [sum(row.get("updates", 0) for row in own) for own in rows],
    }


def test_launched_ranks_hear_all_of_a_runs_description(tmp_path: Path) -> None:
    """By JSON; here of an environment whose observations have parts."""
    run = make_run(tmp_path, "a3c")
    parts = Spaces((5,), "float32", 3), Spaces((1, 2, 2), "uint8", 3, kind="screen")
    spec = replace(run.spec, spaces=Spaces((9,), "float32", 3, kind="screen", parts=parts))
    run.handles.store.lose(7)

    told = json.loads(json.dumps(plain(beginning_of(Run(spec, run.handles)))))

    heard = spec_from(told, spec.algorithm)
    assert (heard.config, heard.spaces, heard.layout) == (spec.config, spec.spaces, spec.layout)
    assert told["lost"] == 7


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_each_rank_may_learn_from_its_own_rollouts(tmp_path: Path, algorithm: str) -> None:
    """--reduce gradients: every update is everybody's, and compared."""
    words = [*CATCH, "--check-replicas", "1", "--reduce", "gradients", "--runs-dir", str(tmp_path)]
    assert main(f"asyncrl.{algorithm}", [*words, "--workers", "2", "--total-steps", "6000"]) == 0

    run = the_run(tmp_path)
    assert counted(run)["steps"] == status_of(run)["steps"] >= 6000
    updates = sum(row.get("updates", 0) for row in read_records(run / "learner.jsonl"))
    assert updates == status_of(run)["updates"] > 10


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_two_ranks_train_and_another_number_goes_on(tmp_path: Path, algorithm: str) -> None:
    """Compared at each update; every step and update is in a row of each rank; then the same run alone.

    Here A3C overlaps: its gradients are one update old.
    """
    words = [*CATCH, "--check-replicas", "1", "--evaluation-interval-steps", "1000", "--runs-dir", str(tmp_path)]
    words += ["--overlap"] * (algorithm == "a3c")
    assert main(f"asyncrl.{algorithm}", [*words, "--workers", "2", "--total-steps", "3000"]) == 0
    run = the_run(tmp_path)
    first = status_of(run)

    assert (first["state"], first["reason"]) == ("finished", "total_steps reached")
    assert counted(run)["steps"] == first["steps"] >= 3000
    if algorithm == "a3c":
        assert counted(run)["updates"] == [first["updates"]] * 2
        rows = [row for row in read_records(run / "supervisor.jsonl") if "async/staleness_max" in row]
        assert rows[-1]["async/staleness_max"] == 1
    assert first["worker_steps"] == [first["steps"] / 2] * 2
    assert not any(first["unrecorded"].values())
    assert evaluations_of(run)[-1]["steps"] == first["steps"]
    assert load_newest(run / "checkpoints")[0].updates == first["updates"] > 10

    assert main(f"asyncrl.{algorithm}", ["--resume", str(run), "--workers", "1", "--total-steps", "4500"]) == 0
    second = status_of(run)
    assert (second["state"], second["part"]) == ("finished", 1)
    assert second["steps"] >= 4500
    assert second["updates"] > first["updates"]


@pytest.mark.parametrize("algorithm", ["one_step_sarsa", "a2c", "reinforce"])
def test_one_rank_alone_needs_no_other(tmp_path: Path, algorithm: str) -> None:
    """The same loops and exchanges, with nobody to wait for."""
    words = [*CATCH, "--workers", "1", "--total-steps", "1000", "--runs-dir", str(tmp_path)]

    assert main(f"asyncrl.{algorithm}", words) == 0

    assert status_of(the_run(tmp_path))["state"] == "finished"
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("algorithm", "words", "complaint"),
    [
        ("impala", (), "does not wait for its actors, .* use --backend local or serial"),
        ("a3c", ("--update", "locked"), "--update is for --backend local, serial and ray"),
        ("a3c", ("--statistics", "per-worker"), "--statistics is for --backend local and serial"),
        ("a3c", ("--on-worker-error", "restart"), "--on-worker-error is for --backend local and ray"),
        ("a3c", ("--schedule", "random"), "--schedule is for --backend serial"),
        ("a3c", ("--reduce", "gradients"), "--reduce is for methods with a learner"),
        ("a3c", ("--overlap", "--backend", "local"), "--overlap is for ranks .*; workers of asyncrl a3c do not wait"),
        ("impala", ("--overlap",), "--overlap is for actors that wait for the learner; those of asyncrl impala do not"),
        ("ppo", ("--reduce", "gradients", "--backend", "local"), "--reduce is for --backend collective"),
    ],
)
def test_what_ranks_cannot_do_is_refused_in_one_line(
    tmp_path: Path, algorithm: str, words: tuple[str, ...], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and nothing is made."""
    assert main(f"asyncrl.{algorithm}", [*CATCH, "--workers", "2", *words, "--runs-dir", str(tmp_path)]) == 2

    (line,) = capfd.readouterr().err.strip().splitlines()
    assert re.search(complaint, line)
    assert not any(tmp_path.iterdir())


def test_a_program_that_was_launched_itself_is_told_to_use_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its processes would start ranks of its own."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(UsageError, match="under torchrun, run python -m asyncrl"):
        api.train("a3c", env_id="Catch", backend="collective", workers=2, runs_dir=tmp_path)


TROUBLED = """
import sys
import gymnasium
class Env(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        Env.steps += 1
        if Env.steps > 300 and ("forkserver" in " ".join(sys.orig_argv)) == {others}:  # rank 0 is the command
            {trouble}
        return super().step(action)
def make(): return Env(gymnasium.make("CartPole-v1"))
"""
MODULE = (
    "--env-id", "module:make", "--backend", "collective", "--workers", "3", "--quiet", "--total-steps", "1e9",
    "--evaluation-interval-steps", "0",
)  # fmt: skip


def failing(tmp_path: Path, trouble: str, *words: str) -> tuple[dict[str, Any], Path]:
    """Status and folder of a run in which ranks 1 and 2 get into trouble."""
    environment = environment_of(tmp_path, TROUBLED.format(trouble=trouble, others=True))
    with running(tmp_path / "runs", *MODULE, *words, env=environment) as run:
        run.ends_with(1)
        return run.status, run.folder


@pytest.mark.faults
def test_a_rank_that_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    """Named with its host; what had been learnt is saved."""
    status, run = failing(tmp_path, "raise RuntimeError('the wheels came off')")

    assert status["state"] == "failed"
    assert f"on {HOST} raised" in status["reason"]
    assert "the wheels came off" in status["reason"]
    assert "RuntimeError: the wheels came off" in status["traceback"]
    assert load_newest(run / "checkpoints")[0].steps == status["steps"] > 0


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_a_killed_rank_ends_the_run_with_a_checkpoint(tmp_path: Path, algorithm: str) -> None:
    """Long before the others would have waited long enough; no process is left."""
    words = (*CATCH, "--workers", "3", "--total-steps", "1e8", "--evaluation-interval-steps", "0")
    with running(tmp_path, *words, algorithm=algorithm) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        ranks = [child for child in run.everyone() if is_rank(child)]
        assert len(ranks) == 2
        ranks[0].send_signal(signal.SIGKILL)
        run.ends_with(1)

        status = run.status
        assert status["state"] == "failed"
        assert re.fullmatch(rf"rank [12] on {HOST} was killed by SIGKILL", status["reason"])
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"] > 0


def is_rank(process: psutil.Process) -> bool:
    """Whether it is connected to another process by TCP, and not the command, nor one that has just ended."""
    with suppress(psutil.Error):
        connections = process.net_connections("tcp")
        return "forkserver" in " ".join(process.cmdline()) and any(one.status == "ESTABLISHED" for one in connections)
    return False


@pytest.mark.slow
@pytest.mark.faults
def test_a_rank_that_hangs_ends_the_run_in_bounded_time(tmp_path: Path) -> None:
    """After --collective-timeout-seconds, and is named."""
    status, run = failing(tmp_path, "import time; time.sleep(10_000)", "--collective-timeout-seconds", "20")

    assert status["state"] == "failed"
    assert f"on {HOST} did not join an exchange within 20 seconds" in status["reason"]
    assert load_newest(run / "checkpoints")[0].steps == status["steps"] > 0


@pytest.mark.slow
@pytest.mark.faults
def test_a_rank_0_that_hangs_is_named_by_another(tmp_path: Path) -> None:
    """It has its heartbeat, but does not come. It ends itself, and nothing is left."""
    environment = environment_of(tmp_path, TROUBLED.format(trouble="import time; time.sleep(10_000)", others=False))
    with running(tmp_path / "runs", *MODULE, "--collective-timeout-seconds", "20", env=environment) as run:
        run.until(lambda: bool(run.status), "the beginning")
        run.ends_with(1)

        lines = [line for line in run.errors().splitlines() if line.startswith("asyncrl: rank")]
        told = [
            re.match(r"asyncrl: rank ([12]) on \S+: rank 0 at \S+ does not answer: it hangs, or", line)
            for line in lines
        ]
        assert {match[1] for match in told if match} == {"1", "2"}, lines
        assert "asyncrl: rank 0 does not respond at the end of the run, so it exits" in lines
        load_newest(run.folder / "checkpoints")


@pytest.mark.slow
@pytest.mark.faults
def test_ctrl_c_ends_a_run_in_which_ranks_do_not_come(tmp_path: Path) -> None:
    """Without waiting for them as long as without a signal; what had been learnt is saved."""
    hangs = tmp_path / "hangs"
    trouble = f"open({str(hangs)!r}, 'w').close(); import time; time.sleep(1000)"
    environment = environment_of(tmp_path, TROUBLED.format(trouble=trouble, others=True))
    with running(tmp_path / "runs", *MODULE, "--collective-timeout-seconds", "1000", env=environment) as run:
        run.until(hangs.exists, "a rank that hangs")
        run.process.send_signal(signal.SIGINT)
        run.ends_with(130)

        assert run.status["state"] == "stopped"
        assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"]


@pytest.mark.slow
@pytest.mark.faults
def test_ctrl_c_ends_all_ranks_in_order(tmp_path: Path) -> None:
    """Exit code 130, a checkpoint of the last step, nothing unrecorded."""
    words = (*CATCH, "--workers", "2", "--total-steps", "1e8", "--evaluation-interval-steps", "0")
    with running(tmp_path, *words) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        os.killpg(run.process.pid, signal.SIGINT)
        run.ends_with(130)

        assert run.status["state"] == "stopped"
        assert not any(run.status["unrecorded"].values())
        assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"]


def test_the_newest_run_of_any_number_of_ranks_goes_on_by_itself(tmp_path: Path) -> None:
    """--resume auto after a host was lost; a run of another backend is another run."""
    words = [*CATCH, "--max-seconds", "0.05", "--evaluation-interval-steps", "0", "--runs-dir", str(tmp_path)]
    words += ["--resume", "auto"]
    assert main("asyncrl.a3c", [*words, "--backend", "serial", "--workers", "3"]) == 0
    assert main("asyncrl.a3c", [*words, "--workers", "2"]) == 0
    assert len(list(tmp_path.glob("*/*/*/config.json"))) == 2

    assert main("asyncrl.a3c", [*words, "--workers", "1"]) == 0

    folders = {path.parent.name[:2]: path.parent for path in tmp_path.glob("*/*/*/config.json")}
    assert set(folders) == {"w3", "w2"}
    assert (status_of(folders["w2"])["part"], status_of(folders["w3"])["part"]) == (1, 0)


def test_the_newest_run_is_the_last_one_that_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one whose number of ranks begins with the largest digit."""
    monkeypatch.setattr(resume.checkpoints, "find", lambda path: ["a checkpoint"])
    for month, name in enumerate(("w8-s1-20260101-120000", "w9-s1-20260301-120000", "w16-s1-20260601-120000"), 1):
        folder = tmp_path / "a3c" / "Catch" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(
            json.dumps({"algorithm": "asyncrl.a3c", "config": {"backend": "collective"}})
        )
        (folder / "status.json").write_text(json.dumps({"started": f"2026-0{month}-01T12:00:00+00:00"}))

    found = resume.newest("asyncrl.a3c", RunConfig(env_id="Catch", backend="collective", runs_dir=str(tmp_path)))

    assert found is not None
    assert found.name == "w16-s1-20260601-120000"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--init-method", "tcp://127.0.0.1:1"], "--init-method is for ranks that torchrun, mpirun or srun starts"),
        (["--reduce", "gradients"], "always reduces gradients"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before there is a run."""
    assert main("asyncrl.a3c", [*CATCH, "--runs-dir", str(tmp_path), *words]) == 2

    assert line in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def launch(rank: int, size: int, port: int, *words: str, algorithm: str = "a3c") -> subprocess.Popen[str]:
    """What torchrun would start."""
    variables = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    variables["ASYNCRL_SECRET"] = SECRET.decode()
    environment = os.environ | {name: str(value) for name, value in variables.items()} | {"OMP_NUM_THREADS": "16"}
    return subprocess.Popen(
        [sys.executable, "-m", f"asyncrl.{algorithm}", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


@pytest.mark.slow
def test_launched_ranks_train_and_only_the_first_speaks(tmp_path: Path) -> None:
    """By torchrun's variables; --workers is their number; one thread each, whatever the launcher has set."""
    port = free_port()
    ranks = [launch(rank, 2, port, *CATCH, "--total-steps", "3000", "--runs-dir", str(tmp_path)) for rank in (0, 1)]
    said = [rank.communicate(timeout=300) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[1] == ("", "")
    run = the_run(tmp_path)
    assert json.loads((run / "config.json").read_text())["config"]["workers"] == 2
    assert counted(run)["steps"] == status_of(run)["steps"] >= 3000
    assert set(json.loads((run / "host.json").read_text())["threads"].values()) == {"1"}


@pytest.mark.slow
@pytest.mark.faults
def test_a_stranger_does_nothing_to_a_run(tmp_path: Path) -> None:
    """He writes all that ranks write, before the second one has come and while they train. It is told once."""
    port = free_port()
    words = (*CATCH, "--evaluation-interval-steps", "0", "--runs-dir", str(tmp_path / "runs"))
    ranks = [launch(0, 2, port, *words, "--total-steps", "100_000")]
    try:
        deadline = time.monotonic() + SECONDS
        while not listens(ranks[0], port):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        write_as_stranger(port, tmp_path / "trap", ("nonce", *KEYS))
        ranks.append(launch(1, 2, port, *words, "--total-steps", "100_000"))
        while not list(tmp_path.glob("runs/*/*/*/status.json")) or not status_of(the_run(tmp_path / "runs"))["steps"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        write_as_stranger(port, tmp_path / "trap", (*KEYS, "rows/1/1000000"))
        said = [rank.communicate(timeout=SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()

    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0][1].count("a message without this run's secret was ignored") == 1
    assert said[1] == ("", "")
    assert not (tmp_path / "trap").exists()
    assert status_of(the_run(tmp_path / "runs"))["state"] == "finished"
    assert counted(the_run(tmp_path / "runs"))["steps"] >= 100_000


def listens(process: subprocess.Popen[str], port: int) -> bool:
    """Whether it listens at a port."""
    connections = psutil.Process(process.pid).net_connections("tcp")
    return any(one.status == "LISTEN" and one.laddr.port == port for one in connections)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_a_run_that_was_suspended_goes_on(tmp_path: Path, algorithm: str) -> None:
    """For longer than ranks wait for each other. Meanwhile and before, it listens to this machine alone."""
    words = (*CATCH, "--workers", "2", "--total-steps", "1e9", "--evaluation-interval-steps", "0")
    with running(tmp_path, *words, "--collective-timeout-seconds", "5", algorithm=algorithm) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        everyone = run.everyone()
        places = {one.laddr.ip for process in everyone for one in process.net_connections() if one.status == "LISTEN"}
        assert places == {"127.0.0.1"}
        for process in everyone:
            process.suspend()
        time.sleep(12)  # longer than every limit of ranks
        before = run.status["steps"]
        for process in everyone:
            process.resume()
        run.until(lambda: run.status["steps"] > before + 5000, "further steps")
        run.process.send_signal(signal.SIGINT)
        run.ends_with(130)

        assert run.status["state"] == "stopped"
        assert load_newest(run.folder / "checkpoints")[0].steps == run.status["steps"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((("--seed", "1"), ("--seed", "2")), f"rank 1 on {HOST} has different settings from rank 0: '--seed 2"),
        ((("--gamma", "7"), ("--gamma", "7")), "--gamma must be at least 0 and at most 1, got 7"),
        ((("--workers", "3"), ("--workers", "3")), "torchrun has started 2 ranks, but --workers is 3"),
    ],
)
def test_what_is_wrong_with_launched_ranks_is_said_once(
    tmp_path: Path, words: tuple[tuple[str, ...], ...], complaint: str
) -> None:
    """By rank 0, before a folder is made; all end with exit code 2."""
    port = free_port()
    ranks = [launch(rank, 2, port, *CATCH, *own, "--runs-dir", str(tmp_path)) for rank, own in enumerate(words)]
    said = [rank.communicate(timeout=300) for rank in ranks]

    assert [rank.returncode for rank in ranks] == [2, 2], said
    assert complaint in said[0][1]
    assert len(said[0][1].strip().splitlines()) == 1
    assert said[1] == ("", "")
    assert not any(tmp_path.iterdir())


def test_values_on_the_board_are_read_by_all_and_taken_once() -> None:
    """Two ranks of one process."""
    first, second = boards_of(SECRET)

    second.put("rows/1/0", {"steps": 7})

    assert first.get("rows/1/0") == {"steps": 7}
    assert first.take("rows/1/0") == {"steps": 7}
    assert first.take("rows/1/0") is None
    first.put("ready/0", True)
    second.put("ready/1", "x")
    assert first.each("ready") == second.each("ready") == {0: True, 1: "x"}


def test_a_rank_that_does_not_notice_the_end_ends_itself(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It gives signs of life until then."""
    monkeypatch.setattr(board, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(board, "GRACE_SECONDS", 0.05)
    first, second = boards_of(SECRET)
    ended: list[int] = []
    second.begun = 7
    second.beat(end=ended.append)
    deadline = time.monotonic() + 200
    while first.beats().get(1, (0, 0))[0] < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert first.beats()[1][1] == 7
    assert not ended

    first.put("over", True)
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    second.close()

    assert ended[0] == 1
    assert "rank 1 does not respond at the end of the run, so it exits" in capfd.readouterr().err


def test_who_may_still_come_or_knows_of_the_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others leave an exchange as soon as a rank is lost, while rank 0 may be in a rollout, and then explains."""
    monkeypatch.setattr(board, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(board, "GRACE_SECONDS", 0.05)
    first, second = boards_of(SECRET)
    ended: list[int] = []
    second.notice()
    first.beat(end=ended.append, patience=1000.0)
    second.beat(end=ended.append)
    second.put("left/1", "Connection closed by peer")
    first.put("over", True)

    time.sleep(0.5)
    for one in (first, second):
        one.close()

    assert not ended
