"""Large linear layers, which oneDNN computes: equal to torch's own, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.nets import convolutions
from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody, linear_relu, multiplies_by_onednn, product

needs_onednn = pytest.mark.skipif(convolutions.onednn_linear is None, reason="this build of torch has no oneDNN")
TOLERANCE = 1e-6


def relative_error(own: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(own.double() - expected) / torch.linalg.vector_norm(expected))


def layer_of(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    return weight.requires_grad_(), torch.randn(outputs, generator=generator).requires_grad_()


@needs_onednn
@pytest.mark.parametrize("batch", [1, 8, 40, 129])
def test_outputs_and_gradients_are_those_of_the_formula(batch: int) -> None:
    """In double precision, for single observations too, within 1e-6."""
    weight, bias = layer_of(3136, 512)
    hidden = torch.randn(batch, 3136, generator=torch.Generator().manual_seed(2)).requires_grad_()
    above = torch.randn(batch, 512, generator=torch.Generator().manual_seed(3))
    assert multiplies_by_onednn(weight)

    outputs = linear_relu(hidden, weight, bias)
    own = torch.autograd.grad(outputs, (hidden, weight, bias), above)

    exact = F.linear(hidden.double(), weight.double(), bias.double())
    passed = above.double() * (outputs > 0)  # a sum may round to either side of 0
    assert relative_error(outputs.detach(), exact.clamp_min(0).detach()) < TOLERANCE
    for ours, expected in zip(own, (passed @ weight.double(), passed.T @ hidden.double(), passed.sum(0)), strict=True):
        assert ours.shape == expected.shape
        assert relative_error(ours, expected.detach()) < TOLERANCE


@needs_onednn
def test_it_is_the_same_without_a_gradient() -> None:
    """As a policy acts and a target network is asked."""
    weight, bias = layer_of(3136, 512)
    hidden = torch.randn(8, 3136)
    with_gradient = linear_relu(hidden, weight, bias)

    with torch.no_grad():
        assert torch.equal(linear_relu(hidden, weight, bias), with_gradient)
    with torch.inference_mode():
        assert torch.equal(linear_relu(hidden, weight, bias), with_gradient)


@pytest.mark.parametrize("kind", ["small", "bfloat16", "no oneDNN"])
def test_other_layers_are_torchs_own_to_the_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, those in bfloat16, and all where torch was built without oneDNN."""
    weight, bias = (one.detach() for one in layer_of(288 if kind == "small" else 3136, 512))
    hidden = torch.randn(8, weight.shape[1])
    if kind == "bfloat16":
        weight, bias, hidden = weight.bfloat16(), bias.bfloat16(), hidden.bfloat16()
    if kind == "no oneDNN":
        monkeypatch.setattr(convolutions, "onednn_linear", None)
    assert not multiplies_by_onednn(weight)

    assert torch.equal(linear_relu(hidden, weight, bias), F.linear(hidden, weight, bias).relu())
    assert torch.equal(product(hidden, weight.T, weight), hidden @ weight.T)


@needs_onednn
def test_what_is_exported_has_torchs_own_layers() -> None:
    """Other programs do not know oneDNN's operator."""
    body = ConvolutionalBody((4, 84, 84), CONVOLUTIONS["nature"], (512,), raw_pixels=True)

    with torch.no_grad():
        exported = torch.export.export(body, (torch.zeros(2, 4, 84, 84, dtype=torch.uint8),))

    assert "linear" in str(exported.graph)
    assert "mkldnn" not in str(exported.graph)
