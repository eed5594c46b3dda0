"""The toys: their optimum, and what chance gets."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from asyncrl.core.errors import UsageError
from asyncrl.envs.pictures import BLUE, GREEN, RED, YELLOW
from asyncrl.envs.spec import EnvSpec
from asyncrl.envs.toy import Catch, Chain


def play(environment: Chain | Catch, actions: Any) -> tuple[float, int, bool]:
    """Return, length and whether the episode was truncated; `actions` yields as many as it takes."""
    environment.reset()
    total = 0.0
    for length, action in enumerate(actions, 1):
        _, reward, terminated, truncated, life_lost = environment.step(action)
        assert not life_lost
        total += reward
        if terminated or truncated:
            return total, length, truncated
    raise AssertionError("the episode did not end")


def test_the_chain_pays_1_after_seven_steps_to_the_right() -> None:
    """That is its optimum."""
    assert play(Chain(), [1] * 7) == (Chain.OPTIMUM, 7, False)


def test_the_chain_is_truncated_after_twelve_steps() -> None:
    """Walking against the left end gets nothing."""
    assert play(Chain(), [0] * 12) == (0.0, 12, True)


def test_the_chain_s_last_step_in_time_is_an_arrival() -> None:
    """Reaching the end with the twelfth step terminates: a truncation would bootstrap from the goal."""
    assert play(Chain(), [0] * 5 + [1] * 7) == (1.0, 12, False)


def test_the_chain_observes_its_position() -> None:
    """One-hot, and walking off the left end stays there."""
    environment = Chain(length=3)
    assert environment.reset().tolist() == [1.0, 0.0, 0.0]
    assert environment.step(0)[0].tolist() == [1.0, 0.0, 0.0]
    assert environment.step(1)[0].tolist() == [0.0, 1.0, 0.0]
    assert environment.step(1)[0].tolist() == [0.0, 0.0, 1.0]


def test_a_random_agent_fails_on_the_chain() -> None:
    """Counted over all 4096 sequences of twelve actions."""
    arrived = sum(play(Chain(), actions)[0] for actions in product((0, 1), repeat=12))
    assert arrived == 250
    assert Chain.RANDOM == 250 / 4096


def test_catch_pays_1_for_going_under_the_ball() -> None:
    """From the middle every column is within reach of nine steps."""
    environment = Catch(seed=1)
    columns = set()
    for _ in range(40):
        ball = int(environment.reset()[:45].argmax())
        columns.add(ball)
        moves = [0] * max(2 - ball, 0) + [2] * max(ball - 2, 0)
        total = 0.0
        for action in moves + [1] * (9 - len(moves)):
            _, reward, terminated, truncated, _ = environment.step(action)
            total += reward
        assert (total, terminated, truncated) == (Catch.OPTIMUM, True, False)
    assert columns == {0, 1, 2, 3, 4}


def test_a_random_agent_fails_at_catch() -> None:
    """The paddle is somewhere, the ball is in one of five columns: 1/5 - 4/5 = -0.6."""
    assert pytest.approx(1 / 5 - 4 / 5) == Catch.RANDOM
    environment, choice = Catch(seed=0), np.random.default_rng(0)
    returns = [play(environment, choice.integers(3, size=9).tolist())[0] for _ in range(1000)]
    assert np.mean(returns) == pytest.approx(-0.6, abs=0.08)


def test_the_ball_falls_one_row_a_step() -> None:
    """The board is a vector of ten rows of five."""
    environment = Catch(seed=0)
    observation = environment.reset()
    assert observation.sum() == 2.0
    column = int(observation[:45].argmax())
    assert observation[45:].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    observation = environment.step(0)[0]
    assert int(observation[:45].argmax()) == 5 + column
    assert observation[45:].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("toy", [Chain, Catch])
def test_a_stored_toy_goes_on_exactly(toy: type[Chain | Catch]) -> None:
    """Also through the episodes that follow."""
    one, other = toy(seed=0), toy(seed=5)
    for _ in range(3):
        play(one, [1] * 9)
    one.reset()
    one.step(1)
    other.restore(one.state())
    for action in [0, 1] * 50:
        observation, *rest = one.step(action)
        expected, *expected_rest = other.step(action)
        assert np.array_equal(observation, expected)
        assert rest == expected_rest
        if rest[1] or rest[2]:
            assert np.array_equal(one.reset(), other.reset())


def test_a_toy_takes_its_own_settings() -> None:
    """The length of the chain, and the shorter of the two limits."""
    environment = EnvSpec("Chain", env_kwargs=("length=4", "limit=6"), max_episode_steps=5).make(0, False)
    assert isinstance(environment, Chain)
    assert play(environment, [0] * 5) == (0.0, 5, True)
    assert play(environment, [1] * 3) == (1.0, 3, False)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (EnvSpec("Chain", env_kwargs=("depth=4",)), "Chain could not be made: TypeError: .*'depth'"),
        (EnvSpec("Chain", env_kwargs=("length=1000000000000000",)), "Chain could not be made: .*"),
        (EnvSpec("Chain", env_kwargs=("length=1",)), "Chain needs a length of at least 2"),
        (EnvSpec("Catch", env_kwargs=("limit=0",)), "Catch needs a limit of at least 1"),
    ],
)
def test_a_wrong_setting_of_a_toy_gets_one_line(spec: EnvSpec, line: str) -> None:
    """As for every environment."""
    with pytest.raises(UsageError, match=line):
        spec.probe()


def test_a_picture_shows_where_the_ball_falls_and_how_it_ends() -> None:
    """A cell has 40 pixels. The ball is yellow on its way, green when it is caught and red when it is not."""
    environment = Catch(seed=1)
    environment.reset()
    column = environment.state()["column"]

    def colour(row: int, column: int) -> tuple[int, ...]:
        return tuple(environment.picture()[40 * row + 15, 40 * column + 20].tolist())

    assert environment.picture().shape == (400, 200, 3)
    assert colour(0, column) == YELLOW
    for _ in range(8):
        environment.step(1 + int(np.sign(column - environment.state()["paddle"])))
    assert colour(8, column) == YELLOW
    before = environment.state()
    environment.step(1)
    assert colour(9, column) == GREEN
    environment.restore(before | {"paddle": (column + 2) % 5})
    environment.step(1)
    assert colour(9, column) == RED


def test_a_picture_of_the_chain_shows_the_agent_and_the_goal() -> None:
    """Also with the agent in it."""
    environment = Chain(length=3)
    environment.reset()
    assert environment.picture().shape == (40, 120, 3)
    assert tuple(environment.picture()[15, 20]) == BLUE
    environment.step(1)
    environment.step(1)
    picture = environment.picture()
    assert tuple(picture[15, 100]) == BLUE
    assert tuple(picture[20, 85]) == GREEN
