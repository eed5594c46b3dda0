"""`EnvSpec` as data."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from asyncrl.core.errors import UsageError
from asyncrl.envs.spec import EnvSpec, Spaces, one_line


def test_importing_the_spec_imports_no_simulator() -> None:
    """The help of a command must appear at once."""
    heavy = "{'ale_py', 'cv2', 'gymnasium', 'torch'}"
    code = f"import sys, asyncrl.envs.spec; print(*sorted({heavy} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == []


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"frame_skip": 0}, "frame_skip must be at least 1, not 0"),
        ({"image_size": -84}, "image_size must be at least 1, not -84"),
        ({"frame_stack": 0}, "frame_stack must be at least 1, not 0"),
        ({"noop_max": -1}, "noop_max must not be negative, not -1"),
        ({"max_episode_steps": -5}, "max_episode_steps must not be negative, not -5"),
        ({"sticky_actions": 1.5}, "sticky_actions is a probability from 0 to 1, not 1.5"),
        ({"sticky_actions": float("nan")}, "sticky_actions is a probability from 0 to 1, not nan"),
    ],
)
def test_impossible_settings_are_refused_at_once(settings: dict[str, Any], line: str) -> None:
    """Before any environment is made."""
    with pytest.raises(UsageError, match=f"^{line}$"):
        EnvSpec("ALE/Pong-v5", **settings)


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
    """27,000 steps, unless the user sets another."""
    assert EnvSpec("ALE/Pong-v5").step_cap == 27_000
    assert EnvSpec("ALE/Pong-v5", max_episode_steps=100).step_cap == 100
    assert EnvSpec("CartPole-v1").step_cap == 0


def test_the_description_of_a_game_states_every_setting() -> None:
    """What a reader needs to compare scores."""
    spec = EnvSpec("ALE/Pong-v5", sticky_actions=0.25, life_loss=True, env_kwargs=(("mode", 1),))
    assert spec.describe() == (
        "ALE/Pong-v5: 6 actions, observation uint8 [4, 84, 84], minimal action set, frame skip 4 (maximum of the last "
        "2), sticky actions 0.25, 1 to 30 no-ops, a lost life ends learning's episode, images 84x84 stack 4, at most "
        "27000 steps = 108000 frames, mode=1"
    )


def test_the_description_uses_spaces_that_are_known_already() -> None:
    """Nothing is made a second time."""
    spec = EnvSpec("no.such.module:make", max_episode_steps=9)
    line = spec.describe(Spaces((3,), "float32", 0, (-1.0, -1.0), (1.0, 1.0)))
    assert line == "no.such.module:make: 2 continuous actions, observation float32 [3], at most 9 steps"


def test_spaces_tell_images_and_continuous_actions() -> None:
    """By the number of dimensions, and by having no discrete action."""
    assert Spaces((4, 84, 84), "uint8", 6).is_image
    assert not Spaces((4,), "float32", 2).is_image
    assert Spaces((4,), "float32", 0, (-1.0,), (1.0,)).is_continuous
    assert not Spaces((4,), "float32", 2).is_continuous


def test_an_exception_becomes_one_short_line() -> None:
    """Line breaks and what is too long for a terminal are cut."""
    assert one_line(ValueError("first\n  second")) == "ValueError: first second"
    assert len(one_line(ValueError("x" * 1000))) == 300
