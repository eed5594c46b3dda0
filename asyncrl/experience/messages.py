"""Rollouts as bytes, for transports between processes that share no memory."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.core.rollout import Rollout
from asyncrl.experience import blocks
from asyncrl.experience.blocks import Block, RolloutShape

HEADER = 3
"""Integers before a rollout: its number of truncated episodes, its steps, and its rank's wish or a host's mark."""
FIRST = 1
"""Mark of the first rollout of a worker's process."""


def packed(shape: RolloutShape, rollout: Rollout, version: int, wish: int) -> Tensor:
    """A rollout as bytes, with exactly as many last observations as it has."""
    message = _empty(shape, len(rollout.truncated[0]), rollout.steps, wish)
    blocks.write(block_of(shape, message), rollout, version)
    return message


def copied(shape: RolloutShape, block: Block, mark: int = 0) -> Tensor:
    """The same from a block of a ring, as it is: nothing is normalised."""
    message = _empty(shape, blocks.finals_in(block), 0, mark)
    blocks.copy(block, block_of(shape, message))
    return message


def block_of(shape: RolloutShape, message: Tensor) -> Block:
    """The tensors of a message, as views."""
    return shape.layout(header_of(message)[0]).views(message[8 * HEADER :])


def header_of(message: Tensor) -> list[int]:
    """The integers before a rollout, see HEADER."""
    header: list[int] = message[: 8 * HEADER].view(torch.int64).tolist()
    return header


def _empty(shape: RolloutShape, finals: int, steps: int = 0, wish: int = 0) -> Tensor:
    message = torch.zeros(8 * HEADER + shape.layout(finals).block_bytes, dtype=torch.uint8)
    message[: 8 * HEADER].view(torch.int64).copy_(torch.tensor([finals, steps, wish]))
    return message
