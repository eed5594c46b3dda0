"""Observations are normalised by compiled code as by torch, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asyncrl.core import standardizing
from asyncrl.core.moments import standardize
from asyncrl.core.standardizing import standardize_into


def numbers(shape: tuple[int, ...]) -> Tensor:
    """Of many magnitudes, some of them no numbers."""
    values = torch.randn(shape) * 10.0 ** torch.randint(-3, 4, shape)
    values.view(-1)[::7] = torch.nan
    values.view(-1)[1::7] = torch.inf
    return values


@pytest.mark.parametrize("lanes", [0, 8, 16])
@pytest.mark.parametrize(
    ("raw", "moments"),
    [
        ((3, 5), (5,)),
        ((2, 3, 5), (5,)),
        ((2, 4, 13, 7), (1, 13, 7)),
        ((2, 4, 42, 42), (1, 42, 42)),
        ((2, 4, 13, 7), (4, 13, 7)),
        ((6, 2, 4, 10, 10), (4, 10, 10)),
        ((2, 6), (1,)),
    ],
)
@pytest.mark.parametrize("kind", ["pixels", "numbers", "double", "view"])
def test_it_is_torch_to_the_bit(
    kind: str, raw: tuple[int, ...], moments: tuple[int, ...], lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments of whole observations, or of one image of a stack; whatever has no compiled code is left to torch."""
    if lanes > standardizing.LANES:
        pytest.skip("this processor has no such instructions, or there is no compiled code")
    monkeypatch.setattr(standardizing, "LANES", lanes)
    torch.manual_seed(1)
    observations = numbers(raw)
    if kind == "pixels":
        observations = torch.randint(0, 256, raw, dtype=torch.uint8)
    elif kind == "double":
        observations = observations.double()
    elif kind == "view":
        observations = numbers((*raw[:-1], 2 * raw[-1]))[..., ::2]
    mean, scale = 100 * torch.randn(moments), torch.rand(moments) / 20

    out = torch.empty(raw)
    assert standardize_into(observations, mean, scale, out) is out
    expected = standardize(observations, mean, scale, torch.empty(raw))
    assert torch.equal(out.view(torch.int32), expected.view(torch.int32))
