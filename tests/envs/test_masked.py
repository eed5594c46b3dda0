"""What `asyncrl.envs.masked` hides and what it leaves."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from asyncrl.core.errors import UsageError
from asyncrl.core.spaces import Spaces
from asyncrl.envs.masked import hide
from asyncrl.envs.spec import EnvSpec

HIDE = "asyncrl.envs.masked:hide"
WITHOUT_VELOCITIES = ("env_id=CartPole-v1", "components=(1, 3)")


def test_cartpole_without_velocities_is_cartpole_but_for_the_hidden_components() -> None:
    whole = gymnasium.make("CartPole-v1")
    part = hide("CartPole-v1", (1, 3))
    pairs = [(whole.reset(seed=3)[0], part.reset(seed=3)[0])]
    for action in (0, 1, 1, 0, 1):
        (seen, *rest), (left, *same) = whole.step(action), part.step(action)
        assert rest[:3] == same[:3]
        pairs.append((seen, left))
    for seen, left in pairs:
        np.testing.assert_array_equal(left, seen[[0, 2]])
        assert part.observation_space.contains(left)


def test_the_time_limit_of_the_environment_stays() -> None:
    assert hide("CartPole-v1", (1, 3), max_episode_steps=7).get_wrapper_attr("_max_episode_steps") == 7


def test_a_run_can_name_it_as_a_factory() -> None:
    assert EnvSpec(HIDE, WITHOUT_VELOCITIES).probe() == Spaces((2,), "float32", 2)


@pytest.mark.parametrize("components", [(4,), (-1,), (0, 1, 2, 3)])
def test_components_that_are_not_there_and_hiding_everything_are_refused(components: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="of the components 0 to 3"):
        hide("CartPole-v1", components)


def test_what_is_no_vector_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"hide\(\) failed: .*only components of a vector can be hidden"):
        EnvSpec(HIDE, ("env_id=FrozenLake-v1", "components=(0,)")).probe()
