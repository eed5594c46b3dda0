"""What happens to a run when its output goes nowhere, the disk is full, or Ctrl-C comes before it has begun."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from asyncrl.commands.train import main
from asyncrl.envs.spec import EnvSpec
from asyncrl.storage import files
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.faults.running import environment_of
from tests.storage.limits import no_file_beyond
from tests.support import run_command, status_of, the_run

CATCH = ("--env-id", "Catch", "--workers", "2", "--evaluation-episodes", "2")
KILOBYTE = 1000


def begin(
    runs_dir: Path, *words: str, program: Sequence[str] = ("-m", "asyncrl.a3c"), **options: object
) -> subprocess.Popen[str]:
    """The command in the background, in a process group of its own."""
    command = [sys.executable, *program, *CATCH, "--runs-dir", str(runs_dir), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    # Test runs that were themselves started in the background ignore SIGINT, and children would inherit that.
    options["preexec_fn"] = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, **(pipes | options))  # type: ignore[call-overload, no-any-return]


def left_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """What stays of its group after its end, wherever it was started from."""
    members = []
    for other in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(other.pid) == process.pid and other.status() != psutil.STATUS_ZOMBIE:
                members.append(other)
    return psutil.wait_procs(members, timeout=60)[1]


@pytest.mark.parametrize("backend", ["local", pytest.param("serial", marks=pytest.mark.slow)])
def test_a_closed_stdout_does_not_end_the_training(tmp_path: Path, backend: str) -> None:
    """As with `| head -1`: the first line is read, the rest goes nowhere, the run ends as it should."""
    process = begin(tmp_path, "--total-steps", "20000", "--backend", backend)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.stdout.close()

    _, errors = process.communicate(timeout=200)

    assert first.startswith("run folder: ")
    assert (process.returncode, errors) == (0, "")
    status = status_of(the_run(tmp_path))
    assert (status["state"], status["exit_code"]) == ("finished", 0)
    assert status["steps"] >= 20000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    """`> log` on a full disk, the runs on another."""
    with open("/dev/full", "w") as full:
        process = begin(tmp_path, "--total-steps", "1000", "--backend", "serial", stdout=full)
        _, errors = process.communicate(timeout=200)

    assert (process.returncode, errors) == (0, "")
    assert status_of(the_run(tmp_path))["state"] == "finished"


def test_a_run_needs_no_stdout_at_all(tmp_path: Path) -> None:
    """`>&-`, as some services start their programs."""
    process = begin(
        tmp_path, "--total-steps", "1000", "--backend", "serial", stdout=None, preexec_fn=lambda: os.close(1)
    )
    _, errors = process.communicate(timeout=200)

    assert (process.returncode, errors) == (0, "")
    assert status_of(the_run(tmp_path))["state"] == "finished"


@pytest.mark.faults
@pytest.mark.parametrize("backend", ["local", pytest.param("serial", marks=pytest.mark.slow)])
def test_records_that_find_no_room_do_not_end_a_run(tmp_path: Path, backend: str) -> None:
    """Workers fill it: the run makes all its steps, and says at the end how many rows and steps are missing."""
    words = ("--total-steps", "8000", "--record-interval-seconds", "0", "--envs-per-worker", "1", "--t-max", "5")
    with no_file_beyond(200 * KILOBYTE):  # inherited; room for checkpoints and the start of the records
        process = begin(tmp_path, *words, "--quiet", "--backend", backend)
    out, errors = process.communicate(timeout=200)

    assert (process.returncode, errors) == (0, "")
    run = the_run(tmp_path)
    status = status_of(run)
    assert (status["state"], status["exit_code"], "traceback" in status) == ("finished", 0, False)
    missing, steps = status["unwritten"]["records"], status["unrecorded"]["steps"]
    assert min(missing, steps) > 0
    assert f"\ncould not be written: {missing:,} record rows; {steps:,} steps are in no worker's records\n" in out
    rows = [row for file in run.glob("worker-*.jsonl") for row in read_records(file)]
    assert sum(row.get("worker_steps", 0) for row in rows) + steps == sum(status["worker_steps"])
    checkpoint, skipped = load_newest(run / "checkpoints")
    assert (checkpoint.steps, skipped) == (status["steps"], [])
    assert not list(run.glob("*.traceback.txt"))
    assert left_of(process) == []


@pytest.mark.faults
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    """Nothing can be saved from then on, not even the status; the line and the exit code still tell."""
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    sync, saved = os.fsync, []

    def fsync(descriptor: int) -> None:
        saved.extend(tmp_path.glob("*/*/*/checkpoints/step_*"))
        if any(path.name != "step_000000000000" for path in saved):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    words = ["--total-steps", "1e9", "--checkpoint-interval-steps", "1000", "--evaluation-interval-steps", "0"]
    code = main("asyncrl.a3c", [*CATCH, *words, "--runs-dir", str(tmp_path), "--backend", "serial", "--quiet"])

    out, errors = capfd.readouterr()
    assert (code, errors) == (1, "")
    reason = f"could not be written in 3 tries: {os.strerror(number)}"
    trouble = "the disk is full" if number == errno.ENOSPC else "the disk is failing"
    assert re.search(rf"^failed: {trouble}: the checkpoint of step [0-9,]+ {reason}; best", out, re.M)
    assert re.search(rf"^could not be written: status\.json \({os.strerror(number)}\)$", out, re.M)
    checkpoint, skipped = load_newest(the_run(tmp_path) / "checkpoints")
    assert (checkpoint.steps, skipped) == (1024, [])


@pytest.mark.faults
def test_a_disk_that_is_full_from_the_start_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before the first worker starts."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)

    code = main("asyncrl.a3c", [*CATCH, "--runs-dir", str(tmp_path), "--quiet"])

    assert (code, capfd.readouterr().err) == (
        1, "asyncrl a3c: error: the disk is full: [Errno 28] No space left on device\n",
    )  # fmt: skip


def stop(process: subprocess.Popen[str], when: Callable[[], bool]) -> tuple[int, str, str]:
    """Ctrl-C, as a terminal sends it to the whole group, once `when()` is true."""
    deadline = time.monotonic() + 200
    while not when():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=200)
    return process.returncode, out, errors


@pytest.mark.faults
@pytest.mark.parametrize(
    "delay", [0.0, 0.5, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.2, 1.0, 2.0))]
)
def test_a_ctrl_c_before_the_workers_are_ready_stops_the_run_in_order(tmp_path: Path, delay: float) -> None:
    """While the fork server imports, or while the workers build their environments."""
    process = begin(tmp_path, "--workers", "4", "--total-steps", "1e9")

    def begun() -> bool:
        if not list(tmp_path.glob("*/*/*")):
            return False
        time.sleep(delay)
        return True

    code, out, errors = stop(process, begun)

    assert (code, errors) == (130, "")
    assert "\nstopped: received SIGINT; " in out
    status = status_of(the_run(tmp_path))
    assert (status["state"], status["exit_code"]) == ("stopped", 130)
    assert left_of(process) == []


@pytest.mark.faults
def test_a_ctrl_c_before_the_run_has_a_folder_leaves_nothing(tmp_path: Path) -> None:
    """Here in the environment's first reset."""
    source = (
        "import gymnasium, pathlib, time\n"
        "class Slow(gymnasium.Wrapper):\n"
        "    def reset(self, **options):\n"
        f"        pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        time.sleep(60)\n"
        "def make(): return Slow(gymnasium.make('CartPole-v1'))\n"
    )
    process = begin(tmp_path / "runs", "--env-id", "module:make", env=environment_of(tmp_path, source))

    code, out, errors = stop(process, (tmp_path / "begun").exists)

    assert (code, out, errors) == (130, "", "asyncrl a3c: interrupted\n")
    assert not (tmp_path / "runs").exists()
    assert left_of(process) == []


