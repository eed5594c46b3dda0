"""Drawing with probability proportional to priority (Schaul et al. 2016), a whole batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError

Indices: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]

BRANCHES = 16
"""Children of a node. A level costs a few calls of numpy, whatever it holds, so a tree had better be wide than deep: a
million slots are two levels of families below the top."""
_TOP = 4096
"""A level of at most so many nodes has no parents: adding it up anew costs less than another level."""


def memory_shape(slots: int) -> tuple[int, int]:
    """Shape of the float64 memory that the priorities of `slots` slots lie in."""
    return -(-slots // BRANCHES), BRANCHES


class Priorities:
    """A sum tree over a fixed number of slots, all of priority 0 at first. For one process.

    Every parent is the sum of its children, added up anew when one of them changes. So rounding errors do not gather,
    and the tree depends on the priorities alone, not on the way by which they came.
    """

    def __init__(self, slots: int, memory: Numbers | None = None) -> None:
        """`memory` of `memory_shape(slots)` holds the priorities that there are; made if it is not given.

        In shared memory they outlive the process: whoever comes next makes its own tree of them. Raises ValueError for
        less than one slot, or a memory of another shape or type.
        """
        if slots < 1:
            raise ValueError(f"priorities need at least one slot, not {slots}")
        leaves: Numbers = np.zeros(memory_shape(slots)) if memory is None else memory
        if leaves.shape != memory_shape(slots) or leaves.dtype != np.float64:
            raise ValueError(f"the memory of {slots} priorities is float64 of shape {memory_shape(slots)}")
        self._leaves = leaves
        self._own: Numbers = leaves.reshape(-1)[:slots]
        self._add_up()

    def _add_up(self) -> None:
        """Make all parents. Each level is `[families, BRANCHES]`, the lowest first; the top is one row."""
        self._levels = [self._leaves]
        while len(sums := self._levels[-1].sum(1)) > _TOP:
            parents = np.zeros(memory_shape(len(sums)))
            parents.reshape(-1)[: len(sums)] = sums
            self._levels.append(parents)
        self._top: Numbers = sums

    def __len__(self) -> int:
        return len(self._own)

    @property
    def total(self) -> float:
        """The sum of all priorities, to within a few units of rounding (a relative 1e-14)."""
        return float(self._top.sum())

    def priority(self, indices: Indices) -> Numbers:
        """Those of the slots `indices` `[n]`. Raises IndexError for a slot that there is not."""
        self._check(indices)
        return self._own[indices]

    def set(self, indices: Indices, priorities: Numbers) -> None:
        """Give the slots `indices` `[n]` the `priorities` `[n]`; of a slot that is named twice the last one stays.

        Raises IndexError for a slot that there is not, ValueError for a priority that is negative or not finite; then
        nothing has changed.
        """
        self._check(indices)
        if not ((priorities >= 0) & (priorities < np.inf)).all():
            raise ValueError("a priority is negative or not finite")
        self._own[indices] = priorities
        for families, parents in zip(self._levels, [*self._levels[1:], self._top], strict=True):
            indices = indices // BRANCHES
            parents.reshape(-1)[indices] = families.take(indices, 0).sum(1)

    def sample(self, u: Numbers) -> Indices:
        """The slots `[n]` in which the shares `u` `[n]` of the total lie, each in [0, 1); never one of priority 0.

        The slots follow each other as on a line, each as long as its priority. With u drawn evenly a slot comes with
        probability priority / total; for a batch draw one u in each n-th of the line (`(arange(n) + u) / n`), so that
        it is spread over all of it. Raises ValueError while all priorities are 0.
        """
        ends = self._top.cumsum()
        if not ends[-1]:
            raise ValueError("nothing can be drawn: all priorities are 0")
        # How far in: into the line at first, then into the node found. Rounding may lead past a node's end or before
        # its beginning; kept within, it never leads to a child of priority 0.
        along = np.minimum(u * ends[-1], np.nextafter(ends[-1], 0))
        nodes: Indices = ends.searchsorted(along, side="right")
        along -= ends[nodes] - self._top[nodes]
        rows = np.arange(len(nodes))
        for families in reversed(self._levels):
            children = families.take(nodes, 0)
            ends = children.cumsum(1)
            along = np.clip(along, 0, np.nextafter(ends[:, -1], 0))
            chosen = (ends > along[:, None]).argmax(1)
            along -= ends[rows, chosen] - children[rows, chosen]
            nodes = nodes * BRANCHES + chosen
        return nodes

    def state(self) -> dict[str, Tensor]:
        """A copy of the priorities, `[slots]`."""
        return {"priorities": torch.from_numpy(self._own.copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` said. Raises UsageError if it is of another number of slots."""
        priorities = state["priorities"].numpy()
        if priorities.shape != self._own.shape:
            raise UsageError(f"the checkpoint holds {len(priorities)} priorities, this run has {len(self)} slots")
        self._own[:] = priorities
        self._add_up()

    def _check(self, indices: Indices) -> None:
        """Numpy takes -1 for the last one."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"a slot lies outside the {len(self)} there are")
