"""Bodies: what they compute does not depend on how they compute it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.apex_dpg import Layers
from asyncrl.core.errors import UsageError
from asyncrl.nets.bodies import VectorBody
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


BODIES = {
    "vector": (lambda: VectorBody(3, (4,)), "linear", (3,)),
    "image": (lambda: ConvolutionalBody((1, 5, 5), ((2, 3, 1, 0),), (4,), True), "convolutions", (1, 5, 5)),
    "image, linear": (lambda: ConvolutionalBody((1, 5, 5), ((2, 3, 1, 0),), (4,), True), "linear", (1, 5, 5)),
    "SAC": (lambda: Layers((3, 4, 2)), "hidden", (3,)),
}
"""What makes a module with layers, the name of some of them, and the shape of an observation."""


@pytest.mark.parametrize("kind", BODIES)
def test_layers_that_an_algorithm_replaces_are_those_that_compute_and_learn(kind: str) -> None:
    """A parameter of a layer, and a whole layer: with zeros for weights only biases of 1 are left."""
    make, name, shape = BODIES[kind]
    observations = torch.rand(2, *shape)
    for whole in (False, True):
        body = make()
        (layer,) = layers = getattr(body, name)
        zeros, ones = nn.Parameter(torch.zeros_like(layer.weight)), nn.Parameter(torch.ones_like(layer.bias))
        if whole:
            layers[0] = layer = type(layer)(*((1, 2, 3) if layer.weight.dim() == 4 else layer.weight.T.shape))
        layer.weight, layer.bias = zeros, ones

        outputs = body(observations)
        outputs.square().sum().backward()

        torch.testing.assert_close(outputs[0], outputs[1])
        assert ones.grad is not None


def test_a_layer_of_another_kind_is_refused() -> None:
    """It would be left out in silence."""
    body = VectorBody(3, (4,))
    body.linear[0] = nn.Bilinear(3, 3, 4)

    with pytest.raises(UsageError, match="a body's Linear cannot become a Bilinear: write your own body"):
        body(torch.rand(2, 3))


class Sevens(ConvolutionalBody):
    """Has its own idea of features."""

    def forward(self, observations: Tensor) -> Tensor:
        return super().forward(observations) * 0 + 7


def test_a_body_with_its_own_forward_acts_with_it() -> None:
    """Also where the package's own would keep its activations."""
    body = Sevens((4, 84, 84), CONVOLUTIONS["nature"], (512,), True)
    observations = torch.zeros(16, 4, 84, 84, dtype=torch.uint8)

    assert ConvolutionalBody((4, 84, 84), CONVOLUTIONS["nature"], (512,), True).keep_activations(6, 16) is not None
    assert body.keep_activations(6, 16) is None
    with torch.inference_mode():
        assert body.step(observations).unique().tolist() == [7.0]
