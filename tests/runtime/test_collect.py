"""From environments to rollouts, for one environment and for several."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Extras, Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.runtime.clock import RUNNING, Clock
from asyncrl.runtime.collect import Collector, Episode, for_environments
from asyncrl.runtime.normalize import Normalizer, RunMoments
from tests.support import COUNTING, Counting, FixedAgent


def collector_of(environments: list[Counting], t_max: int, gamma: float = 0.5) -> Collector:
    return Collector(environments, FixedAgent(), COUNTING, t_max, gamma, Clock(1, 10_000))


def returns_of(rollout: Rollout) -> np.ndarray:
    """Returns when V(s) is ten times the number in the observation."""
    next_values = rollout.next_values(rollout.observations[1:, :, 0] * 10, lambda final: final[..., 0] * 10)
    return lambda_returns(rollout.rewards, rollout.discounts, next_values, rollout.last).numpy()


def test_rollouts_run_on_within_an_episode() -> None:
    """The last observation of a rollout is the first of the next."""
    collector = collector_of([Counting(length=5, truncates=False)], t_max=2)

    first = next(collector).observations[:, 0, 0].tolist()
    second = next(collector).observations[:, 0, 0].tolist()

    assert (first, second) == ([0, 1, 2], [2, 3, 4])


def test_each_step_and_reset_of_an_environment_is_a_sign_of_life() -> None:
    """Nobody knows how long one takes: two environments are begun, make three steps each, and begin once more."""
    clock, beats = Clock(1, 10_000), []
    pulse = clock.pulse(0)

    def beat() -> None:
        clock.vouch(0, RUNNING, silence=1000.0)
        pulse()
        beats.append(clock.heartbeat_age(0))

    environments = [Counting(2, truncates=False) for _ in range(2)]
    next(Collector(environments, FixedAgent(), COUNTING, t_max=3, gamma=0.5, clock=clock, beat=beat))

    assert len(beats) == 2 + 2 * 3 + 2
    assert max(beats) < 500


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


def test_sarsas_look_ahead_action_is_taken_in_the_next_rollout() -> None:
    """The action chosen at the last observation is the first of the next rollout, and never chosen twice."""

    class Numbered(FixedAgent):
        calls = 0

        def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
            self.calls += 1
            return torch.full((len(observations),), self.calls), state, {}

    agent = Numbered()
    collector = Collector([Counting(10, truncates=False)], agent, COUNTING, 3, 0.5, Clock(1, 10_000), look_ahead=True)

    first = next(collector)
    seen = first.actions[:, 0].tolist(), first.next_actions[:, 0].tolist()  # type: ignore[index]
    second = next(collector)

    assert seen == ([1, 2, 3], [2, 3, 4])
    assert second.actions[:, 0].tolist() == [4, 5, 6]
    assert agent.calls == 7


def test_looking_ahead_keeps_the_memory_before_the_choice_and_its_extras() -> None:
    """The state counts observations, and the extra is what it was: three in each rollout, as without looking ahead."""

    class Remembering(FixedAgent):
        def initial_state(self, environments: int) -> State:
            return (torch.zeros(environments),)

        def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
            assert state is not None
            (seen,) = state
            return torch.zeros(len(seen), dtype=torch.int64), (seen + 1,), {"seen": seen}

    def told(look_ahead: bool) -> list[tuple[float, list[float]]]:
        one = Collector(
            [Counting(10, truncates=False)], Remembering(), COUNTING, 3, 0.5, Clock(1, 10_000), look_ahead, ["seen"]
        )
        return [(float(made.state[0]), made.extras["seen"][:, 0].tolist()) for made in itertools.islice(one, 3)]  # type: ignore[index]

    assert told(look_ahead=True) == told(look_ahead=False) == [(0, [0, 1, 2]), (3, [3, 4, 5]), (6, [6, 7, 8])]


def test_acting_builds_no_graph_and_leaves_rollouts_that_can_be_learnt_from() -> None:
    """`act` is called in inference mode, for the look-ahead too; what a rollout holds may be saved for a gradient."""

    class Asking(FixedAgent):
        def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
            asked.append(torch.is_inference_mode_enabled())
            return super().act(observations, state, steps)

    asked: list[bool] = []
    clock = Clock(1, 10_000)
    environments = [Counting(2, truncates=True)]
    collector = Collector(environments, Asking(), COUNTING, 4, 0.5, clock, look_ahead=True)
    rollout = next(collector)

    assert asked == [True] * 5
    assert not torch.is_inference_mode_enabled()
    weight = torch.ones(1, requires_grad=True)
    for part in (rollout.observations, rollout.final_observations, rollout.actions, rollout.next_actions):
        assert part is not None
        assert not part.is_inference()
    (rollout.observations * weight).sum().backward()  # type: ignore[no-untyped-call]


def test_vectors_are_clipped_to_the_box_only_for_the_environment() -> None:
    """The action that the gradient is about stays as it was drawn."""
    box = Spaces((1,), "float32", 0, (-1.0, -1.0), (1.0, 2.0))
    drawn = torch.tensor([[-3.0, 3.0], [0.5, 0.5]])

    given = [list(action) for action in for_environments(drawn, box)]

    assert given == [[-1.0, 2.0], [0.5, 0.5]]
    assert drawn.tolist() == [[-3.0, 3.0], [0.5, 0.5]]


def test_normalised_observations_and_reward_scale() -> None:
    """Two rollouts of 0..4: the second is seen with the moments of what was seen before; scores stay raw."""
    normalizer = Normalizer(RunMoments(1, observation_size=1), 0, (1,), returns=True, gamma=0.5)
    collector = Collector(
        [Counting(100, truncates=False, reward=7.0)], FixedAgent(), COUNTING, 4, 0.5, Clock(1, 10_000),
        normalizer=normalizer,
    )  # fmt: skip

    first = next(collector)
    assert first.observations[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert first.reward_scale == 1.0
    second = next(collector)

    # Acted on: 0, 1, 2, 3: mean 1.5, deviation sqrt(1.25). Discounted returns 7, 10.5, 12.25, 13.125.
    expected = [min((x - 1.5) / 1.25**0.5, 5) for x in (4, 5, 6, 7, 8)]
    assert second.observations[:, 0, 0].tolist() == pytest.approx(expected, rel=1e-5)
    assert second.reward_scale == pytest.approx(1 / np.std([7, 10.5, 12.25, 13.125]), rel=1e-5)
    assert second.rewards.tolist() == [[7.0]] * 4


def test_rewards_are_not_blown_up_before_there_are_any() -> None:
    """All returns zero: the scale stays 1."""
    normalizer = Normalizer(RunMoments(1, observation_size=1), 0, (), returns=True, gamma=0.5)

    for _ in range(50):
        normalizer.reward(np.zeros(2, np.float32), np.zeros(2, np.bool_), np.ones(2, np.bool_))
    normalizer.share(torch.zeros(50, 2, 1))
    normalizer.renew()

    assert normalizer.reward_scale == 1.0


class Careless(FixedAgent):
    """Returns what a test says; may write into what it is shown."""

    def __init__(self, actions: int, extras: Extras, writes: bool) -> None:
        super().__init__()
        self.actions, self.extras, self.writes = actions, extras, writes

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        if self.writes:
            observations.mul_(0.5)
        return torch.zeros(self.actions, dtype=torch.int64), state, self.extras


@pytest.mark.parametrize(
    ("actions", "extras", "writes", "line"),
    [
        (1, {"log": torch.zeros(2)}, False, "Careless.act returned 1 actions for 2 environments"),
        (2, {}, False, r"Careless.act returned the extras \[\], its class has \['log'\]"),
        (2, {"log": torch.zeros(2), "more": torch.zeros(2)}, False, r"the extras \['log', 'more'\], its class has"),
        (2, {"log": torch.zeros(2)}, True, "Careless.act changed the observations, which the loss needs"),
    ],
)
def test_what_act_returns_must_be_what_the_loss_relies_on(
    actions: int, extras: Extras, writes: bool, line: str
) -> None:
    """Otherwise the loss would compute with memory that nobody has written."""
    environments = [Counting(3, truncates=False) for _ in range(2)]
    agent = Careless(actions, extras, writes)
    collector = Collector(environments, agent, COUNTING, 2, 0.5, Clock(1, 100), extras=("log",))

    with pytest.raises(UsageError, match=line):
        next(collector)
