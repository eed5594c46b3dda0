"""A3C's loss: by hand, by gradient, and by which parameters it reaches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from asyncrl import a3c
from asyncrl.algorithm import Who
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from tests.algorithms.tables import Table, gradients_of, rollout_of


def agent_of(network: nn.Module, who: Who = "worker", number: int = 0, **settings: Any) -> a3c.A3C:
    plain = {"entropy_weights": (0.0,), "reward_clip": 0.0, "gamma": 0.5, "gae_lambda": 1.0}
    config = a3c.A3C.Config(**(plain | settings))
    return a3c.A3C(config, network, None, who, number, torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def test_a_two_step_rollout_by_hand() -> None:
    """States 1, 2, bootstrap 3; V = 2s = 2, 4, 6; rewards 1, 1; gamma 1/2.

    R_1 = 1 + 6/2 = 4, R_0 = 1 + 4/2 = 3; advantages 0 and 1 (V_1 = 4, V_0 = 2).
    Value: d/dv of 0.5 [(3 - v)^2 + (4 - 2v)^2] at v = 2 is -(3 - 2) * 1 - (4 - 4) * 2 = -1.
    Policy: both actions have probability 1/2. d/dl of -A log pi(a): action 0 at t = 0 with A = 1 gives + 1/2;
    t = 1 has A = 0. Sum 1/2.
    """
    agent = agent_of(Table())

    gradients = gradients_of(agent, rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.5]))

    assert gradients == {"v": -1.0, "logit": 0.5}


def test_a_terminal_step_does_not_look_beyond_the_episode() -> None:
    """The second step terminates: R_1 = 1, R_0 = 1.5; A = -0.5 and -3.

    Value: -(1.5 - 2) * 1 - (1 - 4) * 2 = 6.5. Policy: action 0, A = -0.5: -0.25; action 1, A = -3: d(-A log pi_1)/dl
    = -A (1 - 1/2) = 1.5. Sum 1.25.
    """
    gradients = gradients_of(agent_of(Table()), rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.0]))

    assert gradients == {"v": 6.5, "logit": 1.25}


def test_several_identical_environments_give_the_gradient_of_one() -> None:
    """Summed over time, averaged over environments."""
    arguments = ([1, 2, 3], [0, 1], [1, 1], [0.5, 0.5])

    alone = gradients_of(agent_of(Table()), rollout_of(*arguments))
    together = gradients_of(agent_of(Table()), rollout_of(*arguments, environments=3))

    assert together == pytest.approx(alone)


def test_rewards_are_clipped_inside_the_loss_only() -> None:
    """A reward of 9 counts as 1 with --reward-clip 1, and stays 9 in the rollout."""
    clipped = rollout_of([1, 2, 3], [0, 1], [9, -9], [0.5, 0.5])
    unit = rollout_of([1, 2, 3], [0, 1], [1, -1], [0.5, 0.5])

    assert gradients_of(agent_of(Table(), reward_clip=1.0), clipped) == gradients_of(agent_of(Table()), unit)
    assert clipped.rewards[:, 0].tolist() == [9.0, -9.0]


def test_the_entropy_bonus_pulls_towards_the_uniform_policy() -> None:
    """With no advantage the gradient is -beta dH/dl: positive for a logit above 0, so that descent lowers it."""
    network = Table(v=0.0, logit=1.0)
    agent = agent_of(network, entropy_weights=(0.1,))

    gradient = gradients_of(agent, rollout_of([1, 2, 3], [0, 1], [0, 0], [0.5, 0.5]))["logit"]

    p = torch.sigmoid(torch.tensor(1.0))
    entropy = -(p * p.log() + (1 - p) * (1 - p).log())
    assert gradient == pytest.approx(2 * 0.1 * float(p * (p.log() + entropy)), rel=1e-5)


def test_the_entropys_weight_follows_its_schedule() -> None:
    """0.1 times 0.5 where a half of 1,000 steps is made; the T that counts is the rollout's."""
    network, rollout = Table(v=0.0, logit=1.0), rollout_of([1, 2, 3], [0, 1], [0, 0], [0.5, 0.5])
    plain = gradients_of(agent_of(network, entropy_weights=(0.1,)), rollout)["logit"]
    agent = agent_of(network, entropy_weights=(0.1,), entropy_schedule="0:1,0.5:0.5,1:0", total_steps=1000)

    weighted = [
        gradients_of(agent, dataclasses.replace(rollout, acted_at=steps))["logit"] for steps in (0, 250, 500, 1000)
    ]

    assert weighted == pytest.approx([plain, 0.75 * plain, 0.5 * plain, 0.0])


