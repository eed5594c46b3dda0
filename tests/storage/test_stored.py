"""config.json as data: its signature, its key, and what it may make a process import."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.core.errors import UsageError
from asyncrl.storage import stored
from asyncrl.storage.stored import NONE_GIVEN, Permission, read_stored, write_stored


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a user who has no key yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stored._key_in.cache_clear()
    yield tmp_path / "state"
    stored._key_in.cache_clear()


def write(folder: Path, algorithm: str = "asyncrl.a3c", **config: Any) -> Path:
    """A run's config.json."""
    folder.mkdir(exist_ok=True)
    write_stored(folder / "config.json", algorithm, {"env_id": "Catch", "network": "auto"} | config, {})
    return folder / "config.json"


def forge(file: Path, **config: Any) -> None:
    """Change settings by hand."""
    data = json.loads(file.read_text())
    data["config"] |= config
    file.write_text(json.dumps(data))


def test_the_key_is_the_users_alone_and_lasts(state: Path, tmp_path: Path) -> None:
    """Another process signs with the same."""
    file = write(tmp_path / "run", env_id="mine:make")
    key = state / "asyncrl" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert os.listdir(key.parent) == ["key"]

    stored._key_in.cache_clear()
    assert read_stored(file).is_own
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "copy")
    assert read_stored(tmp_path / "elsewhere" / "copy" / "config.json").is_own


def test_processes_that_need_a_key_at_once_agree(state: Path, tmp_path: Path) -> None:
    """All of them sign with the first one's."""
    script = "import sys, pathlib; from asyncrl.storage.stored import write_stored\n"
    script += "write_stored(pathlib.Path(sys.argv[1]), 'asyncrl.a3c', {}, {})"
    files = [tmp_path / f"{i}" / "config.json" for i in range(4)]
    for file in files:
        file.parent.mkdir()
    processes = [subprocess.Popen([sys.executable, "-c", script, str(file)]) for file in files]

    assert [process.wait(60) for process in processes] == [0] * 4
    assert all(read_stored(file).is_own for file in files)


def test_an_edited_file_is_not_ones_own(state: Path, tmp_path: Path) -> None:
    """Nor one with a signature that somebody made up, or that is another file's."""
    file = write(tmp_path / "run")
    forge(file, env_id="subprocess:getoutput")
    assert not read_stored(file).is_own
    for signature in (
        b"",
        b"0" * 64,
        "ä".encode(),
        b"\xff\x00",
        (write(tmp_path / "other").parent / stored.SIGNATURE).read_bytes(),
    ):
        (tmp_path / "run" / stored.SIGNATURE).write_bytes(signature)
        assert not read_stored(file).is_own


