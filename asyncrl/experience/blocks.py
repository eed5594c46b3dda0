"""Rollouts as blocks of shared memory, in rings from one writer to one reader: no lock, no queue object, no pickle.

Why this is safe: each of a ring's two counts has a single writer, and an aligned 8-byte store is never torn. A process
that dies leaves its count as it was. The block it was writing was never published, the block it was reading was never
freed, and its successor starts again with that block.

The order of stores matters: first the data, then the count that publishes it. x86 keeps the order of stores and of
loads, and each of them here is a separate call, which no compiler reorders. ARM guarantees neither, and numpy's stores
have no barrier; the only protection there is that a writer runs thousands of instructions between the last element and
the count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.moments import standardize
from asyncrl.core.rollout import EACH_STEP, Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.core.standardizing import standardize_into
from asyncrl.runtime.clock import shared_zeros

HEADER = 3
"""Integers before a rollout as bytes: its number of truncated episodes, its steps, and its rank's wish or a host's
mark."""
FIRST = 1
"""Mark of the first rollout of a worker's process."""
Field: TypeAlias = tuple[str, tuple[int, ...], torch.dtype]
"""Name, shape and dtype of one tensor in a block."""
Block: TypeAlias = dict[str, Tensor]
"""Views of the tensors of one block, by name."""

_CACHE_LINE = 64  # bytes: no two writers share one, and every tensor begins on a new one
_CONTROL = 2 * _CACHE_LINE
"""Bytes before the blocks: a line of the writer's, and one of the reader's."""
_WRITTEN, _FREED, _USED = 0, 8, 9
"""Numbers there: blocks written since the ring was made; those freed, and the end of those begun to be used."""
_MOST_BLOCKS = 2**62
"""No ring gets there."""
_PIECE = 65_536
"""Numbers normalised at once: 256 KiB of float32."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The tensors in each block of a ring, each of another name."""

    fields: tuple[Field, ...]
    """A shape of () is a scalar; there is no separate header."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, with padding."""
        return sum(_padded(_bytes(shape, dtype)) for _, shape, dtype in self.fields)

    def views(self, memory: Tensor) -> Block:
        """The tensors in `memory` `[..., block_bytes]`, uint8, each `[..., *shape]`."""
        views, start = {}, 0
        for name, shape, dtype in self.fields:
            size = _bytes(shape, dtype)
            views[name] = memory[..., start : start + size].view(dtype).view((*memory.shape[:-1], *shape))
            start += _padded(size)
        return views


def ring_bytes(layout: BlockLayout, capacity: int) -> int:
    """Bytes of shared memory for a ring, with its control cells."""
    return _CONTROL + capacity * layout.block_bytes


