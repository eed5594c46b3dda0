"""The Atari environment: the pixels of Gymnasium, without its restarts."""

from __future__ import annotations

import io
import pickle
from contextlib import redirect_stdout
from typing import Any

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from numpy.typing import NDArray

from asyncrl.core.errors import UsageError
from asyncrl.envs.atari import AtariEnvironment, find_game, games
from asyncrl.envs.screens import Shrinker
from asyncrl.envs.spec import EnvSpec


def make(env_id: str = "ALE/Pong-v5", seed: int = 3, evaluation: bool = False, **settings: Any) -> AtariEnvironment:
    environment = EnvSpec(env_id, **settings).make(seed, evaluation)
    assert isinstance(environment, AtariEnvironment)
    return environment


def make_reference(spec: EnvSpec) -> gymnasium.Env[NDArray[np.uint8], int]:
    gymnasium.register_envs(ale_py)
    game = gymnasium.make(
        spec.env_id,
        frameskip=1,
        repeat_action_probability=spec.sticky_actions,
        full_action_space=spec.full_action_space,
    )
    pictures = AtariPreprocessing(
        game, noop_max=spec.noop_max, frame_skip=spec.frames_per_step, screen_size=spec.pixels
    )
    return FrameStackObservation(pictures, spec.frames_per_observation, padding_type="zero")


def assert_same_episodes(spec: EnvSpec, episodes: int, longest: int = 10_000) -> int:
    """Play random episodes in both, comparing every observation, reward and end; returns how many ended by itself."""
    reference = make_reference(spec)
    environment = spec.make(seed=7, evaluation=False)
    choice = np.random.default_rng(1)
    ended = 0
    for episode in range(episodes):
        expected, _ = reference.reset(seed=7 if episode == 0 else None)
        assert np.array_equal(environment.reset(), expected)
        for _ in range(longest):
            action = int(choice.integers(reference.action_space.n))  # type: ignore[attr-defined]
            expected, expected_reward, expected_end, _, _ = reference.step(action)
            observation, reward, terminated, truncated, life_lost = environment.step(action)
            assert np.array_equal(observation, expected)
            assert (reward, terminated, truncated, life_lost) == (expected_reward, expected_end, False, False)
            if terminated:
                ended += 1
                break
    reference.close()
    return ended


@pytest.mark.parametrize(("game", "episodes"), [("Pong", 1), ("Breakout", 3), ("SpaceInvaders", 2)])
def test_whole_episodes_are_pixel_identical_to_gymnasium(game: str, episodes: int) -> None:
    """Same seed and actions: every observation, reward and end is the one of Gymnasium's wrappers, to the last step."""
    assert assert_same_episodes(EnvSpec(f"ALE/{game}-v5", image_size=84), episodes) == episodes


@pytest.mark.parametrize(
    "settings",
    [
        {"frame_skip": 1},
        {"frame_skip": 2},
        {"frame_skip": 3, "image_size": 80},
        {"sticky_actions": 0.25},
        {"noop_max": 0},
        {"full_action_space": True},
        {"image_size": 64, "frame_stack": 1},
        {"image_size": 105, "frame_stack": 2},
        {"image_size": 180},
    ],
    ids=str,
)
def test_other_settings_are_pixel_identical_too(settings: dict[str, Any]) -> None:
    """Also where bands of rows cannot be shrunk one by one, and where the stack is a single image."""
    assert_same_episodes(EnvSpec("ALE/Breakout-v5", **settings), episodes=1, longest=120)


@pytest.mark.parametrize(("height", "size"), [(210, 84), (210, 80), (210, 42), (210, 83), (250, 84), (250, 100)])
def test_shrinking_the_changed_rows_equals_shrinking_the_screen(height: int, size: int) -> None:
    """For every single row that may change, including the first and the last."""
    random = np.random.default_rng(0)
    shrinker = Shrinker(height, 160, size)
    before = random.integers(256, size=(height, 160), dtype=np.uint8)
    image_before, image = np.zeros((2, size, size), np.uint8)
    shrinker.whole(before, image_before)
    for row in range(height):
        screen = before.copy()
        screen[row, random.integers(160)] ^= 255
        shrinker.changes(before, screen, image_before, image)
        assert np.array_equal(image, cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA))
    shrinker.changes(before, before, image_before, image)
    assert np.array_equal(image, image_before)


