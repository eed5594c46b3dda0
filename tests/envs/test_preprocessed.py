"""Frame skip, sticky actions, image size and frame stack for environments that are not Atari's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.envs.preprocessed import Preprocessed
from asyncrl.envs.spec import EnvSpec

HERE = __name__


class Counter(gymnasium.Env[Any, Any]):
    """Observes [steps, action] as a vector; each step pays its number; ends with step `length`."""

    observation_space = spaces.Box(-1.0, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(9)

    def __init__(self, length: int = 1000) -> None:
        self.length, self.at = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        return np.array([0.0, -1.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return np.array([self.at, action], np.float32), float(self.at), self.at == self.length, False, {}


class Noise(gymnasium.Env[Any, Any]):
    """Colour images of random pixels."""

    observation_space = spaces.Box(0, 255, (60, 80, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._image(), {}

    def step(self, action: Any) -> Any:
        return self._image(), 0.0, False, False, {}

    def _image(self) -> Any:
        self.shown = self.np_random.integers(256, size=(60, 80, 3), dtype=np.uint8)
        return self.shown


def make(env_id: str, seed: int = 0, env_kwargs: tuple[str, ...] = (), **settings: Any) -> Preprocessed:
    environment = EnvSpec(env_id, env_kwargs, **settings).make(seed, evaluation=False)
    assert isinstance(environment, Preprocessed)
    return environment


def test_a_skip_holds_the_action_and_adds_up_the_rewards() -> None:
    """Three frames pay 1 + 2 + 3, the next three 4 + 5 + 6; the last observation is seen."""
    environment = make(f"{HERE}:Counter", frame_skip=3)
    environment.reset()
    observation, reward, *ends = environment.step(5)
    assert (observation.tolist(), reward, ends) == ([3.0, 5.0], 6.0, [False] * 3)
    assert environment.step(2)[1] == 15.0


def test_an_end_cuts_a_skip_short() -> None:
    """The frames after it belong to no episode."""
    environment = make(f"{HERE}:Counter", env_kwargs=("length=5",), frame_skip=3)
    environment.reset()
    environment.step(0)
    observation, reward, terminated, truncated, _ = environment.step(0)
    assert (observation[0], reward, terminated, truncated) == (5.0, 9.0, True, False)
    with pytest.raises(RuntimeError, match="before reset"):
        environment.step(0)


def test_the_limit_of_an_episode_is_in_steps() -> None:
    """Two steps of three frames, and a truncation only with the second."""
    environment = make(f"{HERE}:Counter", frame_skip=3, max_episode_steps=2)
    for _ in range(2):
        environment.reset()
        assert environment.step(0)[3] is False
        observation, _, terminated, truncated, _ = environment.step(0)
        assert (observation[0], terminated, truncated) == (6.0, False, True)


def test_vectors_are_stacked_one_behind_the_other() -> None:
    """Oldest first; an episode begins with zeros, the second one too."""
    environment = make(f"{HERE}:Counter", frame_stack=3)
    assert environment.spaces == Spaces((6,), "float32", 9)
    for _ in range(2):
        assert environment.reset().tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
        assert environment.step(4)[0].tolist() == [0.0, 0.0, 0.0, -1.0, 1.0, 4.0]
        assert environment.step(7)[0].tolist() == [0.0, -1.0, 1.0, 4.0, 2.0, 7.0]
        environment.step(7)


def test_colour_images_are_shrunk_greyed_and_stacked_along_their_channels() -> None:
    """By OpenCV's own arithmetic; bytes stay bytes."""
    environment = make(f"{HERE}:Noise", image_size=42, frame_stack=2)
    assert environment.spaces == Spaces((2, 42, 42), "uint8", 2, kind="screen")

    def expected() -> Any:
        native: Any = environment.environment.native.unwrapped
        return cv2.resize(cv2.cvtColor(native.shown, cv2.COLOR_RGB2GRAY), (42, 42), interpolation=cv2.INTER_AREA)

    first = environment.reset().copy()
    assert not first[0].any()
    assert np.array_equal(first[1], expected())
    observation, *_ = environment.step(0)
    assert np.array_equal(observation, [first[1], expected()])


