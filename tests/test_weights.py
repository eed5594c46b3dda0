"""--load: a new run begins with the weights of another one, layer by layer where they fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import asyncrl
from asyncrl.__main__ import main
from asyncrl.api.request import request_for
from asyncrl.api.training import prepare
from asyncrl.runtime.run import Run
from asyncrl.runtime.snapshots import name_parameters
from asyncrl.storage import checkpoints
from asyncrl.storage.checkpoints import Checkpoint
from asyncrl.storage.run_folder import RunFolder
from tests.test_api import TINY

STILL = {"learning_rate": 1e-30}
"""No update changes a parameter then."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> asyncrl.Run:
    """A short run in CartPole."""
    folder = tmp_path_factory.mktemp("source")
    return asyncrl.train("a3c", env_id="CartPole-v1", **TINY, seed=5, runs_dir=folder, run_name="s")


def best_of(run: asyncrl.Run) -> Checkpoint:
    return checkpoints.load_newest(RunFolder(run.path).checkpoints, "best")[0]


def begun(tmp_path: Path, algorithm: str, **settings: Any) -> tuple[Run, list[str]]:
    """A run before its first step, and what was said."""
    lines: list[str] = []
    given = TINY | {"env_id": "CartPole-v1", "runs_dir": tmp_path} | settings
    return prepare(request_for(algorithm, None, given).resolved(), lines.append), lines


def named(run: Run) -> dict[str, Any]:
    return name_parameters(run.handles.store.snapshot(), run.spec.layout)


def changed(run: Run, other: dict[str, Any]) -> set[str]:
    """The parameters that differ from those of a network."""
    return {name for name, own in named(run).items() if name not in other or not torch.equal(own, other[name])}


@pytest.mark.parametrize("backend", ["serial", "local", "collective", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_run_begins_with_the_weights_of_another(tmp_path: Path, source: asyncrl.Run, backend: str) -> None:
    """In all processes, with the same normalisation: it ends with them when nothing is learnt."""
    settings = TINY | STILL | {"backend": backend, "env_id": "CartPole-v1", "seed": 6}
    run = asyncrl.train("a3c", **settings, load=source.path, runs_dir=tmp_path)

    before, after = best_of(source), best_of(run)
    assert {name for name, own in after.parameters.items() if not torch.equal(own, before.parameters[name])} == set()
    counts = [float(one.tensors["observation_moments"][0]) for one in (before, after)]
    assert counts[1] >= counts[0] + 1000
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    acts = [asyncrl.load(one).act(observations)[0].tolist() for one in (source, run)]
    assert np.mean(np.array(acts[0]) == np.array(acts[1])) > 0.9


def test_one_line_says_what_was_taken_and_what_not(tmp_path: Path, source: asyncrl.Run) -> None:
    """Another environment with other observations and actions, another method, other layers, a target network."""
    weights = best_of(source).parameters
    at = rf"weights from {re.escape(str(source.path))} \(best checkpoint, step [\d,]+\): loaded "
    fresh, _ = begun(tmp_path, "a3c", run_name="f")
    assert {name for name in changed(fresh, weights) if "weight" in name} == {n for n in weights if "weight" in n}

    same, (line,) = begun(tmp_path, "a3c", load=source.path, run_name="a")
    assert changed(same, weights) == set()
    assert re.fullmatch(at + r"trunk.body.linear.0, trunk.body.linear.1, policy, value; normalisation loaded too", line)
    assert torch.equal(
        same.handles.moments.state()["observation_moments"], best_of(source).tensors["observation_moments"]
    )

    other, (line,) = begun(tmp_path, "a3c", env_id="Acrobot-v1", load=source.path, run_name="b")
    assert {n.rpartition(".")[0] for n in changed(other, weights)} == {"trunk.body.linear.0", "policy"}
    assert re.fullmatch(
        at + r"trunk.body.linear.1, value; skipped trunk.body.linear.0 \(64 x 6 here, 64 x 4 there\), "
        r"policy \(3 x 64 here, 2 x 64 there\); normalisation starts afresh for a different environment",
        line,
    )
    assert float(other.handles.moments.state()["observation_moments"][0]) == 0

    values, (line,) = begun(tmp_path, "n_step_q", load=source.path, run_name="c")
    assert changed(values, weights) == {"head.weight", "head.bias"}
    assert "; skipped head (not in the checkpoint); unused: policy, value; " in line
    target = name_parameters(values.handles.store.state()["target"], values.spec.layout)
    assert torch.equal(target["trunk.body.linear.0.weight"], weights["trunk.body.linear.0.weight"])


def test_a_checkpoint_may_be_named_and_a_run_without_evaluations_has_a_newest_one(
    tmp_path: Path, source: asyncrl.Run
) -> None:
    """Of which a copy will do, too."""
    newest = checkpoints.find(RunFolder(source.path).checkpoints)[-1]
    named_one, (line,) = begun(tmp_path, "a3c", load=newest, run_name="a")
    assert f"({newest.name}, step " in line
    assert changed(named_one, checkpoints.load(newest).parameters) == set()

    for path in checkpoints.find(RunFolder(source.path).checkpoints, "best"):
        path.rename(path.with_name(f"away_{path.name}"))
    try:
        _, (line,) = begun(tmp_path, "a3c", load=source.path, run_name="b")
    finally:
        for path in RunFolder(source.path).checkpoints.glob("away_*"):
            path.rename(path.with_name(path.name.removeprefix("away_")))
    assert "(newest checkpoint, step " in line


def test_a_resumed_run_keeps_its_own_weights(tmp_path: Path, source: asyncrl.Run) -> None:
    """--resume auto with --load begins with those weights once; to give others on resume is refused."""
    settings = TINY | {"env_id": "CartPole-v1", "runs_dir": tmp_path, "run_name": "r"}
    first = asyncrl.train("a3c", **settings, load=source.path, resume="auto")
    again = asyncrl.train("a3c", **settings | {"total_steps": 2000}, load=source.path, resume="auto")

    assert again.path == first.path
    steps = [checkpoints.load(path).steps for path in checkpoints.find(RunFolder(again.path).checkpoints)]
    assert steps[-1] >= 2000
    with pytest.raises(asyncrl.UsageError, match="--load is for a new run: a run that is resumed has its own weights"):
        asyncrl.train("a3c", resume=first.path, load=first.path, total_steps=3000)


def test_the_command_says_it_and_refuses_what_does_not_fit(
    tmp_path: Path, source: asyncrl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before there is a folder."""
    words = ["--env-id", "CartPole-v1", "--backend", "serial", "--workers", "1", "--total-steps", "100"]
    words += ["--runs-dir", str(tmp_path / "runs")]

    assert main(["a3c", *words, "--load", str(source.path)]) == 0
    assert capsys.readouterr().out.startswith(f"weights from {source.path} (best checkpoint, step ")

    (tmp_path / "runs").rename(tmp_path / "done")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{}")
    for load, more, line in [
        (
            source.path,
            ["--hidden-sizes", "9"],
            "no layer of its network fits: trunk.body.linear.0 (9 x 4 here",
        ),
        (tmp_path, [], "is not a run: it contains no config.json"),
        (damaged, [], "not a checkpoint of asyncrl"),
    ]:
        assert main(["n_step_q", *words, "--load", str(load), *more]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()
