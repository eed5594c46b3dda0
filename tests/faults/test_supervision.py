"""Processes are killed, hung and crashed: the run goes on, and says what happened."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from asyncrl.backends import supervisor
from asyncrl.backends.processes import how_it_died, last_line
from asyncrl.commands.train import main
from asyncrl.runtime.protocols import name_of
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.running import CATCH, Running, environment_of, gone, import_here, running, training
from tests.support import evaluations_of, status_of

pytestmark = pytest.mark.faults

CARTPOLE = """
import gymnasium, os, time
def first(path):
    try: open(path, "x").close()
    except FileExistsError: return False
    return True
class Env(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        Env.steps += 1
        {trouble}
        return super().step(action)
def make(): return Env(gymnasium.make("CartPole-v1"))
"""
"""A CartPole with trouble in `step`, as module:make."""
MODULE = ("--env-id", "module:make", "--workers", "2", "--quiet", "--evaluation-interval-steps", "0")


def test_killed_workers_are_replaced_and_what_they_did_is_counted(tmp_path: Path) -> None:
    """Two are killed between two rows: status, records and the successors' own files tell of it.

    One that is stopped cannot leave at the end and is killed then; the checkpoint is written all the same. Rows and
    what the supervisor found missing add up to the counters.
    """
    with training(tmp_path, "--record-interval-seconds", "1") as run:
        for restarts, victim in enumerate(run.workers(), 1):
            victim.kill()
            run.until(lambda: run.restarts == restarts, "a restart")  # noqa: B023
        run.until(lambda: len(run.workers()) == 2, "two workers")
        for worker in range(2):
            file = run.folder / f"worker-{worker:02}.jsonl"
            run.until(lambda: sum(row.get("event") == "ready" for row in read_records(file)) == 2, "the successor")  # noqa: B023
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps + 2000, "steps of theirs")
        run.workers()[0].suspend()
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        status = run.status
        found = [{"who": event["who"], **event["unrecorded"]} for event in run.events if "unrecorded" in event]
        assert [event["cause"] for event in losses(run)] == ["was killed by SIGKILL"] * 2
        assert sum(each["steps"] for each in found) == status["unrecorded"]["steps"] > 0
        for worker, counted in enumerate(status["worker_steps"]):
            rows = [row for row in read_records(run.folder / f"worker-{worker:02}.jsonl") if "updates" in row]
            missing = sum(each["steps"] for each in found if each["who"] == worker)
            assert sum(row["worker_steps"] for row in rows) + missing == counted
        assert updates_in(run.folder) + status["unrecorded"]["updates"] == status["updates"]
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"]


def updates_in(folder: Path) -> int:
    """Of all rows of all workers."""
    rows = [row for file in folder.glob("worker-*.jsonl") for row in read_records(file)]
    return sum(row.get("updates", 0) for row in rows)


def test_a_run_that_loses_more_than_half_of_its_workers_fails_with_a_checkpoint(tmp_path: Path) -> None:
    """Without a budget each kill is for good. One of two is not more than half, both are."""
    with training(tmp_path, "--worker-restarts", "0") as run:
        first, second = run.workers()
        first.kill()
        run.until(lambda: len(run.status["workers_gone"]) == 1, "the loss")
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "steps without it")

        second.kill()
        run.ends_with(1)

        status = run.status
        assert status["state"] == "failed"
        assert "2 of 2 workers failed too often" in status["reason"]
        assert "was killed by SIGKILL" in status["reason"]
        assert load_newest(run.folder / "checkpoints")[0].steps == status["steps"]


def test_a_worker_that_dies_again_and_again_waits_longer_each_time(tmp_path: Path) -> None:
    """Each crashes at its 50th step: after the budget of two restarts it is gone, with the signal named."""
    source = CARTPOLE.format(trouble="if Env.steps > 50: os.kill(os.getpid(), 11)")
    words = (*MODULE, "--worker-restarts", "2", "--total-steps", "1e6")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.ends_with(1)

        assert "was killed by SIGSEGV" in run.status["reason"]
        assert max(run.status["worker_restarts"]) == 2
        assert "module.py" in (run.folder / "worker-00.stack.txt").read_text()  # where it crashed


def test_a_worker_that_hangs_leaves_its_stack_and_is_replaced(tmp_path: Path) -> None:
    """They hang in `step` until a stack has told the line, which one may be too slow to write; then all goes on."""
    seen = tmp_path / "seen"
    trouble = f"if Env.steps == 100 and not os.path.exists({str(seen)!r}): hang()"
    source = "def hang(): time.sleep(10_000)\n" + CARTPOLE.format(trouble=trouble)
    words = (*MODULE, "--hang-seconds", "2", "--worker-restarts", "1000", "--total-steps", "1e9")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.until(lambda: any(hung_with_a_stack(event, run.folder) for event in losses(run)), "a stack")
        seen.touch()
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps + 2000, "steps of successors")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        # On a crowded machine somebody else may be too slow as well.
        lost = {name_in_files(event["who"]) for event in losses(run)}
        assert {file.name.removesuffix(".stack.txt") for file in run.folder.glob("*.stack.txt")} <= lost


def hung_with_a_stack(event: dict[str, Any], folder: Path) -> bool:
    """Whether a loss is that of a worker whose stack is there, and names the function in which it hung."""
    stack = f"{name_in_files(event['who'])}.stack.txt"
    told = event["cause"] == f"made no progress for 2 seconds, its stack is in {stack}"
    return told and "in hang" in (folder / stack).read_text()


def name_in_files(who: int | str) -> str:
    """How files are named of whom the records call `who`."""
    return name_of(who) if isinstance(who, int) else who


def losses(run: Running) -> list[dict[str, Any]]:
    """The events of those who were replaced."""
    return [event for event in run.events if event["event"] == "restarted"]


def test_a_worker_whose_environment_cannot_be_made_in_time_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker 0 hangs in making it until one of its stacks has told so; the run begins with its successor."""
    run, told = tmp_path / "runs" / "a3c" / "module_slow" / "job", "its stack is in worker-00.stack.txt"
    source = (
        CARTPOLE.format(trouble="pass")
        + f"""
import multiprocessing
def read(name):
    with open({str(run)!r} + "/" + name) as file: return file.read()
def told():
    return "in slow" in read("worker-00.stack.txt") and {told!r} in read("supervisor.jsonl")
def slow():
    if multiprocessing.current_process().name == "worker-00" and not told():
        time.sleep(10_000)
    return make()
"""
    )
    import_here(tmp_path, source, monkeypatch)
    monkeypatch.setattr(supervisor, "READY_SECONDS", 5.0)
    words = [*MODULE, "--total-steps", "2000", "--evaluation-episodes", "1", "--runs-dir", str(tmp_path / "runs")]
    words += ["--run-name", "job", "--worker-restarts", "1000"]  # on a crowded machine all may need longer

    assert main("asyncrl.a3c", [word.replace("module:make", "module:slow") for word in words]) == 0

    causes = [row["cause"] for row in read_records(run / "supervisor.jsonl") if row.get("who") == 0]
    assert f"was not ready after 5 seconds, {told}" in causes
    assert "in slow" in (run / "worker-00.stack.txt").read_text()
    assert status_of(run)["worker_restarts"][0] == len(causes)


def test_the_end_waits_for_no_successor_that_is_still_being_built(tmp_path: Path) -> None:
    """Worker 0 is killed, and its successor hangs in making its environment when the run reaches its end."""
    source = (
        CARTPOLE.format(
            trouble=f"""if multiprocessing.current_process().name == "worker-00" and Env.steps == 100:
            first({str(tmp_path / "killed")!r})
            os.kill(os.getpid(), 9)
        if multiprocessing.current_process().name == "worker-01" and Env.steps == 200:
            while not os.path.exists({str(tmp_path / "again")!r}): time.sleep(0.01)"""
        )
        + f"""
import multiprocessing
def late():
    if multiprocessing.current_process().name == "worker-00" and os.path.exists({str(tmp_path / "killed")!r}):
        first({str(tmp_path / "again")!r})
        time.sleep(10_000)
    return make()
"""
    )
    words = [word.replace("module:make", "module:late") for word in MODULE]
    words += ["--total-steps", "1000", "--evaluation-episodes", "1", "--hang-seconds", "100000"]
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.ends_with(0)

        assert [event["who"] for event in losses(run)] == [0]
        assert run.status["reason"] == "total_steps reached"


def test_a_stopped_worker_is_replaced_though_it_can_leave_no_stack(tmp_path: Path) -> None:
    """SIGSTOP: it answers nothing."""
    with training(tmp_path, "--hang-seconds", "2") as run:
        victim = run.workers()[0]
        victim.suspend()

        assert gone([victim])
        run.until(lambda: len(run.workers()) == 2, "two workers")


def test_an_exception_in_a_worker_can_count_as_a_loss(tmp_path: Path) -> None:
    """--on-worker-error restart: one exception of one worker, and the run goes on with its successor."""
    trouble = f"""if Env.steps == 100 and first({str(tmp_path / "raised")!r}):
            raise RuntimeError("the wheels came off")"""
    words = (*MODULE, "--on-worker-error", "restart", "--total-steps", "1e9")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, CARTPOLE.format(trouble=trouble))) as run:
        run.until(lambda: run.restarts == 1, "a restart")
        run.until(lambda: len(run.workers()) == 2, "two workers")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        (event,) = [event for event in run.events if event["event"] == "restarted"]
        assert "the wheels came off" in event["cause"]
        assert "the wheels came off" in (run.folder / f"worker-{event['who']:02}.traceback.txt").read_text()