@pytest.mark.faults
def test_a_ctrl_c_does_not_wait_for_a_serial_evaluation(tmp_path: Path) -> None:
    """A hundred thousand episodes would take minutes. By the 5000th step of all environments it has begun."""
    source = (
        "import gymnasium, pathlib\n"
        "class Counting(gymnasium.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        Counting.steps += 1\n"
        f"        if Counting.steps == 5000: pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "        return super().step(action)\n"
        "def make(): return Counting(gymnasium.make('CartPole-v1'))\n"
    )
    words = ("--env-id", "module:make", "--backend", "serial", "--total-steps", "1e9", "--evaluation-episodes", "1e5")
    words += ("--evaluation-interval-steps", "1000")
    process = begin(tmp_path / "runs", *words, env=environment_of(tmp_path, source))

    code, _, errors = stop(process, (tmp_path / "begun").exists)

    assert (code, errors) == (130, "")
    status = status_of(the_run(tmp_path / "runs"))
    assert (status["state"], status["steps"] < 2000) == ("stopped", True)


def test_the_first_and_the_last_line_name_the_run_folder(tmp_path: Path) -> None:
    """Also under --quiet, where little else is said."""
    result = run_command(*CATCH, "--total-steps", "500", "--runs-dir", str(tmp_path), "--backend", "serial", "--quiet")

    first, middle, last = result.stdout.splitlines()
    assert first == last == f"run folder: {the_run(tmp_path)}"
    assert middle.startswith("finished: total_steps reached; best evaluation ")
    assert result.stderr == ""


