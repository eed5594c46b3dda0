"""REINFORCE's loss by hand, and rollouts that are episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncrl import reinforce
from asyncrl.core.distributions import Categorical
from asyncrl.core.errors import UsageError
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.moments import mean_and_deviation
from asyncrl.core.rollout import Rollout, State
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.normalize import Normalizer, RunMoments
from tests.algorithms.tables import rollout_of
from tests.support import COUNTING, Counting, FixedAgent


class Coin(nn.Module):
    """Logits (0, l) whatever the state, and a baseline b in its unit."""

    def __init__(self, baseline: float = 0.0) -> None:
        super().__init__()
        self.value = reinforce.RunningBaseline()
        self.value.baseline.data.fill_(baseline / reinforce.BASELINE_UNIT)
        self.logit = nn.Parameter(torch.zeros(1))

    def forward(
        self, observations: Tensor, state: State = None, last: Tensor | None = None
    ) -> tuple[Categorical, Tensor, State]:
        number = 0 * observations[..., 0]
        return Categorical(torch.stack([number, self.logit + number], -1)), self.value(observations).squeeze(-1), None


def gradients(rollout: Rollout, baseline: float = 0.0, **settings: Any) -> list[float]:
    """Of the logit, and of the baseline in its unit."""
    plain = {"entropy_weights": (0.0,), "gamma": 0.5, "normalize_advantages": False}
    network = Coin(baseline)
    agent = reinforce.Reinforce(
        reinforce.Reinforce.Config(**(plain | settings)), network, None, "worker", 0, torch.Generator()
    )  # type: ignore[arg-type]
    flat = flatten_parameters(network)
    return gradient_of(agent.loss(rollout)[0], list(network.parameters()), torch.empty_like(flat)).tolist()


EPISODE = rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.0])
"""Two steps, rewards 1 and 1: G_1 = 1, G_0 = 1 + 1/2."""


def test_an_episode_by_hand() -> None:
    """Both actions have probability 1/2: d/dl of -G log pi is G/2 for action 0, -G/2 for action 1.

    0.75 - 0.5 = 0.25. Baseline, in units of 50: d/dp of 0.5 [(0.03 - p)^2 + (0.02 - p)^2] at p = 0 is -0.05.
    """
    assert gradients(EPISODE) == pytest.approx([0.25, -0.05])


def test_the_baseline_is_taken_off_and_runs_after_the_returns() -> None:
    """b = 1: advantages 0.5 and 0, so 0.25; (0.03 - 0.02) and (0.02 - 0.02) give -0.01."""
    assert gradients(EPISODE, baseline=1.0) == pytest.approx([0.25, -0.01])


def test_nothing_follows_the_end_of_a_piece() -> None:
    """An episode that was cut at t_max has the returns of what was seen; no value stands for the rest."""
    cut = rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.5])

    assert gradients(cut) == gradients(EPISODE)


def test_padding_counts_for_nothing_and_episodes_are_averaged() -> None:
    """Beside the episode above one of a single step, action 0, reward 2: G = 2, so 1 and -0.04; its second row is none.

    Halves of the sums: (0.25 + 1) / 2 and -(0.05 + 0.04) / 2.
    """
    both = rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.0], environments=2)
    both.rewards[:, 1] = torch.tensor([2.0, 77.0])
    both.discounts[:, 1] = 0.0
    both.last[:, 1] = True
    padded = replace(both, lengths=torch.tensor([2, 1]))

    assert padded.steps == 3
    assert gradients(padded) == pytest.approx([0.625, -0.045])


def test_the_advantage_of_a_single_step_is_not_normalised_away() -> None:
    """G = 1 with action 0 of two: d/dl of -log pi is 1/2."""
    single = rollout_of([1, 2], [0], [1], [0.0])

    assert gradients(single, normalize_advantages=True) == gradients(single) == pytest.approx([0.5, -0.02])


def test_returns_are_of_whole_episodes() -> None:
    """No other lambda."""
    with pytest.raises(UsageError, match="--gae-lambda must be 1"):
        reinforce.Reinforce.Config(gae_lambda=0.9)


def collector_of(lengths: tuple[int, ...], t_max: int, normalizer: Normalizer | None = None) -> Collector:
    environments = [Counting(length, truncates=False, start=10.0 * e) for e, length in enumerate(lengths)]
    return Collector(
        environments, FixedAgent(), COUNTING, t_max, 0.9, Clock(1, 1000), normalizer=normalizer, whole_episodes=True
    )  # type: ignore[arg-type]


def test_a_rollout_is_one_episode_of_each_environment() -> None:
    """Who has ended waits at the beginning of its next episode; every episode is seen from its first to its last."""
    collector = collector_of((2, 3), t_max=10)

    for _ in range(3):
        rollout = next(collector)

        assert rollout.rewards.shape == (3, 2)
        assert rollout.lengths is not None
        assert rollout.lengths.tolist() == [2, 3]
        assert rollout.steps == 5
        assert rollout.played.tolist() == [[True, True], [True, True], [False, True]]
        assert rollout.observations[..., 0].tolist() == [[0, 10], [1, 11], [0, 12], [0, 10]]
        assert rollout.rewards.tolist() == [[1, 1], [1, 1], [0, 1]]
        assert rollout.last.tolist() == [[False, False], [True, False], [True, True]]
    assert [episode.length for episode in collector.episodes] == [2, 3] * 3


def test_a_longer_episode_goes_on_in_the_next_rollout() -> None:
    """At most t_max steps; the others begin their next episode meanwhile."""
    collector = collector_of((2, 5), t_max=4)

    first = next(collector)
    assert first.lengths is not None
    assert first.lengths.tolist() == [2, 4]
    assert first.observations[:, 1, 0].tolist() == [10, 11, 12, 13, 14]
    assert not first.last[-1, 1]
    second = next(collector)

    assert second.lengths is not None
    assert second.lengths.tolist() == [2, 1]
    assert second.observations[:, 1, 0].tolist() == [14, 10, 10]
    assert second.last[:, 1].tolist() == [True, True]
    assert [episode.length for episode in collector.episodes] == [2, 5, 2]


def test_moments_are_of_what_was_played() -> None:
    """Observations and discounted returns of 5 steps, not of the row that was waited."""
    moments = RunMoments(1, 1)
    next(collector_of((2, 3), 10, Normalizer(moments, 0, (1,), True, 0.9)))

    observations, returns = moments.observations.merged(), moments.returns.merged()
    assert observations[0] == returns[0] == 5
    assert mean_and_deviation(observations)[0] == pytest.approx(np.mean([0, 1, 10, 11, 12]))
    assert mean_and_deviation(returns)[0] == pytest.approx(np.mean([1, 1.9, 1, 1.9, 2.71]))


@pytest.mark.parametrize("steps", [20, 300, 1000])
def test_the_papers_preset_keeps_the_baseline_stable_for_episodes_of_any_length(steps: int) -> None:
    """Reward 1 per step: the mean of what is still earned is (steps + 1) / 2, and an episode moves b towards it.

    By 2 learning_rate value_cost steps of its distance: 0.8 %, 12 % and 40 %.
    """
    preset = {**reinforce.Reinforce.preset("paper", COUNTING), "t_max": 1000}
    config = reinforce.Reinforce.Config(**preset)
    ends = [1.0] * (steps - 1) + [0.0]
    rollout = rollout_of([0] * (steps + 1), [0] * steps, [1.0] * steps, ends)
    network, mean = Coin(), (steps + 1) / 2 / reinforce.BASELINE_UNIT
    agent = reinforce.Reinforce(config, network, None, "worker", 0, torch.Generator())  # type: ignore[arg-type]
    distances = [mean]
    for _ in range(10):
        loss, _ = agent.loss(rollout)
        (gradient,) = torch.autograd.grad(loss, [network.value.baseline])
        network.value.baseline.data -= config.learning_rate * gradient
        distances.append(mean - network.value.baseline.item())

    kept = 1 - 2 * config.learning_rate * config.value_cost * steps
    assert distances == pytest.approx([mean * kept**n for n in range(11)], rel=1e-3, abs=1e-4)
    assert abs(distances[-1]) < mean
