"""A checkpoint comes back bit for bit, or its loader says which file is wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncrl.storage import checkpoints, files
from asyncrl.storage.checkpoints import BadCheckpoint, Checkpoint
from tests.faults.test_damaged_checkpoints import rewrite
from tests.storage.limits import no_file_beyond

FILES = ("weights.safetensors", "state.safetensors", "manifest.json")


def make(steps: int = 100, facts: dict[str, Any] | None = None, fill: float = 0.5, **parameters: Tensor) -> Checkpoint:
    return Checkpoint(
        steps=steps,
        updates=20,
        seconds=12.25,
        parameters={"body.weight": torch.full((2, 3), fill), "body.bias": torch.zeros(3), **parameters},
        tensors={"square_averages": torch.arange(9.0), "rng": torch.arange(16, dtype=torch.uint8)},
        facts={"algorithm": "asyncrl.a3c"} if facts is None else facts,
    )


def names(folder: Path) -> list[str]:
    """All names in a folder, hidden ones too."""
    return sorted(os.listdir(folder))


def assert_equal(left: Checkpoint, right: Checkpoint) -> None:
    assert (left.steps, left.updates, left.seconds, left.facts) == (
        right.steps, right.updates, right.seconds, right.facts,
    )  # fmt: skip
    for mine, theirs in ((left.parameters, right.parameters), (left.tensors, right.tensors)):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype
            assert mine[name].shape == theirs[name].shape
            assert torch.equal(mine[name], theirs[name])


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = make(
        1_200_000,
        facts={
            "best_score": -20.5,
            "workers": [{"steps": 600_000}, {"steps": 600_000}],
            "generator": np.random.default_rng(3).bit_generator.state,
        },
        scalar=torch.tensor(1.5),
        empty=torch.zeros(0, 4),
        half=torch.ones(2, dtype=torch.bfloat16),
    )
    path = checkpoints.save(tmp_path, saved)
    assert path == tmp_path / "step_000001200000"
    assert names(path) == sorted(FILES)
    assert_equal(checkpoints.load(path), saved)


def test_the_states_of_random_generators_come_back(tmp_path: Path) -> None:
    numpy_rng = np.random.default_rng(5)
    torch_rng = torch.Generator().manual_seed(5)
    saved = Checkpoint(1, 1, 0.0, {}, {"rng": torch_rng.get_state()}, {"rng": numpy_rng.bit_generator.state})
    expected = numpy_rng.random(3).tolist(), torch.rand(3, generator=torch_rng).tolist()
    loaded = checkpoints.load(checkpoints.save(tmp_path, saved))
    numpy_rng.bit_generator.state = loaded.facts["rng"]
    torch_rng.set_state(loaded.tensors["rng"])
    assert (numpy_rng.random(3).tolist(), torch.rand(3, generator=torch_rng).tolist()) == expected


def test_the_weights_file_holds_the_parameters_and_nothing_else(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, make())
    assert sorted(load_file(path / "weights.safetensors")) == ["body.bias", "body.weight"]


def test_the_manifest_tells_versions_counters_and_sums(tmp_path: Path) -> None:
    manifest = files.read_json(checkpoints.save(tmp_path, make()) / "manifest.json")
    assert (manifest["format"], manifest["schema"]) == ("asyncrl checkpoint", 1)
    assert (manifest["steps"], manifest["updates"], manifest["seconds"]) == (100, 20, 12.25)
    assert manifest["versions"]["numpy"] == np.__version__
    assert sorted(manifest["files"]) == ["state.safetensors", "weights.safetensors"]
    assert all(re.fullmatch("[0-9a-f]{64}", file["sha256"]) for file in manifest["files"].values())


def test_views_on_one_flat_tensor_and_tied_parameters_are_saved(tmp_path: Path) -> None:
    flat = torch.arange(6.0)
    flat.share_memory_()  # type: ignore[no-untyped-call]
    saved = make(a=flat[:4].view(2, 2), b=flat[2:], transposed=flat.view(2, 3).T)
    assert_equal(checkpoints.load(checkpoints.save(tmp_path, saved)), saved)


def test_loaded_tensors_can_be_written(tmp_path: Path) -> None:
    loaded = checkpoints.load(checkpoints.save(tmp_path, make()))
    loaded.parameters["body.bias"].add_(1)
    assert loaded.parameters["body.bias"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_parameters_that_are_not_finite_are_refused(tmp_path: Path, number: float) -> None:
    checkpoints.save(tmp_path, make(100))
    with pytest.raises(ValueError, match=r"^head holds a number that is not finite"):
        checkpoints.save(tmp_path, make(200, head=torch.tensor([0.0, number])))
    assert names(tmp_path) == ["step_000000000100"]


def test_facts_that_are_not_finite_come_back_as_none(tmp_path: Path) -> None:
    loaded = checkpoints.load(checkpoints.save(tmp_path, make(facts={"best_score": float("-inf")})))
    assert loaded.facts == {"best_score": None}


def test_facts_that_are_not_plain_are_refused_without_litter(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not plain data"):
        checkpoints.save(tmp_path, make(facts={"array": np.zeros(3)}))
    assert names(tmp_path) == []


# --- which ones are kept


def test_the_last_three_are_kept(tmp_path: Path) -> None:
    for steps in (100, 200, 300, 400, 500):
        checkpoints.save(tmp_path, make(steps))
    assert names(tmp_path) == ["step_000000000300", "step_000000000400", "step_000000000500"]


def test_one_can_be_kept_and_none_cannot(tmp_path: Path) -> None:
    for steps in (100, 200):
        checkpoints.save(tmp_path, make(steps), keep=1)
    assert names(tmp_path) == ["step_000000000200"]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        checkpoints.save(tmp_path, make(300), keep=0)


def test_they_are_ordered_by_number_also_beyond_twelve_digits(tmp_path: Path) -> None:
    for steps in (9, 10**12, 10**13):
        checkpoints.save(tmp_path, make(steps))
    assert [path.name for path in checkpoints.find(tmp_path)] == [
        "step_000000000009", "step_1000000000000", "step_10000000000000",
    ]  # fmt: skip
    assert checkpoints.load_newest(tmp_path)[0].steps == 10**13


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    for steps in (50, 100):
        checkpoints.save(tmp_path, make(steps), keep=2)
    for fill in (1.0, 2.0):
        path = checkpoints.save(tmp_path, make(100, fill=fill), keep=2)
        assert names(tmp_path) == ["step_000000000050", path.name]
        assert checkpoints.load_newest(tmp_path)[0].parameters["body.weight"][0, 0] == fill


def test_a_checkpoint_just_saved_is_never_deleted_for_one_further_on(tmp_path: Path) -> None:
    """A run that goes on from an earlier checkpoint finds later ones of its former part."""
    checkpoints.save(tmp_path, make(900))
    path = checkpoints.save(tmp_path, make(100), keep=1)
    assert checkpoints.load(path).steps == 100
    assert names(tmp_path) == ["step_000000000100", "step_000000000900"]


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes", "step_mine", "step_12x", ".saving-other"):
        (tmp_path / name).mkdir()
    for steps in (100, 200):
        checkpoints.save(tmp_path, make(steps), keep=1)
    assert names(tmp_path) == [".saving-other", "notes", "step_000000000200", "step_12x", "step_mine"]


# --- the best one


def test_the_best_is_one_and_apart_from_the_others(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, make(50), keep=1)
    for steps in (100, 300, 200):  # a resumed run may find its best at an earlier step
        path = checkpoints.save(tmp_path, make(steps), kind="best")
        assert names(tmp_path) == [path.name, "step_000000000050"]
        best, skipped = checkpoints.load_newest(tmp_path, "best")
        assert (best.steps, skipped) == (steps, [])
    checkpoints.save(tmp_path, make(60), keep=1)
    assert names(tmp_path) == ["best_000000000200", "step_000000000060"]
    assert checkpoints.load_newest(tmp_path)[0].steps == 60


# --- damage


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("position", [0, 9, 0.5, -2])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found(tmp_path: Path, name: str, position: float) -> None:
    path = checkpoints.save(tmp_path, make())
    size = (path / name).stat().st_size
    flip(path / name, int(size * position) if position == 0.5 else int(position))
    with pytest.raises(BadCheckpoint, match=re.escape(str(path / name))) as raised:
        checkpoints.load(path)
    assert "\n" not in str(raised.value)


def test_no_flipped_bit_of_a_manifest_passes(tmp_path: Path) -> None:
    """Every byte of the manifest: what still loads differs in nothing but white space."""
    path = checkpoints.save(tmp_path, make(facts={}))
    content = (path / "manifest.json").read_bytes()
    for position in range(len(content)):
        flip(path / "manifest.json", position)
        try:
            assert_equal(checkpoints.load(path), make(facts={}))
            assert chr(content[position]).isspace()
        except BadCheckpoint:
            pass
        (path / "manifest.json").write_bytes(content)


@pytest.mark.parametrize("size", [0, 1, 7, -1])
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_found(tmp_path: Path, name: str, size: int) -> None:
    path = checkpoints.save(tmp_path, make())
    content = (path / name).read_bytes()
    (path / name).write_bytes(content[:size] if size >= 0 else content[: size - 1])
    with pytest.raises(BadCheckpoint, match=rf"{name}: damaged"):
        checkpoints.load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path = checkpoints.save(tmp_path, make())
    (path / name).unlink()
    with pytest.raises(BadCheckpoint, match=f"{name}: missing"):
        checkpoints.load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    path = checkpoints.save(tmp_path, make())
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(BadCheckpoint, match=f"{name}: cannot be read"):
        checkpoints.load(path)


def test_a_file_of_another_checkpoint_is_found(tmp_path: Path) -> None:
    one, two = (checkpoints.save(tmp_path, make(steps, fill=steps)) for steps in (1, 2))
    os.replace(one / "weights.safetensors", two / "weights.safetensors")
    with pytest.raises(BadCheckpoint, match=r"weights\.safetensors: damaged"):
        checkpoints.load(two)


@pytest.mark.parametrize("content", ["{}", "[]", "null", '"asyncrl checkpoint"', '{"format": "pt"}'])
def test_a_foreign_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(BadCheckpoint, match=r"manifest\.json: not a checkpoint of asyncrl"):
        checkpoints.load(tmp_path)


def test_a_later_schema_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "asyncrl checkpoint", "schema": 2}))
    with pytest.raises(BadCheckpoint, match="has schema 2, this version of asyncrl reads 1"):
        checkpoints.load(tmp_path)


def test_a_path_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match="absent: no such checkpoint"):
        checkpoints.load(tmp_path / "absent")
    with pytest.raises(BadCheckpoint, match=r"manifest\.json: missing"):
        checkpoints.load(tmp_path)


def test_the_newest_valid_one_is_loaded_and_each_skipped_one_told(tmp_path: Path) -> None:
    first, second, third = (checkpoints.save(tmp_path, make(steps)) for steps in (100, 200, 300))
    flip(third / "weights.safetensors", -1)
    (second / "manifest.json").unlink()
    found, skipped = checkpoints.load_newest(tmp_path)
    assert found.steps == 100
    assert skipped == [
        f"skipped a checkpoint: {third}/weights.safetensors: damaged, its SHA-256 differs",
        f"skipped a checkpoint: {second}/manifest.json: missing",
    ]
    flip(first / "state.safetensors", -1)
    with pytest.raises(BadCheckpoint, match=r"no valid checkpoint; skipped .*300.*; skipped .*200.*; skipped .*100"):
        checkpoints.load_newest(tmp_path)


def test_what_a_run_has_gone_back_behind_never_comes_back(tmp_path: Path) -> None:
    """The disk can be read again; what was made meanwhile is the newest all the same."""
    for steps in (100, 200, 300):
        checkpoints.save(tmp_path, make(steps))
    (tmp_path / "step_000000000300" / "weights.safetensors").rename(tmp_path / "elsewhere")
    assert checkpoints.load_newest(tmp_path)[0].steps == 200
    assert len(checkpoints.find(tmp_path)) == 3  # who only looks changes nothing

    assert checkpoints.load_newest(tmp_path, set_aside=True)[0].steps == 200
    (tmp_path / "elsewhere").rename(tmp_path / "skipped_step_000000000300" / "weights.safetensors")
    checkpoints.save(tmp_path, make(250))

    assert checkpoints.load_newest(tmp_path)[0].steps == 250
    assert checkpoints.load(tmp_path / "skipped_step_000000000300").steps == 300


@pytest.mark.parametrize("name", ["read_bytes", "is_dir"])
def test_a_checkpoint_that_cannot_be_read_just_now_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A run that is to go on from it waits for the disk; who only looks takes the one before."""
    for steps in (100, 200):
        checkpoints.save(tmp_path, make(steps))
    before, before_failing = names(tmp_path), getattr(Path, name)

    def failing(path: Path) -> Any:
        if "step_000000000200" in path.parts and (name != "read_bytes" or path.suffix == ".safetensors"):
            raise OSError(errno.EIO, "Input/output error")
        return before_failing(path)

    monkeypatch.setattr(Path, name, failing)
    with pytest.raises(BadCheckpoint, match=r"200.* cannot be read \(Input/output error\): try again later"):
        checkpoints.load_newest(tmp_path, set_aside=True)
    assert names(tmp_path) == before
    assert checkpoints.load_newest(tmp_path)[0].steps == 100
    monkeypatch.undo()
    assert checkpoints.load_newest(tmp_path, set_aside=True)[0].steps == 200


