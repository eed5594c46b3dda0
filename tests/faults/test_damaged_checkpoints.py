"""Checkpoints that were damaged or are another's: skipped or refused by name, none loaded."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from asyncrl.commands.train import main
from asyncrl.storage import checkpoints
from tests.support import status_of, the_run

pytestmark = pytest.mark.faults

WORDS = ("--backend", "serial", "--workers", "2", "--quiet", "--evaluation-episodes", "1", "--total-steps", "1000")
CATCH = ("--env-id", "Catch", *WORDS, "--checkpoint-interval-steps", "300")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has finished, which no test touches."""
    runs_dir = tmp_path_factory.mktemp("runs")
    assert main("asyncrl.a3c", [*CATCH, "--runs-dir", str(runs_dir)]) == 0
    return the_run(runs_dir)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test to damage."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip_a_bit,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
    "another's": lambda file: file.write_bytes(b"{}"),
}


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_by_name(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str, name: str
) -> None:
    """The one before it is taken; when all are damaged the run is refused, with each of them named."""
    *others, newest = checkpoints.find(run / "checkpoints")
    assert others
    DAMAGES[damage](newest / name)
    kept = tmp_path / "kept"
    shutil.copytree(run, kept)

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 0
    error = capfd.readouterr().err
    assert error.startswith(f"skipped a checkpoint: {newest / name}: ")
    assert error.count("\n") == 1
    assert status_of(run)["part"] == 1

    for path in checkpoints.find(kept / "checkpoints"):
        if path.name != newest.name:
            DAMAGES[damage](path / name)
    assert main("asyncrl.a3c", ["--resume", str(kept), "--total-steps", "2000"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert all(str(path / name) in error for path in checkpoints.find(kept / "checkpoints"))


@pytest.mark.parametrize(
    ("algorithm", "words", "complaint"),
    [
        ("n_step_q", (), "is a run of a3c; resume it with that command"),
        ("a3c", ("--hidden-sizes", "7"), "the checkpoint's network has different layers from this run's"),
        ("a3c", ("--env-id", "Chain"), "the checkpoint's env_id is Catch, this run's is Chain"),
        ("a3c", ("--optimizer", "rmsprop"), "the checkpoint's optimizer is adam, this run's is rmsprop"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str], algorithm: str, words: tuple[str, ...], complaint: str
) -> None:
    """Another algorithm, network, environment, optimiser: one line each."""
    assert main(f"asyncrl.{algorithm}", ["--resume", str(run), "--total-steps", "2000", *words]) == 2
    error = capfd.readouterr().err
    assert (complaint in error, error.count("\n")) == (True, 1)


def rewrite(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and sign it anew: all sums are right."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    change(manifest)
    for name, file in manifest["files"].items() if isinstance(manifest.get("files"), dict) else ():
        content = (checkpoint / name).read_bytes()
        if isinstance(file, dict):
            file |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.pop("sha256")
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


WRONG: dict[str, tuple[Any, ...]] = {
    "steps": ("300", -1, 3.5, True, None, 2**70),
    "updates": ("x", None, 10**30),
    "seconds": ("1", -0.5, 2.0**60, float("nan"), float("inf"), None),
    "files": ([], {}, {"weights.safetensors": {}}, {"weights.safetensors": "x", "state.safetensors": "x"}),
    "facts": (None, [], "x"),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_a_manifest_with_right_sums_and_wrong_entries_is_skipped_by_name(tmp_path: Path, key: str, value: Any) -> None:
    """The entry is named, whether it is wrong or not there at all; the checkpoint before is taken."""
    tensors = {"a": torch.ones(3)}
    _, second, third = (
        checkpoints.save(tmp_path, checkpoints.Checkpoint(steps, 1, 1.0, tensors, tensors, {})) for steps in (1, 2, 3)
    )
    rewrite(second, lambda manifest: manifest.pop(key))
    rewrite(third, lambda manifest: manifest.update({key: value}))

    found, skipped = checkpoints.load_newest(tmp_path)

    assert found.steps == 1
    for line, path in zip(skipped, (third, second), strict=True):
        assert line.startswith(f"skipped a checkpoint: {path}/")
    named = f"{key} is missing or invalid"
    assert named in skipped[1]
    assert named in skipped[0] or key == "files"  # then it may be the one of the two files


@pytest.mark.parametrize("name", ["weights.safetensors", "state.safetensors"])
def test_a_checkpoint_with_a_nan_is_skipped_by_name(run: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    """However it got there: the sums are right. The tensor is named."""
    newest = checkpoints.find(run / "checkpoints")[-1]
    tensors = safetensors.torch.load_file(newest / name)
    poisoned = next(key for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel())
    tensors[poisoned].view(-1)[0] = torch.nan
    safetensors.torch.save_file(tensors, newest / name)
    rewrite(newest, lambda _: None)

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 0
    error = capfd.readouterr().err
    assert error == f"skipped a checkpoint: {newest / name}: {poisoned} holds a number that is not finite\n"


@pytest.mark.parametrize(
    "fact", ["part", "dropped_gradients", "stale_gradients", "config", "algorithm", "env_id", "optimizer"]
)
def test_a_checkpoint_without_a_fact_that_a_run_needs_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str], fact: str
) -> None:
    """One line that names the fact."""
    rewrite(checkpoints.find(run / "checkpoints")[-1], lambda manifest: manifest["facts"].pop(fact))

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 2
    error = capfd.readouterr().err
    assert (fact in error, error.count("\n")) == (True, 1)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("part", -1), ("part", True), ("part", 2**63), ("dropped_gradients", 2**70), ("stale_gradients", -1),
        ("outlier_gradients", "x"), ("updates_lost", "x"), ("updates_lost", 2**63), ("updates_lost", None),
        ("config", []),
    ],
)  # fmt: skip
def test_a_checkpoint_with_a_fact_that_is_no_count_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str], fact: str, value: Any
) -> None:
    """One line that names the fact."""
    rewrite(checkpoints.find(run / "checkpoints")[-1], lambda manifest: manifest["facts"].update({fact: value}))

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 2
    error = capfd.readouterr().err
    assert (f"{fact} is missing or invalid in its manifest" in error, error.count("\n")) == (True, 1)


