"""`EnvSpec` as data."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec


def test_importing_the_spec_imports_no_simulator() -> None:
    """The help of a command must appear at once."""
    heavy = "{'ale_py', 'cv2', 'gymnasium', 'torch'}"
    code = f"import sys, asyncrl.envs.spec; print(*sorted({heavy} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"frame_skip": -1}, "--frame-skip must be at least 0 and at most 1_000, got -1"),
        ({"image_size": 4}, "--image-size must be 0 or at least 16 and at most 1_000, got 4"),
        ({"sticky_actions": float("nan")}, "--sticky-actions must be a number, got nan"),
        ({"env_kwargs": ("often",)}, "--env-kwargs takes key=value, got 'often'"),
    ],
)
def test_impossible_settings_are_refused_at_once(settings: dict[str, Any], line: str) -> None:
    """As by the group of settings that a specification is, before any environment is made."""
    with pytest.raises(UsageError, match=f"^{line}$"):
        EnvSpec("ALE/Pong-v5", **settings)


def test_a_runs_settings_are_its_environments() -> None:
    """Each of them, without being written down a second time."""
    settings = {"frame_skip": 2, "frame_stack": 3, "image_size": 60, "sticky_actions": 0.5, "max_episode_steps": 7}
    assert EnvSpec.of(RunConfig(env_id="walk:make", env_kwargs=("a=1",), **settings)) == EnvSpec(
        "walk:make", env_kwargs=("a=1",), **settings
    )


@pytest.mark.parametrize(
    ("env_id", "settings", "flag"),
    [
        ("CartPole-v1", {"life_loss": True}, "life-loss"),
        ("CartPole-v1", {"noop_max": 0}, "noop-max"),
        ("module:factory", {"full_action_space": True}, "full-action-space"),
        ("Catch", {"life_loss": True}, "life-loss"),
        ("Catch", {"frame_skip": 2}, "frame-skip"),
        ("Catch", {"frame_stack": 4}, "frame-stack"),
        ("Chain", {"image_size": 42}, "image-size"),
        ("Chain", {"sticky_actions": 0.25}, "sticky-actions"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(env_id: str, settings: dict[str, Any], flag: str) -> None:
    """Rather than taken without effect."""
    with pytest.raises(UsageError, match=f"^--{flag} has no effect in {env_id}: leave it out$"):
        EnvSpec(env_id, **settings)


def test_settings_left_alone_are_the_environments_own() -> None:
    """Four frames, four screens and 42 pixels on Atari; elsewhere everything as it is."""
    atari, other = EnvSpec("ALE/Pong-v5"), EnvSpec("CartPole-v1")
    assert (atari.frames_per_step, atari.frames_per_observation, atari.pixels) == (4, 4, 42)
    assert (other.frames_per_step, other.frames_per_observation, other.pixels) == (1, 1, 0)


@pytest.mark.parametrize(
    ("env_id", "atari"),
    [
        ("ALE/Pong-v5", True),
        ("ale_py:ALE/Pong-v5", True),
        ("PongNoFrameskip-v4", True),
        ("PongDeterministic-v4", True),
        ("Pong-ram-v4", True),
        ("CartPole-v1", False),
        ("MinAtar/Breakout-v1", False),
        ("Chain", False),
        ("module:factory", False),
    ],
)
def test_atari_ids_are_known_by_their_form(env_id: str, atari: bool) -> None:
    """Without importing the emulator."""
    assert EnvSpec(env_id).is_atari is atari


def test_only_atari_has_a_cap_by_default() -> None:
    """108,000 frames, unless the user sets another number of steps."""
    for frame_skip, steps in ((0, 27_000), (4, 27_000), (1, 108_000), (8, 13_500)):
        assert EnvSpec("ALE/Pong-v5", frame_skip=frame_skip).step_cap == steps
    assert EnvSpec("ALE/Pong-v5", frame_skip=1, max_episode_steps=100).step_cap == 100
    assert EnvSpec("ALE/Pong-v5", max_episode_steps=100).step_cap == 100
    assert EnvSpec("CartPole-v1").step_cap == 0


def test_the_description_of_a_game_states_every_setting() -> None:
    """What a reader needs to compare scores."""
    spec = EnvSpec("ALE/Pong-v5", sticky_actions=0.25, life_loss=True, env_kwargs=("mode=1",))
    assert spec.describe() == (
        "ALE/Pong-v5: 6 actions, observation uint8 [4, 42, 42], minimal action set, frame skip 4 (maximum of the last "
        "2), sticky actions 0.25, 1 to 30 no-ops, a lost life ends the training episode, images 42x42, stack 4, at "
        "most 27000 steps = 108000 frames, mode=1"
    )


def test_the_description_uses_spaces_that_are_known_already() -> None:
    """Nothing is made a second time."""
    spec = EnvSpec("no.such.module:make", max_episode_steps=9)
    line = spec.describe(Spaces((3,), "float32", 0, (-1.0, -1.0), (1.0, 1.0)))
    assert line == "no.such.module:make: 2 continuous actions, observation float32 [3], at most 9 steps"


def test_the_description_states_what_is_changed() -> None:
    """An environment that is not Atari's says what is done to it, and nothing else."""
    spec = EnvSpec("walk:make", frame_skip=2, sticky_actions=0.25, image_size=42, frame_stack=3)
    line = spec.describe(Spaces((3, 42, 42), "uint8", 4, kind="screen"))
    assert line.endswith("[3, 42, 42], frame skip 2, sticky actions 0.25, grey images 42x42, stack 3")


def test_spaces_tell_images_and_continuous_actions() -> None:
    """By their kind, and by having no discrete action."""
    assert Spaces((4, 84, 84), "uint8", 6, kind="atari").is_image
    assert not Spaces((4,), "float32", 2).is_image
    assert Spaces((4,), "float32", 0, (-1.0,), (1.0,)).is_continuous
    assert not Spaces((4,), "float32", 2).is_continuous


def test_an_exception_becomes_one_short_line() -> None:
    """Line breaks and what is too long for a terminal are cut."""
    assert one_line(ValueError("first\n  second")) == "ValueError: first second"
    assert len(one_line(ValueError("x" * 1000))) == 300
