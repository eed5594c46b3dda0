"""Words of other libraries that stand for our settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from asyncrl.algorithm import algorithm_of
from asyncrl.catalog import ALGORITHMS, module_of
from asyncrl.config.commandline import read_line
from asyncrl.config.foreign import OURS, SETTINGS, suggestion
from asyncrl.config.settings import ALIASES
from asyncrl.core import extras
from asyncrl.core.errors import UsageError


def test_each_word_is_foreign_and_stands_for_settings_that_there_are() -> None:
    """None is a setting, or another name of one, itself; none is in the table twice."""
    ours = {one.name for name in ALGORITHMS for one in dataclasses.fields(algorithm_of(module_of(name)).Config)}

    assert sum(len(words.split()) for words in SETTINGS) == len(OURS)
    assert not OURS.keys() & (ours | ALIASES.keys())
    assert {own for settings in OURS.values() for own in settings} <= ours


@pytest.mark.parametrize(
    ("algorithm", "flag", "told"),
    [
        ("a3c", "--n-steps 128", "there is no --n-steps; perhaps you meant --t-max"),
        ("ppo", "--batch_size=64", "there is no --batch_size; perhaps you meant --minibatches"),
        ("apex", "--batch-size 64", "there is no --batch-size; perhaps you meant --minibatch"),
        ("apex", "--target-update-interval 9", "there is no --target-update-interval; perhaps you meant --target-int"),
        ("a3c", "--lambda 0.9", "there is no --lambda; perhaps you meant --gae-lambda"),
        ("a3c", "--learning-starts 9", "there is no --learning-starts; other algorithms call it --warmup-steps"),
        ("a3c", "--zzz 9", "there is no --zzz"),
    ],
)
def test_a_foreign_flag_is_answered_with_ours(algorithm: str, flag: str, told: str) -> None:
    """With that of the algorithm, if it has one."""
    with pytest.raises(UsageError, match=f"^{told}"):
        read_line(algorithm_of(module_of(algorithm)).Config, flag.split(), f"asyncrl {algorithm}")
    assert suggestion("zzz", ["t_max"]) == ""


def test_what_is_missing_is_installed_as_the_documents_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clone with its constraints, from anywhere; without a clone from where the package came from."""
    monkeypatch.chdir(extras.CLONE)
    assert extras.to_install("box2d") == 'pip install -c constraints.txt -e ".[box2d]"'
    assert extras.to_install("", "pandas") == "pip install -c constraints.txt pandas"

    clone = tmp_path / "a clone"
    clone.mkdir()
    monkeypatch.setattr(extras, "CLONE", clone)
    assert extras.to_install("box2d") == 'pip install "asyncrl[box2d]"'
    assert extras.to_install("", "pandas") == "pip install pandas"
    for name in ("constraints.txt", "setup.cfg"):
        (clone / name).touch()
    assert extras.to_install("box2d") == f"pip install -c '{clone}/constraints.txt' -e '{clone}[box2d]'"
