"""Bodies: what they compute does not depend on how they compute it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody

SCREENS = {"board": (4, 10, 10), "small": (4, 42, 42), "paper": (4, 84, 84), "nature": (4, 84, 84)}


def plainly(body: ConvolutionalBody, observations: Tensor) -> Tensor:
    """The same layers one after the other, in torch's own layout."""
    hidden = observations.float() * body.scale
    for layer in body.convolutions:
        hidden = layer(hidden).relu()
    hidden = hidden.flatten(1)
    for layer in body.linear:
        hidden = layer(hidden).relu()
    return hidden


@pytest.mark.parametrize("raw_pixels", [True, False])
@pytest.mark.parametrize("name", SCREENS)
def test_features_and_gradient_are_those_of_the_plain_layers(name: str, raw_pixels: bool) -> None:
    """With a gradient and without one, in whatever layout it computes; scaled pixels too."""
    torch.manual_seed(1)
    shape, convolutions = SCREENS[name], CONVOLUTIONS[name]
    body = ConvolutionalBody(shape, convolutions, (64,), raw_pixels)
    pixels = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
    observations = pixels if raw_pixels else pixels / 255 - 0.5
    weights = list(body.parameters())

    expected = plainly(body, observations)
    features = body(observations)
    with torch.no_grad():
        acting = body(observations)

    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(acting, expected, rtol=1e-4, atol=1e-5)
    for own, theirs in zip(
        torch.autograd.grad(F.mse_loss(features, torch.ones_like(features)), weights),
        torch.autograd.grad(F.mse_loss(expected, torch.ones_like(features)), weights),
        strict=True,
    ):
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-6)
