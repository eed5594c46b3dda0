"""One-step Q, one-step Sarsa and n-step Q: targets and gradients by hand, and which parameters they reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asyncrl.algorithm import Algorithm
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.rollout import Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.n_step_q import NStepQ
from asyncrl.one_step_q import OneStepQ
from asyncrl.one_step_sarsa import OneStepSarsa

SPACES = Spaces(observation_shape=(1,), observation_dtype="float32", actions=2)
ALGORITHMS = [OneStepQ, OneStepSarsa, NStepQ]


class Line(nn.Module):
    """Q(s, 0) = w s and Q(s, 1) = u s."""

    def __init__(self, w: float, u: float) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.tensor([w])), nn.Parameter(torch.tensor([u]))

    def forward(self, observations: Tensor, state: State = None, last: Tensor | None = None) -> tuple[Tensor, State]:
        return torch.cat([observations * self.w, observations * self.u], -1), None


def gradient(algorithm: type[Algorithm], rollout: Rollout, target: Line | None = None, **settings: Any) -> list[float]:
    """d loss / d (w, u) at w = 1, u = 2, with theta^- at w = 10, u = 20 unless another target is given."""
    settings = {
        "reward_clip": 0.0,
        "gamma": 0.5,
        "exploration": "equal",
        "epsilons": (0.5,),
        "exploration_steps": 0,
    } | settings
    network, target = Line(1.0, 2.0), target or Line(10.0, 20.0)
    agent = algorithm(algorithm.Config(**settings), network, target, "worker", 0, torch.Generator())
    flat = flatten_parameters(network)
    before = [p.clone() for p in target.parameters()]
    result: list[float] = gradient_of(
        agent.loss(rollout)[0], list(network.parameters()), torch.empty_like(flat)
    ).tolist()
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))
    assert all(p.grad is None for p in target.parameters())
    return result


def rollout_of(
    states: list[float],
    actions: list[int],
    rewards: list[float],
    *,
    terminal: int | None = None,
    cut: tuple[int, float] | None = None,
    environments: int = 1,
) -> Rollout:
    """A rollout in which step `terminal` ends an episode, or step `cut[0]` is truncated at state `cut[1]`.

    `actions` has one more entry than there are steps: the action after the last observation.
    """
    steps = len(rewards)
    discounts, last = torch.full((steps, 1), 0.5), torch.zeros(steps, 1, dtype=torch.bool)
    if terminal is not None:
        discounts[terminal], last[terminal] = 0.0, True
    if cut is not None:
        last[cut[0]] = True
    chosen = torch.tensor(actions)[:, None].repeat(1, environments)
    return Rollout(
        observations=torch.tensor(states)[:, None, None].repeat(1, environments, 1),
        actions=chosen[:-1],
        rewards=torch.tensor(rewards)[:, None].repeat(1, environments),
        discounts=discounts.repeat(1, environments),
        last=last.repeat(1, environments),
        truncated=(
            torch.tensor([cut[0]] * environments if cut else [], dtype=torch.int64),
            torch.tensor(range(environments) if cut else [], dtype=torch.int64),
        ),
        final_observations=torch.full((environments, 1), cut[1]) if cut else None,
        next_actions=chosen[1:],
    )


PLAIN = ([1.0, 2.0, 3.0], [0, 1, 0], [1.0, 1.0])
"""States 1, 2, 3; actions 0, 1 and then 0; rewards 1, 1. Q(1, 0) = 1 and Q(2, 1) = 4."""


@pytest.mark.parametrize("environments", [1, 3])
def test_one_step_q_by_hand(environments: int) -> None:
    """y_0 = 1 + 0.5 max(20, 40) = 21, y_1 = 1 + 0.5 max(30, 60) = 31.

    d/dw: -2 (21 - 1) * 1 = -40. d/du: -2 (31 - 4) * 2 = -108.
    """
    assert gradient(OneStepQ, rollout_of(*PLAIN, environments=environments)) == [-40.0, -108.0]


def test_one_step_sarsa_uses_the_action_really_taken_next() -> None:
    """y_0 = 1 + 0.5 Q^-(2, 1) = 21; y_1 = 1 + 0.5 Q^-(3, 0) = 16, where Q-learning has 31.

    d/dw = -40. d/du: -2 (16 - 4) * 2 = -48.
    """
    assert gradient(OneStepSarsa, rollout_of(*PLAIN)) == [-40.0, -48.0]


def test_n_step_q_by_hand() -> None:
    """R_1 = 1 + 0.5 max(30, 60) = 31, R_0 = 1 + 0.5 * 31 = 16.5; d/dw: -2 (16.5 - 1) = -31; d/du = -108."""
    assert gradient(NStepQ, rollout_of(*PLAIN)) == [-31.0, -108.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_terminal_step_looks_no_further(algorithm: type[Algorithm]) -> None:
    """The last step terminates: its target is its reward 1; d/du: -2 (1 - 4) * 2 = 12."""
    assert gradient(algorithm, rollout_of(*PLAIN, terminal=1))[1] == 12.0


def test_an_episode_that_ends_inside_a_rollout_does_not_leak_into_the_one_before() -> None:
    """Step 0 terminates: y_0 = 1 for all, so d/dw = -2 (1 - 1) = 0; the next episode's step is as ever."""
    assert gradient(OneStepQ, rollout_of(*PLAIN, terminal=0)) == [0.0, -108.0]
    assert gradient(OneStepSarsa, rollout_of(*PLAIN, terminal=0)) == [0.0, -48.0]
    assert gradient(NStepQ, rollout_of(*PLAIN, terminal=0)) == [0.0, -108.0]


