"""Presets: every setting of every algorithm, by kind of environment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncrl.a3c import A3C
from asyncrl.algorithm import algorithm_of
from asyncrl.commands.train import configure
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import EpsilonGreedy
from asyncrl.gorila import Gorila
from tests.config.settings import ALGORITHMS, FILE, KINDS, PRESETS, changes, settings_of

KEPT: dict[str, Any] = json.loads(FILE.read_text())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_settings_are_the_ones_that_were_kept(algorithm: str, preset: str, kind: str) -> None:
    """Not only those the preset names: whoever moves a default moves what it was tuned with."""
    expected = KEPT["all"] | KEPT[algorithm]["defaults"] | KEPT[algorithm][f"{preset} {kind}"]

    assert changes(expected, settings_of(algorithm, preset, KINDS[kind])) == {}
    assert changes(settings_of(algorithm, preset, KINDS[kind]), expected) == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_a_table_for_every_preset_and_kind(algorithm: str) -> None:
    """Of its own or another's, whose tables are found by name."""
    method = algorithm_of(f"asyncrl.{algorithm}")
    for preset in PRESETS:
        for kind, spaces in KINDS.items():
            assert method.preset(preset, spaces) or (preset, kind) == ("default", "screen")


def test_gorilas_paper_is_evaluated_with_its_epsilon() -> None:
    """0.05, by an evaluator that does not act greedily."""
    config = Gorila.Config(**Gorila.preset("paper", KINDS["atari"]))

    assert config.exploration_of(None) == EpsilonGreedy(0.05)


def test_a_preset_is_a_copy() -> None:
    """Who changes what was handed out changes no table."""
    A3C.preset("default", KINDS["atari"])["reward_clip"] = 7.0

    assert A3C.preset("default", KINDS["atari"])["reward_clip"] == 1.0


@pytest.mark.parametrize(
    ("algorithm", "words", "preset", "image_size"),
    [
        ("a2c", "--total-steps 5000000", "long", 60),
        ("a2c", "--total-steps 4999999", "default", 42),
        ("a2c", "", "default", 42),  # 10 million steps, which nobody has asked for
        ("impala", "--total-steps 10000000", "long", 60),
        ("ppo", "--preset long --total-steps 1000", "long", 60),
        ("ppo", "--preset default --total-steps 20000000", "default", 42),
        ("ppo", "--total-steps 20000000 --image-size 84", "long", 84),
        ("ppo", "--total-steps 20000000 --stop-at-score 18", "default", 42),  # may be short
        ("ppo", "--total-steps 20000000 --max-seconds 600", "default", 42),
        ("a3c", "--total-steps 20000000", "default", 42),  # has no such preset
    ],
)
def test_many_steps_choose_the_preset_for_long_runs(algorithm: str, words: str, preset: str, image_size: int) -> None:
    """If they are given, and neither a preset nor another end is."""
    config = configure(f"asyncrl.{algorithm}", ["--env-id", "ALE/Freeway-v5", *words.split()]).config

    assert (config.preset, config.image_size or 42) == (preset, image_size)


@pytest.mark.parametrize("algorithm", ["a2c", "impala", "ppo"])
def test_a_long_run_has_the_settings_that_were_tuned(algorithm: str) -> None:
    """And a short one of IMPALA the paper's lambda, and all of them the plain schedules; PPO's clip follows."""
    words = ["--env-id", "ALE/Freeway-v5", "--total-steps"]
    long, short = (configure(f"asyncrl.{algorithm}", [*words, steps]).config for steps in ("5000000", "1000000"))

    assert (long.gae_lambda, long.entropy_schedule, long.learning_rate_schedule) == (0.95, "linear", "0:1,0.7:1,1:0")
    plain = (1.0 if algorithm == "impala" else 0.95, "constant", "linear")
    assert (short.gae_lambda, short.entropy_schedule, short.learning_rate_schedule) == plain
    assert [getattr(config, "anneal_clip", None) for config in (long, short)] == (
        [False, True] if algorithm == "ppo" else [None, None]
    )


def test_long_runs_elsewhere_have_the_default() -> None:
    """And whoever asks for a preset that does not exist is told so."""
    assert configure("asyncrl.a2c", ["--env-id", "CartPole-v1", "--total-steps", "20000000"]).config.preset == "default"
    with pytest.raises(UsageError, match="a2c has no preset long for CartPole-v1"):
        configure("asyncrl.a2c", ["--env-id", "CartPole-v1", "--preset", "long"])


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("apex", "--memory-steps 5000"),  # its preset's warm-up is shorter than the plain default
        ("apex", "--memory-steps 2000 --warmup-steps 500 --workers 16"),  # and so is t_max
        ("gorila", "--epsilons 0.1"),  # and epsilon is equal
    ],
)
def test_settings_are_checked_together_with_those_of_the_preset(algorithm: str, words: str) -> None:
    """Not with defaults that it replaces."""
    assert configure(f"asyncrl.{algorithm}", ["--env-id", "CartPole-v1", *words.split()]).config.preset == "default"


def test_as_many_workers_as_a_large_machine_has_by_default_fit_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the plain defaults would not fit."""
    monkeypatch.setattr("asyncrl.config.settings.default_workers", lambda: 768)
    monkeypatch.setattr("asyncrl.config.groups.usable_cores", lambda: range(384))

    assert configure("asyncrl.apex", ["--env-id", "CartPole-v1", "--workers", "8"]).config.workers == 8


def test_an_impossible_setting_of_the_environment_is_refused_before_it_is_made() -> None:
    """The preset depends on the environment."""
    with pytest.raises(UsageError, match="--frame-stack must be at least"):
        configure("asyncrl.a3c", ["--env-id", "nowhere:nothing", "--frame-stack", "-5"])
