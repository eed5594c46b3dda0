"""A run gets a folder of its own, or one clear line that says why not."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncrl
from asyncrl.core.errors import UsageError
from asyncrl.runtime.protocols import name_of
from asyncrl.storage import files
from asyncrl.storage.files import write_json
from asyncrl.storage.records import RecordWriter
from asyncrl.storage.run_folder import RunFolder, default_name, host_facts, started_at, versions


def test_a_run_lies_under_its_algorithm_and_environment(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "a3c", "ALE/Pong-v5", "first")
    assert run.path == tmp_path / "runs" / "a3c" / "ALE_Pong-v5" / "first"
    assert sorted(os.listdir(run.path)) == ["checkpoints", "tb"]


@pytest.mark.parametrize(
    ("env_id", "folder"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("my.module:factory", "my.module_factory"),
        ("../../etc", "_.._etc"),
        ("..", "_"),
        (".hidden", "hidden"),
        ("", "_"),
        ("a b\n", "a_b_"),
        ("x" * 300, "x" * 100),
        ("Größe", "Gr__e"),
    ],
)
def test_an_environment_id_becomes_one_safe_folder(tmp_path: Path, env_id: str, folder: str) -> None:
    run = RunFolder.create(tmp_path, "a3c", env_id, "first")
    assert run.path == tmp_path / "a3c" / folder / "first"
    assert run.path.is_dir()


def test_every_file_has_its_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = [
        run.config_file, run.host_file, run.status_file, run.supervisor_file, run.evaluator_file, run.checkpoints,
        run.tensorboard, *(run.records_file(name_of(worker)) for worker in (0, 31, 128)),
        run.traceback_file("worker-03"),
    ]  # fmt: skip
    assert [path.relative_to(tmp_path).as_posix() for path in names] == [
        "config.json", "host.json", "status.json", "supervisor.jsonl", "evaluator.jsonl", "checkpoints",
        "tb", "worker-00.jsonl", "worker-31.jsonl", "worker-128.jsonl", "worker-03.traceback.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../../x", "a/b", "/etc", "a\\b", ".hidden", "-flag", "~",
        "a b", "a\nb", "a\n", "a\0b", "ü", "x" * 101,
    ],
)  # fmt: skip
def test_a_name_that_is_no_safe_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run") as raised:
        RunFolder.create(tmp_path / "runs", "a3c", "Chain", name)
    assert "\n" not in str(raised.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 100, "lr=0.01", "v1.2", "_a", "7"])
def test_a_name_of_safe_characters_is_taken(tmp_path: Path, name: str) -> None:
    assert RunFolder.create(tmp_path, "a3c", "Chain", name).path.name == name


def test_an_existing_run_is_never_written_into(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a3c", "Chain", "first")
    (run.path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"exists already$"):
        RunFolder.create(tmp_path, "a3c", "Chain", "first")
    assert sorted(os.listdir(run.path)) == ["checkpoints", "config.json", "tb"]


def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot create the run folder .*: Not a directory"):
        RunFolder.create(tmp_path / "file" / "runs", "a3c", "Chain", "first")


def test_a_file_in_place_of_the_run_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a3c" / "Chain").mkdir(parents=True)
    (tmp_path / "a3c" / "Chain" / "first").write_text("")
    with pytest.raises(UsageError, match=r"cannot create the run folder .*: File exists"):
        RunFolder.create(tmp_path, "a3c", "Chain", "first")


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_failure_on_the_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """runs, algorithm, environment, run, checkpoints, tb: whichever of the six fails, the ones before it go again."""
    calls = 0
    mkdir = Path.mkdir

    def fail_once(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(28, "No space left on device")
        mkdir(path)

    monkeypatch.setattr(Path, "mkdir", fail_once)
    with pytest.raises(UsageError, match="No space left on device"):
        RunFolder.create(tmp_path / "runs", "a3c", "Chain", "first")
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_runs_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RunFolder.create(tmp_path / "runs", "a3c", "Chain", "other")
    mkdir = Path.mkdir

    def fail_for_tb(path: Path) -> None:
        if path.name == "tb":
            raise OSError(28, "No space left on device")
        mkdir(path)

    monkeypatch.setattr(Path, "mkdir", fail_for_tb)
    with pytest.raises(UsageError):
        RunFolder.create(tmp_path / "runs", "a3c", "Chain", "first")
    assert os.listdir(other.path.parent) == ["other"]


def test_what_was_written_while_a_folder_was_deleted_goes_too(tmp_path: Path) -> None:
    """But nothing of a folder that still is a run, of which something was kept, or that another has just made."""
    run = RunFolder.create(tmp_path, "a3c", "Chain", "first")
    saved = run.checkpoints / "step_000000000100"
    saved.mkdir()
    for file in (
        run.evaluator_file,
        run.records_file("worker-01"),
        run.tensorboard / "events",
        run.path / ".status.json.tmp",
    ):
        file.touch()
    written = sorted(run.path.rglob("*"))
    for name in ("config.json", "host.json", "supervisor.jsonl", "run.lock"):
        (run.path / name).touch()
        run.remove_remains()
        (run.path / name).unlink()
        assert sorted(run.path.rglob("*")) == written
    run.remove_remains()
    assert os.listdir(run.path.parent) == []
    run.remove_remains()


def test_a_run_can_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path, "a3c", "Chain", "first")
    write_json(run.config_file, {"algorithm": "asyncrl.a3c"})
    assert RunFolder.open(run.path) == run
    monkeypatch.chdir(run.path)
    assert RunFolder.open(Path(".")) == run


def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="absent is not a run: no such folder"):
        RunFolder.open(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"is not a run: it contains no config\.json"):
        RunFolder.open(tmp_path)


def test_paths_are_absolute_so_that_a_change_of_directory_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create(Path("runs"), "a3c", "Chain", "first")
    assert run.path == tmp_path / "runs" / "a3c" / "Chain" / "first"


def test_a_run_folder_is_frozen(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunFolder(tmp_path).path = tmp_path / "x"  # type: ignore[misc]


def test_the_default_name_tells_workers_seed_and_time(tmp_path: Path) -> None:
    name = default_name(seed=1, workers=16)
    assert re.fullmatch(r"w16-s1-\d{8}-\d{6}", name)
    RunFolder.create(tmp_path, "a3c", "Chain", name)


def test_host_facts_hold_an_allow_list_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    facts = host_facts()
    assert sorted(facts) == [
        "cores_logical", "cores_usable", "cpu", "cpu_instructions", "memory_gib", "platform", "threads", "versions",
    ]  # fmt: skip
    assert facts["threads"]["OMP_NUM_THREADS"] == "1"
    assert facts["threads"]["MKL_NUM_THREADS"] is None
    assert 1 <= facts["cores_usable"] <= facts["cores_logical"]
    assert facts["memory_gib"] > 0
    text = json.dumps(facts)
    assert "hunter2" not in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize(
    ("lines", "cpu", "instructions"),
    [
        (
            ["vendor_id\t: AuthenticAMD", "cpu family\t: 26", "model\t\t: 2", "model name\t: AMD EPYC",
             "flags\t\t: fpu sse4_2 avx avx2 fma avx512f"],
            "AMD EPYC (family 26, model 2)", ["sse4_2", "avx", "avx2", "fma", "avx512f"],
        ),
        (["BogoMIPS\t: 243.75", "Features\t: fp asimd sve"], platform.processor() or None, ["asimd", "sve"]),
    ],
)  # fmt: skip
def test_host_facts_name_the_processor_and_its_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], cpu: str | None, instructions: list[str]
) -> None:
    """What kernels are chosen by, and with it how sums are rounded; as x86 and as ARM tell it."""
    (tmp_path / "cpuinfo").write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr("asyncrl.storage.run_folder._CPU_INFO", tmp_path / "cpuinfo")

    facts = host_facts()

    assert (facts["cpu"], facts["cpu_instructions"]) == (cpu, instructions)


def test_versions_name_what_is_installed_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions()["asyncrl"] == asyncrl.__version__
    assert versions()["numpy"] == __import__("numpy").__version__
    assert versions()["python"] == ".".join(map(str, sys.version_info[:3]))
    monkeypatch.setattr("asyncrl.storage.run_folder._PACKAGES", ("no-such-package-of-this-name",))
    assert versions()["no-such-package-of-this-name"] is None


def test_nothing_but_checkpoints_imports_torch() -> None:
    """Commands that only read records start in a fraction of a second."""
    code = (
        "import sys, asyncrl.storage.files, asyncrl.storage.records, asyncrl.storage.run_folder as run_folder\n"
        "run_folder.host_facts()\n"
        "print([name for name in ('torch', 'numpy', 'gymnasium', 'tensorboard') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_no_file_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be somebody else's, and its links may lead to the user's own files. Its other names work."""
    monkeypatch.setattr(files, "TRIES", 0)
    run = RunFolder.create(tmp_path / "runs", "a3c", "Chain", "first")
    mine = tmp_path / "mine"
    mine.mkdir()
    links = {
        "lock": run.path / "run.lock", "status": run.path / ".status.json.tmp", "rows": run.records_file("worker-00"),
        "traceback": run.traceback_file("worker-00"), "culprit": run.culprit_file("worker-00"),
    }  # fmt: skip
    for name, link in links.items():
        (mine / name).write_text("precious")
        link.symlink_to(mine / name)

    with pytest.raises(UsageError, match="cannot write into"), run.occupied():
        pass
    write_json(run.status_file, {"state": "running"})
    writer = RecordWriter(run.records_file("worker-00"))
    writer.write({"x": 1})
    writer.close()
    run.write_traceback("worker-00", "a traceback")
    with pytest.raises(OSError, match="symbolic link"):
        files.write_synced(run.culprit_file("worker-00"), b"tensors")

    assert {file.read_text() for file in mine.iterdir()} == {"precious"}
    assert writer.missing == 1
    assert files.read_json(run.status_file) == {"state": "running"}


def test_a_run_can_be_reached_through_a_link(tmp_path: Path) -> None:
    """Such as runs/ on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    run = RunFolder.create(tmp_path / "runs", "a3c", "Chain", "first")

    with run.occupied():
        write_json(run.status_file, {"state": "running"})
        run.write_traceback("worker-00", "a traceback \udcff")

    assert run.traceback_file("worker-00").read_text() == r"a traceback \udcff"
    assert files.read_json(run.status_file) == {"state": "running"}


@pytest.mark.parametrize("started", ["0001-01-01T00:00:00+14:00", "yesterday", 7, None])
def test_a_run_with_a_time_that_is_none_is_older_than_all_others(tmp_path: Path, started: object) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": "finished", "started": started}))
    assert started_at(tmp_path).year == 1
