"""Compiled screens show what the emulator, numpy and cv2 make of a game, to the bit."""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np
import pytest

from asyncrl.core import kernels
from asyncrl.envs import screens
from asyncrl.envs.atari import AtariEnvironment, games
from asyncrl.envs.spec import EnvSpec

pytestmark = pytest.mark.skipif(kernels.LIBRARY is None, reason=f"the kernels are not used: {kernels.MISSING}")


def pair(monkeypatch: pytest.MonkeyPatch, env_id: str, **settings: Any) -> tuple[AtariEnvironment, AtariEnvironment]:
    """The same environment with the kernels and without."""
    spec = EnvSpec(env_id, **settings)
    compiled = spec.make(5, evaluation=False)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "LIBRARY", None)
        plain = spec.make(5, evaluation=False)
    assert isinstance(compiled, AtariEnvironment)
    assert isinstance(plain, AtariEnvironment)
    assert isinstance(compiled._screens, screens.CompiledScreens)
    assert not isinstance(plain._screens, screens.CompiledScreens)
    return compiled, plain


def assert_same(compiled: AtariEnvironment, plain: AtariEnvironment, steps: int) -> int:
    """Random episodes; returns how many of them the game ended."""
    random, ended, over = np.random.default_rng(2), 0, True
    for _ in range(steps):
        if over:
            assert np.array_equal(compiled.reset(), plain.reset())
        action = int(random.integers(plain.spaces.actions))
        (seen, *said), (expected, *told) = compiled.step(action), plain.step(action)
        assert np.array_equal(seen, expected)
        assert np.array_equal(compiled._screens.merged, plain._screens.merged)
        assert said == told
        ended += bool(told[1])
        over = bool(told[1] or told[2])
    return ended


@pytest.mark.parametrize("pixels", [42, 84])
@pytest.mark.parametrize("game", ["Pong", "Breakout", "Seaquest", "Carnival", "JourneyEscape"])
def test_images_are_equal(game: str, pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame by frame, also where screens have other heights."""
    assert_same(
        *pair(monkeypatch, f"ALE/{game}-v5", image_size=pixels, max_episode_steps=200, sticky_actions=0.25), 300
    )


@pytest.mark.slow
@pytest.mark.parametrize("game", list(games()))
def test_images_of_every_game_are_equal(game: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their palettes and heights."""
    assert_same(*pair(monkeypatch, f"ALE/{game}-v5", max_episode_steps=200), 400)


@pytest.mark.parametrize("frames_per_step", [1, 2, 3])
def test_the_screen_of_an_ended_game_is_not_shown(frames_per_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all numbers of frames a step may have, in episodes that end."""
    environments = pair(monkeypatch, "ALE/Breakout-v5", frame_skip=frames_per_step)
    assert assert_same(*environments, 2_400 // frames_per_step) > 1


def test_a_restored_state_goes_on_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """From either environment in the other."""
    compiled, plain = pair(monkeypatch, "ALE/Seaquest-v5")
    assert_same(compiled, plain, 40)
    taken = compiled.state(), plain.state()
    assert_same(compiled, plain, 30)
    compiled.restore(taken[1])
    plain.restore(taken[0])

    for action in range(30):
        assert np.array_equal(compiled.step(action % 18)[0], plain.step(action % 18)[0])


@pytest.mark.parametrize("height", [210, 214, 230, 250])
@pytest.mark.parametrize("size", [8, 20, 32, 36, 42, 64, 80, 84, 96, 105, 128, 160])
def test_noise_is_shrunk_as_by_cv2(height: int, size: int) -> None:
    """All of its kinds of scales below 1, fractional in both directions or whole in one."""
    area = screens.area_of(height, 160, size)
    assert area is not None
    ring, random = np.zeros((1, size, size), np.uint8), np.random.default_rng(size)
    for levels in (256, 2, 256):
        noise = random.integers(0, levels, (height, 160), np.uint8) * (255 // (levels - 1))
        screens.CompiledScreens(cast(Any, screens._Still(noise)), ring, area).begin(0)
        assert np.array_equal(ring[0], cv2.resize(noise, (size, size), interpolation=cv2.INTER_AREA))


def test_other_scales_are_left_to_cv2() -> None:
    """Enlarging, and whole-numbered scales in both directions, which cv2 computes in another way."""
    assert screens.area_of(210, 160, 10) is None
    assert screens.area_of(210, 160, 168) is None


def test_an_unequal_cv2_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version may round differently: the first use of a size compares."""
    monkeypatch.setattr(cv2, "resize", lambda screen, size, **_: np.ones(size, np.uint8))
    assert screens.area_of.__wrapped__(210, 160, 84) is None