def test_no_checkpoint_at_all_is_said_in_one_line(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BadCheckpoint, match=r"no valid checkpoint$"):
            checkpoints.load_newest(folder)
        with pytest.raises(BadCheckpoint, match=r"no valid checkpoint$"):
            checkpoints.load_newest(folder, "best")
        assert checkpoints.find(folder) == []
        checkpoints.clean(folder)


# --- failing and dying during a save


class FailingCalls:
    """Makes the n-th of some calls of `os` raise an OSError, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, number: int = errno.ENOSPC) -> None:
        self.count, self._number = 0, number
        for name in ("fsync", "rename", "mkdir"):
            monkeypatch.setattr(os, name, self._guarded(getattr(os, name), last))

    def _guarded(self, call: Any, last: int) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == last:
                raise OSError(self._number, os.strerror(self._number))
            return call(*args, **kwargs)

        return run


PUBLISHED = 7  # mkdir, sync of three files and of the folder, rename: from here on the new one is there


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save is tried once."""
    monkeypatch.setattr(files, "TRIES", 1)


@pytest.mark.parametrize("call", range(1, 8))
def test_a_failure_in_any_phase_leaves_the_earlier_ones_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None, call: int
) -> None:
    checkpoints.save(tmp_path, make(100), keep=1)
    with monkeypatch.context() as patch:
        FailingCalls(patch, call)
        with pytest.raises(OSError, match="No space left"):
            checkpoints.save(tmp_path, make(200), keep=1)
    published = call >= PUBLISHED
    assert names(tmp_path) == ["step_000000000100"] + published * ["step_000000000200"]
    found, skipped = checkpoints.load_newest(tmp_path)
    assert (found.steps, skipped) == (200 if published else 100, [])


