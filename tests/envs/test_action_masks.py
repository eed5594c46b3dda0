"""From `info["action_mask"]` to the end of an observation, and what is refused on the way."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.doctor.environment import inspect
from asyncrl.envs.environment import BadEnvironment
from asyncrl.envs.spec import EnvSpec

HERE = "tests.envs.test_action_masks"


class Told(gymnasium.Env[Any, Any]):
    """Says in `info` what it is told, for each observation in turn; the last one of an episode is the third."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def __init__(self, *masks: Any, truncates: bool = False) -> None:
        self.masks, self.truncates, self.at = masks, truncates, 0

    def _info(self) -> dict[str, Any]:
        mask = self.masks[self.at] if self.at < len(self.masks) else None
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> Any:
        self.at += 1
        over = self.at == 2
        return (
            self.observation_space.sample(), 0.0, over and not self.truncates, over and self.truncates, self._info()
        )  # fmt: skip


class Asked(Told):
    """Has sb3-contrib's method instead."""

    def action_masks(self) -> Any:
        return [True, False, self.at == 1]


def told(masks: Any = (), truncates: bool = False) -> Told:
    return Told(*masks, truncates=truncates)


def pixels() -> Told:
    environment = Told(*3 * [[1, 0, 1]])
    environment.observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    return environment


def joystick() -> Told:
    environment = Told()
    environment.action_space = spaces.MultiDiscrete([2, 2])
    return environment


def spec(name: str, **arguments: Any) -> EnvSpec:
    return EnvSpec(f"{HERE}:{name}", tuple(f"{key}={value!r}" for key, value in arguments.items()), action_masks=True)


def test_the_mask_is_the_end_of_the_observation() -> None:
    """Of booleans, numbers, lists or arrays; after the terminal state, where nothing is chosen, it may be missing."""
    environment = spec("told", masks=([0, 1, 1], [True, False, False])).make(1, evaluation=False)

    assert environment.reset()[2:].tolist() == [0.0, 1.0, 1.0]
    assert environment.step(1)[0][2:].tolist() == [1.0, 0.0, 0.0]
    observation, _, terminated, _, _ = environment.step(0)
    assert terminated
    assert observation[2:].tolist() == [1.0, 1.0, 1.0]


def test_the_method_of_maskable_ppo_says_it_too() -> None:
    environment = spec("Asked").make(1, evaluation=False)
    assert environment.reset()[2:].tolist() == [1.0, 0.0, 0.0]
    assert environment.step(0)[0][2:].tolist() == [1.0, 0.0, 1.0]


class Masker(gymnasium.Wrapper[Any, Any, Any, Any]):
    """As sb3-contrib's ActionMasker: the method is the wrapper's."""

    def action_masks(self) -> Any:
        return [False, True, True]


def masked() -> Masker:
    return Masker(Told())


def test_a_wrappers_method_says_it_too() -> None:
    environment = spec("masked").make(1, evaluation=False)
    assert environment.reset()[2:].tolist() == [0.0, 1.0, 1.0]


def test_pixels_with_a_mask_stay_bytes() -> None:
    """One vector of both, which says what it is made of; stacked, of several."""
    image = Spaces((3, 40, 40), "uint8", 0, kind="screen")
    spaces = spec("pixels").probe()
    assert spaces == Spaces((4803,), "uint8", 3, kind="screen", parts=(image,), masked=True)
    stacked = EnvSpec(f"{HERE}:pixels", action_masks=True, frame_stack=2).probe()
    assert stacked == Spaces((9606,), "uint8", 3, kind="screen", parts=(image,), masked=True)
    assert "observation uint8 [3, 40, 40], action masks" in spec("pixels").describe()


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("told", {}, r'step 0 .*info has no "action_mask", an array of 0 and 1 for each of the 3 actions: add it, or '),
        ("told", {"masks": ([0, 0, 0],)}, "the action mask allows no action, but the episode has not terminated"),
        ("told", {"masks": ([1, 0],)}, r"the action mask is not 3 numbers, each 0 or 1, but int64 \[2\]"),
        ("told", {"masks": ([1, 0, 2],)}, r"the action mask is not 3 numbers, each 0 or 1, but int64 \[3\]"),
        ("told", {"masks": ([1, 1, 1], [0, 0, 0])}, "step 1 .*the action mask allows no action"),
        ("joystick", {}, "--action-masks is for Discrete actions, but .*:joystick has MultiDiscrete: leave it out, or"),
    ],
)
def test_a_mask_that_is_none_is_one_line(name: str, arguments: dict[str, Any], line: str) -> None:
    """Before the run begins, as the environment is probed."""
    with pytest.raises(UsageError, match=line) as caught:
        spec(name, **arguments).probe()
    assert "\n" not in str(caught.value)


def test_continuous_actions_have_no_masks() -> None:
    with pytest.raises(UsageError, match="--action-masks is for Discrete actions, but Pendulum-v1 has Box"):
        EnvSpec("Pendulum-v1", action_masks=True).probe()


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Catch"])
def test_masks_mean_nothing_where_all_actions_are_valid(env_id: str) -> None:
    with pytest.raises(UsageError, match="--action-masks has no effect in"):
        EnvSpec(env_id, action_masks=True)


@pytest.mark.parametrize("setting", [{"frame_skip": 2}, {"sticky_actions": 0.1}])
def test_repeated_actions_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--action-masks cannot be used with --frame-skip or --sticky-actions"):
        EnvSpec("asyncrl.envs.doors:Doors", action_masks=True, **setting).probe()


def test_an_episode_cut_by_a_time_limit_needs_the_mask_of_its_last_state() -> None:
    """Its return bootstraps from there."""
    environment = spec("told", masks=([1, 1, 1], [1, 1, 1]), truncates=True).make(1, evaluation=False)
    environment.reset()
    environment.step(0)
    with pytest.raises(BadEnvironment, match=r"step 2 .*info has no"):
        environment.step(0)


def test_the_doctor_s_random_steps_are_valid() -> None:
    """A locked door would be a FAIL."""
    findings = inspect(EnvSpec("asyncrl.envs.doors:Doors", ("strict=True",), action_masks=True), steps=300, seed=1)
    verdicts = {finding.check: finding.verdict for finding in findings}
    assert verdicts["random steps"] == "ok"
    assert "FAIL" not in verdicts.values()


class Seeded(Told):
    """Takes only a seed, as older environments do."""

    def reset(self, *, seed: int | None = None) -> Any:
        return super().reset(seed=seed)


def test_an_environment_whose_reset_takes_only_a_seed_has_masks_too() -> None:
    """As without masks."""
    environment: Any = EnvSpec(f"{HERE}:seeded", action_masks=True).make(0, evaluation=False)
    environment.reset()
    assert environment.step(0)[2:4] == (False, False)


def seeded() -> Seeded:
    return Seeded([1, 0, 1], [1, 1, 1], [1, 1, 1])
