"""Names that other libraries use, and settings from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncrl.a3c import A3C
from asyncrl.commands.train import request_in
from asyncrl.config import groups
from asyncrl.config.run_config import to_plain
from asyncrl.core.errors import UsageError


def config_of(*words: str, algorithm: str = "asyncrl.a3c") -> A3C.Config:
    """What a command makes of its words."""
    return A3C.Config(**request_in(algorithm, words).settings)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--lr 1e-3", "learning_rate", 1e-3),
        ("--lr=1e-3", "learning_rate", 1e-3),
        ("--total-timesteps 5e5", "total_steps", 500_000),
        ("--total_timesteps 500_000", "total_steps", 500_000),
        ("--timesteps 500000", "total_steps", 500_000),
        ("--max-steps 7", "total_steps", 7),
        ("--t_max=7", "t_max", 7),
        ("--env CartPole-v1", "env_id", "CartPole-v1"),
        ("--num-workers 3", "workers", 3),
        ("--async-update-interval 7", "t_max", 7),
        ("--wandb-project-name mine", "track_project", "mine"),
        ("--track", "track", ("wandb",)),
        ("--track --lr 1", "track", ("wandb",)),
        ("--track mlflow wandb", "track", ("mlflow", "wandb")),
    ],
)
def test_a_setting_is_understood_by_the_name_that_others_give_it(words: str, field: str, value: object) -> None:
    """And only a whole flag: not a value that looks like one."""
    assert getattr(config_of(*words.split()), field) == value


@pytest.mark.parametrize(
    ("words", "workers", "each"),
    [
        ("--n-envs 8", 4, 2),
        ("--num-envs=9", 3, 3),
        ("--n_envs 7", 1, 7),
        ("--n-envs 8 --workers 2", 2, 4),
        ("--n-envs 8 --envs-per-worker 1", 8, 1),
        ("--n-envs 2", 2, 1),
    ],
)
def test_all_environments_together_are_shared_by_the_workers(
    words: str, workers: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By as many as divide them, up to two per core; here there are three cores."""
    monkeypatch.setattr(groups, "usable_cores", lambda: [0, 1, 2])

    config = config_of(*words.split())

    assert (config.workers, config.envs_per_worker) == (workers, each)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--n-envs 8 --workers 3", "--n-envs 8 cannot be divided by --workers 3"),
        ("--n-envs 8 --workers 2 --envs-per-worker 4", "--n-envs is --workers times --envs-per-worker"),
        ("--n-envs 0", "--n-envs is --workers times --envs-per-worker"),
        ("--n-envs many", "--n-envs takes a whole number, got 'many'"),
        ("--n-envs 7.9", "--n-envs takes a whole number, got '7.9'"),
        ("--n-envs", "--n-envs needs a value"),
        ("--num-envs=", "--n-envs takes a whole number, got ''"),
        ("--n-envs --workers 2", "--n-envs needs a value"),
        ("--n-envs 8 --workers 2 --envs_per_worker 4", "--n-envs is --workers times --envs-per-worker"),
        ("--config", "--config needs a value"),
        ("--config nowhere.toml", "--config nowhere.toml cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_understood_is_one_line(words: str, line: str) -> None:
    """As any other mistake."""
    with pytest.raises(UsageError, match=line):
        config_of(*words.split())


def test_a_run_is_repeated_by_its_config_json(tmp_path: Path) -> None:
    """All that was set, but for where it lies; the command line counts more, wherever it names the file."""
    first = A3C.Config(
        env_id="Catch", workers=3, hidden_sizes=(8, 4), life_loss=False, learning_rate_schedule="constant",
        stop_at_score=None, seed=7, run_name="first", runs_dir="elsewhere", quiet=True, resume="auto",
        env_kwargs=("a=1",),
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "asyncrl.a3c", "config": to_plain(first)}))

    again = config_of("--seed", "8", "--config", str(tmp_path))

    place = {"run_name": "", "runs_dir": "runs", "quiet": False, "resume": ""}
    assert to_plain(again) == to_plain(first) | place | {"seed": 8}
    with pytest.raises(UsageError, match="has settings for a3c, not for ppo"):
        config_of("--config", str(tmp_path / "config.json"), algorithm="asyncrl.ppo")


def test_a_number_of_hundreds_of_digits_is_refused(tmp_path: Path) -> None:
    """It is no float, though it is written as a whole number."""
    (tmp_path / "mine.toml").write_text("learning_rate = 1" + 400 * "0")

    with pytest.raises(UsageError, match="takes float, got a number of more than 300 digits"):
        config_of("--config", str(tmp_path / "mine.toml"))


def test_settings_stand_in_toml_by_themselves_or_in_tables(tmp_path: Path) -> None:
    """With either line, and by any of their names."""
    file = tmp_path / "mine.toml"
    file.write_text(
        """
algorithm = "a3c"
env-id = "Catch"
lr = 1e-3
total_steps = 1_000
[network]
hidden_sizes = [8, 4]
normalize_observations = false
[env_kwargs]
size = 3
name = "x"
"""
    )

    config = config_of("--config", str(file), "--total-steps", "5")

    assert (config.env_id, config.learning_rate, config.total_steps) == ("Catch", 1e-3, 5)
    assert (config.hidden_sizes, config.normalize_observations) == ((8, 4), False)
    assert config.env_kwargs == ("size=3", "name='x'")


def test_a_toml_file_is_utf_8_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    """Some editors write the mark."""
    file = tmp_path / "mine.toml"
    for encoding in ("utf-8", "utf-8-sig"):
        file.write_text('run_name = "schön"\nworkers = 3', encoding=encoding)
        config = config_of("--config", str(file))
        assert (config.run_name, config.workers) == ("schön", 3)


@pytest.mark.parametrize("content", ["workers = ", "[[1]]", "a = " + 100_000 * "[", '{"a": ' + 100_000 * "["])
def test_a_file_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    """With what is wrong with it."""
    for name in ("mine.toml", "mine.json"):
        (tmp_path / name).write_text(content if content != "[[1]]" or name == "mine.json" else "a b")
        with pytest.raises(UsageError, match=f"--config .*{name} (cannot be read|holds no settings)"):
            config_of("--config", str(tmp_path / name))
