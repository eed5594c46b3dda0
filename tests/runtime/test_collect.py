"""From environments to rollouts, for one environment and for several."""

from __future__ import annotations

import numpy as np
import pytest

from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Rollout
from asyncrl.runtime.collect import Collector, Episode
from asyncrl.runtime.progress import Progress
from tests.support import COUNTING, Counting, FixedAgent


def collector_of(environments: list[Counting], t_max: int, gamma: float = 0.5) -> Collector:
    return Collector(environments, FixedAgent(), COUNTING, t_max, gamma, Progress(1, 10_000))


def returns_of(rollout: Rollout) -> np.ndarray:
    """Returns when V(s) is ten times the number in the observation."""
    following = rollout.observations[1:, :, 0].numpy() * 10
    finals = None if rollout.final_observations is None else rollout.final_observations[:, 0].numpy() * 10
    next_values = rollout.next_values(following, finals)
    return lambda_returns(rollout.rewards, rollout.discounts, next_values, rollout.last)


def test_rollouts_run_on_within_an_episode() -> None:
    """The last observation of a rollout is the first of the next."""
    collector = collector_of([Counting(length=5, truncates=False)], t_max=2)

    first = next(collector).observations[:, 0, 0].tolist()
    second = next(collector).observations[:, 0, 0].tolist()

    assert (first, second) == ([0, 1, 2], [2, 3, 4])


@pytest.mark.parametrize("environments", [1, 2, 3])
def test_termination_does_not_bootstrap(environments: int) -> None:
    """Length 3, t_max 4, V = 10 x: R_2 = 1, R_1 = 1.5, R_0 = 1.75; the next episode's R_3 = 1 + 0.5 * 10 = 6."""
    rollout = next(collector_of([Counting(3, truncates=False) for _ in range(environments)], t_max=4))

    assert rollout.discounts[:, 0].tolist() == [0.5, 0.5, 0.0, 0.5]
    assert rollout.final_observations is None
    for e in range(environments):
        assert returns_of(rollout)[:, e].tolist() == [1.75, 1.5, 1.0, 6.0]


@pytest.mark.parametrize("environments", [1, 2, 3])
def test_truncation_bootstraps_from_the_last_real_observation(environments: int) -> None:
    """The same, cut by a time limit at observation 3, V = 30: R_2 = 1 + 15 = 16, R_1 = 9, R_0 = 5.5."""
    rollout = next(collector_of([Counting(3, truncates=True) for _ in range(environments)], t_max=4))

    assert rollout.discounts[:, 0].tolist() == [0.5, 0.5, 0.5, 0.5]
    assert rollout.final_observations is not None
    assert rollout.final_observations[:, 0].tolist() == [3.0] * environments
    assert rollout.observations[3, :, 0].tolist() == [0.0] * environments
    for e in range(environments):
        assert returns_of(rollout)[:, e].tolist() == [5.5, 9.0, 16.0, 6.0]


def test_each_environment_ends_where_it_ends() -> None:
    """One terminates at step 2, the other is truncated at step 3; neither disturbs the other."""
    rollout = next(collector_of([Counting(2, truncates=False), Counting(3, truncates=True)], t_max=3))

    assert rollout.last.T.tolist() == [[False, True, False], [False, False, True]]
    assert rollout.discounts.T.tolist() == [[0.5, 0.0, 0.5], [0.5, 0.5, 0.5]]
    assert [x.tolist() for x in rollout.truncated] == [[2], [1]]
    assert returns_of(rollout).T.tolist() == [[1.5, 1.0, 6.0], [1.75 + 30 / 8, 1.5 + 30 / 4, 1.0 + 30 / 2]]


def test_episodes_are_reported_raw_and_across_rollouts() -> None:
    """Rewards of 7 are not clipped: an episode of three steps scores 21."""
    collector = collector_of([Counting(3, truncates=False, reward=7.0)], t_max=2)

    for _ in range(3):
        rollout = next(collector)

    assert collector.episodes == [Episode(21.0, 3), Episode(21.0, 3)]
    assert rollout.rewards.tolist() == [[7.0], [7.0]]


class LosesALife(Counting):
    """A life is lost in every second step; the game goes on."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, bool]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.at % 2 == 0


def test_a_lost_life_ends_the_return_but_not_the_game() -> None:
    """The discount is 0, the observations run on, no episode is reported."""
    collector = collector_of([LosesALife(10, truncates=False)], t_max=3)

    rollout = next(collector)

    assert rollout.discounts[:, 0].tolist() == [0.5, 0.0, 0.5]
    assert rollout.observations[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert collector.episodes == []
