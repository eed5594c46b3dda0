"""How an action is chosen from the scores of all actions."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Actions `[E]` drawn from softmax(logits), logits `[E, A]`."""
    return torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)


def greedy(scores: Tensor) -> Tensor:
    """The best action of each row, `[E]` from scores `[E, A]`; the first of equals."""
    return scores.argmax(-1)
