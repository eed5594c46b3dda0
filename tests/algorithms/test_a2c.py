"""A2C's loss, by hand: A3C's, as a mean over all steps of all actors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from asyncrl import a2c
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from tests.algorithms.tables import Table, gradients_of, rollout_of

STEPS = ([1, 2, 3], [0, 1], [1, 1], [0.5, 0.5])


def agent_of(network: Table, **settings: Any) -> a2c.A2C:
    defaults = {"entropy_weights": (0.0,), "reward_clip": 0.0, "gamma": 0.5, "gae_lambda": 1.0, "value_cost": 0.5}
    config = a2c.A2C.Config(**(defaults | settings))
    return a2c.A2C(config, network, None, "learner", 0, torch.Generator())  # type: ignore[arg-type]


def test_a_two_step_rollout_by_hand() -> None:
    """V = 2, 4 and bootstrap 6; R = 3, 4; advantages 1, 0 (see A3C's). Its sums -1 and 1/2, over two steps."""
    assert gradients_of(agent_of(Table()), rollout_of(*STEPS)) == {"v": -0.5, "logit": 0.25}


def test_a_terminal_step_does_not_look_beyond_the_episode() -> None:
    """A3C's sums are 6.5 and 1.25."""
    ended = rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.0])

    assert gradients_of(agent_of(Table()), ended) == {"v": 3.25, "logit": 0.625}


def test_actors_side_by_side_give_the_mean_of_what_each_would_give() -> None:
    """Two rollouts of one environment and of three: each step counts the same."""
    one, three = rollout_of(*STEPS), rollout_of([1, 2, 3], [0, 1], [1, 1], [0.5, 0.0], environments=3)

    together = gradients_of(agent_of(Table()), Rollout.side_by_side([one, three]))

    assert together == pytest.approx({"v": (-0.5 + 3 * 3.25) / 4, "logit": (0.25 + 3 * 0.625) / 4})


def test_the_learner_makes_one_update_of_a_batch() -> None:
    """Of all of it."""
    batch = rollout_of(*STEPS)

    assert list(agent_of(Table()).passes(batch)) == [batch]


def test_the_entropy_bonus_is_a_mean_as_well() -> None:
    """The longer the rollout, the same gradient where nothing else is learnt."""
    gradients = [
        gradients_of(agent_of(Table(v=0.0, logit=1.0), entropy_weights=(0.1,)), rollout)["logit"]
        for rollout in (rollout_of([0, 0], [0], [0], [0.5]), rollout_of([0] * 9, [0] * 8, [0] * 8, [0.5] * 8))
    ]

    p = torch.sigmoid(torch.tensor(1.0))
    slope = -float(p * (1 - p))  # dH/dl = -l p (1 - p), at l = 1
    assert gradients == pytest.approx([-0.1 * slope] * 2, rel=1e-5)


def test_the_paper_preset_is_openais() -> None:
    """Baselines' a2c for Atari."""
    config = a2c.A2C.Config(**a2c.A2C.preset("paper", Spaces((4, 84, 84), "uint8", 6, kind="atari")), preset="paper")

    assert (config.workers, config.envs_per_worker, config.t_max, config.gamma) == (16, 1, 5, 0.99)
    assert (config.optimizer, config.optimizer_decay, config.optimizer_epsilon) == ("rmsprop", 0.99, 1e-5)
    assert (config.learning_rate, config.max_gradient_norm) == (7e-4, 0.5)
    assert (config.entropy_weights, config.value_cost, config.gae_lambda) == ((0.01,), 0.5, 1.0)