def test_exit_codes_of_user_code_say_nothing_but_themselves(tmp_path: Path) -> None:
    """Those of sysexits.h, and C's exit(-1): each of four workers ends with one of them, and is replaced."""
    codes = [65, 70, 74, 255]
    trouble = f"""if Env.steps == 100 and multiprocessing.current_process().name.startswith("worker-"):
            code = {codes}[int(multiprocessing.current_process().name[-1])]
            if first({str(tmp_path)!r} + f"/{{code}}"): os._exit(code)"""
    source = "import multiprocessing\n" + CARTPOLE.format(trouble=trouble)
    words = (*MODULE, "--workers", "4", "--total-steps", "1e9")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.until(lambda: run.restarts == len(codes), "the restarts")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        told = {event["who"]: event["cause"] for event in losses(run)}
        assert told == {worker: f"ended with exit code {code}" for worker, code in enumerate(codes)}


@pytest.mark.parametrize("algorithm", ["impala", pytest.param("a3c", marks=pytest.mark.slow)])
def test_nobody_hangs_who_was_stopped_together_with_the_supervisor(tmp_path: Path, algorithm: str) -> None:
    """As by `scontrol suspend`, a frozen container or a closed lid; afterwards a hang is still found."""
    with running(
        tmp_path, *CATCH, "--workers", "2", "--hang-seconds", "5", "--total-steps", "1e9", algorithm=algorithm
    ) as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        everyone = run.everyone()
        for process in everyone:
            process.suspend()
        time.sleep(7)
        for process in reversed(everyone):
            process.resume()
        steps, seconds = run.status["steps"], run.status["seconds"]
        run.until(lambda: run.status["steps"] > steps and run.status["seconds"] > seconds + 3, "steps for a while")

        assert losses(run) == []
        victim = run.workers()[0]
        victim.suspend()
        assert gone([victim])
        run.until(lambda: run.restarts == 1, "the loss")


