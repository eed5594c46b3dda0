"""One process at a time in a folder: with locks, without, and with locks that another machine does not see."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from asyncrl.storage import holding
from asyncrl.storage.holding import Held, Hold, is_held, lease
from asyncrl.storage.run_folder import read_status

ELSEWHERE = ("another-machine", "token")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.lock"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundredths of a second in place of seconds."""
    for name, seconds in (("RENEWAL", 0.1), ("STALE", 5.0), ("SETTLE", 0.5), ("POLL", 0.01)):
        monkeypatch.setattr(holding, f"{name}_SECONDS", seconds)


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    """A file system without flock."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def held(path: Path, said: list[str] | None = None, waits: str = "") -> object:
    return holding.holding(path, (said if said is not None else []).append, waits=waits)


@contextmanager
def abandoned(path: Path) -> Iterator[Hold]:
    """A hold of a process that has been killed: nothing is renewed or released."""
    file = open(path, "a+b", buffering=0)  # noqa: SIM115
    hold = Hold(file, path)
    hold._write()
    try:
        yield hold
    finally:
        file.close()


def test_a_second_one_is_refused_until_the_first_has_ended(file: Path) -> None:
    """And whoever asks is told."""
    assert not is_held(file)
    with held(file):
        assert is_held(file)
        with pytest.raises(Held, match="is in use: another process is training there"), held(file):
            pass
    assert not is_held(file)
    with held(file):
        pass
    assert file.read_bytes() == b""


def test_a_process_that_was_forked_meanwhile_holds_nothing(file: Path) -> None:
    """It has a copy of the descriptor, as helpers of an environment have."""
    with held(file):
        helper = os.fork()
        if not helper:
            time.sleep(600)
            os._exit(0)
    try:
        with held(file):
            pass
    finally:
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)


def test_runs_of_a_study_that_was_interrupted_keep_its_folder(file: Path) -> None:
    """They have the lock from it, and the next study waits for them."""
    with held(file, waits="waiting") as hold:
        run = subprocess.Popen(["sleep", "1000"], pass_fds=(hold.fileno(),))
    try:
        with pytest.raises(Held), held(file):
            pass
    finally:
        run.kill()
        run.wait()
    with held(file):
        pass


def test_after_a_kill_on_this_machine_nobody_waits(file: Path) -> None:
    """The kernel has taken the lock back; the lease that is left says that it was of this machine."""
    said: list[str] = []
    with abandoned(file):
        assert not is_held(file)
        with held(file, said) as hold:
            assert hold.lost() is None
    assert said == []


def test_after_waiting_for_the_runs_of_a_killed_study_nobody_waits_once_more(file: Path, quick: None) -> None:
    """The lock that was waited for says that the lease in the file is nobody's."""
    said: list[str] = []
    with abandoned(file) as hold:
        fcntl.flock(hold.fileno(), fcntl.LOCK_EX)
        run = subprocess.Popen(["sleep", "1"], pass_fds=(hold.fileno(),))
    with held(file, said, waits="waiting"):
        pass
    assert run.wait(timeout=60) == 0
    assert said == ["waiting"]