def test_a_best_score_that_is_none_is_ignored(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The next evaluation is the best."""
    (best,) = checkpoints.find(run / "checkpoints", "best")
    rewrite(best, lambda manifest: manifest["facts"].update(best_score="x"))

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("value", [[3], "x", {"$tensor": "exact.0"}, {"$tensor": [], "type": "Tensor"}])
def test_a_state_of_the_workers_of_another_kind_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str], value: Any
) -> None:
    """One line; with processes nobody asks for it."""
    *_, newest, last = checkpoints.find(run / "checkpoints")
    shutil.rmtree(last)
    rewrite(newest, lambda manifest: manifest["facts"].update(exact=value))

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_checkpoint_without_a_tensor_that_a_run_needs_is_refused(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Shared ones, and those of a state that goes on exactly."""
    *_, newest, last = checkpoints.find(run / "checkpoints")
    shutil.rmtree(last)  # a run that has reached its end has no state to go on from exactly
    stored = safetensors.torch.load_file(newest / "state.safetensors")
    names = [name for name in stored if not name.startswith("exact.")]
    for name in (*names, "exact.0"):
        rest = {key: tensor for key, tensor in stored.items() if key != name}
        safetensors.torch.save_file(rest, newest / "state.safetensors")
        rewrite(newest, lambda _: None)

        assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 2
        error = capfd.readouterr().err
        assert (name in error, error.count("\n")) == (True, 1), (name, error)


@pytest.mark.parametrize(
    "change",
    [{"roles": []}, {"evaluator": None}, {"turns": "x"}, {"moments": {}}],
    ids=("roles", "evaluator", "turns", "moments"),
)
def test_a_state_of_the_workers_that_is_none_ends_the_run_in_one_line(
    run: Path, capfd: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    """It says how to go on without it, which then works."""
    *_, newest, last = checkpoints.find(run / "checkpoints")
    shutil.rmtree(last)
    rewrite(newest, lambda manifest: manifest["facts"]["exact"].update(change))

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 1
    told = capfd.readouterr()
    assert "failed: the state of the workers in the checkpoint cannot be used" in told.out
    assert "with --backend local the run continues without it" in told.out
    assert told.err == ""
    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000", "--backend", "local"]) == 0


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "{}", "[]", "null", '{"algorithm": 3, "config": {}}', '{"algorithm": "asyncrl.a3c"}',
        '{"algorithm": "asyncrl.a3c", "config": []}', '{"algorithm": "asyncrl.a3c", "config": null}',
        '{"algorithm": "asyncrl.a3c", "config": {"workers": "x"}}',
        '{"algorithm": "asyncrl.a3c", "config": {"workers": 0}}',
        '{"algorithm": "asyncrl.a3c", "config": {"nonsense": 1}}',
        '{"algorithm": "asyncrl.a3c", "config": {"gamma": null}}',
        '{"algorithm": "asyncrl.a3c", "config": {"hidden_sizes": ["x"]}}', '{"algorithm": "os", "config": {}}',
    ],
)  # fmt: skip
def test_damaged_settings_are_refused(run: Path, capfd: pytest.CaptureFixture[str], content: str) -> None:
    """One line, nothing started, and the run as it was."""
    (run / "config.json").write_text(content)
    before = status_of(run)

    assert main("asyncrl.a3c", ["--resume", str(run), "--total-steps", "2000"]) == 2
    error = capfd.readouterr().err
    assert (error.startswith("asyncrl a3c: error: "), error.count("\n")) == (True, 1)
    assert status_of(run) == before