def test_a_path_may_hold_letters_that_the_output_has_not(tmp_path: Path) -> None:
    """They are written as numbers: in the lines of a run, of a command that reads it, and in those about mistakes."""
    folder, encoding = tmp_path / "łódź 東京", "latin-1"
    written = str(folder).encode(encoding, "backslashreplace").decode(encoding)
    options = {"env": {**os.environ, "PYTHONIOENCODING": encoding}, "encoding": encoding}
    words = ("--backend", "serial", "--total-steps", "100", "--runs-dir", str(folder), "--run-name", "mine")

    trained = run_command(*CATCH, *words, **options)
    again = run_command(*CATCH, *words, **options)
    played = run_command(str(folder / "a3c" / "Catch" / "mine"), "--episodes", "1", algorithm="evaluate", **options)
    drawn = run_command(
        str(folder / "a3c" / "Catch" / "mine"), "--out", str(folder / "x.png"), algorithm="plot", **options
    )

    assert (trained.returncode, trained.stderr) == (0, "")
    assert trained.stdout.startswith(f"run folder: {written}/a3c/Catch/mine\n")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert again.stderr.startswith(f"asyncrl a3c: error: {written}/a3c/Catch/mine exists already")
    assert (played.returncode, played.stderr) == (0, "")
    assert (drawn.stdout, drawn.stderr) == (f"{written}/x.png\n", "")


@pytest.mark.faults
@pytest.mark.parametrize("module", ["numpy", "torch", pytest.param("torch.nn", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "program", [["-m", "asyncrl.a3c"], ["-c", "from asyncrl.__main__ import main; exit(main())", "a3c"]]
)
def test_a_ctrl_c_during_the_imports_shows_no_traceback(tmp_path: Path, program: list[str], module: str) -> None:
    """Torch takes a second to import; whoever changes their mind then need not see its insides.

    The second is what the script `asyncrl` does. Python says when it has imported the module.
    """
    process = begin(tmp_path, program=["-X", "importtime", *program])
    assert process.stderr is not None
    assert any(line.rpartition("|")[2].strip() == module for line in process.stderr)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=200)

    assert process.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in errors
    assert left_of(process) == []


def test_a_start_makes_no_environment_only_to_describe_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One probe for the preset and, where the preset leaves the environment as it is, none besides."""
    probed = []
    probe = EnvSpec.probe
    monkeypatch.setattr(EnvSpec, "probe", lambda spec, *more: probed.append(spec.env_id) or probe(spec, *more))
    words = ["--env-id", "Catch", "--backend", "serial", "--workers", "1", "--total-steps", "100"]

    assert main("asyncrl.a3c", [*words, "--runs-dir", str(tmp_path), "--normalize-observations"]) == 0

    assert probed == ["Catch"]
    facts = json.loads((the_run(tmp_path) / "config.json").read_text())["environment"]
    assert facts["description"].startswith("Catch: 3 actions, observation float32 [50]")


def test_what_there_is_to_say_about_an_id_is_one_line(tmp_path: Path) -> None:
    """Without a place in our code, and once."""
    words = ("--env-id", "CartPole", "--workers", "1", "--total-steps", "100", "--backend", "serial")
    done = run_command(*words, "--evaluation-episodes", "1", "--runs-dir", str(tmp_path))

    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("asyncrl a3c: Using the latest versioned environment `CartPole-v1`")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env-id", "CartPole-v1"], "preset default for a vector: envs_per_worker 8, t_max 8, "),
        (["--env-id", "CartPole-v1", "--t-max", "5"], "preset default for a vector: envs_per_worker 8, optimizer_"),
        (["--env-id", "Pendulum-v1"], "preset default for a vector and continuous actions: envs_per_worker 8, t_max 3"),
        (["--env-id", "ALE/Pong-v5", "--max-episode-steps", "50"], "preset default for Atari: reward_clip 1"),
        (
            ["--env-id", "CartPole-v1", "--preset", "paper", "--network", "mlp"],
            "preset paper for a vector: envs_per_worker 1, t_max 5, optimizer rmsprop, ",
        ),
    ],
)
def test_a_run_begins_with_what_its_preset_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Where that differs from the plain defaults, and nothing that the command line has set."""
    given = ["--total-steps", "200", "--backend", "serial", "--evaluation-episodes", "1", "--runs-dir", str(tmp_path)]
    assert main("asyncrl.a3c", [*words, *given, "--workers", "1"]) == 0

    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("preset ")]
    assert line.startswith(said)
