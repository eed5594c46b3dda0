"""Machines with little of everything: one clear line, or a clean run; what is written stays whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.commands.train import main
from asyncrl.doctor.room import FILES_PER_CHILD, SPARE_FILES
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import load_newest
from tests.faults.running import check_written, environment_of, running
from tests.faults.test_damaged_checkpoints import rewrite
from tests.support import run_command, status_of, the_run

pytestmark = pytest.mark.faults

CATCH = ("--env-id", "Catch", "--workers", "2", "--quiet", "--evaluation-episodes", "2")


def in_a_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount what it likes, seen by nobody else."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this system lets us mount nothing")
    return subprocess.run(
        [unshare, "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=400,
    )


def command(*words: str) -> str:
    """The command as a shell takes it."""
    return " ".join([sys.executable, "-m", "asyncrl.a3c", *CATCH, *words])


def test_a_small_dev_shm_is_told_before_anything_starts(tmp_path: Path) -> None:
    """1 MB, and a network of 4 MB with its statistics."""
    words = command("--hidden-sizes", "512", "512", "--total-steps", "1e5", "--runs-dir", str(tmp_path / "runs"))
    result = in_a_namespace(f"mount -t tmpfs -o size=1m none /dev/shm && exec {words}")

    assert result.returncode == 2
    assert result.stderr.startswith("asyncrl a3c: error: shared memory: needs ")
    assert "docker: --shm-size" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_is_nearly_full_is_told_before_anything_starts(tmp_path: Path) -> None:
    """A tmpfs of 5 MB for the runs."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = command("--total-steps", "1e5", "--runs-dir", str(folder))
    result = in_a_namespace(f"mount -t tmpfs -o size=5m none {folder} && exec {words}")

    assert result.returncode == 2
    assert result.stderr.startswith("asyncrl a3c: error: disk: needs about ")
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_disk_that_fills_up_during_the_run_ends_it_and_spares_the_last_checkpoint(tmp_path: Path) -> None:
    """The disk had room at the start; somebody else took it. Records wait, and the next checkpoint finds no room."""
    folder, copy = tmp_path / "small", tmp_path / "copy"
    folder.mkdir()
    words = command("--total-steps", "1e8", "--record-interval-seconds", "0", "--runs-dir", str(folder))
    script = f"""
        mount -t tmpfs -o size=300m none {folder} || exit 99
        {words} & run=$!
        for i in $(seq 1500); do ls -d {folder}/a3c/Catch/*/checkpoints/step_* >/dev/null 2>&1 && break; sleep 0.1; done
        cat /dev/zero > {folder}/other 2>/dev/null
        wait $run; code=$?
        rm {folder}/other; cp -r {folder} {copy}; exit $code
    """
    result = in_a_namespace(script)

    assert result.returncode == 1, result.stderr
    assert re.search(r"^failed: .*the disk is full", result.stdout, re.M)  # of the command, or of the evaluator
    assert re.search(r"^could not be written: .* record rows, .*status\.json \(No space left", result.stdout, re.M)
    assert "Traceback" not in result.stderr
    checkpoint, skipped = load_newest(the_run(copy) / "checkpoints")
    assert (checkpoint.steps >= 0, skipped) == (True, [])


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path) -> None:
    """No checkpoint is due meanwhile: records, TensorBoard and status wait, and are whole at the end."""
    folder, copy = tmp_path / "small", tmp_path / "copy"
    folder.mkdir()
    words = command("--total-steps", "1e9", "--checkpoint-interval-steps", "1e9", "--record-interval-seconds", "0.2",
                    "--evaluation-interval-steps", "0", "--runs-dir", str(folder))  # fmt: skip
    script = f"""
        mount -t tmpfs -o size=300m none {folder} || exit 99
        {words} & run=$!
        for i in $(seq 1500); do grep -qs '"running"' {folder}/a3c/Catch/*/status.json && break; sleep 0.1; done
        cat /dev/zero > {folder}/other 2>/dev/null
        sleep 6; rm {folder}/other; sleep 3
        kill -INT $run; wait $run; code=$?
        cp -r {folder} {copy}; exit $code
    """
    result = in_a_namespace(script.replace("& run=$!", "& run=$!; trap '' INT"))

    assert (result.returncode, result.stderr) == (130, "")
    assert "could not be written" not in result.stdout
    run = the_run(copy)
    assert status_of(run)["state"] == "stopped"
    check_written(run)


def test_few_descriptors_are_told_before_anything_starts(tmp_path: Path) -> None:
    """ulimit -n 64, hard and soft."""
    words = command("--total-steps", "2000", "--runs-dir", str(tmp_path / "runs"))
    result = subprocess.run(["sh", "-c", f"ulimit -n 64; exec {words}"], capture_output=True, text=True, timeout=200)

    assert result.returncode == 2
    assert result.stderr.startswith("asyncrl a3c: error: file descriptors: 2 workers need about ")
    assert result.stderr.count("\n") == 1


