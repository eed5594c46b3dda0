"""Rings of blocks in shared memory: one writer, one reader, no lock, no queue object, nothing pickled.

Why this is safe: every cell has a single writer, and an aligned 8-byte store is never torn. A process that dies leaves
its cells as they were. The block it was writing was never published, the block it was reading was never freed, and its
successor starts again with that block.

The order of stores matters: first the data, then the block's end number, then the count that publishes it. x86 keeps
the order of stores and of loads, and each of them here is a separate call, which no compiler reorders. ARM guarantees
neither: numpy's stores have no barrier, so a count may become visible before the block's numbers or data. If the
numbers are late, the block reads as torn, and is whole on the next attempt. If the data are late, nothing in Python
can detect it; the only protection is that a writer runs thousands of instructions between the last element and the
count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.runtime.shared_memory import shared_zeros

Field: TypeAlias = tuple[str, tuple[int, ...], torch.dtype]
"""Name, shape and dtype of one tensor in a block."""
Block: TypeAlias = dict[str, Tensor]
"""Views of the tensors of one block, by name."""

_CACHE_LINE = 64  # bytes: no two writers share one, and every tensor begins on a new one
_COLUMNS = _CACHE_LINE // 8
_WRITER, _READER, _FIRST_BLOCK = range(3)
"""Rows of the control cells; the reader writes only its own row, the writer all others."""
_COUNT, _USED = range(2)
"""Columns of the first two rows: blocks written or freed since the ring was made; in the reader's row also the end of
the blocks it has begun to use."""
_BEGIN, _END = range(2)
"""Columns of a block's row: 1 + the sequence number of the block begun, and of the complete one; 0 for none."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The tensors in each block of a ring. Raises ValueError if two have the same name."""

    fields: tuple[Field, ...]
    """A shape of () is a scalar; there is no separate header."""

    def __post_init__(self) -> None:
        names = [name for name, _, _ in self.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"two tensors of a block have the same name: {', '.join(names)}")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, with padding."""
        return sum(_padded(_bytes(shape, dtype)) for _, shape, dtype in self.fields)

    def places(self) -> Iterator[tuple[Field, slice]]:
        """Each field and its bytes within a block."""
        start = 0
        for name, shape, dtype in self.fields:
            size = _bytes(shape, dtype)
            yield (name, shape, dtype), slice(start, start + size)
            start += _padded(size)


def ring_bytes(layout: BlockLayout, capacity: int) -> int:
    """Bytes of shared memory for a ring, with its control cells."""
    return _control_bytes(capacity) + capacity * layout.block_bytes


class Ring:
    """`capacity` blocks in shared memory, from one writer to one reader, in one process or two.

    Blocks are numbered 0, 1, 2, ...; number s is in slot s modulo the capacity. As a queue: the writer writes while
    blocks are `free`, the reader reads `ready` blocks and releases them. No call waits; a caller that finds nothing to
    do tries again later. As a memory: old blocks are overwritten, and `block` and `intact` say what is still there.

    Either side may die at any moment, and another process may take over with the same ring. It begins the block again
    that a dead writer had not published, or reads the blocks again that a dead reader had not released.
    """

    def __init__(self, layout: BlockLayout, capacity: int, memory: Tensor | None = None) -> None:
        """`memory` is `[ring_bytes(layout, capacity)]` zeros, uint8, shared; allocated by default.

        Raises ValueError for a capacity below 1.
        """
        if capacity < 1:
            raise ValueError(f"a ring needs room for at least one block, not {capacity}")
        self.layout = layout
        self.capacity = capacity
        self._memory = shared_zeros(ring_bytes(layout, capacity), dtype=torch.uint8) if memory is None else memory
        self._attach()

    def _attach(self) -> None:
        control = _control_bytes(self.capacity)
        self._cells: NDArray[np.int64] = self._memory[:control].view(torch.int64).view(-1, _COLUMNS).numpy()
        blocks = self._memory[control:].view(self.capacity, self.layout.block_bytes)
        # One strided view [capacity, ...] per tensor: a million blocks are attached as fast as one.
        self._tensors = {
            name: blocks[:, place].view(dtype).view(self.capacity, *shape)
            for (name, shape, dtype), place in self.layout.places()
        }
        self._begun = False

    def __getstate__(self) -> tuple[BlockLayout, int, Tensor]:
        return self.layout, self.capacity, self._memory

    def __setstate__(self, state: tuple[BlockLayout, int, Tensor]) -> None:
        self.layout, self.capacity, self._memory = state
        self._attach()

    @property
    def written(self) -> int:
        """Blocks published since the ring was made, so also the sequence number of the next block."""
        return int(self._cells[_WRITER, _COUNT])

    @property
    def freed(self) -> int:
        """Blocks released since the ring was made, so also the sequence number of the first unread block."""
        return int(self._cells[_READER, _COUNT])

    def free(self) -> int:
        """Blocks that the writer may write before the reader releases one."""
        return max(0, self.capacity - self.ready())

    def ready(self) -> int:
        """Blocks published and not yet released; more than the capacity if some were overwritten unread."""
        return self.written - self.freed

    def begin(self, overwrite: bool = False) -> Block:
        """Writer: views of the next block, to be filled in place and then published.

        They still hold the data of an earlier block. A block that was begun but not published is begun again. In a full
        ring, `overwrite` replaces the oldest block, read or not; without it RuntimeError is raised.
        """
        if not overwrite and not self.free():
            raise RuntimeError("the ring is full: check free() before begin()")
        sequence = self.written
        row = _FIRST_BLOCK + sequence % self.capacity
        self._cells[row, _BEGIN] = sequence + 1  # from here on the old block is gone
        self._cells[row, _END] = 0  # also clears that of a writer that died after it ended, before it published
        self._begun = True
        return self._views(sequence)

    def publish(self) -> None:
        """Writer: hand the block that was begun to the reader. Raises RuntimeError if none was begun."""
        if not self._begun:
            raise RuntimeError("no block has been begun: call begin() before publish()")
        sequence = self.written
        self._cells[_FIRST_BLOCK + sequence % self.capacity, _END] = sequence + 1
        self._cells[_WRITER, _COUNT] = sequence + 1
        self._begun = False

    def read(self, i: int = 0) -> Block | None:
        """Reader: views of the i-th unread block, valid until it is released; None if it is torn or overwritten.

        In a queue on x86 it never is; on ARM try again (see the module). Raises IndexError if block `i` is not `ready`.
        """
        if not 0 <= i < self.ready():
            raise IndexError(f"unread block {i} of {self.ready()}")
        return self.block(self.freed + i)

    def used(self) -> int:
        """Reader: how many of the unread blocks were already in use, by this reader or one that died."""
        return max(0, int(self._cells[_READER, _USED]) - self.freed)

    def use(self, n: int = 1) -> None:
        """Reader: mark the first `n` unread blocks as in use."""
        self._cells[_READER, _USED] = max(int(self._cells[_READER, _USED]), self.freed + n)

    def release(self, n: int = 1) -> None:
        """Reader: hand the first `n` unread blocks back to the writer. Raises ValueError if there are fewer."""
        if not 0 <= n <= self.ready():
            raise ValueError(f"cannot release {n} blocks: {self.ready()} are unread")
        self._cells[_READER, _COUNT] = self.freed + n

    def block(self, sequence: int) -> Block | None:
        """Views of block number `sequence`; None if it is not published yet or overwritten.

        In a ring that is overwritten, copy the views and then check `intact`: the block may have changed meanwhile.
        """
        return self._views(sequence) if self.intact(sequence) else None

    def intact(self, sequence: int) -> bool:
        """Whether block number `sequence` is published and its overwriting has not begun.

        If True after a copy from `block`, the whole copy is valid.
        """
        if not 0 <= sequence < self.written:
            return False
        row = self._cells[_FIRST_BLOCK + sequence % self.capacity]
        return bool(row[_END] == sequence + 1 == row[_BEGIN])

    def state(self) -> dict[str, Tensor]:
        """Copies of the unread blocks, and the counts. Call it while nobody writes or reads.

        `counts` `[2]` are blocks written and freed, `blocks.NAME` `[n, ...]` the last n blocks written. An unpublished
        block is left out.
        """
        written, freed = self.written, self.freed
        slots = [s % self.capacity for s in range(max(freed, written - self.capacity), written) if self.intact(s)]
        blocks = {f"blocks.{name}": tensor[slots] for name, tensor in self._tensors.items()}
        return {"counts": torch.tensor([written, freed])} | blocks

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, maybe of a ring with another capacity. Call it while nobody writes or reads.

        Raises UsageError if the blocks have another layout or do not fit.
        """
        blocks = {name: state[f"blocks.{name}"] for name in self._tensors if f"blocks.{name}" in state}
        n = max((len(tensor) for tensor in blocks.values()), default=0)
        if n > self.capacity:
            raise UsageError(f"the checkpoint has {n} blocks of experience, this run has room for {self.capacity}")
        for name, shape, dtype in self.layout.fields:
            if name not in blocks or blocks[name].dtype != dtype or blocks[name].shape != (n, *shape):
                raise UsageError(f"the checkpoint's experience ({name}) has another shape than this run's")
        written, freed = (int(count) for count in state["counts"])
        sequences = range(written - n, written)
        slots = [sequence % self.capacity for sequence in sequences]
        for name, tensor in blocks.items():
            self._tensors[name][slots] = tensor
        self._cells[_FIRST_BLOCK:] = 0
        for sequence, slot in zip(sequences, slots, strict=True):
            self._cells[_FIRST_BLOCK + slot, [_BEGIN, _END]] = sequence + 1
        self._cells[[_WRITER, _READER], _COUNT] = written, freed
        self._cells[_READER, _USED] = freed
        self._begun = False

    def _views(self, sequence: int) -> Block:
        slot = sequence % self.capacity
        return {name: tensor[slot] for name, tensor in self._tensors.items()}


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _padded(size: int) -> int:
    return -(-size // _CACHE_LINE) * _CACHE_LINE


def _control_bytes(capacity: int) -> int:
    return (_FIRST_BLOCK + capacity) * _CACHE_LINE