def test_a_killed_evaluator_is_replaced_and_never_disturbs_training(tmp_path: Path) -> None:
    """Its successor evaluates; no worker was touched."""
    with training(tmp_path) as run:
        run.evaluator().kill()
        run.until(lambda: run.status["evaluator_restarts"] == 1, "a restart")
        before = len(read_records(run.folder / "evaluator.jsonl"))
        run.until(lambda: len(read_records(run.folder / "evaluator.jsonl")) > before, "an evaluation after it")

        assert run.status["worker_restarts"] == [0, 0]
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        ("raise RuntimeError('no picture')", "failed in step()"),
        pytest.param("time.sleep(10_000)", "made no progress for 10 seconds", marks=pytest.mark.slow),
    ],
)
def test_an_evaluator_that_raises_or_hangs_is_replaced_too(tmp_path: Path, trouble: str, cause: str) -> None:
    """Its successor evaluates, and no worker was touched."""
    where = f"multiprocessing.current_process().name == 'evaluator' and first({str(tmp_path / 'seen')!r})"
    source = "import multiprocessing\n" + CARTPOLE.format(trouble=f"if {where}: {trouble}")
    words = (*MODULE, "--evaluation-interval-steps", "500", "--hang-seconds", "10", "--total-steps", "1e9")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.until(lambda: run.status.get("evaluator_restarts") == 1, "a restart")
        run.until(lambda: len(evaluations_of(run.folder)) > 0, "an evaluation after it")
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        assert [event["who"] for event in losses(run)] == ["evaluator"]
        assert cause in losses(run)[0]["cause"]


