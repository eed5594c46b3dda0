"""Losses by value, by gradient, and by where no gradient may flow."""

from __future__ import annotations

import pytest
import torch

from asyncrl.core.losses import categorical_entropy, policy_gradient_loss, squared_error


def test_policy_gradient_in_the_logits_is_probability_minus_one_hot_times_advantage() -> None:
    """d/dz_j of -A log softmax(z)_a is A (p_j - [j = a])."""
    logits = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    probabilities = torch.softmax(logits, -1).detach()

    (gradient,) = torch.autograd.grad(policy_gradient_loss(torch.log_softmax(logits, -1)[1], torch.tensor(3.0)), logits)

    torch.testing.assert_close(gradient, 3.0 * (probabilities - torch.tensor([0.0, 1.0, 0.0])))


def test_no_gradient_flows_into_the_advantage() -> None:
    """The advantage is a constant even when it was computed from parameters."""
    advantage = torch.tensor(2.0, requires_grad=True)
    log_probability = torch.tensor(-1.0, requires_grad=True)

    policy_gradient_loss(log_probability, advantage).backward()

    assert advantage.grad is None
    assert log_probability.grad == -2.0


def test_squared_error_moves_the_value_only() -> None:
    """(3 - 1)^2 = 4; d/dV = -2 (R - V) = -4; the target gets nothing."""
    value, target = torch.tensor(1.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)

    loss = squared_error(value, target)
    loss.backward()

    assert loss.item() == 4.0
    assert value.grad == -4.0
    assert target.grad is None


def test_entropy_of_a_uniform_policy_is_the_log_of_the_actions() -> None:
    """H = ln 4 for four equal actions, 0 for a certain one."""
    uniform = torch.log_softmax(torch.zeros(4), -1)
    certain = torch.log_softmax(torch.tensor([100.0, 0.0]), -1)

    assert categorical_entropy(uniform).item() == pytest.approx(1.386294, rel=1e-6)
    assert categorical_entropy(certain).item() == pytest.approx(0.0, abs=1e-6)


def test_entropy_gradient_matches_its_closed_form() -> None:
    """d H / d z_j = -p_j (log p_j + H)."""
    logits = torch.tensor([0.3, -0.7, 1.1], requires_grad=True)
    log_p = torch.log_softmax(logits, -1)
    entropy = categorical_entropy(log_p)

    (gradient,) = torch.autograd.grad(entropy, logits)

    torch.testing.assert_close(gradient, -(log_p.exp() * (log_p + entropy)).detach())
