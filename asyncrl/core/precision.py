"""bfloat16 for the expensive layers of a network, float32 for everything else.

With `--precision bfloat16` the large layers multiply in bfloat16 and accumulate in float32. On a processor with the
instructions this takes half the time. These layers hold a bfloat16 copy of theta', renewed by each pull. Autocast casts
their inputs; their outputs are cast back to float32. Theta, the optimiser's statistics, recurrent states, returns and
losses are float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""CPU flags of Linux: a processor with any of these multiplies in bfloat16 in hardware."""


class Reducible(nn.Module):
    """A part of a network that may compute in bfloat16, within `precision`. Its outputs are float32."""

    def __init__(self) -> None:
        super().__init__()
        self.precision: AbstractContextManager[object] = nullcontext()

    def large(self) -> nn.Module:
        """The layers whose weights become bfloat16."""
        return self


def compute_in(network: nn.Module, precision: str, cast_weights: bool = True) -> None:
    """Let all parts of `network` that may do so compute in "float32" or "bfloat16".

    Without `cast_weights` the weights stay float32 and are cast on each use: for networks on weights that another
    process changes.
    """
    if precision == "float32":
        return
    for part in network.modules():
        if isinstance(part, Reducible):
            part.precision = torch.autocast("cpu", torch.bfloat16)
            if cast_weights:
                part.large().to(torch.bfloat16)
