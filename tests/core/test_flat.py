"""One flat vector under a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from asyncrl.core.flat import clip_by_norm, flatten_parameters, gradient_of


def test_a_write_to_the_vector_is_a_write_to_the_network() -> None:
    """Parameters are views of the vector, in the order of `parameters()`, and keep their values."""
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = torch.cat([p.detach().reshape(-1) for p in network.parameters()])

    flat = flatten_parameters(network)

    torch.testing.assert_close(flat, before)
    flat.fill_(7.0)
    assert all((p == 7.0).all() for p in network.parameters())


def test_the_gradient_is_fresh_every_time_and_leaves_nothing_behind() -> None:
    """Three calls give 3x of the same constant slope, never a running sum, and no `.grad` appears."""
    network = nn.Linear(2, 1, bias=False)
    flatten_parameters(network)
    out = torch.empty(2)

    seen = [
        gradient_of(network(torch.tensor([[1.0, 2.0]])).sum(), list(network.parameters()), out).tolist()
        for _ in range(3)
    ]

    assert seen == [[1.0, 2.0]] * 3
    assert network.weight.grad is None


def test_a_parameter_the_loss_does_not_touch_gets_zeros() -> None:
    """The second layer takes no part."""
    network = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    flatten_parameters(network)

    gradient = gradient_of(network[0](torch.ones(1, 1)).sum(), list(network.parameters()), torch.empty(2))

    assert gradient.tolist() == [1.0, 0.0]


def test_a_frozen_parameter_gets_zeros() -> None:
    """Such as those of an encoder that was trained before."""
    network = nn.Sequential(nn.Linear(1, 1, bias=False).requires_grad_(False), nn.Linear(1, 1, bias=False))
    flatten_parameters(network).copy_(torch.tensor([3.0, 5.0]))

    gradient = gradient_of(network(torch.ones(1, 1)).sum(), list(network.parameters()), torch.empty(2))

    assert gradient.tolist() == [0.0, 3.0]


def test_clipping_keeps_the_direction_and_returns_the_norm_before() -> None:
    """(3, 4) has norm 5; at most 1 leaves (0.6, 0.8)."""
    gradient = torch.tensor([3.0, 4.0])

    assert clip_by_norm(gradient, 1.0) == 5.0
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))
    assert clip_by_norm(gradient, 0.0) == pytest.approx(1.0)


def test_a_nan_is_visible_in_the_norm() -> None:
    """A gradient with a NaN has no finite norm and is left alone."""
    gradient = torch.tensor([1.0, float("nan")])

    assert not clip_by_norm(gradient, 1.0) < float("inf")
    assert gradient[0] == 1.0


def test_half_precision_parameters_are_refused() -> None:
    """They could not share one float32 buffer."""
    with pytest.raises(ValueError, match="float32"):
        flatten_parameters(nn.Linear(1, 1).half())
