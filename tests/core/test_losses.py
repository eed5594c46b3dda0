"""Losses by value, by gradient, and by where no gradient may flow."""

from __future__ import annotations

import math

import pytest
import torch

from asyncrl.core.losses import (
    categorical_entropy,
    clipped_error,
    clipped_surrogate,
    clipped_value_loss,
    importance_weights,
    policy_gradient_loss,
    squared_error,
)


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


@pytest.mark.parametrize(
    ("target", "bound", "loss", "gradient"),
    [
        (1.5, 1.0, 0.25, -1.0),
        (2.0, 1.0, 1.0, -2.0),
        (4.0, 1.0, 5.0, -2.0),
        (-2.0, 0.5, 2.75, 1.0),
        (4.0, 0.0, 9.0, -6.0),
    ],
)
def test_a_clipped_error_has_a_bounded_gradient(target: float, bound: float, loss: float, gradient: float) -> None:
    """The value is 1. Within the bound it is the squared error; an error of 3 counts 1 x (2 x 3 - 1), slope 2 x 1."""
    value = torch.tensor(1.0, requires_grad=True)

    error = clipped_error(value, torch.tensor(target), bound)
    error.backward()

    assert error.item() == pytest.approx(loss)
    assert value.grad == gradient


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


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # where epochs begin: the policy gradient, -A r
        (1.1, 2.0, -2.2, -2.2),  # inside: -r A
        (1.5, 2.0, -2.4, 0.0),  # likelier by enough already: min(3, 1.2 * 2)
        (0.5, 2.0, -1.0, -1.0),  # a good action became rarer: min(1, 0.8 * 2), the gradient brings it back
        (0.5, -2.0, 1.6, 0.0),  # a bad one is rarer by enough already: min(-1, -1.6)
        (1.5, -2.0, 3.0, 3.0),  # a bad one became likelier: min(-3, -2.4)
        (3.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """Clip 0.2; d(r A) / d log pi is r A where it flows at all, and nothing reaches old policy and advantage."""
    old = torch.tensor([-1.5], requires_grad=True)
    log_probability = (old.detach() + math.log(ratio)).requires_grad_()
    constant = torch.tensor([advantage], requires_grad=True)

    result = clipped_surrogate(log_probability, old, constant, 0.2)
    result.sum().backward()

    assert result.tolist() == pytest.approx([loss])
    assert log_probability.grad.tolist() == pytest.approx([gradient])
    assert old.grad is None
    assert constant.grad is None


def test_clipped_surrogate_of_an_unchanged_policy_has_the_gradient_of_the_policy_gradient_loss() -> None:
    """At ratio 1 the two differ by a constant only."""
    advantages = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    log_probabilities = torch.tensor([[-0.1, -1.0], [-2.0, -0.7]], requires_grad=True)

    surrogate = clipped_surrogate(log_probabilities, log_probabilities.detach().clone(), advantages, 0.1)
    (ours,) = torch.autograd.grad(surrogate.sum(), log_probabilities)
    (plain,) = torch.autograd.grad(policy_gradient_loss(log_probabilities, advantages).sum(), log_probabilities)

    assert surrogate.shape == (2, 2)
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize(
    ("value", "target", "loss", "gradient"),
    [
        (1.125, 2.0, 0.765625, -1.75),  # within the clip: (2 - 1.125)^2 and 2 (V - R)
        (1.5, 2.0, 0.5625, 0.0),  # came nearer than it may: the value at 1.25 is the worse one, (2 - 1.25)^2
        (1.5, 1.0, 0.25, 1.0),  # went away: the value itself is the worse one, (1 - 1.5)^2
        (0.5, 0.0, 0.5625, 0.0),  # the same downwards, at 0.75
        (3.0, 1.75, 1.5625, 2.5),  # jumped over the target: 1.25^2 against (1.75 - 1.25)^2
    ],
)
def test_clipped_value_loss_by_hand(value: float, target: float, loss: float, gradient: float) -> None:
    """The old value is 1, the clip 0.25; old values and targets get no gradient."""
    values = torch.tensor([value], requires_grad=True)
    old, targets = torch.tensor([1.0], requires_grad=True), torch.tensor([target], requires_grad=True)

    result = clipped_value_loss(values, old, targets, 0.25)
    result.sum().backward()

    assert result.tolist() == [loss]
    assert values.grad.tolist() == [gradient]
    assert old.grad is None
    assert targets.grad is None


def test_importance_weights_by_hand() -> None:
    """Priorities 1, 4, 2 of 10 in 5 slots: N P is 0.5, 2, 1; with beta 0.5 that is 2^0.5, 0.5^0.5, 1 by 2^0.5."""
    weights = importance_weights(torch.tensor([1.0, 4.0, 2.0], dtype=torch.float64), beta=0.5)

    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 0.5**0.5]))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_are_those_of_the_paper(beta: float) -> None:
    """(N P(i))^-beta, by the largest, whatever N and the sum of all priorities are: both cancel."""
    priorities = torch.rand(20, dtype=torch.float64) + 0.01
    probabilities = priorities / 123.4

    weights = (1000 * probabilities) ** -beta

    torch.testing.assert_close(importance_weights(priorities, beta), (weights / weights.max()).float())