def play_breakout(environment: AtariEnvironment) -> tuple[list[float], int, int]:
    """A random game: its rewards, lost lives reported and steps."""
    choice = np.random.default_rng(0)
    environment.reset()
    rewards, lost = [], 0
    while True:
        _, reward, terminated, truncated, life_lost = environment.step(int(choice.integers(4)))
        rewards.append(reward)
        lost += life_lost
        if terminated or truncated:
            return rewards, lost, len(rewards)


def test_a_lost_life_is_reported_and_the_game_goes_on() -> None:
    """Breakout's five lives: four are reported as lost, the fifth ends the game, and nothing else changes."""
    rewards, lost, steps = play_breakout(make("ALE/Breakout-v5", life_loss=True))
    assert lost == 4
    assert (rewards, 0, steps) == play_breakout(make("ALE/Breakout-v5", life_loss=False))


def test_evaluation_plays_the_whole_game() -> None:
    """A lost life is not reported to the evaluator."""
    assert play_breakout(make("ALE/Breakout-v5", life_loss=True, evaluation=True))[1] == 0


def test_actions_are_not_sticky_unless_asked_for() -> None:
    """The emulator's own default is 0.25, the one that ALE/...-v5 stands for in Gymnasium; ours is stated."""
    assert make()._ale.getFloat("repeat_action_probability") == 0.0
    assert make(sticky_actions=0.25)._ale.getFloat("repeat_action_probability") == 0.25


def test_an_episode_begins_with_1_to_30_frames_without_action() -> None:
    """And the number differs from episode to episode."""
    environment = make()
    frames = []
    for _ in range(60):
        environment.reset()
        frames.append(environment._ale.getEpisodeFrameNumber())
    start = make(noop_max=0)
    start.reset()
    noops = np.array(frames) - start._ale.getEpisodeFrameNumber()
    assert noops.min() >= 1
    assert noops.max() <= 30
    assert len(set(noops.tolist())) > 15


def test_the_first_observation_is_one_image_on_a_stack_of_zeros() -> None:
    """Oldest first, also after an episode has filled the ring of images several times."""
    environment = make()
    for _ in range(2):
        observation = environment.reset()
        assert observation[:3].max() == 0
        assert observation[3].max() > 0
        for _ in range(40):
            earlier = observation.copy()
            observation = environment.step(2)[0]
            assert np.array_equal(observation[:3], earlier[1:])
            assert observation.flags.c_contiguous


def test_the_step_limit_truncates_with_the_last_image_of_the_episode() -> None:
    """The capped episode shows at its end what the uncapped one shows at that step."""
    capped, free = make(max_episode_steps=5), make()
    capped.reset()
    free.reset()
    for step in range(1, 6):
        observation, _, terminated, truncated, _ = capped.step(3)
        assert np.array_equal(observation, free.step(3)[0])
        assert (terminated, truncated) == (False, step == 5)
    with pytest.raises(RuntimeError, match="reset"):
        capped.step(3)


def test_an_episode_is_capped_at_half_an_hour_of_play() -> None:
    """108,000 frames, whatever the frame skip: 27,000 steps at the usual one."""
    assert make()._max_episode_steps == 27_000
    assert make(frame_skip=1)._max_episode_steps == 108_000
    assert make(frame_skip=7)._max_episode_steps * 7 <= 108_000


@pytest.mark.parametrize("action", [-1, 6, 99])
def test_an_action_that_does_not_exist_is_refused(action: int) -> None:
    """A negative one too, which would silently count from the end of a list."""
    environment = make()
    environment.reset()
    with pytest.raises(ValueError, match="actions 0 to 5"):
        environment.step(action)


def test_the_older_id_without_frame_skip_is_the_same_environment() -> None:
    """Frame skip and sticky actions are settings here, not part of the id."""
    old, new = make("PongNoFrameskip-v4"), make("ALE/Pong-v5")
    assert np.array_equal(old.reset(), new.reset())
    for action in (2, 3, 2, 2):
        assert np.array_equal(old.step(action)[0], new.step(action)[0])