def test_training_goes_on_without_an_evaluator_that_is_gone(tmp_path: Path) -> None:
    """It may be replaced as often as a worker, and no more; the run finishes all the same."""
    over = tmp_path / "over"
    source = CARTPOLE.format(trouble=f"while Env.steps == 500 and not os.path.exists({str(over)!r}): time.sleep(0.01)")
    words = (*MODULE, "--worker-restarts", "0", "--total-steps", "2000")
    with running(tmp_path / "runs", *words, env=environment_of(tmp_path, source)) as run:
        run.evaluator().kill()
        run.until(lambda: "gone" in [event["event"] for event in run.events], "the loss")
        over.touch()
        run.ends_with(0)

        assert [event["who"] for event in run.events if event["event"] == "gone"] == ["evaluator"]


def test_the_death_of_the_fork_server_costs_its_children_and_not_the_run(tmp_path: Path) -> None:
    """Nobody could tell any more how they end: they are ended and replaced, from a new fork server."""
    with training(tmp_path) as run:
        before = run.everyone()[1:]
        run.fork_server().kill()
        run.until(lambda: run.status["worker_restarts"] == [1, 1], "the restarts")
        run.until(lambda: len(run.workers()) == 2, "two workers")
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "steps of theirs")

        old = [process for process in before if "resource_tracker" not in " ".join(words_of(process))]
        assert gone(old)
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty once it is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cartpole_is_solved_while_a_worker_is_killed_every_second(tmp_path: Path) -> None:
    """475 with four workers, after ten kills at least; T is what they made: a kill costs the rollout that was counted.

    On an idle machine it is solved within seconds: then it has to be again, and to go on until there were thirty kills.
    """
    words = ("--env-id", "CartPole-v1", "--workers", "4", "--total-steps", "1e8", "--quiet")
    words += ("--evaluation-interval-steps", "10_000", "--evaluation-episodes", "20")
    choose = random.Random(1)
    kills, after_ten = 0, 10**9
    with running(tmp_path, *words, "--worker-restarts", "100_000") as run:
        run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
        deadline = time.monotonic() + 1200
        while kills < 30 or not any(
            row["mean"] >= 475 for row in evaluations_of(run.folder) if row["steps"] > after_ten
        ):
            assert time.monotonic() < deadline, "in vain: an evaluation of 475"
            time.sleep(1)
            steps = run.status["steps"]
            run.until(lambda: run.status["steps"] > steps, "steps between two kills")  # noqa: B023
            if victims := run.workers():
                choose.choice(victims).kill()
                kills += 1
            if kills == 10:
                after_ten = run.status["steps"]
        run.process.send_signal(signal.SIGTERM)
        run.ends_with(143)

        status = run.status
        assert kills - 4 <= sum(status["worker_restarts"]) <= kills
        assert status["steps"] == sum(status["worker_steps"])
        rollout = 64  # 8 environments x 8 steps, the preset for vectors
        uncounted = (status["updates"] + status["dropped_gradients"]) * rollout - status["steps"]
        assert 0 <= uncounted <= kills * rollout
        print(f"{kills} kills, {sum(status['worker_restarts'])} restarts, {status['steps']} steps, "
              f"{uncounted} of them uncounted, {status['seconds']} s")  # fmt: skip


def test_ends_that_say_little_are_told_all_the_same() -> None:
    """A signal without a name, and a traceback that the full disk did not take."""

    class Ended:
        exitcode = -40
        pid = None

    assert how_it_died(cast(Any, Ended())) == "was killed by signal 40"
    assert last_line("") == "an exception that could not be stored"
    assert last_line("Traceback\n  x\nValueError: 3\n") == "ValueError: 3"