def test_a_soft_limit_on_descriptors_is_raised(tmp_path: Path) -> None:
    """ulimit -S -n 64: the run may lift it by itself."""
    words = command("--total-steps", "2000", "--runs-dir", str(tmp_path / "runs"))
    result = subprocess.run(["sh", "-c", f"ulimit -S -n 64; exec {words}"], capture_output=True, text=True, timeout=200)

    assert (result.returncode, result.stderr) == (0, "")


def test_a_run_needs_neither_a_terminal_nor_a_home(tmp_path: Path) -> None:
    """nohup ... & from a script, stdin closed, HOME unset."""
    words = command("--total-steps", "2000", "--runs-dir", str(tmp_path / "runs"))
    script = f"cd {Path.cwd()}; nohup {words} > {tmp_path}/out 2>&1 < /dev/null & wait $!"
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "TERM")}
    result = subprocess.run(["sh", "-c", script], env=environment, timeout=200, start_new_session=True)

    assert result.returncode == 0
    assert status_of(the_run(tmp_path / "runs"))["state"] == "finished"
    assert "Traceback" not in (tmp_path / "out").read_text()


def test_the_figures_that_are_checked_at_the_start_are_those_of_the_run(tmp_path: Path) -> None:
    """The supervisor keeps no more descriptors per child than it reckons with."""

    def files(workers: int) -> int:
        words = ("--env-id", "Catch", "--quiet", "--total-steps", "1e9", "--workers", str(workers))
        with running(tmp_path / str(workers), *words) as run:
            run.until(lambda: run.status.get("steps", 0) > 0, "the first steps")
            return len(os.listdir(f"/proc/{run.process.pid}/fd"))

    assert files(6) - files(2) <= 4 * FILES_PER_CHILD
    assert SPARE_FILES >= 20


THREADS = """
import threading, time
import gymnasium, torch
class Env(gymnasium.Wrapper):
    steps = 0
    def step(self, action):
        Env.steps += 1
        assert Env.steps < 10 or torch.get_num_threads() == 1  # the first are the command's own, to look at it
        return super().step(action)
def make():
    torch.set_num_threads(4)
    for _ in range({threads}): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    return Env(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.parametrize(("backend", "threads"), [("local", 3), ("serial", 3), ("serial", 0)])
def test_threads_that_environments_start_are_told_in_one_line(tmp_path: Path, backend: str, threads: int) -> None:
    """At the start; and a number of threads that they set for torch is taken back."""
    result = run_command(
        "--env-id", "module:make", "--backend", backend, "--workers", "1", "--envs-per-worker", "1",
        "--total-steps", "200", "--evaluation-episodes", "1", "--runs-dir", str(tmp_path / "runs"),
        env=environment_of(tmp_path, THREADS.format(threads=threads)),
    )  # fmt: skip

    assert (result.returncode, result.stderr) == (0, "")
    told = result.stdout.count("\nthe environments of a worker have started 3 threads besides its own: ")
    assert told == result.stdout.count("have started") == (1 if threads else 0)


PAYLOAD = b"cos\nsystem\n(S'touch %s'\ntR."


def test_a_pickle_in_a_checkpoint_does_nothing(tmp_path: Path) -> None:
    """Its sums are right, as an attacker would make them: it is refused for what it is, and no code runs."""
    words = [*CATCH, "--backend", "serial", "--runs-dir", str(tmp_path / "runs")]
    assert main("asyncrl.a3c", [*words, "--total-steps", "1000"]) == 0
    run = the_run(tmp_path / "runs")
    trace = tmp_path / "owned"
    for path in checkpoints.find(run / "checkpoints"):
        for name in ("weights.safetensors", "state.pt"):
            (path / name).write_bytes(PAYLOAD % str(trace).encode())
        rewrite(path, lambda _: None)

    result = run_command("--resume", str(run), "--total-steps", "2000")

    assert result.returncode == 2
    assert "weights.safetensors: not a safetensors file" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not trace.exists()


@pytest.mark.parametrize("name", ["../../x", "../../../x", "/tmp/x", "{folder}/x", "..", ".x", "a/b", "a\nb"])
def test_no_name_leads_out_of_the_runs_folder(tmp_path: Path, name: str) -> None:
    """Neither of a run nor of an environment: it is refused, and nothing is made."""
    name = name.format(folder=tmp_path)
    words = [*CATCH, "--backend", "serial", "--total-steps", "100", "--runs-dir", str(tmp_path / "a" / "b" / "runs")]

    assert main("asyncrl.a3c", [*words, "--run-name", name]) == 2
    assert main("asyncrl.a3c", [*words, "--env-id", f"{name}:x"]) == 2
    assert main("asyncrl.a3c", [*words, "--env-id", ":x"]) == 2

    assert list(tmp_path.iterdir()) == []
