"""bfloat16 where a network's time goes, float32 for everything else.

`--precision bfloat16` lets the large layers multiply in bfloat16 and add up in float32, which takes a processor that
has the instructions half of the time. Weights, gradients, recurrent states and all that leaves these layers are
float32: a layer casts what it takes, by torch's autocast.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""One of these, as Linux calls them, and a processor multiplies in bfloat16 by itself."""


FEWEST_ROWS = 4
"""Of fewer observations at once casting costs more than it saves, but where a gradient is taken as well."""


class Reducible(nn.Module):
    """A part of a network that may compute in bfloat16. It does so within `precision`, and gives float32."""

    def __init__(self) -> None:
        super().__init__()
        self.precision: AbstractContextManager[object] = nullcontext()

    def precision_for(self, rows: int) -> AbstractContextManager[object]:
        """That in which it acts on `rows` observations."""
        return self.precision if rows >= FEWEST_ROWS else nullcontext()


def compute_in(network: nn.Module, precision: str) -> None:
    """Let all parts of `network` that may do so compute in "float32" or "bfloat16"."""
    for module in network.modules():
        if isinstance(module, Reducible):
            reduced = precision == "bfloat16"
            module.precision = torch.autocast("cpu", torch.bfloat16) if reduced else nullcontext()
