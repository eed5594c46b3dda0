"""The configuration refuses what cannot be."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from typing import Any, Literal

import pytest

from asyncrl.algorithm import algorithm_of
from asyncrl.config.commandline import read_line
from asyncrl.config.run_config import RunConfig, from_plain, to_plain
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.ppo import PPO

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"workers": 0}, "--workers must be at least 1 and at most 10_000, got 0"),
    ({"envs_per_worker": 0}, "--envs-per-worker must be at least 1"),
    ({"t_max": 0}, "--t-max must be at least 1"),
    ({"total_steps": 0}, "--total-steps must be at least 1"),
    ({"seed": -1}, "--seed must be at least 0 and"),
    ({"gamma": 1.5}, "--gamma must be at least 0 and at most 1, got 1.5"),
    ({"optimizer_decay": 1.0}, "--optimizer-decay must be at least 0 and less than 1, got 1.0"),
    ({"optimizer_momentum": 1.0}, "--optimizer-momentum must be at least 0 and less than 1"),
    ({"stop_at_score": 1.0, "evaluation_interval_steps": 0}, "--stop-at-score needs evaluations"),
    ({"gamma": float("nan")}, "--gamma must be a number"),
    ({"learning_rate": 0.0}, "--learning-rate must be more than 0"),
    ({"learning_rate": float("inf")}, "--learning-rate must be a number"),
    ({"optimizer_epsilon": 0.0}, "--optimizer-epsilon must be more than 0"),
    ({"sticky_actions": 2.0}, "--sticky-actions must be at least 0 and at most 1"),
    ({"evaluation_episodes": 0}, "--evaluation-episodes must be at least 1"),
    ({"evaluation_cpu_share": 1.5}, "--evaluation-cpu-share must be more than 0 and at most 1, got 1.5"),
    ({"evaluation_cpu_share": 0.0}, "--evaluation-cpu-share must be more than 0"),
    ({"max_seconds": -1.0}, "--max-seconds must be at least 0"),
    ({"checkpoint_interval_steps": -5}, "--checkpoint-interval-steps must be at least 0"),
    ({"stop_at_score": float("nan")}, "--stop-at-score must be a number"),
    ({"hidden_sizes": (0,)}, "--hidden-sizes must be at least 1 and at most 100_000, got (0,)"),
    ({"hidden_sizes": (64, 10**12)}, "--hidden-sizes must be at least 1 and at most 100_000"),
    ({"workers": 10**400}, "--workers must be at least 1 and at most 10_000, got 1"),
    ({"t_max": 10**15}, "--t-max must be at least 1 and at most 1_000_000"),
    ({"total_steps": 10**30}, "--total-steps must be at least 1 and at most 9_007_199_254_740_992"),
    ({"image_size": 10**5}, "--image-size must be 0 or at least 16 and at most 1_000"),
    ({"noop_max": 10**20}, "--noop-max must be at least 0 and at most 10_000"),
    ({"image_size": 8}, "--image-size must be 0 or at least 16"),
    ({"delays": (1.0,)}, "--delays is for --backend serial"),
    ({"delays": (0.0,), "backend": "serial"}, "--delays must be more than 0, got (0.0,)"),
    ({"delays": (1.0,), "schedule": "random", "backend": "serial"}, "both set the order of turns: give only one"),
    ({"schedule": "random"}, "--schedule is for --backend serial"),
]


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE, ids=lambda case: str(case)[:40])
def test_an_impossible_value_is_refused_with_its_flag(fields: dict[str, Any], message: str) -> None:
    """One line that names the flag and the value."""
    with pytest.raises(UsageError) as error:
        RunConfig(**fields)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("algorithm", "fields", "own"),
    [
        ("a3c", {}, False),
        ("a3c", {"statistics": "per-worker"}, True),
        ("a3c", {"optimizer": "rmsprop", "preset": "paper"}, False),
        ("a3c", {"optimizer": "momentum-sgd"}, True),
        ("a3c", {"optimizer": "momentum-sgd", "statistics": "shared"}, False),
        ("a3c", {"optimizer": "momentum-sgd", "optimizer_decay": 0.0}, False),  # there are none
        ("a3c", {"optimizer": "momentum-sgd", "backend": "collective"}, False),  # a rank has its own anyway
        ("a3c", {"optimizer": "momentum-sgd", "backend": "ray"}, False),
        ("impala", {"optimizer": "momentum-sgd"}, False),  # only the learner writes
    ],
)
def test_whose_the_statistics_are(algorithm: str, fields: dict[str, Any], own: bool) -> None:
    """By default all workers', but momentum is each worker's own, as in the paper, where they share a memory."""
    config = algorithm_of(f"asyncrl.{algorithm}").Config(**fields)

    assert config.per_worker_statistics is own
    assert config.descent.per_worker_statistics is own


def test_config_json_gives_the_same_configuration_back() -> None:
    """Tuples survive the way through lists."""
    config = RunConfig(hidden_sizes=(32, 16), env_kwargs=("a=1",), stop_at_score=3.0)
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in to_plain(config).items()}

    assert from_plain(RunConfig, plain) == config


def test_a_field_of_another_version_is_refused() -> None:
    """Rather than silently ignored."""
    with pytest.raises(UsageError, match="warp_speed"):
        from_plain(RunConfig, {"warp_speed": 9})


def test_whoever_waits_for_a_score_has_more_evaluations() -> None:
    """A tenth of the CPU time instead of a twenty-fifth, unless the share is given."""
    assert RunConfig().evaluator_share == 0.04
    assert RunConfig(stop_at_score=18.0).evaluator_share == 0.1
    assert RunConfig(stop_at_score=18.0, evaluation_cpu_share=0.02).evaluator_share == 0.02


def test_a_class_that_changes_a_default_keeps_its_limits() -> None:
    """PPO has a t_max and a learning rate of its own; of several numbers each is within the limits."""
    with pytest.raises(UsageError, match="--t-max must be at least 1 and at most 1_000_000, got 0"):
        PPO.Config(t_max=0)
    with pytest.raises(UsageError, match=r"--learning-rate must be more than 0, got 0\.0"):
        PPO.Config(learning_rate=0.0)
    with pytest.raises(UsageError, match=r"--entropy-weights must be at least 0, got \(0.1, -0.1\)"):
        PPO.Config(entropy_weights=(0.1, -0.1))


def test_a_program_and_a_command_line_give_the_same_settings() -> None:
    """Text too is read as on a command line; what is no value of a setting is refused by its name."""
    line = "--hosts auto --backend ray --lr 1e-3 --total-steps 1e4 --stop-at-score none --hidden-sizes 8 4 --no-quiet"
    given = {
        "hosts": "auto", "backend": "ray", "lr": "1e-3", "total_steps": 1e4, "stop_at_score": "none",
        "hidden_sizes": ["8", 4], "quiet": False,
    }  # fmt: skip

    assert settings_for(PPO.Config, given) == read_line(PPO.Config, line.split(), "asyncrl ppo").settings
    with pytest.raises(UsageError, match=r"hosts takes int or auto, got 1\.5"):
        settings_for(PPO.Config, {"hosts": 1.5})
    with pytest.raises(UsageError, match="there is no setting work; perhaps you meant workers"):
        settings_for(PPO.Config, {"work": 1})


@pytest.mark.parametrize(
    ("algorithm", "fields", "fits"),
    [
        ("ppo", {"workers": 8, "minibatches": 2}, True),
        ("a2c", {"workers": 2}, True),
        ("a2c", {"workers": 1}, False),
        ("a2c", {"workers": 8, "backend": "collective", "reduce": "gradients"}, False),
        ("a3c", {"workers": 8}, False),
    ],
)
def test_advantages_are_normalised_over_all_steps_of_an_update(
    algorithm: str, fields: dict[str, Any], fits: bool
) -> None:
    """Here one of each environment, of all workers if they are learnt from together."""
    own = {"t_max": 1, "envs_per_worker": 1, "normalize_advantages": True} | fields
    with nullcontext() if fits else pytest.raises(UsageError, match="needs more than one step per update"):
        algorithm_of(f"asyncrl.{algorithm}").Config(**own)


OWN_KINDS: list[tuple[Any, Any, list[str], Any]] = [
    (Literal["x", "y"] | None, None, ["x"], "x"),
    (tuple[int, ...] | None, None, ["1", "2"], (1, 2)),
    (tuple[str, int], ("a", 1), ["b", "2"], ("b", 2)),
    (tuple[Literal["x", "y"], ...], (), ["x"], ("x",)),
    (Literal[1, 2], 1, ["2"], 2),
    (tuple[bool, ...], (), ["True", "False"], (True, False)),
    (int | None, None, ["1e3"], 1000),
    (float | None, 0.5, ["none"], None),
]


@pytest.mark.parametrize(("kind", "default", "words", "value"), OWN_KINDS, ids=lambda given: str(given)[:20])
def test_settings_of_ones_own_may_have_any_of_these_types(
    kind: Any, default: Any, words: list[str], value: Any
) -> None:
    """On the command line, in Python and in a stored run."""
    own = dataclasses.make_dataclass("Own", [("thing", kind, default)], bases=(RunConfig,), frozen=True)

    assert read_line(own, ["--thing", *words], "own").settings == {"thing": value}
    assert settings_for(own, {"thing": value}) == {"thing": value}
    stored = json.loads(json.dumps(to_plain(own(thing=value))))
    assert from_plain(own, stored).thing == value


@pytest.mark.parametrize("given", [[0.5], [0.1, 0.2, 0.3]])
def test_a_setting_of_two_numbers_takes_two(given: list[float]) -> None:
    """No more and no fewer."""
    with pytest.raises(UsageError, match=f"temperatures takes 2 values, got {len(given)}"):
        settings_for(algorithm_of("asyncrl.one_step_q").Config, {"temperatures": given})


def test_ape_x_takes_exploration_of_ones_own_too() -> None:
    """As every method with action values."""
    cls = algorithm_of("asyncrl.apex").Config
    assert settings_for(cls, {"exploration": "module:factory"}) == {"exploration": "module:factory"}
    with pytest.raises(UsageError, match="--exploration takes drawn, ladder, boltzmann, equal or module:factory"):
        cls(exploration="laddre")