class Ring:
    """A queue of `capacity` blocks in shared memory, from one writer to one reader, in one process or two.

    Blocks are numbered 0, 1, 2, ...; number s is in slot s modulo the capacity. The writer writes while blocks are
    `free`, the reader reads `ready` blocks and releases them. No call waits; a caller that finds nothing to do tries
    again later.

    Either side may die at any moment, and another process may take over with the same ring. It begins the block again
    that a dead writer had not published, or reads the blocks again that a dead reader had not released.
    """

    def __init__(self, layout: BlockLayout, capacity: int, memory: Tensor | None = None) -> None:
        """`memory` is `[ring_bytes(layout, capacity)]` zeros, uint8, shared; allocated by default."""
        self.layout = layout
        self.capacity = capacity
        self._memory = shared_zeros(ring_bytes(layout, capacity), dtype=torch.uint8) if memory is None else memory
        self._counts: NDArray[np.int64] = self._memory[:_CONTROL].view(torch.int64).numpy()
        self._tensors = layout.views(self._memory[_CONTROL:].view(capacity, layout.block_bytes))

    def __reduce__(self) -> tuple[type[Ring], tuple[BlockLayout, int, Tensor]]:
        """In another process, the same memory."""
        return Ring, (self.layout, self.capacity, self._memory)

    @property
    def written(self) -> int:
        """Blocks published since the ring was made, so also the number of the next block."""
        return int(self._counts[_WRITTEN])

    @property
    def freed(self) -> int:
        """Blocks released since the ring was made, so also the number of the first unread block."""
        return int(self._counts[_FREED])

    def free(self) -> int:
        """Blocks that the writer may write before the reader releases one."""
        return self.capacity - self.ready()

    def ready(self) -> int:
        """Blocks published and not yet released."""
        return self.written - self.freed

    def begin(self) -> Block:
        """Writer: views of the next block, to be filled in place and then published.

        They still hold the data of an earlier block. A block that was begun but not published is begun again. Raises
        RuntimeError if the ring is full.
        """
        if not self.free():
            raise RuntimeError("the ring is full: check free() before begin()")
        return self._views(self.written)

    def publish(self) -> None:
        """Writer: hand the block that was begun to the reader."""
        self._counts[_WRITTEN] += 1

    def block(self, number: int) -> Block:
        """Reader: views of block `number`, valid until it is released. Raises IndexError if it is not there."""
        if not self.freed <= number < self.written:
            raise IndexError(f"block {number} is not among the unread ones, {self.freed} to {self.written - 1}")
        return self._views(number)

    def read(self, i: int = 0) -> Block:
        """The same for the i-th unread block."""
        return self.block(self.freed + i)

    def used(self) -> int:
        """Reader: how many of the unread blocks were already in use, by this reader or one that died."""
        return max(0, int(self._counts[_USED]) - self.freed)

    def use(self, n: int = 1) -> None:
        """Reader: mark the first `n` unread blocks as in use."""
        self._counts[_USED] = max(int(self._counts[_USED]), self.freed + n)

    def release(self, n: int = 1) -> None:
        """Reader: hand the first `n` unread blocks back to the writer. Raises ValueError if there are fewer."""
        if not 0 <= n <= self.ready():
            raise ValueError(f"cannot release {n} blocks: {self.ready()} are unread")
        self._counts[_FREED] += n

    def state(self) -> dict[str, Tensor]:
        """Copies of the unread blocks, and the counts. Call it while nobody writes or reads.

        `counts` `[2]` are blocks written and freed, `blocks.NAME` `[n, ...]` the unread ones. An unpublished block is
        left out.
        """
        slots = [number % self.capacity for number in range(self.freed, self.written)]
        blocks = {f"blocks.{name}": tensor[slots] for name, tensor in self._tensors.items()}
        return {"counts": torch.tensor([self.written, self.freed])} | blocks

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, maybe of a ring with another capacity. Call it while nobody writes or reads.

        Raises UsageError if the blocks have another layout or do not fit.
        """
        counts = state.get("counts")
        if counts is None or not is_like(counts, np.int64, 2) or not 0 <= counts[1] <= counts[0] < _MOST_BLOCKS:
            raise UsageError("the checkpoint's experience cannot be used: its counts are missing or invalid")
        written, freed = counts.tolist()
        n = written - freed
        if n > self.capacity:
            raise UsageError(f"the checkpoint has {n} blocks of experience, this run has room for {self.capacity}")
        for name, shape, dtype in self.layout.fields:
            blocks = state.get(f"blocks.{name}")
            if blocks is None or blocks.dtype != dtype or blocks.shape != (n, *shape):
                raise UsageError(f"the checkpoint's experience ({name}) has a different shape from this run's")
        slots = [number % self.capacity for number in range(freed, written)]
        for name, tensor in self._tensors.items():
            tensor[slots] = state[f"blocks.{name}"]
        self._counts[[_WRITTEN, _FREED, _USED]] = written, freed, freed

    def _views(self, number: int) -> Block:
        return {name: tensor[number % self.capacity] for name, tensor in self._tensors.items()}


def entries_under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries named `prefix.NAME`, by NAME."""
    return {name.removeprefix(f"{prefix}."): own for name, own in state.items() if name.startswith(f"{prefix}.")}


def is_like(value: object, dtype: DTypeLike, *shape: int) -> bool:
    """Whether something from a checkpoint, which may be a stranger's, is a tensor of that type and shape."""
    like = torch.from_numpy(np.empty(0, dtype)).dtype
    return isinstance(value, Tensor) and value.dtype == like and value.shape == shape


