"""bfloat16 where a network's time goes, float32 for everything else.

`--precision bfloat16` lets the large layers multiply in bfloat16 and add up in float32, which takes a processor that
has the instructions half of the time. These layers hold a copy of theta' in bfloat16, which each pull renews; autocast
casts what they take, and they give float32. Theta, the optimiser's statistics, recurrent states, returns and losses
are float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""One of these, as Linux calls them, and a processor multiplies in bfloat16 by itself."""


class Reducible(nn.Module):
    """A part of a network that may compute in bfloat16. It does so within `precision`, and gives float32."""

    def __init__(self) -> None:
        super().__init__()
        self.precision: AbstractContextManager[object] = nullcontext()

    def large(self) -> nn.Module:
        """The layers that hold their weights in bfloat16 then."""
        return self


def compute_in(network: nn.Module, precision: str, cast_weights: bool = True) -> None:
    """Let all parts of `network` that may do so compute in "float32" or "bfloat16".

    Without `cast_weights` the weights stay float32 and are cast whenever they are used: for networks whose weights
    somebody else changes.
    """
    if precision == "float32":
        return
    for part in network.modules():
        if isinstance(part, Reducible):
            part.precision = torch.autocast("cpu", torch.bfloat16)
            if cast_weights:
                part.large().to(torch.bfloat16)