def test_entropy_weights_are_dealt_out_in_turn() -> None:
    """Workers 0, 1, 2, 3 of two weights."""
    weights = [agent_of(Table(), "worker", worker, entropy_weights=(0.1, 0.2)).entropy_weight for worker in range(4)]

    assert weights == [0.1, 0.2, 0.1, 0.2]


def test_a_truncated_episode_bootstraps_from_its_own_end() -> None:
    """Cut after state 2 whose last observation is 5, V = 10: R_1 = 1 + 5 = 6, R_0 = 4; v-gradient -(2) - (2) 2 = -6."""
    rollout = rollout_of([1, 2, 7], [0, 1], [1, 1], [0.5, 0.5])
    cut = Rollout(
        rollout.observations, rollout.actions, rollout.rewards, rollout.discounts,
        last=torch.tensor([[False], [True]]),
        truncated=(torch.tensor([1]), torch.tensor([0])),
        final_observations=torch.tensor([[5.0]]),
    )  # fmt: skip

    assert gradients_of(agent_of(Table()), cut)["v"] == -6.0


def test_the_bootstrap_value_gets_no_gradient() -> None:
    """Moving V(s_T) moves the target, not the loss's slope: the gradient is that of constant targets."""
    network = Table()
    agent = agent_of(network)
    loss, _ = agent.loss(rollout_of([0, 0, 3], [0, 0], [0, 0], [0.5, 0.5]))

    (gradient,) = torch.autograd.grad(loss, [network.v])

    assert gradient.item() == 0.0


def test_normalised_advantages_have_mean_zero_and_unit_spread() -> None:
    """Scaling all rewards by 10 leaves the policy gradient alone."""
    small = rollout_of([0, 0, 0], [0, 1], [1, 3], [0.5, 0.0])
    large = rollout_of([0, 0, 0], [0, 1], [10, 30], [0.5, 0.0])

    gradients = [gradients_of(agent_of(Table(), normalize_advantages=True), r)["logit"] for r in (small, large)]

    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4)
    # A = (1 + 1.5, 3) = (2.5, 3) -> (-1, 1): -1 * (+1/2) for action 0, then -1 * (1 - 1/2) for action 1
    assert gradients[0] == pytest.approx(-1.0, rel=1e-4)


def test_the_evaluator_is_greedy_unless_asked_to_sample() -> None:
    """Logits (0, 5): always action 1 when greedy, sometimes 0 when sampling from (0, 0.1)."""
    observations = torch.ones(500, 1)

    best, _, _ = agent_of(Table(logit=5.0), "evaluator", evaluation_policy="greedy").act(observations, None, 0)
    sampled, _, _ = agent_of(Table(logit=0.1), "evaluator", evaluation_policy="sampled").act(observations, None, 0)

    assert best.tolist() == [1] * 500
    assert 150 < int(sampled.sum()) < 350


def test_the_paper_preset_is_the_paper() -> None:
    """The settings of the paper and of its author's published answers."""
    spaces = Spaces((4, 84, 84), "uint8", 6, kind="atari")
    config = a3c.A3C.Config(**a3c.A3C.preset("paper", spaces), preset="paper")

    assert (config.t_max, config.gamma, config.envs_per_worker, config.workers) == (5, 0.99, 1, 16)
    assert (config.optimizer, config.optimizer_decay, config.optimizer_epsilon) == ("rmsprop", 0.99, 0.1)
    assert (config.learning_rate, config.learning_rate_schedule, config.max_gradient_norm) == (7e-4, "linear", 40.0)
    assert (config.entropy_weights, config.value_cost, config.gae_lambda) == ((0.01,), 0.5, 1.0)
    assert (config.reward_clip, config.update, config.per_worker_statistics) == (1.0, "hogwild", False)
    assert config.total_steps == 80_000_000
    network = a3c.A3C.make_network(config, spaces)
    assert sum(p.numel() for p in network.parameters()) == 677_943
    bound = 256**-0.5  # fan-in of the first convolution: 4 x 8 x 8
    assert float(network.trunk.body.convolutions[0].weight.detach().abs().max()) <= bound  # type: ignore[union-attr, operator]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gae_lambda": 7.0}, "--gae-lambda must be at least 0 and at most 1, got 7.0"),
        ({"entropy_weights": ()}, "--entropy-weights needs at least one number"),
        ({"entropy_weights": (0.1, -1.0)}, "--entropy-weights must be at least 0"),
        ({"value_cost": -1.0}, "--value-cost must be at least 0"),
        ({"lstm_cells": -1}, "--lstm-cells must be at least 0 and at most 100_000, got -1"),
    ],
)
def test_an_impossible_value_is_refused_with_its_flag(settings: dict[str, Any], message: str) -> None:
    """Before a worker divides by no weights at all."""
    with pytest.raises(UsageError) as error:
        a3c.A3C.Config(**settings)

    assert message in str(error.value)