def are_below(numbers: Tensor, ends: int | Tensor) -> bool:
    """Whether numbers that are used as indices are among 0 .. `ends` - 1."""
    return bool(((numbers >= 0) & (numbers < ends)).all())


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _padded(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE


@dataclass(frozen=True)
class RolloutShape:
    """What all rollouts of a run have in common, as plain data."""

    steps: int
    """T."""
    environments: int
    """E."""
    spaces: Spaces
    state: tuple[tuple[int, ...], ...] = ()
    """Shapes of the recurrent state's tensors for one environment; none for a feed-forward network."""
    extras: tuple[str, ...] = ()
    """Names of what `act` stores for the loss."""
    moments: tuple[int, ...] = ()
    """Shape of the observations' moments; empty: observations are not normalised."""

    def layout(self, finals: int | None = None) -> BlockLayout:
        """The block for one rollout, with room for the last observations of `finals` truncated episodes.

        None: room for the worst case. Pages that are never written take no memory.
        """
        steps, environments = self.steps, self.environments
        finals = steps * environments if finals is None else finals
        observation, dtype = self.spaces.observation_shape, getattr(torch, self.spaces.observation_dtype)
        each: tuple[int, ...] = (steps, environments)
        continuous = self.spaces.is_continuous
        fields: list[Field] = [
            ("observations", (steps + 1, environments, *observation), dtype),
            ("actions", (*each, len(self.spaces.action_low)) if continuous else each,
             torch.float32 if continuous else torch.int64),
            ("rewards", each, torch.float32),
            ("discounts", each, torch.float32),
            ("last", each, torch.bool),
            ("truncated", (2, finals), torch.int64),
            ("finals", (finals, *observation), dtype),
            ("numbers", (3,), torch.int64),
            ("reward_scale", (), torch.float64),
        ]  # fmt: skip
        fields += [(f"state.{i}", (environments, *shape), torch.float32) for i, shape in enumerate(self.state)]
        fields += [(f"extras.{name}", each, torch.float32) for name in self.extras]
        fields += [(name, self.moments, torch.float32) for name in ("mean", "scale") if self.moments]
        return BlockLayout(tuple(fields))


def write(block: Block, rollout: Rollout, version: int) -> None:
    """Copy a rollout, made with theta of `version`, into a block."""
    block["observations"].copy_(rollout.observations if rollout.raw is None else rollout.raw)
    for name in EACH_STEP:
        block[name].copy_(getattr(rollout, name))
    finals = rollout.final_observations if rollout.raw is None else rollout.raw_final
    count = 0 if finals is None else len(finals)
    if finals is not None:
        block["finals"][:count].copy_(finals)
        block["truncated"][0, :count].copy_(rollout.truncated[0])
        block["truncated"][1, :count].copy_(rollout.truncated[1])
    block["numbers"].copy_(torch.tensor([version, rollout.acted_at, count]))
    block["reward_scale"].fill_(rollout.reward_scale)
    for i, part in enumerate(rollout.state or ()):
        block[f"state.{i}"].copy_(part)
    for name, values in rollout.extras.items():
        block[f"extras.{name}"].copy_(values)
    if rollout.moments is not None:
        block["mean"].copy_(rollout.moments[0])
        block["scale"].copy_(rollout.moments[1])


def points_within(shape: RolloutShape, block: Block) -> bool:
    """Whether no number in a block from a checkpoint, which may be a stranger's, points out of the rollout."""
    count = finals_in(block)
    places = block["truncated"][:, : max(0, count)]
    return (
        0 <= count <= len(block["finals"])
        and are_below(places, torch.tensor([[shape.steps], [shape.environments]]))
        and (shape.spaces.is_continuous or are_below(block["actions"], shape.spaces.actions))
    )


def finals_in(block: Block) -> int:
    """Number of truncated episodes of the rollout in a block."""
    return int(block["numbers"][2])


def version_of(block: Block) -> int:
    """Version of theta with which the rollout in a block was made."""
    return int(block["numbers"][0])


def copy(source: Block, target: Block) -> None:
    """Copy the rollout in one block into another, which may have room for fewer or more last observations."""
    count = finals_in(source)
    for name, tensor in source.items():
        if name == "finals":
            target[name][:count].copy_(tensor[:count])
        elif name == "truncated":
            target[name][:, :count].copy_(tensor[:, :count])
        else:
            target[name].copy_(tensor)


def read(block: Block, observations: Tensor | None = None) -> tuple[Rollout, int]:
    """The rollout in a block, as views where possible, and the version of theta it was made with.

    Observations are copied into `observations` `[T + 1, E, ...]`, or into new memory. They are normalised by the
    actor's moments, so that the learner sees what the actor saw.
    """
    version, acted_at, count = block["numbers"].tolist()
    finals = block["finals"][:count] if count else None
    moments = (block["mean"], block["scale"]) if "mean" in block else None
    if observations is None:
        raw = block["observations"]
        observations = torch.empty_like(raw, dtype=raw.dtype if moments is None else torch.float32)
    if moments is None:
        observations.copy_(block["observations"])
    else:
        _standardize_in_pieces(block["observations"], *moments, observations)

    state = tuple(block[f"state.{i}"] for i in range(sum(name.startswith("state.") for name in block)))
    steps: dict[str, Any] = {name: block[name] for name in EACH_STEP}
    return Rollout(
        **steps,
        observations=observations,
        truncated=(block["truncated"][0, :count], block["truncated"][1, :count]),
        final_observations=finals if finals is None or moments is None else standardize(finals, *moments),
        state=state or None,
        reward_scale=float(block["reward_scale"]),
        acted_at=acted_at,
        extras={name.removeprefix("extras."): values for name, values in block.items() if name.startswith("extras.")},
        raw=None if moments is None else block["observations"],
        raw_final=None if moments is None else finals,
        moments=moments,
    ), version


def read_raw(block: Block) -> Rollout:
    """The same as a view, with observations that are not normalised."""
    raw = {name: tensor for name, tensor in block.items() if name not in ("mean", "scale")}
    return read(raw, block["observations"])[0]


def _standardize_in_pieces(raw: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """`standardize`, in half the time: each piece stays in the cache, for three passes over it without a compiler."""
    rows = max(1, _PIECE // raw[0].numel())
    for begin in range(0, len(raw), rows):
        piece = slice(begin, begin + rows)
        standardize_into(raw[piece], mean, scale, out[piece])


def packed(shape: RolloutShape, rollout: Rollout, version: int, wish: int) -> Tensor:
    """A rollout as bytes, with exactly as many last observations as it has."""
    message = _empty(shape, len(rollout.truncated[0]), rollout.steps, wish)
    write(block_of(shape, message), rollout, version)
    return message


def copied(shape: RolloutShape, block: Block, mark: int = 0) -> Tensor:
    """The same from a block of a ring, as it is: nothing is normalised."""
    message = _empty(shape, finals_in(block), 0, mark)
    copy(block, block_of(shape, message))
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
