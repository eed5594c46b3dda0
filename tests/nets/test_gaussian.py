"""The Gaussian policy's mean and deviation, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from asyncrl import a3c
from asyncrl.core.distributions import Gaussian
from asyncrl.core.spaces import Spaces
from asyncrl.nets.gaussian import GaussianActorCritic

INFINITE = math.inf
SPACES = Spaces((3,), "float32", 0, (-2.0, 1.0, -1.0, -3.4e38), (2.0, 5.0, INFINITE, 3.4e38))
"""A box from -2 to 2, one from 1 to 5, one with a single bound, and one that only pretends to have any."""


def policy_of(output: float, **settings: Any) -> Gaussian:
    """The policy of a network whose last layer for the mean gives `output` in every component."""
    network = a3c.A3C.make_network(a3c.A3C.Config(**settings), SPACES)
    assert isinstance(network, GaussianActorCritic)
    torch.nn.init.zeros_(network.mean.weight)
    torch.nn.init.constant_(network.mean.bias, output)
    with torch.no_grad():
        return network(torch.randn(2, 5, 3))[0]


def test_a_bounded_mean_is_the_centre_plus_tanh_of_the_half_width() -> None:
    """tanh 0.5 is 0.46212: 2 and 2 half widths, centres 0 and 3; without two bounds the output is the mean."""
    mean = policy_of(0.5).mean

    assert mean.shape == (2, 5, 4)
    torch.testing.assert_close(mean[0, 0], torch.tensor([0.92423, 3.92423, 0.5, 0.5]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("output", [-1e6, -3.0, 3.0, 1e6])
def test_no_output_takes_a_bounded_mean_out_of_the_box(output: float) -> None:
    """Whereas a linear mean is the output."""
    bounded, linear = policy_of(output).mean[..., :2], policy_of(output, mean="linear").mean

    assert (bounded >= torch.tensor([-2.0, 1.0])).all()
    assert (bounded <= torch.tensor([2.0, 5.0])).all()
    assert (linear == output).all()


def test_deviations_are_in_half_widths_of_the_box_if_means_are_bounded() -> None:
    """The free one begins as 0.7 of them; the paper's is sqrt(softplus(0)) = 0.83255 where its output is 0."""
    free, state = policy_of(0.0, first_deviation=0.7).deviation, policy_of(0.0, variance="state").deviation
    linear = policy_of(0.0, mean="linear", first_deviation=0.7).deviation

    torch.testing.assert_close(free, torch.tensor([1.4, 1.4, 0.7, 0.7]))
    torch.testing.assert_close(state[0, 0], 0.83255 * torch.tensor([2.0, 2.0, 1.0, 1.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(linear, torch.full((4,), 0.7))


def test_the_smallest_deviation_is_in_half_widths_too() -> None:
    """A box of 0.002 is learnt in like any other; of a component that can be one number only nothing breaks."""
    spaces = Spaces((3,), "float32", 0, (-0.001, 7.0), (0.001, 7.0))
    network = a3c.A3C.make_network(a3c.A3C.Config(first_deviation=0.5), spaces)
    assert isinstance(network, GaussianActorCritic)

    policy = network(torch.zeros(1, 1, 3))[0]
    torch.testing.assert_close(policy.deviation, torch.tensor([0.0005, 0.5]))
    assert policy.mean[0, 0, 1] == 7.0
    policy.log_probability(policy.mean.detach()).sum().backward()
    assert network.log_deviation is not None
    assert network.log_deviation.grad is not None
    torch.testing.assert_close(network.log_deviation.grad, torch.tensor([-1.0, -1.0]))


def test_a_variance_that_has_died_still_has_a_gradient() -> None:
    """softplus(-200) is 0, whose root has none."""
    network = a3c.A3C.make_network(a3c.A3C.Config(variance="state"), SPACES)
    assert isinstance(network, GaussianActorCritic)
    assert network.variance is not None
    torch.nn.init.constant_(network.variance.bias, -200.0)

    policy = network(torch.zeros(1, 1, 3))[0]
    policy.log_probability(torch.zeros(1, 1, 4)).sum().backward()

    torch.testing.assert_close(policy.deviation[0, 0], torch.tensor([0.002, 0.002, 0.001, 0.001]))
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert "variance.bias" in gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())


def test_the_paper_has_linear_means_and_a_variance_that_depends_on_the_state() -> None:
    """Section 9 of its supplement."""
    settings = a3c.A3C.preset("paper", SPACES)

    assert (settings["mean"], settings["variance"]) == ("linear", "state")