@pytest.mark.parametrize("sticky_actions", [0.0, 0.5])
def test_a_stored_state_goes_on_exactly_in_another_environment(sticky_actions: float) -> None:
    """Pixels, rewards, sticky actions and the no-ops of the next episodes; the state survives pickling."""
    spec = EnvSpec("ALE/Breakout-v5", sticky_actions=sticky_actions, life_loss=True, max_episode_steps=400)
    one, other = spec.make(3, False), spec.make(4, False)
    assert isinstance(one, AtariEnvironment)
    assert isinstance(other, AtariEnvironment)
    choice = np.random.default_rng(0)
    one.reset()
    other.reset()
    for _ in range(37):
        one.step(int(choice.integers(4)))
    other.restore(pickle.loads(pickle.dumps(one.state())))
    episodes = 0
    for action in choice.integers(4, size=600).tolist():
        observation, *rest = one.step(action)
        expected, *expected_rest = other.step(action)
        assert np.array_equal(observation, expected)
        assert rest == expected_rest
        if rest[1] or rest[2]:
            episodes += 1
            assert np.array_equal(one.reset(), other.reset())
    assert episodes >= 1


def test_a_stored_state_does_not_change_when_the_game_goes_on() -> None:
    """It holds copies, not views of the ring."""
    environment = make()
    environment.reset()
    state = environment.state()
    stack = state["stack"].copy()
    for _ in range(20):
        environment.step(2)
    assert np.array_equal(state["stack"], stack)


def test_mode_and_difficulty_reach_the_game() -> None:
    """They are the emulator's, given in env_kwargs."""
    one = make("ALE/Breakout-v5", env_kwargs=("mode=12", "difficulty=1"))
    other = make("ALE/Breakout-v5")
    assert not np.array_equal(one.reset(), other.reset())


def test_nothing_is_printed_when_an_environment_is_made(capfd: pytest.CaptureFixture[str]) -> None:
    """The emulator's banner would appear once per worker."""
    with redirect_stdout(io.StringIO()) as printed:
        make().reset()
    captured = capfd.readouterr()
    assert printed.getvalue() + captured.out + captured.err == ""


def test_every_game_has_an_id() -> None:
    """Names are written as Gymnasium writes them; games for two players only are left out."""
    assert find_game("ALE/SpaceInvaders-v5") == "space_invaders"
    assert find_game("ale_py:ALE/TicTacToe3D-v5") == "tic_tac_toe_3d"
    registered = {name.split("/")[1][:-3] for name in gymnasium.registry if name.startswith("ALE/")}
    assert set(games()) == registered


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (EnvSpec("ALE/Pog-v5"), "no Atari game for the id ALE/Pog-v5: did you mean ALE/Pong-v5"),
        (EnvSpec("ALE/spaceinvaders-v5"), r"did you mean ALE/SpaceInvaders-v5\?"),
        (EnvSpec("ALE/Pong"), "did you mean ALE/Pong-v5"),
        (EnvSpec("ALE/Xyzzy-v5"), "ids are like ALE/Pong-v5"),
        (EnvSpec("ALE/Combat-v5"), "no Atari game for the id ALE/Combat-v5"),
        (EnvSpec("ALE/Pong-v4"), "ALE/Pong-v4 is not supported: use ALE/Pong-v5"),
        (EnvSpec("PongDeterministic-v4"), "PongDeterministic-v4 is no longer part of ale-py: use ALE/Pong-v5"),
        (EnvSpec("PongNoFrameskip-v0"), "implies sticky actions: use ALE/Pong-v5 with sticky_actions 0.25"),
        (EnvSpec("Pong-ram-v4"), "observes the memory, not the screen, which is not supported: use ALE/Pong-v5"),
        (EnvSpec("ALE/Pong-ram-v5"), "observes the memory"),
        (EnvSpec("Pong-ramNoFrameskip-v4"), "observes the memory"),
        (EnvSpec("ALE/Pong-v5", env_kwargs=("frameskip=1",)), "not frameskip; set frame_skip instead"),
        (EnvSpec("ALE/Pong-v5", env_kwargs=("colour=1",)), "takes mode and difficulty in env_kwargs, not colour$"),
        (EnvSpec("ALE/Pong-v5", env_kwargs=("mode=77",)), "pong has no mode 77; it has 0, 1"),
        (EnvSpec("ALE/Pong-v5", env_kwargs=("difficulty=9",)), "pong has no difficulty 9; it has 0, 1"),
    ],
    ids=lambda value: value.env_id if isinstance(value, EnvSpec) else "",
)
def test_a_wrong_atari_id_or_setting_gets_one_line_with_a_remedy(spec: EnvSpec, line: str) -> None:
    """The remedy names an id that exists."""
    with pytest.raises(UsageError, match=line) as caught:
        spec.probe()
    assert "\n" not in str(caught.value)
