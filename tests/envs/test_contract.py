"""What every environment keeps, whatever it is made of."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec

SPECS = {
    "Chain": Spaces((8,), "float32", 2),
    "Catch": Spaces((50,), "float32", 3),
    "ALE/Pong-v5": Spaces((4, 42, 42), "uint8", 6, kind="atari"),
    "CartPole-v1": Spaces((4,), "float32", 2),
    "FrozenLake-v1": Spaces((16,), "float32", 4),
    "MinAtar/Breakout-v1": Spaces((4, 10, 10), "float32", 3, kind="board"),
    "MiniGrid-Empty-5x5-v0": Spaces((21, 7, 7), "float32", 7, kind="board"),
}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvSpec:
    env_id: str = request.param
    for prefix, package in (("MinAtar/", "minatar"), ("MiniGrid-", "minigrid")):
        if env_id.startswith(prefix):
            pytest.importorskip(package)
    return EnvSpec(env_id, life_loss=env_id.startswith("ALE/"))


Record = list[tuple[NDArray[Any], tuple[float, bool, bool, bool]]]


def record(spec: EnvSpec, seed: int, steps: int = 60) -> Record:
    """Copies of what `steps` random steps return, episodes following each other."""
    environment = spec.make(seed, evaluation=False)
    actions = np.random.default_rng(seed).integers(SPECS[spec.env_id].actions, size=steps).tolist()
    rows: Record = [(environment.reset().copy(), (0.0, False, False, False))]
    for action in actions:
        observation, *rest = environment.step(action)
        rows.append((observation.copy(), tuple(rest)))  # type: ignore[arg-type]
        if rest[1] or rest[2]:
            rows.append((environment.reset().copy(), (0.0, False, False, False)))
    environment.close()
    return rows


def test_a_probe_finds_the_spaces(spec: EnvSpec) -> None:
    """Shape, type and number of actions are known before any worker starts."""
    assert spec.probe() == SPECS[spec.env_id]


def test_steps_return_what_the_spaces_say(spec: EnvSpec) -> None:
    """In plain Python types, so that they can be written as JSON."""
    spaces = SPECS[spec.env_id]
    for observation, (reward, terminated, truncated, life_lost) in record(spec, seed=0):
        assert observation.shape == spaces.observation_shape
        assert observation.dtype.name == spaces.observation_dtype
        assert type(reward) is float
        assert {type(terminated), type(truncated), type(life_lost)} == {bool}


def test_an_environment_of_another_process_plays_the_same_episodes(spec: EnvSpec) -> None:
    """The spec survives pickling, and the same seed and actions give the same episodes."""
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    for (observation, rest), (expected, expected_rest) in zip(record(spec, 3), record(copy, 3), strict=True):
        assert np.array_equal(observation, expected)
        assert rest == expected_rest


def test_our_own_limit_truncates(spec: EnvSpec) -> None:
    """At that step and not before, and the next episode has its full length again."""
    environment = EnvSpec(spec.env_id, max_episode_steps=3).make(0, evaluation=False)
    for _ in range(2):
        environment.reset()
        for step in (1, 2, 3):
            _, _, terminated, truncated, _ = environment.step(0)
            assert (terminated, truncated) == (False, step == 3)
    environment.close()


def test_acting_without_an_episode_is_refused(spec: EnvSpec) -> None:
    """Before the first reset, and after the end of an episode."""
    environment = EnvSpec(spec.env_id, max_episode_steps=1).make(0, evaluation=False)
    with pytest.raises(RuntimeError, match="before reset"):
        environment.step(0)
    environment.reset()
    environment.step(0)
    with pytest.raises(RuntimeError, match="before reset"):
        environment.step(0)
    environment.close()


@pytest.mark.parametrize("action", [-1, 18])
def test_an_action_outside_the_space_is_refused(spec: EnvSpec, action: int) -> None:
    """Rather than played as something else."""
    environment = spec.make(0, evaluation=True)
    environment.reset()
    with pytest.raises(ValueError, match=str(action)):
        environment.step(action)
    environment.close()


def test_an_environment_is_described_in_one_line(spec: EnvSpec) -> None:
    """With its id, its actions and its observation."""
    line = spec.describe()
    spaces = SPECS[spec.env_id]
    assert line.startswith(f"{spec.env_id}: {spaces.actions} actions, observation {spaces.observation_dtype} ")
    assert "\n" not in line
