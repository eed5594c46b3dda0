"""IMPALA's loss, by hand: V-trace makes of an old rollout what the learner's policy would have made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from asyncrl import a3c, impala
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import Rollout
from tests.algorithms.tables import Table, gradients_of, rollout_of

SETTINGS: dict[str, Any] = {
    "entropy_weights": (0.0,), "reward_clip": 0.0, "gamma": 0.5, "gae_lambda": 1.0, "value_cost": 0.5,
}  # fmt: skip


def agent_of(network: Table, **settings: Any) -> impala.Impala:
    config = impala.Impala.Config(**(SETTINGS | settings))
    return impala.Impala(config, network, None, "learner", 0, torch.Generator())  # type: ignore[arg-type]


def old_rollout() -> Rollout:
    """States 1, 2, bootstrap 3; V = 2, 4, 6; rewards 1, 3. mu was 0.8 and 0.25 where pi is 1/2: ratios 5/8 and 2."""
    rollout = rollout_of([1, 2, 3], [0, 1], [1, 3], [0.5, 0.5])
    return replace(rollout, extras={"log_probability": torch.tensor([[0.8], [0.25]]).log()})


@pytest.mark.parametrize("discounts", [[0.5, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]])
def test_at_age_0_it_is_the_n_step_actor_critic(discounts: list[float]) -> None:
    """All ratios 1: A3C's loss and gradient, also where an episode ends."""
    rollout = rollout_of([1, 2, 3, 4], [0, 1, 1], [1, -2, 3], discounts, environments=2)
    reference = a3c.A3C(a3c.A3C.Config(**SETTINGS), Table(), None, "worker", 0, torch.Generator())  # type: ignore[arg-type]
    agent = agent_of(Table())

    assert agent.loss(rollout)[0].item() == pytest.approx(reference.loss(rollout)[0].item(), rel=1e-6)
    assert gradients_of(agent, rollout) == pytest.approx(gradients_of(reference, rollout), rel=1e-6)


def test_an_old_rollout_by_hand() -> None:
    """rho = c = 5/8, 1.

    delta_1 = 3 + 3 - 4 = 2, v_1 = 6; delta_0 = 5/8 (1 + 2 - 2) = 5/8, v_0 = 2 + 5/8 + 1/2 5/8 2 = 3.25.
    A_1 = 3 + 3 - 4 = 2, A_0 = 5/8 (1 + 6/2 - 2) = 1.25.
    Value: -(3.25 - 2) 1 - (6 - 4) 2 = -5.25. Policy: 1.25 / 2 - 2 / 2 = -0.375.
    """
    assert gradients_of(agent_of(Table()), old_rollout()) == pytest.approx({"v": -5.25, "logit": -0.375})


def test_rho_bar_bounds_the_weight_of_an_error() -> None:
    """With 2 in place of 1 the second step counts twice.

    delta_1 = 4, v_1 = 8, v_0 = 2 + 5/8 + 1/2 5/8 4 = 3.875; A_1 = 4, A_0 = 5/8 (1 + 8/2 - 2) = 1.875.
    Value: -1.875 - 4 2 = -9.875. Policy: 1.875 / 2 - 4 / 2 = -1.0625.
    """
    gradients = gradients_of(agent_of(Table(), rho_bar=2.0), old_rollout())

    assert gradients == pytest.approx({"v": -9.875, "logit": -1.0625})
    assert gradients_of(agent_of(Table(), rho_bar=9.0), old_rollout()) == pytest.approx(gradients)


def test_c_bar_bounds_how_far_errors_are_carried_back() -> None:
    """c_0 = 1/4: v_0 = 2 + 5/8 + 1/2 1/4 2 = 2.875; the advantages stay."""
    gradients = gradients_of(agent_of(Table(), c_bar=0.25), old_rollout())

    assert gradients == pytest.approx({"v": -4.875, "logit": -0.375})


def test_the_learner_makes_one_update_of_a_batch() -> None:
    """Of all of it."""
    batch = old_rollout()

    assert list(agent_of(Table()).passes(batch)) == [batch]


@pytest.mark.parametrize("name", ["rho_bar", "c_bar", "queue_length"])
def test_impossible_settings_are_refused(name: str) -> None:
    """With the flag's name."""
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} must be"):
        impala.Impala.Config(**{name: 0})


def test_what_v_trace_does_not_use_is_refused() -> None:
    """Rather than written into the records."""
    with pytest.raises(UsageError, match="--normalize-advantages is for methods without V-trace"):
        impala.Impala.Config(normalize_advantages=True)