@pytest.mark.parametrize("call", range(1, 9))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_failure_that_passes_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, number: int
) -> None:
    """The save is tried again; one that only could not delete its predecessor has succeeded."""
    monkeypatch.setattr(files, "PAUSE_SECONDS", 0.0)
    checkpoints.save(tmp_path, make(100), keep=1)
    with monkeypatch.context() as patch:
        FailingCalls(patch, call, number)
        saved = checkpoints.save(tmp_path, make(200), keep=1)
    assert checkpoints.load(saved).steps == 200
    checkpoints.save(tmp_path, make(300), keep=1)
    assert names(tmp_path) == ["step_000000000300"]


def test_a_disk_that_keeps_failing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three tries, with the steps and the reason; the pauses are some seconds together."""
    pauses: list[float] = []
    monkeypatch.setattr(files.time, "sleep", pauses.append)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(checkpoints.NotSaved) as caught:
        checkpoints.save(tmp_path, make(1200))
    assert str(caught.value) == "the checkpoint of step 1,200 could not be written in 3 tries: Input/output error"
    assert (caught.value.errno, len(pauses), sum(pauses) >= 2, names(tmp_path)) == (errno.EIO, 2, True, [])


def test_a_save_does_not_make_the_folder_of_a_run_that_was_deleted(tmp_path: Path, impatient: None) -> None:
    """Or half of it would come back."""
    with pytest.raises(checkpoints.NotSaved, match="No such file or directory"):
        checkpoints.save(tmp_path / "run" / "checkpoints", make(1))
    assert names(tmp_path) == []


def test_a_save_syncs_each_file_its_folder_and_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor: int) -> None:
        tape.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def record_rename(source: Path, target: Path) -> None:
        tape.append(f"{source.name} -> {target.name}")
        rename(source, target)

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    checkpoints.save(folder, make(1))
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    checkpoints.save(folder, make(2), keep=1)
    assert tape == [
        "sync weights.safetensors",
        "sync state.safetensors",
        "sync manifest.json",
        "sync .saving-step",
        ".saving-step -> step_000000000002",
        "sync checkpoints",
        "step_000000000001 -> .deleting-step_000000000001",
    ]


@pytest.mark.parametrize("size", [10, 200, 700])
def test_a_full_disk_leaves_the_earlier_ones_and_no_litter(tmp_path: Path, impatient: None, size: int) -> None:
    checkpoints.save(tmp_path, make(100))
    with no_file_beyond(size), pytest.raises(OSError, match="File too large"):
        checkpoints.save(tmp_path, make(200))
    assert names(tmp_path) == ["step_000000000100"]
    assert checkpoints.load_newest(tmp_path)[0].steps == 100


def test_a_checkpoint_that_does_not_read_back_is_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """The disk that loses a bit of the weights: the save fails, and what was there stays."""
    checkpoints.save(tmp_path, make(100), keep=1)

    def write_wrongly(path: Path, content: bytes) -> None:
        files.write_synced(path, content)
        if path.name == "weights.safetensors":
            flip(path, -1)

    monkeypatch.setattr(checkpoints, "write_synced", write_wrongly)
    with pytest.raises(OSError, match="cannot be read back"):
        checkpoints.save(tmp_path, make(200), keep=1)
    assert names(tmp_path) == ["step_000000000100"]


@pytest.mark.parametrize("kind", ["step", "best"])
def test_a_kill_at_any_moment_of_a_save_leaves_a_valid_checkpoint(tmp_path: Path, kind: str) -> None:
    """Really killed, at each call in turn, saving a new step and the same step again."""
    script = Path(__file__).with_name("kill_during_save.py")
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), kind],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONPATH": "."},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    killed_saving_on, killed_saving_again = map(int, result.stdout.split())
    assert killed_saving_on >= 10
    assert killed_saving_again >= 10


def test_clean_removes_the_leftovers_of_a_killed_save_only(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, make(100))
    for name in ("mine", ".saving-step", ".saving-best", ".deleting-step_000000000050"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"half")
    (tmp_path / ".saving-link").symlink_to(tmp_path / "mine")
    checkpoints.clean(tmp_path)
    assert names(tmp_path) == ["mine", "step_000000000100"]
    assert names(tmp_path / "mine") == ["weights.safetensors"]


def test_leftovers_of_a_killed_save_are_never_taken_for_checkpoints(tmp_path: Path) -> None:
    os.rename(checkpoints.save(tmp_path, make(100)), tmp_path / ".saving-step")
    assert checkpoints.find(tmp_path) == []
    with pytest.raises(BadCheckpoint):
        checkpoints.load_newest(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_a_type_that_torch_cannot_compute_with_is_a_damaged_checkpoint(tmp_path: Path, dtype: torch.dtype) -> None:
    """All sums are right; an older one is loaded instead."""
    checkpoints.save(tmp_path, make(100))
    path = checkpoints.save(tmp_path, make(200))
    save_file({"head": torch.zeros(2).to(dtype)}, path / "weights.safetensors")
    rewrite(path, lambda manifest: None)

    loaded, skipped = checkpoints.load_newest(tmp_path)

    assert loaded.steps == 100
    assert len(skipped) == 1
    assert "weights.safetensors: not a safetensors file" in skipped[0]