def test_an_image_that_is_only_stacked_keeps_its_colours() -> None:
    """Three channels each."""
    assert make(f"{HERE}:Noise", frame_stack=2).spaces.observation_shape == (6, 60, 80)


def test_a_screen_shrunk_below_36_pixels_stays_a_screen() -> None:
    """What it shows does not become symbols."""
    assert make(f"{HERE}:Noise", image_size=24).spaces == Spaces((1, 24, 24), "uint8", 2, kind="screen")


@pytest.mark.parametrize(
    ("env_id", "observed"), [("CartPole-v1", r"a vector \[4\]"), ("MinAtar/Breakout-v1", r"a board \[4, 10, 10\]")]
)
def test_only_screens_have_a_size_to_change(env_id: str, observed: str) -> None:
    """One line for the rest."""
    if env_id.startswith("MinAtar"):
        pytest.importorskip("minatar")
    with pytest.raises(UsageError, match=f"^--image-size is for .*; {env_id} observes {observed}$"):
        EnvSpec(env_id, image_size=42).probe()


def test_sticky_actions_repeat_the_action_before_as_often_as_they_should() -> None:
    """Each frame with the given probability, never the first of an episode, and the same by the same seed."""
    runs = []
    for _ in range(2):
        environment = make(f"{HERE}:Counter", seed=4, sticky_actions=0.25, env_kwargs=("length=1_000_000_000",))
        environment.reset()
        taken = [int(environment.step(step % 9)[0][1]) for step in range(4000)]
        assert taken[0] == 0
        assert all(now in (step % 9, before) for step, (before, now) in enumerate(pairwise(taken), 1))
        runs.append(taken)
    assert runs[0] == runs[1]
    repeated = np.mean([action != step % 9 for step, action in enumerate(runs[0])])
    assert repeated == pytest.approx(0.25, abs=0.03)


def test_always_sticky_actions_keep_the_first_one_of_each_episode() -> None:
    """A new episode has no action before its first."""
    environment = make(f"{HERE}:Counter", sticky_actions=1.0)
    for first in (3, 5):
        environment.reset()
        assert [int(environment.step(action)[0][1]) for action in (first, 1, 2)] == [first] * 3


def test_a_continuous_action_is_held_whatever_its_array_becomes() -> None:
    """Whoever acts may use the same memory again."""
    environment = make("Pendulum-v1", sticky_actions=1.0)
    other = make("Pendulum-v1", sticky_actions=1.0)
    environment.reset(), other.reset()
    action = np.array([1.5], np.float32)
    environment.step(action), other.step(action.copy())
    action[:] = -2.0
    assert np.array_equal(environment.step(action)[0], other.step(np.array([0.0], np.float32))[0])


def test_a_stored_environment_goes_on_exactly() -> None:
    """With its held action, its stack and its random numbers; through the episodes that follow."""
    settings: dict[str, Any] = {"frame_skip": 2, "frame_stack": 3, "sticky_actions": 0.5}
    one, other = (make("CartPole-v1", seed=seed, **settings) for seed in (0, 9))
    one.reset()
    for action in (0, 1, 0):
        one.step(action)
    state = one.state()
    assert state is not None
    other.restore(state)
    for step in range(60):
        observation, *rest = one.step(step % 2)
        expected, *expected_rest = other.step(step % 2)
        assert np.array_equal(observation, expected)
        assert rest == expected_rest
        if rest[1] or rest[2]:
            assert np.array_equal(one.reset(), other.reset())


def test_what_cannot_tell_its_state_cannot_here() -> None:
    """None, as without a wrapper."""
    assert make(f"{HERE}:Counter", frame_stack=2).state() is None


def test_a_broken_promise_inside_a_skip_is_noticed() -> None:
    """In the frame in which it happens, not in the sum."""
    environment = make(f"{HERE}:make_infinite", frame_skip=4)
    environment.reset()
    with pytest.raises(RuntimeError, match="broke its contract in step 1 of an episode: the reward is inf"):
        environment.step(0)


class Infinite(Counter):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("inf"), *rest


def make_infinite() -> Infinite:
    return Infinite()