def test_a_kill_between_signature_and_file_leaves_ones_own(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On resume the file is written again."""
    file = write(tmp_path / "run")
    replace = stored.replace_file

    def killed(path: Path, content: bytes) -> None:
        if path == file:
            raise KeyboardInterrupt
        replace(path, content)

    monkeypatch.setattr(stored, "replace_file", killed)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run", seed=2)
    assert read_stored(file).is_own
    monkeypatch.undo()


@pytest.mark.parametrize("spoil", ["others read it", "damaged", "no folder"])
def test_without_a_key_of_ones_own_runs_are_known_to_their_process_only(
    spoil: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the line that refuses says why."""
    if spoil == "no folder":
        state.write_text("a file where the folder would be")
    else:
        (state / "asyncrl").mkdir(parents=True)
        key = state / "asyncrl" / "key"
        key.write_bytes(b"x" * (stored.KEY_BYTES if spoil == "others read it" else 3))
        key.chmod(0o644 if spoil == "others read it" else 0o600)
    file = write(tmp_path / "run", env_id="mine:make")
    assert read_stored(file).is_own

    stored._key_in.cache_clear()
    monkeypatch.setattr(stored, "_OF_THIS_PROCESS", b"of another process".ljust(stored.KEY_BYTES))
    reason = {"others read it": "chmod 600", "damaged": "the key is damaged", "no folder": "Not a directory"}[spoil]
    with pytest.raises(UsageError, match=f"your own runs are not recognised either: .*{reason}"):
        read_stored(file).usable_config(NONE_GIVEN, trains=False)
    assert read_stored(file).usable_config(Permission(trust=True), trains=False)["env_id"] == "mine:make"


def test_a_user_without_a_home_can_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the process lives."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr(Path, "home", homeless)
    assert read_stored(write(tmp_path / "run")).is_own


FOREIGN = [
    {"env_id": "subprocess:getoutput"},
    {"env_id": "__main__:main"},
    {"env_id": "asyncrl.__main__:main"},
    {"env_id": "gymnasium:make"},
    {"env_id": "somebody:Lamps-v0"},
    {"network": "os:system"},
]
HARMLESS = [
    {"env_id": "ALE/Pong-v5"},
    {"env_id": "ale_py:ALE/Pong-v5"},
    {"env_id": "minigrid:MiniGrid-Empty-5x5-v0"},
    {"env_id": "CartPole-v1", "network": "mlp"},
    {"env_id": 3, "network": None},
]
OF_TRAINING = [{"exploration": "os:system"}, {"address": "10.0.0.9:6379"}, {"init_method": "tcp://10.0.0.9:1"}]


@pytest.mark.parametrize("config", FOREIGN + OF_TRAINING, ids=str)
def test_code_of_a_strangers_folder_needs_a_word(config: dict[str, str], state: Path, tmp_path: Path) -> None:
    """Trust, or its name in the call; a folder of one's own needs neither."""
    ((name, text),) = config.items()
    file = write(tmp_path / "run", **config)
    trains = config in OF_TRAINING
    if text != "__main__:main":
        read_stored(file).usable_config(NONE_GIVEN, trains)
    forge(file, seed=7)

    with pytest.raises(UsageError, match=rf"(import|connect to) {re.escape(text)} \({name}\): .*--trust .*trust=True"):
        read_stored(file).usable_config(NONE_GIVEN, trains)
    if trains:
        read_stored(file).usable_config(NONE_GIVEN, trains=False)
    read_stored(file).usable_config(Permission({name: "something else"}), trains)
    if text != "__main__:main" and name not in stored.PLACES:
        read_stored(file).usable_config(Permission({"algorithm": text.partition(":")[0]}), trains)
        read_stored(file).usable_config(Permission(trust=True), trains)


@pytest.mark.parametrize("config", HARMLESS, ids=str)
def test_what_asyncrl_and_gymnasium_know_needs_none(config: dict[str, Any], state: Path, tmp_path: Path) -> None:
    """Whoever made the folder."""
    file = write(tmp_path / "run", **config)
    forge(file, seed=7)

    assert read_stored(file).usable_config(NONE_GIVEN, trains=True)["seed"] == 7


@pytest.mark.parametrize(
    "given",
    [{"run_name": "os"}, {"runs_dir": "os:system"}, {"network": "os"}, {"algorithm": "asyncrl.a3c"}, {"seed": 3}],
)
def test_only_names_of_code_allow_it(given: dict[str, Any], state: Path, tmp_path: Path) -> None:
    """Not whatever else a call says."""
    file = write(tmp_path / "run", env_id="asyncrl.a3c:dataclass" if "algorithm" in given else "os:system")
    forge(file, seed=7)

    with pytest.raises(UsageError, match="would import "):
        read_stored(file).usable_config(Permission(given), trains=True)


def test_a_algorithm_outside_of_asyncrl_needs_a_word(state: Path, tmp_path: Path) -> None:
    """The package's own are always its own, never modules of the same name in the current folder."""
    file = write(tmp_path / "run", algorithm="a3c")
    forge(file, seed=7)
    assert read_stored(file).usable_algorithm(NONE_GIVEN) == "asyncrl.a3c"

    for algorithm in ("my_algorithm", "asyncrl.commands.train", "asyncrl_a3c"):
        file = write(tmp_path / "run", algorithm=algorithm)
        assert read_stored(file).usable_algorithm(NONE_GIVEN) == algorithm
        forge(file, seed=7)
        with pytest.raises(UsageError, match=rf"would import {re.escape(algorithm)} \(algorithm\)"):
            read_stored(file).usable_algorithm(NONE_GIVEN)
        assert read_stored(file).usable_algorithm(Permission({"algorithm": algorithm})) == algorithm


@pytest.mark.parametrize("content", ["", "[" * 100_000, "null", "3", '"algorithm"', '{"algorithm": "x"}', "\ud800"])
def test_what_is_no_json_is_one_line(content: str, tmp_path: Path) -> None:
    """Whatever a folder holds."""
    (tmp_path / "config.json").write_text(content, errors="surrogatepass")

    with pytest.raises(UsageError, match=r"config.json cannot be read: "):
        read_stored(tmp_path / "config.json")
