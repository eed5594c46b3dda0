"""The folder of a run that somebody else made is data: no command imports what it names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncrl
from asyncrl.__main__ import main
from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import read_stored
from tests.support import the_run

TRAIN = [
    "--env-id", "Catch", "--backend", "serial", "--workers", "1", "--total-steps", "300", "--evaluation-episodes", "2",
]  # fmt: skip
MODULE = """
import pathlib
pathlib.Path("imported").touch()
import gymnasium
from torch import nn
from asyncrl.envs.toy import Catch
from asyncrl.a3c import A3C

class Mine(A3C):
    pass

def make(**_):
    pathlib.Path("called").touch()
    return gymnasium.make("CartPole-v1")

def body(shape):
    pathlib.Path("called").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(int(__import__("math").prod(shape)), 8))
"""


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one's own."""
    runs = tmp_path_factory.mktemp("own")
    assert main(["a3c", *TRAIN, "--runs-dir", str(runs), "--quiet"]) == 0
    return the_run(runs)


@pytest.fixture
def strange(catch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A folder that names a stranger's module, which leaves a file where it is imported or called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"stranger_{tmp_path.name.translate(str.maketrans('', '', '[]-.'))}"
    (tmp_path / f"{name}.py").write_text(MODULE)

    def make(algorithm: str = "", **config: Any) -> Path:
        folder = Path(shutil.copytree(catch, tmp_path / "run"))
        data = json.loads((folder / "config.json").read_text())
        data["config"] |= {key: value.replace("stranger", name) for key, value in config.items()}
        (folder / "config.json").write_text(
            json.dumps(data | {"algorithm": algorithm.replace("stranger", name) or data["algorithm"]})
        )
        return folder

    return make


NAMES: list[dict[str, str]] = [
    {"env_id": "stranger:make"},
    {"env_id": "stranger:Lamps-v0"},
    {"network": "stranger:body"},
    {"algorithm": "stranger"},
]
COMMANDS = [
    "evaluate run", "watch run --out film.gif", "export run --safetensors agent.safetensors", "a3c --resume run",
    "a3c --config run", "train --config run/config.json", "evaluate .",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("config", NAMES, ids=str)
def test_no_command_imports_what_a_strangers_folder_names(
    command: str,
    config: dict[str, str],
    strange: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One line says what it would be."""
    strange(**config)
    code = main(command.split())
    out, error = capfd.readouterr()

    assert (code, out) == (2, ""), error
    by_another_name = "algorithm" in config and command.startswith("a3c")  # this command's algorithm is a3c
    assert by_another_name or "would import stranger_" in error
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("command", ["report run", "plot run --out curve.png"])
def test_figures_are_of_data_alone(command: str, strange: Callable[..., Path], tmp_path: Path) -> None:
    """They need no code."""
    strange(env_id="stranger:make", network="stranger:body", algorithm="stranger")

    assert main(command.split()) == 0
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("command", COMMANDS[:3] + COMMANDS[4:5])
def test_trust_imports_it(command: str, strange: Callable[..., Path], tmp_path: Path) -> None:
    """By a flag of its own; nothing else has changed."""
    strange(network="stranger:body")

    main([*command.split(), "--trust", *(["--env-id", "Catch", "--total-steps", "1"] if "a3c" in command else [])])
    assert (tmp_path / "called").exists()


def test_a_call_that_names_it_imports_it(strange: Callable[..., Path], tmp_path: Path) -> None:
    """As an environment or as an algorithm."""
    folder = strange(env_id="stranger:make")
    module = next(path.stem for path in tmp_path.glob("stranger_*.py"))
    with pytest.raises(UsageError, match="checkpoint's env_id is Catch"):
        asyncrl.load(folder, env_id=f"{module}:make")
    assert (tmp_path / "called").exists()


def test_a_program_trusts_by_an_argument(strange: Callable[..., Path], tmp_path: Path) -> None:
    """Of load and of train."""
    folder = strange(env_id="stranger:make")
    settings = {"workers": 1, "total_steps": 100, "backend": "serial"}
    for call in (
        lambda **more: asyncrl.load(folder, **more),
        lambda **more: asyncrl.train("a3c", resume=folder, **more),
        lambda **more: asyncrl.train(config=folder, **settings, **more),
        lambda **more: asyncrl.training(config=folder, **settings, **more).run,
    ):
        with pytest.raises(UsageError, match="would import stranger_"):
            call()
    assert not (tmp_path / "imported").exists()
    with pytest.raises(UsageError, match="checkpoint's env_id is Catch"):
        asyncrl.load(folder, trust=True)
    assert asyncrl.train(config=folder, trust=True, **settings).state == "finished"


def test_a_run_that_one_resumes_is_ones_own(strange: Callable[..., Path]) -> None:
    """This user has written its settings again."""
    folder = strange()
    assert not read_stored(folder / "config.json").is_own
    assert main(["a3c", "--resume", str(folder), "--total-steps", "600", "--quiet"]) == 0
    assert read_stored(folder / "config.json").is_own


def test_ones_own_run_needs_no_flag(strange: Callable[..., Path], tmp_path: Path) -> None:
    """Also where it was copied to."""
    strange()
    module = next(path.stem for path in tmp_path.glob("stranger_*.py"))
    words = ["--env-id", f"{module}:make", "--runs-dir", "runs", "--quiet", *TRAIN[2:]]
    assert main(["a3c", *words]) == 0
    shutil.move(the_run(tmp_path / "runs"), tmp_path / "moved")

    assert main(["evaluate", "moved", "--episodes", "1"]) == 0
    assert main(["a3c", "--resume", "moved", "--total-steps", "600", "--quiet"]) == 0
    assert main(["evaluate", "moved", "--episodes", "1"]) == 0


def test_environments_take_no_state_from_a_strangers_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serial run of one's own continues exactly, here from the last checkpoint but one, as after a kill."""
    monkeypatch.chdir(tmp_path)
    assert main(["a3c", *TRAIN, "--checkpoint-interval-steps", "100", "--runs-dir", "runs"]) == 0
    run = the_run(tmp_path / "runs")
    shutil.rmtree(max(run.glob("checkpoints/step_*")))
    config = json.loads(Path(shutil.copytree(run, "strange"), "config.json").read_text())
    Path("strange", "config.json").write_text(json.dumps(config))
    capfd.readouterr()

    assert main(["a3c", "--resume", "strange", "--total-steps", "400"]) == 0
    assert "environments begin new episodes" in capfd.readouterr().out
    assert main(["a3c", "--resume", str(run), "--total-steps", "400"]) == 0
    assert "every worker continues where it was" in capfd.readouterr().out


def test_a_strangers_folder_turns_no_tracker_on(
    strange: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would log to this user's account; whoever wants that says so, and may turn it off as well."""
    folder = strange()
    data = json.loads((folder / "config.json").read_text())
    data["config"]["track"] = ["wandb", "mlflow"]
    (folder / "config.json").write_text(json.dumps(data))
    words = ["a3c", "--resume", "run", "--total-steps", "600", "--quiet"]

    assert main(words) == 2
    error = capfd.readouterr().err
    assert "would log to wandb and mlflow (track): if you trust it, add --trust" in error
    assert error.count("\n") == 1
    assert main(["evaluate", "run", "--episodes", "1"]) == 0
    with pytest.raises(UsageError, match="would log to wandb and mlflow"):
        asyncrl.train("a3c", resume=str(folder), total_steps=600)
    asyncrl.train("a3c", resume=str(folder), total_steps=600, track=())


@pytest.mark.parametrize("name", ["checkpoints", "tb"])
def test_a_strangers_folder_that_links_elsewhere_is_not_begun_anew(
    name: str, strange: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As --resume auto does with a run that has no checkpoint yet."""
    place = tmp_path / "runs" / "a3c" / "Catch" / "mine"
    place.parent.mkdir(parents=True)
    shutil.move(strange(), place)
    shutil.rmtree(place / "checkpoints")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "best_000000000900").mkdir()
    for own in {"checkpoints", "tb"} - {name}:
        (place / own).mkdir(exist_ok=True)
    shutil.rmtree(place / name, ignore_errors=True)
    (place / name).symlink_to(tmp_path / "elsewhere")

    assert main(["a3c", *TRAIN, "--runs-dir", "runs", "--run-name", "mine", "--resume", "auto", "--quiet"]) == 2
    assert f"its {name} is a link to {tmp_path}/elsewhere" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["best_000000000900"]


@pytest.mark.parametrize("name", ["checkpoints", "tb"])
def test_a_strangers_folder_that_links_elsewhere_is_not_resumed(
    name: str, catch: Path, strange: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files there would be written, renamed and deleted. One's own run may have its checkpoints on another disk."""
    folder = strange()
    shutil.move(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.glob("elsewhere/**"))
    words = ["a3c", "--resume", "run", "--total-steps", "600", "--quiet"]

    assert main(words) == 2
    error = capfd.readouterr().err
    assert f"its {name} is a link to {tmp_path}/elsewhere" in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.glob("elsewhere/**")) == before

    shutil.copy(catch / "config.json", folder)
    assert main(words) == 0
