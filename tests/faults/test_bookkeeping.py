"""A disk that fails now and then, a file system without locks, a folder that is deleted: really, in commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.commands.train import main
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.run_folder import read_status
from tests.faults.running import broken_by, check_written, gone, training
from tests.support import run_command, status_of, the_run

pytestmark = pytest.mark.faults

SHORT = ("--env-id", "Catch", "--workers", "2", "--evaluation-episodes", "1", "--record-interval-seconds", "0.1")

FAILING = """
import collections, errno, os
from asyncrl.storage import checkpoints, files
append, replace, rename, calls = files.append_whole, os.replace, os.rename, collections.Counter()
def fails(what, every):
    calls[what] += 1
    if calls[what] % every == 1:
        raise OSError({number}, os.strerror({number}))
def failing_append(file, content):
    fails(file.name, 3)
    append(file, content)
def failing_replace(source, target):
    if str(target).endswith("status.json"): fails("status", 2)
    replace(source, target)
def failing_rename(source, target):
    if ".saving" in str(source): fails("checkpoint", 2)
    rename(source, target)
files.append_whole, os.replace, os.rename = failing_append, failing_replace, failing_rename
files.PAUSE_SECONDS = 0.1
"""


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("EIO", "serial"),
        *(pytest.param(*words, marks=pytest.mark.slow) for words in (("EIO", "local"), ("ESTALE", "local"))),
    ],
)
def test_a_disk_that_fails_now_and_then_costs_nothing(tmp_path: Path, name: str, backend: str) -> None:
    """Every third row of a file, every second status, every second checkpoint: all there at the end, and told once."""
    environment = broken_by(tmp_path, FAILING.format(number=f"errno.{name}"))
    result = run_command(*SHORT, "--total-steps", "20000", "--checkpoint-interval-steps", "5000", "--backend", backend,
                         "--runs-dir", str(tmp_path / "runs"), env=environment)  # fmt: skip

    assert (result.returncode, result.stderr) == (0, "")
    assert len(re.findall(r"records.* cannot be written now \(.*\); the run continues", result.stdout)) == 1
    assert "could not be written" not in result.stdout
    run = the_run(tmp_path / "runs")
    status = status_of(run)
    assert status["state"] == "finished"
    check_written(run)
    assert load_newest(run / "checkpoints")[0].steps == status["steps"]


WITHOUT_LOCKS = """
import errno, fcntl, os
from asyncrl.storage import holding
def flock(file, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock, holding.STALE_SECONDS, holding.RENEWAL_SECONDS = flock, 4.0, 0.5
"""


@pytest.mark.slow
def test_without_locks_a_second_command_is_refused_and_a_killed_one_goes_on(tmp_path: Path) -> None:
    """One line, exit code 2, and the first one goes on undisturbed; after a kill it takes the lease's time."""
    environment = broken_by(tmp_path, WITHOUT_LOCKS)
    runs = tmp_path / "runs"
    with training(runs, env=environment) as run:
        folder = run.folder
        refused = run_command("--resume", str(folder), env=environment)
        assert (refused.returncode, refused.stdout.count("\n")) == (2, 1)
        assert refused.stderr == f"asyncrl a3c: error: {folder} is in use: another process is training there\n"
        steps = run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "more steps")
        everyone = run.everyone()
        run.process.kill()
        run.process.wait()
        assert gone(everyone)

    resumed = run_command("--resume", str(folder), "--max-seconds", "1e-3", "--quiet", env=environment)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout.startswith(f"waiting 4 seconds to see whether another process still works in {folder}\n")
    assert status_of(folder)["part"] == 1


