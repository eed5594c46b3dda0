"""Products of large matrices, which oneDNN computes: equal to torch's own, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.nets import products as module
from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody
from asyncrl.nets.products import by_onednn, linear, product

needs_onednn = pytest.mark.skipif(module.onednn_linear is None, reason="this build of torch has no oneDNN")
TOLERANCE = 1e-6


def relative_error(own: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(own.double() - expected) / torch.linalg.vector_norm(expected))


def layer_of(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    return weight.requires_grad_(), torch.randn(outputs, generator=generator).requires_grad_()


@needs_onednn
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    ("batch", "inputs", "outputs"), [(1, 3136, 512), (40, 3136, 512), (129, 3136, 512), (256, 96, 64)]
)
def test_outputs_and_gradients_are_those_of_the_formula(batch: int, inputs: int, outputs: int, activation: str) -> None:
    """In double precision, for single observations too, within 1e-6."""
    weight, bias = layer_of(inputs, outputs)
    hidden = torch.randn(batch, inputs, generator=torch.Generator().manual_seed(2)).requires_grad_()
    above = torch.randn(batch, outputs, generator=torch.Generator().manual_seed(3))
    assert by_onednn(hidden, weight.T)

    made = linear(hidden, weight, bias, activation)
    own = torch.autograd.grad(made, (hidden, weight, bias), above)

    exact = F.linear(hidden.double(), weight.double(), bias.double()).detach()
    exact = exact.tanh() if activation == "tanh" else exact.clamp_min(0)
    slope = 1 - exact**2 if activation == "tanh" else made > 0  # a sum may round to either side of 0
    passed = above.double() * slope
    assert relative_error(made.detach(), exact) < TOLERANCE
    for ours, expected in zip(own, (passed @ weight.double(), passed.T @ hidden.double(), passed.sum(0)), strict=True):
        assert ours.shape == expected.shape
        assert relative_error(ours, expected.detach()) < TOLERANCE


@needs_onednn
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_nan_is_not_hidden(activation: str) -> None:
    """Neither by a ReLU: parameters that are not finite must be found."""
    weight, bias = layer_of(96, 64)
    with torch.no_grad():
        weight[3, 5] = torch.nan

    made = linear(torch.ones(256, 96), weight, bias, activation)

    assert made[:, 3].isnan().all()
    assert made.isfinite().sum() == 256 * 63


@needs_onednn
def test_only_the_gradients_that_are_needed_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input alone, as for the slope of an action value, and of the parameters alone, as in a first layer."""
    weight, bias = layer_of(96, 64)
    hidden = torch.randn(256, 96)
    products: list[tuple[int, ...]] = []
    monkeypatch.setattr(module, "product", lambda left, right: (products.append(left.shape), left @ right)[1])

    linear(hidden.clone().requires_grad_(), weight.detach(), bias.detach(), "relu").sum().backward()
    linear(hidden, weight, bias, "relu").sum().backward()

    assert products == [(256, 64), (64, 256)]


@needs_onednn
def test_it_is_the_same_without_a_gradient() -> None:
    """As a policy acts and a target network is asked."""
    weight, bias = layer_of(3136, 512)
    hidden = torch.randn(8, 3136)
    with_gradient = linear(hidden, weight, bias, "relu")

    with torch.no_grad():
        assert torch.equal(linear(hidden, weight, bias, "relu"), with_gradient)
    with torch.inference_mode():
        assert torch.equal(linear(hidden, weight, bias, "relu"), with_gradient)


@pytest.mark.parametrize("kind", ["small", "bfloat16", "no oneDNN"])
def test_other_layers_are_torchs_own_to_the_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, those in bfloat16, and all where torch was built without oneDNN."""
    weight, bias = (one.detach() for one in layer_of(240 if kind == "small" else 3136, 512))
    hidden = torch.randn(8, weight.shape[1])
    if kind == "bfloat16":
        weight, bias, hidden = weight.bfloat16(), bias.bfloat16(), hidden.bfloat16()
    if kind == "no oneDNN":
        monkeypatch.setattr(module, "onednn_linear", None)
    assert not by_onednn(hidden, weight.T)

    assert torch.equal(linear(hidden, weight, bias, "relu"), F.linear(hidden, weight, bias).relu())
    assert torch.equal(product(hidden, weight.T), hidden @ weight.T)


@needs_onednn
def test_autocast_reduces_its_inputs() -> None:
    """As in layers that compute in bfloat16 and keep float32 weights."""
    weight, bias = layer_of(3136, 512)

    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(8, 3136), weight, bias, "relu").dtype == torch.bfloat16


@needs_onednn
def test_what_is_exported_has_torchs_own_layers() -> None:
    """Other programs do not know oneDNN's operator; and it serves batches of any size."""
    body = ConvolutionalBody((4, 84, 84), CONVOLUTIONS["nature"], (512,), raw_pixels=True)

    with torch.no_grad():
        observations = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
        exported = torch.export.export(body, (observations,), dynamic_shapes=({0: torch.export.Dim("batch")},))

    assert "linear" in str(exported.graph)
    assert "mkldnn" not in str(exported.graph)
