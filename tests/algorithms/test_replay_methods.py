"""Gorila and Ape-X: one learner's update by hand, and what an actor leaves for the memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncrl.algorithm import Algorithm
from asyncrl.apex import ApeX
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.rollout import Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.gorila import Gorila
from tests.algorithms.test_values import Line

SPACES = Spaces(observation_shape=(1,), observation_dtype="float32", actions=2)
ALGORITHMS = [Gorila, ApeX]


def agent_of(algorithm: type[Algorithm], target: Line, **settings: Any) -> Any:
    """theta is w = 1, u = 2: Q(s, 0) = s and Q(s, 1) = 2 s."""
    config = algorithm.Config(
        **{"gamma": 0.5, "exploration": "equal", "epsilons": (0.0,), "exploration_steps": 0, "error_clip": 0.0}
        | settings
    )
    return algorithm(config, Line(1.0, 2.0), target, "worker", 0, torch.Generator())


def gradient(agent: Any, part: Transitions) -> list[float]:
    """d loss / d (w, u)."""
    into = torch.empty_like(flatten_parameters(agent.network))
    result: list[float] = gradient_of(agent.loss(part)[0], list(agent.network.parameters()), into).tolist()
    return result


def drawn(
    rewards: list[list[float]], discounts: list[list[float]], last: list[list[bool]], **others: Any
) -> Transitions:
    """Two transitions: from state 1 by action 0 to state 2, and from state 2 by action 1 to state 3."""
    fields: dict[str, Any] = {
        "observations": torch.tensor([[1.0], [2.0]]),
        "actions": torch.tensor([0, 1]),
        "rewards": torch.tensor(rewards),
        "discounts": torch.tensor(discounts),
        "last": torch.tensor(last),
        "following": torch.tensor([[2.0], [3.0]]),
        "weights": torch.ones(2),
    }
    return Transitions(**(fields | others))


ONE_STEP = ([[1.0, 1.0]], [[0.5, 0.5]], [[False, False]])
"""Q(1, 0) = 1 and Q(2, 1) = 4; rewards 1."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_learners_update_by_hand(algorithm: type[Algorithm]) -> None:
    """theta^- has w = 10, u = 20: y_0 = 1 + 0.5 * 40 = 21, y_1 = 1 + 0.5 * 60 = 31.

    The mean over both: d/dw = -2 (21 - 1) * 1 / 2 = -20, d/du = -2 (31 - 4) * 2 / 2 = -54.
    """
    agent = agent_of(algorithm, Line(10.0, 20.0), double_q=False)

    assert gradient(agent, drawn(*ONE_STEP)) == [-20.0, -54.0]
    assert all(parameter.grad is None for parameter in agent.target.parameters())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clipped_error_bounds_the_gradient(algorithm: type[Algorithm]) -> None:
    """The errors of 20 and 27 above count as 2: d/dw = -2 * 2 * 1 / 2 = -2, d/du = -2 * 2 * 2 / 2 = -4."""
    agent = agent_of(algorithm, Line(10.0, 20.0), double_q=False, error_clip=2.0)

    assert gradient(agent, drawn(*ONE_STEP)) == [-2.0, -4.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_double_q_lets_theta_choose_and_the_target_value(algorithm: type[Algorithm]) -> None:
    """theta prefers action 1, of which theta^- says 4 s: y_0 = 1 + 0.5 * 8 = 5, y_1 = 1 + 0.5 * 12 = 7."""
    agent = agent_of(algorithm, Line(10.0, 4.0), double_q=True)

    assert gradient(agent, drawn(*ONE_STEP)) == [-4.0, -6.0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_steps_across_an_end_and_across_a_time_limit(algorithm: type[Algorithm]) -> None:
    """The first terminates after its second step, y_0 = 1 + 0.5 * 2 = 2; the second is cut there by a time limit,
    y_1 = 1 + 0.5 * 2 + 0.25 * 60 = 17. What stands behind belongs to other episodes."""
    agent = agent_of(algorithm, Line(10.0, 20.0), double_q=False, n_step=3)
    part = drawn(
        [[1.0, 1.0], [2.0, 2.0], [99.0, 99.0]],
        [[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]],
        [[False, False], [True, True], [False, True]],
    )

    assert gradient(agent, part) == [-2 * (2 - 1) / 2, -2 * (17 - 4) * 2 / 2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rewards_are_scaled_and_clipped_in_the_loss_only(algorithm: type[Algorithm]) -> None:
    """Rewards of 6, scaled by a half and clipped to 1."""
    agent = agent_of(algorithm, Line(10.0, 20.0), double_q=False, reward_clip=1.0)
    part = drawn([[6.0, 6.0]], *ONE_STEP[1:], reward_scale=0.5)

    assert gradient(agent, part) == [-20.0, -54.0]
    assert part.rewards.max() == 6.0


def test_apex_weighs_errors_and_tells_them_to_the_memory() -> None:
    """Weights 1/2 and 1; the errors are 20 and 27 all the same."""
    agent = agent_of(ApeX, Line(10.0, 20.0), double_q=False)

    assert gradient(agent, drawn(*ONE_STEP, weights=torch.tensor([0.5, 1.0]))) == [-10.0, -54.0]
    assert agent.errors.tolist() == [20.0, 27.0]
    assert not agent.errors.requires_grad


def test_apexs_actor_leaves_the_values_it_acted_with() -> None:
    """Greedy in states 1 and -1: Q is (1, 2) and (-1, -2)."""
    agent = agent_of(ApeX, Line(10.0, 20.0))
    agent.network.values_at = lambda observations, state: agent.network(observations)

    actions, _, left = agent.act(torch.tensor([[1.0], [-1.0]]), None, 0)

    assert actions.tolist() == [1, 0]
    assert {name: values.tolist() for name, values in left.items()} == {
        "action_value": [2.0, -1.0],
        "state_value": [2.0, -1.0],
    }


def test_the_paper_presets_are_the_papers() -> None:
    """Nair et al. 2015; Horgan et al. 2018, appendix D, as its re-implementations have it."""
    config = Gorila.Config(**Gorila.preset("paper", SPACES), preset="paper")
    assert (config.optimizer, config.memory_steps, config.minibatch) == ("adagrad", 1_000_000, 32)
    assert (config.target_interval_updates, config.double_q, config.n_step) == (60_000, False, 1)
    own = ApeX.Config(**ApeX.preset("paper", SPACES), preset="paper")
    assert (own.priority_exponent, own.importance_exponent, own.n_step, own.double_q) == (0.6, 0.4, 3, True)
    assert (own.exploration, own.minibatch, own.target_interval_updates) == ("ladder", 512, 2_500)