@pytest.mark.parametrize("backend", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_a_folder_that_is_deleted_ends_the_run_in_one_line(tmp_path: Path, backend: str) -> None:
    """No file of it comes back, although checkpoints and evaluations are due all the time."""
    words = (
        *SHORT,
        "--checkpoint-interval-steps",
        "1000",
        "--evaluation-interval-steps",
        "500",
        "--total-steps",
        "1e9",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncrl.a3c", *words, "--backend", backend, "--runs-dir", str(tmp_path / "runs")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    folder = process.stdout.readline().removeprefix("run folder: ").strip()
    assert any(line.startswith("exploration: ") for line in process.stdout)
    while (tmp_path / "runs").exists():
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)  # it fails where a file is written meanwhile
    out, errors = process.communicate(timeout=200)

    assert (process.returncode, errors) == (1, "")
    assert re.search(rf"^failed: {folder} was deleted(| in part: run.lock is gone); best", out, re.M)
    assert "cannot be written" not in out
    assert not Path(folder).exists()


@pytest.mark.slow
def test_a_killed_command_has_died_for_all_who_read(tmp_path: Path) -> None:
    """The report, the live view and --resume auto; a copy of its folder too. It can be resumed."""
    words = ("--run-name", "job", "--evaluation-interval-steps", "1000")
    with training(tmp_path, *words) as run:
        folder = run.folder
        assert read_status(folder)["state"] == "running"
        everyone = run.everyone()
        run.process.kill()
        run.process.wait()
        assert gone(everyone)
        copy = shutil.copytree(folder, tmp_path / "copy")

    for path in (folder, copy):
        status = read_status(path)
        assert (status["state"], status["reason"].startswith("its process is gone")) == ("died", True)
    watched = run_command(str(folder), algorithm="watch", cwd=tmp_path)
    assert watched.returncode in (0, 1)  # a film, or that there is no best checkpoint; it does not follow
    reported = run_command(str(folder), "--out", str(tmp_path / "report.html"), algorithm="report")
    assert (reported.returncode, reported.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert "died" in page
    assert ">running" not in page
    further = ["--env-id", "Catch", "--workers", "2", "--quiet", "--max-seconds", "1e-3", "--total-steps", "1e9"]
    assert main("asyncrl.a3c", ["--resume", "auto", *words, "--runs-dir", str(tmp_path), *further]) == 0
    assert read_status(folder)["state"] == "finished"


SERIAL = ("--env-id", "Catch", "--backend", "serial", "--workers", "2", "--quiet", "--evaluation-episodes", "1",
          "--total-steps", "1000")  # fmt: skip


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone of this process."""

    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


def test_auto_takes_the_run_that_began_last_whatever_clocks_on_walls_show(
    tmp_path: Path, zone: Callable[[str], None]
) -> None:
    """The first one, made 25 hours further east, has the later name."""
    words = [*SERIAL, "--runs-dir", str(tmp_path)]
    for name in ("UTC-14", "UTC+11"):
        zone(name)
        assert main("asyncrl.a3c", [*words, "--max-seconds", "1e-9"]) == 0
    folders = {path.parent.name: path.parent for path in tmp_path.glob("*/*/*/config.json")}
    older, newer = folders[max(folders)], folders[min(folders)]
    assert older != newer

    zone("UTC")
    assert main("asyncrl.a3c", [*words, "--resume", "auto"]) == 0

    assert (status_of(newer)["part"], status_of(older)["part"]) == (1, 0)


def test_a_run_stays_as_old_as_it_was_when_it_is_resumed(tmp_path: Path) -> None:
    """The newest one is the one that was begun last, not the one that was resumed last."""
    words = [*SERIAL, "--runs-dir", str(tmp_path), "--max-seconds", "1e-9"]
    for name in ("w2-s1-20300101-000000", "w2-s1-20200101-000000"):  # as a clock that was wrong has named them
        assert main("asyncrl.a3c", [*words, "--run-name", name]) == 0
    assert main("asyncrl.a3c", ["--resume", str(tmp_path / "a3c" / "Catch" / "w2-s1-20300101-000000")]) == 0

    assert main("asyncrl.a3c", [*words, "--resume", "auto"]) == 0

    parts = {path.parent.name: status_of(path.parent)["part"] for path in tmp_path.glob("*/*/*/status.json")}
    assert parts == {"w2-s1-20300101-000000": 1, "w2-s1-20200101-000000": 1}