def test_asking_takes_the_folder_from_nobody(file: Path) -> None:
    """Not even from one that resumes a killed run just then: it tries again."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.0005):
            is_held(file)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(20):
            with abandoned(file):
                time.sleep(0.002)
            with held(file):
                pass
    finally:
        over.set()
        for asker in askers:
            asker.join()


def test_a_second_one_is_refused_without_locks(file: Path, without_locks: None) -> None:
    """It sees that the lease is renewed, and does not wait for long."""
    with held(file) as hold:
        assert is_held(file)
        for _ in range(2):
            with pytest.raises(Held), held(file):
                pass
        time.sleep(0.2)
        assert hold.lost() is None
    with held(file):
        pass


def test_a_lease_that_is_not_renewed_is_taken_over(file: Path, without_locks: None) -> None:
    """Whatever the clocks say; the one that had it, if it was only suspended, learns so."""
    said: list[str] = []
    with abandoned(file) as first:
        os.utime(file, (2e9, 2e9))
        with held(file, said):
            assert str(first.lost()).startswith(f"another process has taken over {file.parent}")
        assert first.lost() is not None
        first.release()
    assert said == [f"waiting 5 seconds to see whether another process still works in {file.parent}"]


def test_two_at_the_same_moment_without_locks(file: Path, without_locks: None) -> None:
    """At most one gets it."""
    begun, got = threading.Barrier(4), []

    def take() -> None:
        begun.wait()
        with ExitStack() as stack:
            try:
                stack.enter_context(held(file))
            except Held:
                return
            got.append(1)
            time.sleep(0.5)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) <= 1


def test_another_machine_that_shares_the_folder_is_seen(file: Path, quick: None) -> None:
    """Its lock is not (NFS mounted with nolock): as long as it renews its lease the folder is its own."""
    over = threading.Event()

    def renew() -> None:
        beat = 0
        while not over.wait(0.05):
            beat += 1
            file.write_bytes(lease(*ELSEWHERE, beat))

    file.write_bytes(lease(*ELSEWHERE, 0))
    other = threading.Thread(target=renew)
    other.start()
    try:
        assert is_held(file)
        with pytest.raises(Held), held(file):
            pass
    finally:
        over.set()
        other.join()
    said: list[str] = []
    with held(file, said):
        pass
    assert len(said) == 1


def test_whoever_waits_for_a_strangers_lease_can_be_interrupted(file: Path) -> None:
    """By Ctrl-C, say."""
    file.write_bytes(lease(*ELSEWHERE, 0))
    with pytest.raises(KeyboardInterrupt), holding.holding(file, lambda _: None, lambda: True):
        pass


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_folder_that_is_gone_is_noticed(tmp_path: Path, how: str) -> None:
    """Also if somebody has made another one of the same name."""
    folder = tmp_path / "run"
    folder.mkdir()
    with held(folder / "run.lock") as hold:
        assert hold.lost() is None
        shutil.rmtree(folder)
        if how == "replaced":
            folder.mkdir()
            (folder / "run.lock").touch()
        assert hold.lost() == f"{folder} was {'deleted' if how == 'deleted' else 'replaced by another folder'}"
    assert folder.exists() == (how == "replaced")


def test_a_state_is_that_of_the_process_too(tmp_path: Path) -> None:
    """Which says "running" for ever once it was killed. Nothing is written to ask."""
    status = {"state": "running", "reason": "", "steps": 7}
    assert read_status(tmp_path) == {}
    (tmp_path / "status.json").write_text(json.dumps(status))
    with held(tmp_path / "run.lock"):
        assert read_status(tmp_path) == status
        (tmp_path / "status.json").unlink()
        assert read_status(tmp_path) == {"state": "starting"}
    (tmp_path / "status.json").write_text(json.dumps(status))
    before = sorted(os.listdir(tmp_path))
    died = read_status(tmp_path)
    assert (died["state"], died["steps"], sorted(os.listdir(tmp_path))) == ("died", 7, before)
    (tmp_path / "run.lock").unlink()  # a copy without it
    assert read_status(tmp_path)["state"] == "died"
    (tmp_path / "status.json").write_text(json.dumps(status | {"state": "finished"}))
    assert read_status(tmp_path)["state"] == "finished"


def test_a_run_that_ends_while_one_asks_has_not_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last status comes before its lock goes."""
    (tmp_path / "status.json").write_text('{"state": "running"}')

    def ends(_: Path) -> bool:
        (tmp_path / "status.json").write_text('{"state": "finished"}')
        return False

    monkeypatch.setattr("asyncrl.storage.run_folder.is_held", ends)
    assert read_status(tmp_path)["state"] == "finished"
