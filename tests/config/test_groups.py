"""The settings lie in groups, which help shows and nothing else knows of."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from asyncrl.algorithm import algorithm_of
from asyncrl.config import groups
from asyncrl.config.commandline import COMMON, GROUPS, MOST_USED, parse
from asyncrl.config.groups import default_workers
from asyncrl.config.run_config import RunConfig, to_plain
from tests.config.settings import ALGORITHMS, KINDS

FLAGS = """
    env_id env_kwargs workers envs_per_worker t_max total_steps seed preset backend schedule delays update statistics
    overlap reduce init_method collective_timeout_seconds check_replicas hosts address parameter_shards exchange_updates
    push learner_resource track track_project action_masks
    runs_dir run_name resume load quiet
    max_seconds stop_at_score on_worker_error on_env_error worker_restarts hang_seconds
    evaluation_interval_steps evaluation_episodes evaluation_policy evaluation_cpu_share checkpoint_interval_steps
    checkpoints_kept record_interval_seconds gamma optimizer learning_rate learning_rate_schedule optimizer_decay
    optimizer_epsilon optimizer_momentum max_gradient_norm reward_clip normalize_observations normalize_returns network
    hidden_sizes precision frame_skip frame_stack image_size noop_max sticky_actions life_loss full_action_space
    max_episode_steps
"""
"""Settings of all algorithms: their flags, and keys of config.json."""
POLICY = (
    "gae_lambda entropy_weights entropy_schedule value_cost lstm_cells mean variance first_deviation"
    " normalize_advantages"
)
ACTION_VALUE = (
    "evaluation_epsilon double_q dueling exploration epsilons epsilon_probabilities exploration_steps temperatures"
    " epsilon_schedule"
)
VALUE = ACTION_VALUE + " target_interval_steps"
LEARNER = " learner_threads learner_device"
MEMORY = LEARNER + (
    " memory_steps warmup_steps minibatch replay_ratio n_step target_interval_updates checkpoint_replay replay_hosts"
)
REPLAY = ACTION_VALUE + MEMORY + " error_clip"
PRIORITY = " priority_exponent importance_exponent"
OWN = {
    "a3c": POLICY,
    "one_step_q": VALUE,
    "one_step_sarsa": VALUE,
    "n_step_q": VALUE + " lstm_cells",
    "a2c": POLICY + LEARNER,
    "ppo": POLICY + LEARNER + " epochs minibatches clip anneal_clip value_clip",
    "impala": POLICY + LEARNER + " rho_bar c_bar queue_length batch_rollouts",
    "gorila": REPLAY + " layout learners max_staleness max_loss_deviations",
    "apex": REPLAY + PRIORITY,
    "reinforce": POLICY,
    "apex_dpg": MEMORY + PRIORITY + " critic_sizes activation noises slope_clip",
    "sac": MEMORY + PRIORITY + " target_rate temperature learn_temperature target_entropy",
}


def boxes(algorithm: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the help of an algorithm says, by the titles of its boxes in their order."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(algorithm_of(f"asyncrl.{algorithm}").Config, ["--help"], f"asyncrl {algorithm}")
    _, *parts = re.split(r"╭─ (.*?)options ─+╮", capfd.readouterr().out)
    return {title.strip(): text for title, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_the_settings_it_had(algorithm: str) -> None:
    """None is lost and none renamed when they move between groups."""
    config = algorithm_of(f"asyncrl.{algorithm}").Config

    assert set(to_plain(config())) == {*FLAGS.split(), *OWN[algorithm].split()}


def test_no_setting_is_in_two_groups() -> None:
    """And every shared one is in one."""
    fields = [field.name for group in GROUPS.values() if group for field in dataclasses.fields(group)]

    assert sorted(fields) == sorted(FLAGS.split())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_help_shows_the_groups_in_order(
    algorithm: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are given most often first, each flag in its own group."""
    shown = boxes(algorithm, capfd, monkeypatch)

    assert list(shown) == ["", *GROUPS]
    for title, group in GROUPS.items():
        names = [field.name for field in dataclasses.fields(group)] if group else OWN[algorithm].split()
        names = (
            [*MOST_USED, "config", "trust"] if title == COMMON else [name for name in names if name not in MOST_USED]
        )
        flags = re.findall(r"^│ (--[\w-]+)", shown[title], re.MULTILINE)
        assert sorted(flags) == sorted(groups.flag(name) for name in names)
    assert re.findall(r"^│ (--[\w-]+)", shown[COMMON], re.MULTILINE)[:3] == ["--env-id", "--total-steps", "--workers"]


def test_help_tells_the_algorithm_s_own_default_and_text(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PPO's t_max stands with the others' and says what it is for PPO."""
    shown = " ".join(boxes("ppo", capfd, monkeypatch)["parallelism"].replace("│", " ").split())

    assert "--t-max INT Steps of each environment between two batches (T). (default: 128)" in shown


def test_there_are_two_workers_per_usable_core(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On both backends; config.json and help have the number."""
    monkeypatch.setattr(groups, "usable_cores", lambda: [0, 3, 5])

    assert default_workers() == 6
    assert to_plain(RunConfig())["workers"] == to_plain(RunConfig(backend="serial"))["workers"] == 6
    assert "(default: 6)" in " ".join(boxes("a3c", capfd, monkeypatch)[COMMON].split())


@pytest.mark.parametrize(("words", "workers"), [([], 6), (["--workers", "16"], 16)])
def test_a_number_of_workers_that_is_given_counts(
    words: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cores."""
    monkeypatch.setattr(groups, "usable_cores", lambda: [0, 3, 5])

    assert parse(RunConfig, words, "asyncrl a3c").workers == workers


@pytest.mark.parametrize(
    ("algorithm", "kind", "workers"),
    [
        ("a3c", "atari", 16),
        ("n_step_q", "vector", 16),
        ("a2c", "atari", 16),
        ("ppo", "atari", 8),
        ("impala", "atari", 16),
    ],
)
def test_the_paper_s_number_of_workers_is_no_machine_s(
    algorithm: str, kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is part of the method's settings there."""
    monkeypatch.setattr(groups, "usable_cores", lambda: [0])

    settings: dict[str, Any] = algorithm_of(f"asyncrl.{algorithm}").preset("paper", KINDS[kind])
    assert algorithm_of(f"asyncrl.{algorithm}").Config(**settings).workers == workers
