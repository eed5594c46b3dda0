"""What a run has learnt, in files for other programs."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors import safe_open

import asyncrl
from asyncrl.api.exporting import ComparedAgent, ExportedAgent, compare, read_torch, write_torch
from asyncrl.api.playing import load_run
from asyncrl.commands.export import main
from asyncrl.commands.train import main as train
from asyncrl.core.extras import to_install
from asyncrl.storage.stored import Permission
from tests.support import the_run

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
WORDS = ["--workers", "2", "--total-steps", "600", "--seed", "7", "--backend", "serial", "--quiet"]
WORDS += ["--evaluation-interval-steps", "0", "--evaluation-episodes", "2"]


def make_run(folder: Path, algorithm: str, env_id: str, *words: str) -> Path:
    """A short run."""
    assert train(f"asyncrl.{algorithm}", ["--env-id", env_id, *WORDS, *words, "--runs-dir", str(folder)]) == 0
    return the_run(folder)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with normalised observations, which the tests only read."""
    return make_run(tmp_path_factory.mktemp("runs"), "a3c", "CartPole-v1", "--normalize-observations")


def play(run: Path, observations: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations of CartPole `[N, 4]`, and what the greedy agent did in each `[N]`."""
    policy, environment = asyncrl.load(run, greedy=True), gymnasium.make("CartPole-v1")
    seen, done = [], []
    observation, over = environment.reset(seed=3)[0], False
    for _ in range(observations):
        if over:
            observation = environment.reset()[0]
        action, _ = policy.act(observation)
        seen.append(observation)
        done.append(action)
        observation, _, terminated, truncated, _ = environment.step(action)
        over = terminated or truncated
    return np.array(seen), np.array(done)


def test_onnxruntime_does_what_the_agent_does_on_1000_observations(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The normalisation is in the file, which says what it is, and takes any number of observations."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "agent.onnx"

    assert main([str(cartpole), "--onnx", str(file)]) == 0

    assert "1,000 of 1,000 actions match" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    observations, actions = play(cartpole, 1000)
    assert len(set(actions)) == 2
    said, logits = session.run(["action", "logits"], {"observation": observations})
    np.testing.assert_array_equal(said, actions)
    assert logits.shape == (1000, 2)
    (alone,) = session.run(["action"], {"observation": observations[:1]})
    assert alone == actions[:1]
    about = session.get_modelmeta().custom_metadata_map
    assert (about["algorithm"], about["env_id"]) == ("asyncrl.a3c", "CartPole-v1")
    assert json.loads(about["config"])["seed"] == 7
    assert json.loads(about["spaces"])["actions"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env_id", "words"),
    [
        ("a3c", "CartPole-v1", ["--lstm-cells", "8"]),
        ("a3c", "Pendulum-v1", []),
        ("ppo", "Pendulum-v1", ["--lstm-cells", "8", "--variance", "state"]),
        ("apex", "CartPole-v1", ["--warmup-steps", "100"]),
        ("apex_dpg", "Pendulum-v1", ["--warmup-steps", "100", "--normalize-observations"]),
        ("sac", "Pendulum-v1", ["--warmup-steps", "100"]),
        ("n_step_q", "Catch", ["--lstm-cells", "8", "--dueling"]),
        ("reinforce", "CartPole-v1", []),
        ("a2c", "ALE/Breakout-v5", ["--network", "small"]),
        ("one_step_q", "ALE/Breakout-v5", ["--no-normalize-observations"]),
    ],
)
def test_both_programs_do_what_any_agent_does(
    tmp_path: Path, algorithm: str, env_id: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Policies and values, discrete and continuous actions, memory, normalised pixels and raw ones."""
    run = make_run(tmp_path / "runs", algorithm, env_id, *words)

    assert main([str(run), "--onnx", str(tmp_path / "a.onnx"), "--torch", str(tmp_path / "a.pt2")]) == 0

    assert capsys.readouterr().out.count("1,000 of 1,000 actions match") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env_id", "words", "inputs"),
    [
        (
            "a3c", "tests.nets.test_parts:Agree",
            ["--env-kwargs", "masks=True", "--action-masks", "--lstm-cells", "4", "--normalize-observations"],
            ["numbers", "image", "action_mask", "state_0", "state_1"],
        ),
        (
            "apex", "asyncrl.envs.doors:Doors", ["--action-masks", "--warmup-steps", "100"],
            ["observation", "action_mask"],
        ),
        ("ppo", "tests.nets.test_parts:Agree", ["--frame-stack", "3"], ["numbers", "image"]),
    ],
)  # fmt: skip
def test_parts_and_masks_are_inputs_of_both_programs(
    tmp_path: Path, algorithm: str, env_id: str, words: list[str], inputs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """They act as the agent does, and under a mask that leaves one action it is that action, whatever else is seen."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    run, onnx, program = make_run(tmp_path, algorithm, env_id, *words), tmp_path / "a.onnx", tmp_path / "a.pt2"

    assert main([str(run), "--onnx", str(onnx), "--torch", str(program), "--trust"]) == 0

    assert capsys.readouterr().out.count("1,000 of 1,000 actions match") == 2
    session = runtime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_inputs()] == inputs
    if "action_mask" in inputs:
        actions = session.get_inputs()[inputs.index("action_mask")].shape[1]
        zeros = {one.name: np.zeros((actions, *one.shape[1:]), np.float32) for one in session.get_inputs()}
        given = zeros | {"action_mask": np.eye(actions, dtype=bool)}
        assert session.run(["action"], given)[0].tolist() == list(range(actions))
        torch_program = torch.export.load(program).module()
        assert torch_program(*(torch.from_numpy(given[name]) for name in inputs))[0].tolist() == list(range(actions))


def test_what_acts_by_compiled_code_is_exported_too(tmp_path: Path) -> None:
    """As every run but a serial one does. Two streams, and one."""
    for number, words in enumerate(([], ["--dueling"])):
        run = make_run(tmp_path / str(number), "one_step_q", "CartPole-v1", *words)
        loaded = load_run(run, greedy=True, permission=Permission({"backend": "local"}))

        model = ExportedAgent(loaded)
        write_torch(loaded, model, tmp_path / "agent.pt2")

        assert compare(loaded, model, read_torch(tmp_path / "agent.pt2"), observations=40).good


def test_the_weights_alone_are_enough_for_a_program_without_torch(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program in docs/export.md, run as it stands there, acts as the agent does."""
    monkeypatch.chdir(tmp_path)
    assert main([str(cartpole), "--safetensors", "cartpole.safetensors"]) == 0
    (program,) = (text for text in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "tanh" in text)
    names: dict[str, Any] = {}
    exec(program, names)

    observations, actions = play(cartpole, 200)

    assert [names["logits"](observation).argmax() for observation in observations] == list(actions)
    with safe_open("cartpole.safetensors", "numpy") as file:
        assert file.metadata()["format"] == "asyncrl agent 1"
        assert file.metadata()["observation_clip"] == "5.0"
        assert {"observation.mean", "observation.scale"} < set(file.keys())


def test_a_file_that_cannot_be_written_is_one_line(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder, say."""
    assert main([str(cartpole), "--safetensors", str(tmp_path)]) == 2

    assert f"cannot write {tmp_path}: Is a directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_earlier_export(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, and nothing beside it."""
    file = tmp_path / "agent.safetensors"
    file.write_text("earlier")

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)

    assert main([str(cartpole), "--safetensors", str(file)]) == 1

    assert "the disk is full" in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["earlier"]


def test_a_model_that_says_something_else_is_noticed(cartpole: Path) -> None:
    """One that always takes action 0, and one whose numbers are off by a hundredth."""
    loaded = load_run(cartpole, greedy=True)
    model = ExportedAgent(loaded)

    def ask(change: Any) -> ComparedAgent:
        def decide(inputs: list[np.ndarray]) -> list[np.ndarray]:
            with torch.no_grad():
                return change([output.numpy() for output in model(*map(torch.from_numpy, inputs))])

        return compare(loaded, model, decide, observations=80)

    assert ask(lambda outputs: outputs).good
    assert ask(lambda outputs: [outputs[0] * 0, *outputs[1:]]).actions < 80
    assert not ask(lambda outputs: [outputs[0], outputs[1] + 0.01, *outputs[2:]]).good


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a file to write: --onnx FILE, --torch FILE or --safetensors FILE"),
        (["--onnx", "nowhere/a.onnx"], "nowhere/a.onnx: there is no such folder"),
        (["--onnx", "same", "--torch", "./same"], "--onnx, --torch and --safetensors must name different files"),
        (["--torch", "a.pt2", "--checkpoint", "step_9"], "step_9: no such checkpoint"),
    ],
)
def test_mistakes_are_told_in_one_line(
    cartpole: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written."""
    assert main([str(cartpole), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_missing_package_is_told_in_one_line(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the extra that brings it."""
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    assert main([str(cartpole), "--onnx", str(tmp_path / "a.onnx")]) == 2
    assert f"onnxscript is not installed: {to_install('export')}" in capsys.readouterr().err
