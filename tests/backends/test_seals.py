"""What a stranger writes for ranks, who can reach their store but does not know their secret."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from asyncrl.backends.collective import board as boards
from asyncrl.backends.collective.board import Board, Sealed
from asyncrl.backends.collective.launch import launched
from asyncrl.core.errors import UsageError
from asyncrl.storage import stored
from tests.backends.meeting import boards_of, joined

SECRET = b"only ranks know it"
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29400"}


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def write_as_stranger(port: int, trap: Path, keys: tuple[str, ...]) -> None:
    """Write a pickle, nothing, JSON or garbage under each key in turn."""
    store = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    for number, key in enumerate(keys):
        forged = (pickle.dumps(Trap(trap)), b"", json.dumps([1, "killed"]).encode(), bytes(range(256)))
        store.set(key, forged[number % len(forged)])  # type: ignore[arg-type]


KEYS = (
    "answer",
    "go",
    "over",
    *(f"{name}/1" for name in ("hello", "ready", "beat", "left", "cause", "ended")),
)


def test_what_lacks_the_secret_counts_as_absent_and_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before the other rank comes, and afterwards; what ranks write replaces it."""
    first = Board("127.0.0.1", 0, 0, 2, SECRET, serve=True)
    write_as_stranger(first.port, tmp_path / "trap", KEYS)
    assert first.get("over") is None
    assert [first.each(name) for name in ("hello", "left", "cause", "ended")] == [{}] * 4
    assert first.beats() == {}

    second = joined(first, SECRET)
    for board in (first, second):
        board.greet(["--seed", "1"])
    assert [hello["words"] for hello in first.await_hellos().values()] == [["--seed", "1"]] * 2
    first.put("answer", {"steps": 3})
    assert second.wait_for("answer") == {"steps": 3}

    write_as_stranger(first.port, tmp_path / "trap", KEYS)
    assert (first.get("answer"), second.get("answer"), first.each("hello").keys()) == (None, None, {0})
    assert not (tmp_path / "trap").exists()
    assert capfd.readouterr().err == "asyncrl: a message without this run's secret was ignored (over)\n"


def test_a_message_counts_in_its_place_and_its_run_only() -> None:
    """A stranger may copy what he has read, also from an earlier run of those who still have the same secret."""
    first, earlier = (Board("127.0.0.1", 0, 0, 2, SECRET, serve=True) for _ in range(2))
    stranger = TCPStore("127.0.0.1", first.port, None, False, wait_for_workers=False)
    first.put("beat/1", [1, 0])
    earlier.put("over", True)
    stranger.set("left/1", stranger.get("beat/1"))  # type: ignore[arg-type]
    stranger.set("over", earlier._values.get("over"))  # type: ignore[attr-defined]

    assert first.get("left/1") is None
    assert first.get("over") is None


def test_what_a_rank_was_told_in_an_earlier_run_is_no_answer() -> None:
    """A stranger has kept it, and writes it again and again while the rank of a later run joins."""
    earlier, _ = boards_of(SECRET)
    earlier.put("answer", {"steps": 666})
    kept = {key: TCPStore("127.0.0.1", earlier.port, None, False, wait_for_workers=False).get(key)
            for key in ("nonce/1", "question/1", "answer")}  # fmt: skip
    first = Board("127.0.0.1", 0, 0, 2, SECRET, serve=True)
    stranger = TCPStore("127.0.0.1", first.port, None, False, wait_for_workers=False)

    def write() -> None:
        for key, value in kept.items():
            stranger.set(key, value)  # type: ignore[arg-type]

    write()
    second = joined(first, SECRET, write)

    assert second.get("answer") is None
    first.put("answer", {"steps": 3})
    assert second.get("answer") == {"steps": 3}


def test_an_old_heartbeat_is_no_sign_of_life() -> None:
    """It could be sent again for a rank that is gone."""
    first = Board("127.0.0.1", 0, 0, 2, SECRET, serve=True)
    for count in (3, 2):
        first.put("beat/1", [count, 7])
        assert first.beats() == {1: (3, 7)}


def test_a_rank_with_another_secret_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon, and rank 0 waits for the right one."""
    monkeypatch.setattr(boards, "DOUBT_SECONDS", 0.1)
    first = Board("127.0.0.1", 0, 0, 2, SECRET, serve=True)

    with pytest.raises(
        UsageError, match=r"^rank 0's message at 127\.0\.0\.1:\d+ does not carry this rank's secret: set"
    ):
        Board("127.0.0.1", first.port, 1, 2, b"what others know")


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({}, "^ranks on several machines authenticate with a secret: set ASYNCRL_SECRET to the same long"),
        ({"MASTER_ADDR": "127.0.0.1"}, r"^ranks on several machines cannot meet at 127\.0\.0\.1, which is local to"),
        ({"ASYNCRL_SECRET": "guess me"}, "^ASYNCRL_SECRET must have at least 16 characters"),
    ],
)
def test_ranks_on_several_machines_need_a_secret(variables: dict[str, str], complaint: str) -> None:
    """And an address at which they can meet."""
    with pytest.raises(UsageError, match=complaint):
        boards.board_of(launched(TORCHRUN | variables))  # type: ignore[arg-type]


def test_ranks_on_one_machine_have_that_of_their_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file that nobody else can read, made once; unless the environment has another one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launch = launched(TORCHRUN | {"LOCAL_WORLD_SIZE": "2"})
    assert launch is not None
    assert launch.secret("10.0.0.1") == launch.secret("10.0.0.1") != b""
    assert (tmp_path / "asyncrl" / "key").stat().st_mode & 0o777 == 0o600
    given = launched(TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "ASYNCRL_SECRET": "a long random text"})
    assert given is not None
    assert given.secret("10.0.0.1") == b"a long random text"

    (tmp_path / "asyncrl" / "key").chmod(0o644)
    stored._key_in.cache_clear()
    with pytest.raises(UsageError, match=r"the key must be yours alone .*: set ASYNCRL_SECRET for all of them"):
        launch.secret("10.0.0.1")


def test_a_store_that_keeps_nothing_is_only_a_place() -> None:
    """`get` does not wait for what does not exist, as torch's own would, and is not fooled by the word for absent."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    values = Sealed(store, SECRET)

    assert values.get("key") is None
    store.set("key", "\0absent")
    assert values.get("key") is None
    values.put("key", [1.5, "x", {"a": [True]}])
    assert values.get("key") == [1.5, "x", {"a": [True]}]
