"""Names of actions and of the components of observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.envs.gymnasium_env import GymnasiumEnvironment
from asyncrl.envs.naming import names_of_components
from asyncrl.envs.spec import EnvSpec


class Kart(gymnasium.Env[Any, Any]):
    """A kart on a track.

    ## Action Space

    | Num | Action | Min |
    |-----|--------|-----|
    | 0 | Torque applied on the `left` wheel | -1 |
    | 1 | Torque applied on the `right` wheel | -1 |

    ## Observation Space
    - 0: speed
    - 1: angle of the wheel
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("env_id", "actions", "components"),
    [
        ("CartPole-v1", "left, right", "Cart Position, Cart Velocity, Pole Angle, Pole Angular Velocity"),
        ("MountainCar-v0", "Accelerate to the left, Don't accelerate, Accelerate to the right", None),
        ("Pendulum-v1", "Torque", "x = cos(theta), y = sin(theta), Angular Velocity"),
        ("CliffWalking-v1", "up, right, down, left", None),
        (f"{__name__}:Kart", "left, right", "speed, angle of the wheel"),
        ("MiniGrid-Empty-5x5-v0", "left, right, forward, pickup, drop, toggle, done", None),
        ("MinAtar/Breakout-v1", "no-op, left, right", None),
    ],
)
def test_what_an_environment_documents_is_its_name(env_id: str, actions: str, components: str | None) -> None:
    """Without the words that all have in common."""
    pytest.importorskip({"MiniGrid": "minigrid", "MinAtar": "minatar"}.get(env_id[:7].rstrip("-/"), "gymnasium"))
    environment: Any = EnvSpec(env_id).make(0, evaluation=True)
    assert ", ".join(environment.action_names) == actions
    if components:
        assert ", ".join(environment.observation_names) == components


def test_numbers_keep_the_word_behind_them() -> None:
    """Acrobot's torques are -1, 0 and 1, which would say little."""
    environment: Any = EnvSpec("Acrobot-v1").make(0, evaluation=True)
    assert environment.action_names[0] == "-1 torque to the actuated joint"


def test_a_method_that_fails_names_nothing() -> None:
    """Names are only shown."""

    def fail() -> None:
        raise RuntimeError("closed")

    environment: Any = EnvSpec("CartPole-v1").make(0, evaluation=True)
    for method in (fail, lambda: None):
        environment.native.unwrapped.get_action_meanings = method
        assert environment.action_names == ("left", "right")


def test_a_wrapper_that_changes_a_space_changes_what_its_numbers_mean() -> None:
    """Without the velocities, four names would be wrong."""
    words = ("env_id=CartPole-v1", "components=(1, 3)")
    environment: Any = EnvSpec("asyncrl.envs.masked:hide", env_kwargs=words).make(0, evaluation=True)
    assert environment.observation_names == ("0", "1")
    assert environment.action_names == ("left", "right")


def test_the_parts_of_a_space_name_its_numbers() -> None:
    """In the order in which they are concatenated."""

    class Parts(gymnasium.Env[Any, Any]):
        """Documents nothing."""

        observation_space = spaces.Dict(
            {"speed": spaces.Box(0, 1, (1,)), "at": spaces.Box(0, 1, (2,)), "lamp": spaces.Discrete(2, start=5)}
        )
        action_space = spaces.Discrete(2)

    environment = Parts()
    names = names_of_components(environment)
    assert names == ("at 0", "at 1", "lamp = 5", "lamp = 6", "speed")
    assert len(names) == GymnasiumEnvironment(environment, "parts", 0).spaces.observation_shape[0]
    environment.observation_space = spaces.Tuple([spaces.MultiDiscrete([1, 2]), spaces.Box(0, 1, ())])
    assert names_of_components(environment) == ("0 0 = 0", "0 1 = 0", "0 1 = 1", "1")
