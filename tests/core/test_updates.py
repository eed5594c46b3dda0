"""Update rules by hand and against torch."""

from __future__ import annotations

import pytest
import torch

from asyncrl.core.updates import UpdateRule


def test_rmsprop_has_epsilon_inside_the_root() -> None:
    """d = 2, alpha = 0.99, eps = 0.1: g = 0.04, step = 2 / sqrt(0.14) = 5.3452 eta (torch's own form gives 6.667)."""
    theta, statistics = torch.zeros(1), torch.zeros(1, 1)

    UpdateRule("rmsprop", decay=0.99, epsilon=0.1).apply(theta, torch.tensor([2.0]), statistics, 1.0, 0)

    assert statistics.item() == pytest.approx(0.04)
    assert theta.item() == pytest.approx(-5.34522, rel=1e-5)


def test_rmsprop_second_step_decays_the_first() -> None:
    """g = 0.99 * 0.04 + 0.01 * 1 = 0.0496; step = 1 / sqrt(0.1496) = 2.58544."""
    rule, theta, statistics = UpdateRule("rmsprop"), torch.zeros(1), torch.tensor([[0.04]])

    rule.apply(theta, torch.tensor([1.0]), statistics, 0.5, 1)

    assert statistics.item() == pytest.approx(0.0496)
    assert theta.item() == pytest.approx(-0.5 * 2.58544, rel=1e-5)


def test_centred_rmsprop_divides_by_a_deviation() -> None:
    """d = 2 and alpha = 0.5, twice: g = 2, m = 1, 2 / sqrt(2 - 1 + 3) = 1; then g = 3, m = 1.5, 2 / sqrt(0.75 + 3)."""
    rule, theta, statistics = UpdateRule("centred-rmsprop", decay=0.5, epsilon=3.0), torch.zeros(1), torch.zeros(2, 1)

    for step in range(2):
        rule.apply(theta, torch.tensor([2.0]), statistics, 0.5, step)

    assert statistics.flatten().tolist() == [3.0, 1.5]
    assert theta.item() == pytest.approx(-0.5 * (1 + 1.0327956))


def test_a_variance_below_zero_counts_as_none() -> None:
    """What other workers' writes may leave: g = 0 beside m = 2; the step is d / sqrt(epsilon)."""
    theta, statistics = torch.zeros(1), torch.tensor([[0.0], [2.0]])

    UpdateRule("centred-rmsprop", decay=0.5, epsilon=0.25).apply(theta, torch.tensor([0.5]), statistics, 1.0, 1)

    assert theta.item() == -1.0


def test_momentum_sgd_follows_the_paper() -> None:
    """m = 0.9 * 1 + 0.1 * 2 = 1.1; theta = 3 - 0.5 * 1.1 = 2.45."""
    theta, statistics = torch.tensor([3.0]), torch.ones(1, 1)

    UpdateRule("momentum-sgd", decay=0.9).apply(theta, torch.tensor([2.0]), statistics, 0.5, 1)

    assert statistics.item() == pytest.approx(1.1)
    assert theta.item() == pytest.approx(2.45)


def test_sgd_without_momentum_keeps_no_statistics() -> None:
    """So there is no memory through which the gradient of one worker could reach the update of another."""
    rule, theta = UpdateRule("momentum-sgd", decay=0.0), torch.tensor([3.0])

    rule.apply(theta, torch.tensor([2.0]), torch.zeros(rule.statistics, 1), 0.5, 0)

    assert (rule.statistics, theta.item()) == (0, 2.0)


def test_adam_equals_torch_over_ten_steps() -> None:
    """The same parameters as torch.optim.Adam given the same gradients."""
    torch.manual_seed(0)
    reference = torch.nn.Parameter(torch.randn(7))
    optimizer = torch.optim.Adam([reference], lr=0.01, betas=(0.8, 0.99), eps=1e-5)
    theta, statistics = reference.detach().clone(), torch.zeros(2, 7)
    rule = UpdateRule("adam", decay=0.99, epsilon=1e-5, momentum=0.8)

    for step in range(10):
        gradient = torch.randn(7)
        reference.grad = gradient.clone()
        optimizer.step()
        rule.apply(theta, gradient, statistics, 0.01, step)

    torch.testing.assert_close(theta, reference.detach())


def test_adagrad_divides_by_the_root_of_all_squares_so_far() -> None:
    """d = 3, then 4: g = 9, then 25; steps of 3 / (3 + 1) and 4 / (5 + 1), times eta = 0.3: 0.225 and 0.2."""
    rule, theta, statistics = UpdateRule("adagrad", epsilon=1.0), torch.zeros(1), torch.zeros(1, 1)
    seen = []

    for step, gradient in enumerate((3.0, 4.0)):
        rule.apply(theta, torch.tensor([gradient]), statistics, 0.3, step)
        seen.append((statistics.item(), theta.item()))

    assert seen == [(9.0, pytest.approx(-0.225)), (25.0, pytest.approx(-0.425))]


def test_adagrad_equals_torch_over_ten_steps() -> None:
    """The same parameters and sums as torch.optim.Adagrad given the same gradients."""
    torch.manual_seed(0)
    reference = torch.nn.Parameter(torch.randn(7))
    optimizer = torch.optim.Adagrad([reference], lr=0.01, eps=1e-5)
    theta, statistics = reference.detach().clone(), torch.zeros(1, 7)

    for step in range(10):
        gradient = torch.randn(7)
        reference.grad = gradient.clone()
        optimizer.step()
        UpdateRule("adagrad", epsilon=1e-5).apply(theta, gradient, statistics, 0.01, step)

    torch.testing.assert_close(theta, reference.detach())
    torch.testing.assert_close(statistics[0], optimizer.state[reference]["sum"])


@pytest.mark.parametrize("name", ["rmsprop", "centred-rmsprop", "momentum-sgd", "adam", "adagrad"])
def test_every_rule_descends_and_only_touches_what_it_owns(name: str) -> None:
    """One step along a positive gradient lowers theta, and the number of statistics is the one announced."""
    rule = UpdateRule(name)
    theta, statistics = torch.zeros(3), torch.zeros(rule.statistics, 3)

    rule.apply(theta, torch.ones(3), statistics, 0.1, 0)

    assert (theta < 0).all()
    assert (statistics != 0).all()