@pytest.mark.parametrize("algorithm", [OneStepQ, NStepQ])
def test_a_truncated_episode_bootstraps_from_its_last_observation(algorithm: type[Algorithm]) -> None:
    """Cut after step 1 at state 5: target 1 + 0.5 max(50, 100) = 51; d/du: -2 (51 - 4) * 2 = -188."""
    assert gradient(algorithm, rollout_of(*PLAIN, cut=(1, 5.0)))[1] == -188.0


def test_sarsa_expects_over_its_policy_where_no_action_followed() -> None:
    """Cut at state 5, epsilon 1/2, best action 1: 0.25 * 50 + 0.75 * 100 = 87.5; 1 + 43.75; d/du = -163."""
    assert gradient(OneStepSarsa, rollout_of(*PLAIN, cut=(1, 5.0)))[1] == -163.0


def test_double_q_lets_theta_choose_and_the_target_value() -> None:
    """theta prefers action 1 (2 s), theta^- has Q^-(s, 0) = 10 s above Q^-(s, 1) = 4 s.

    y_0 = 1 + 0.5 * 8 = 5: d/dw = -2 (5 - 1) = -8; y_1 = 1 + 0.5 * 12 = 7: d/du = -2 (7 - 4) * 2 = -12. Without
    double Q: y_0 = 11, d/dw = -20.
    """
    target = Line(10.0, 4.0)

    assert gradient(OneStepQ, rollout_of(*PLAIN), target, double_q=True) == [-8.0, -12.0]
    assert gradient(OneStepQ, rollout_of(*PLAIN), target)[0] == -20.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rewards_are_clipped_in_the_loss_only(algorithm: type[Algorithm]) -> None:
    """Rewards of 7 count as 1 with --reward-clip 1."""
    seven = rollout_of([1.0, 2.0, 3.0], [0, 1, 0], [7.0, 7.0])

    assert gradient(algorithm, seven, reward_clip=1.0) == gradient(algorithm, rollout_of(*PLAIN))
    assert seven.rewards.max() == 7.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_paper_preset_is_the_paper(algorithm: type[Algorithm]) -> None:
    """40 000 frames are 10 000 steps, 4 million frames are 1 million; the mixture of final epsilons."""
    config = algorithm.Config(**algorithm.preset("paper", SPACES), preset="paper")

    assert (config.t_max, config.target_interval_steps, config.exploration_steps) == (5, 10_000, 1_000_000)
    assert (config.exploration, config.epsilons) == ("drawn", (0.1, 0.01, 0.5))
    assert config.epsilon_probabilities == (0.4, 0.3, 0.3)
    assert (config.optimizer, config.optimizer_epsilon, config.network) == ("rmsprop", 0.1, "paper")
