"""Sampling with probability proportional to priority (Schaul et al. 2016), a batch at a time."""

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
"""Children per node. Each level costs a few numpy calls, whatever its size, so the tree is wide rather than deep: a
million slots take two levels below the top."""
_TOP = 4096
"""Largest size of the top level: summing so many nodes costs less than another level."""


def memory_shape(slots: int) -> tuple[int, int]:
    """Shape of the float64 array that holds the priorities of `slots` slots."""
    return -(-slots // BRANCHES), BRANCHES


class Priorities:
    """A sum tree over a fixed number of slots, all of priority 0 at first. For one process.

    Every parent is recomputed from all its children when one of them changes. So rounding errors do not accumulate, and
    the tree depends only on the priorities, not on their history.
    """

    def __init__(self, slots: int, memory: Numbers | None = None) -> None:
        """`memory`, of shape `memory_shape(slots)`, holds existing priorities; allocated by default.

        In shared memory the priorities outlive the process, and its successor builds a tree from them. Raises
        ValueError for less than one slot, or a memory of another shape or dtype.
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
        """Compute all parents. Each level is `[parents, BRANCHES]`, the lowest first; the top level is one row."""
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
        """The sum of all priorities, with a relative rounding error of about 1e-14."""
        return float(self._top.sum())

    def priority(self, indices: Indices) -> Numbers:
        """The priorities `[n]` of the slots `indices` `[n]`. Raises IndexError for a slot out of range."""
        self._check(indices)
        return self._own[indices]

    def set(self, indices: Indices, priorities: Numbers) -> None:
        """Set the `priorities` `[n]` of the slots `indices` `[n]`; for a slot given twice, the last one counts.

        Raises IndexError for a slot out of range, and ValueError for a priority that is negative or not finite. Nothing
        has changed then.
        """
        self._check(indices)
        if not ((priorities >= 0) & (priorities < np.inf)).all():
            raise ValueError("a priority is negative or not finite")
        self._own[indices] = priorities
        for families, parents in zip(self._levels, [*self._levels[1:], self._top], strict=True):
            indices = indices // BRANCHES
            parents.reshape(-1)[indices] = families.take(indices, 0).sum(1)

    def sample(self, u: Numbers) -> Indices:
        """The slots `[n]` at the fractions `u` `[n]` of the total, each in [0, 1); never one of priority 0.

        Imagine the slots on a line, each as long as its priority. For uniform u a slot is chosen with probability
        priority / total. For a stratified batch pass one u from each n-th of the line: `(arange(n) + u) / n`. Raises
        ValueError while all priorities are 0.
        """
        ends = self._top.cumsum()
        if not ends[-1]:
            raise ValueError("nothing can be sampled: all priorities are 0")
        # The position on the line, then within the node found. Rounding may push it past either end of a node. Clipped,
        # it never falls on a child of priority 0.
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
        """Restore what `state` returned. Raises UsageError for another number of slots."""
        priorities = state["priorities"].numpy()
        if priorities.shape != self._own.shape:
            raise UsageError(f"the checkpoint holds {len(priorities)} priorities, this run has {len(self)} slots")
        self._own[:] = priorities
        self._add_up()

    def _check(self, indices: Indices) -> None:
        """Raise IndexError for a slot out of range, also for -1, which numpy would accept."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"slots must be 0 to {len(self) - 1}")
