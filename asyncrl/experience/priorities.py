"""Sampling with probability proportional to priority (Schaul et al. 2016), a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.kernels import compiled

Indices: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]

_ADD_UP = compiled("add_up", c_void_p, c_int64, c_void_p, c_void_p)
_DESCEND = compiled("descend", c_void_p, c_int64, c_void_p, c_void_p)
BRANCHES = 16
"""Children per node. Each level costs a few numpy calls, whatever its size, so the tree is wide rather than deep: a
million slots take two levels below the top."""
_TOP = 4096
"""Largest size of the top level: summing so many nodes costs less than another level."""


class Priorities:
    """A sum tree over a fixed number of slots, all of priority 0 at first. For one process.

    Every parent is recomputed from all its children when one of them changes. So rounding errors do not accumulate, and
    the tree depends only on the priorities, not on their history.
    """

    def __init__(self, slots: int) -> None:
        self._own: Numbers = np.zeros(slots)
        self._add_up()

    def _add_up(self) -> None:
        """Compute all parents. Each level is `[parents, BRANCHES]`, the lowest first; the top level is one row."""
        self._levels = [_families(self._own)]
        self._own = self._levels[0].reshape(-1)[: len(self._own)]
        while len(sums := self._levels[-1].sum(1)) > _TOP:
            self._levels.append(_families(sums))
        self._top: Numbers = sums

    def __len__(self) -> int:
        return len(self._own)

    @property
    def total(self) -> float:
        """The sum of all priorities, with a relative rounding error of about 1e-14."""
        return float(self._top.sum())

    def priority(self, indices: Indices) -> Numbers:
        """The priorities `[n]` of the slots `indices` `[n]`."""
        return self._own[indices]

    def set(self, indices: Indices, priorities: Numbers) -> None:
        """Set the `priorities` `[n]` of the slots `indices` `[n]`; for a slot given twice, the last one counts.

        Raises ValueError for a priority that is negative or not finite; nothing has changed then.
        """
        if not ((priorities >= 0) & (priorities < np.inf)).all():
            raise ValueError("a priority is negative or not finite")
        self._own[indices] = priorities
        children = np.array(indices, np.int64)
        for families, parents in zip(self._levels, [*self._levels[1:], self._top], strict=True):
            _add_up(families, children, parents.reshape(-1))

    def sample(self, u: Numbers) -> Indices:
        """The slots `[n]` at the fractions `u` `[n]` of the total, each in [0, 1); never one of priority 0.

        Imagine the slots on a line, each as long as its priority. For uniform u a slot is chosen with probability
        priority / total. For a stratified batch pass one u from each n-th of the line: `(arange(n) + u) / n`. The total
        must not be 0.
        """
        ends = self._top.cumsum()
        # The position on the line, then within the node found. Rounding may push it past either end of a node. Clipped,
        # it never falls on a child of priority 0.
        along = np.minimum(u * ends[-1], np.nextafter(ends[-1], 0))
        nodes: Indices = ends.searchsorted(along, side="right")
        along -= ends[nodes] - self._top[nodes]
        for families in reversed(self._levels):
            _descend(families, nodes, along)
        return nodes

    def state(self) -> dict[str, Tensor]:
        """A copy of the priorities, `[slots]`."""
        return {"priorities": torch.from_numpy(self._own.copy())}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises UsageError for another number of slots, or a negative priority."""
        priorities = state["priorities"].numpy()
        if priorities.shape != self._own.shape:
            raise UsageError(f"the checkpoint holds {len(priorities)} priorities, this run has {len(self)} slots")
        if not (priorities >= 0).all():
            raise UsageError("the checkpoint holds a negative priority")
        self._own[:] = priorities
        self._add_up()


def _families(values: Numbers) -> Numbers:
    """A copy of `values` `[n]` in rows of BRANCHES siblings, the last one filled up with zeros."""
    return np.pad(values, (0, -len(values) % BRANCHES)).reshape(-1, BRANCHES)


def _add_up(families: Numbers, children: Indices, parents: Numbers) -> None:
    """Write the sums of the families in which these children `[n]` are into `parents`; `children` become the parents.

    Like `_descend` it is compiled where there are kernels. The Python code does the same, to the bit.
    """
    if _ADD_UP is not None:
        _ADD_UP(families.ctypes.data, len(children), children.ctypes.data, parents.ctypes.data)
        return
    children //= BRANCHES
    parents[children] = families.take(children, 0).sum(1)


def _descend(families: Numbers, nodes: Indices, along: Numbers) -> None:
    """From nodes `[n]`, and positions `along` them `[n]`, to their children there, in place."""
    if _DESCEND is not None:
        _DESCEND(families.ctypes.data, len(nodes), nodes.ctypes.data, along.ctypes.data)
        return
    children, rows = families.take(nodes, 0), np.arange(len(nodes))
    ends = children.cumsum(1)
    along[:] = np.clip(along, 0, np.nextafter(ends[:, -1], 0))
    chosen = (ends > along[:, None]).argmax(1)
    along -= ends[rows, chosen] - children[rows, chosen]
    nodes[:] = nodes * BRANCHES + chosen
