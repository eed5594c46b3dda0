"""What people expect of commands: their version, completion, a run's next lines."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from asyncrl import __version__
from asyncrl.__main__ import COMMANDS
from asyncrl.__main__ import main as asyncrl
from asyncrl.catalog import ALGORITHMS
from asyncrl.commands.train import main
from tests.support import status_of, the_run

SHORT = ["--env-id", "Catch", "--backend", "serial", "--workers", "2", "--evaluation-episodes", "2"]


@pytest.mark.parametrize("words", [["--version"], ["a3c", "--version"], ["train", "a3c", "--lr", "1", "--version"]])
def test_the_version_is_told_with_what_results_depend_on(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Of the command, and of each algorithm."""
    assert asyncrl(words) == 0
    assert capsys.readouterr().out.startswith(f"asyncrl {__version__}, python 3.")


def test_a_run_says_at_its_end_how_to_resume_evaluate_and_watch_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one types it; the first two work as they stand."""
    monkeypatch.chdir(tmp_path)
    assert main("asyncrl.a3c", [*SHORT, "--total-steps", "500", "--run-name", "mine"]) == 0

    *_, resume, evaluate, watch, last = capsys.readouterr().out.splitlines()
    assert resume == "resume it:   python -m asyncrl train a3c --resume runs/a3c/Catch/mine --total-steps 1000"
    assert evaluate == "evaluate it: python -m asyncrl evaluate runs/a3c/Catch/mine"
    assert watch == "watch it:    python -m asyncrl watch runs/a3c/Catch/mine"
    assert last.startswith("run folder: ")
    for line in (resume, evaluate):
        assert asyncrl(line.partition("asyncrl ")[2].split()) == 0


def test_a_run_is_made_again_by_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also without naming its algorithm; another algorithm's file is refused."""
    place = ["--runs-dir", str(tmp_path), "--quiet"]
    assert main("asyncrl.a3c", [*SHORT, *place, "--total-steps", "300", "--seed", "5", "--run-name", "first"]) == 0
    file = str(the_run(tmp_path) / "config.json")

    assert asyncrl(["train", "--config", file, *place, "--run-name", "again"]) == 0
    assert asyncrl(["ppo", "--config", file, *place]) == 2

    assert "has settings for a3c, not for ppo" in capsys.readouterr().err
    first, again = (status_of(tmp_path / "a3c" / "Catch" / name) for name in ("first", "again"))
    assert (first["worker_steps"], first["best_score"]) == (again["worker_steps"], again["best_score"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--env-id CartPole-v1", {"--env-id": "CartPole-v1", "--learning-rate": "0.002"}),
        ("--env-id CartPole-v1 --preset paper --lr 0.5", {"--preset": "paper", "--learning-rate": "0.5"}),
        ("--env-id Nowhere-v0", {"--env-id": "ALE/Pong-v5"}),
    ],
)
def test_help_has_the_defaults_of_the_environment_and_preset_that_are_named(
    words: str, told: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the plain ones if there is a mistake in the words."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main("asyncrl.a2c", [*words.split(), "--help"])

    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert ended.value.code == 0
    for flag, value in told.items():
        assert text.partition(f" {flag} ")[2].partition("(default: ")[2].partition(")")[0] == value


@pytest.mark.parametrize("command", ["a3c", *COMMANDS])
def test_help_says_nothing_of_a_default_that_is_empty(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for words either that follow no flag."""
    monkeypatch.setenv("COLUMNS", "10000")
    with contextlib.suppress(SystemExit):
        asyncrl([command, "--help"])

    text = capsys.readouterr().out
    assert "usage:" in text
    assert "(default: )" not in text
    assert "(default: '')" not in text


def test_the_list_has_every_algorithm_with_its_experience_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    """As each class and each backend says."""
    assert asyncrl(["list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()

    assert header.split()[:2] == ["name", "experience"]
    assert [row.split()[0] for row in rows] == list(ALGORITHMS)
    by_name = {row.split()[0]: re.split(r"\s{2,}", row)[1:] for row in rows}
    assert by_name["a2c"] == ["in step", by_name["a3c"][1], ALGORITHMS["a2c"]]
    assert by_name["a3c"][1].startswith("local, serial, collective")
    assert "collective" not in by_name["apex"][1]
    assert asyncrl(["list", "a3c"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_completes_commands_flags_and_choices(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In bash itself."""
    assert asyncrl(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capfd.readouterr().out)

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _tyro_asyncrl; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            ["bash", "-c", f". {tmp_path}/script; {line}"], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("asyncrl", "a") == ["a2c", "a3c", "apex", "apex_dpg"]
    assert {*ALGORITHMS, *COMMANDS} <= set(completed("asyncrl", "''"))
    assert completed("asyncrl", "ppo", "--clip") == ["--clip"]
    assert completed("asyncrl", "a3c", "--clip") == []
    assert completed("asyncrl", "a3c", "--backend", "s") == ["serial"]
    assert "--learning-rate" in completed("asyncrl", "train", "a3c", "--learn")
    assert completed("asyncrl", "sweep", "--tri") == ["--trials"]


def test_completion_is_for_shells_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    """Others are told which."""
    assert asyncrl(["completion", "fish"]) == 2
    assert "name a shell: bash or zsh" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_takes_its_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As a file in a folder of its functions, as the documentation says."""
    assert asyncrl(["completion", "zsh"]) == 0
    (tmp_path / "_asyncrl").write_text(capfd.readouterr().out)
    line = f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -D; echo $_comps[asyncrl]"
    done = subprocess.run(["zsh", "-f", "-c", line], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("_asyncrl\n", "")
