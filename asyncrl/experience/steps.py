"""Single steps in shared memory: a ring of rows for each environment (a *stream*), overwritten when full.

A row holds the observation, action and reward of one step. Of stacked images it keeps only the newest: the others are
in the rows before it, with zeros before the first of an episode. Where a time limit truncated an episode, one more row
holds its last observation. So the result of a step is always in the next row, also across rollouts, and rollouts need
not be kept whole.

Rows are numbered 0, 1, 2, ... in each stream; row r is at position r modulo the capacity. The writer of a stream
publishes in one cell how many rows it has begun to write (`begun`), in another how many it has written (`written`). Row
r is intact while `begun` - capacity <= r < `written`; a reader checks this again after it has copied the row. Every
cell except a priority has a single writer, and nobody waits. What `asyncrl.experience.blocks` says about the order of
stores holds here too.

A writer that dies may leave rows that were never written. Its successor, with other environments, continues in the same
ring: its first row is marked, and no transition or stack crosses it.

Adding a rollout, and reading transitions, are one call each of `core/replay.c` where it is compiled. Python code here
does the same, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof, c_char, c_float, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.kernels import compiled
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.experience.blocks import BlockLayout, Field, are_below, is_like
from asyncrl.experience.transitions import (
    ACTION_VALUE,
    FINAL,
    LAST,
    LEAST_PRIORITY,
    START,
    STATE_VALUE,
    Numbers,
    Truths,
    first_priorities,
    lengths_of,
)
from asyncrl.runtime.clock import shared_zeros

_BEGUN, _WRITTEN, _STEPS = range(3)
"""Columns of a stream's cells: rows begun, rows written, and steps among the latter, since the memory was made."""
_COLUMNS = 8
_MOST_ROWS = 2**62
"""No stream gets there."""
_PUT = compiled("steps_put", c_void_p, *[c_int64] * 5, *[c_float] * 3, *[c_void_p] * 10)
_READ = compiled("steps_read", c_void_p, c_int64, *[c_void_p] * 10)


@dataclass(frozen=True)
class StepShape:
    """What all steps of a run have in common, as plain data."""

    spaces: Spaces
    stack: int = 1
    """Images or vectors stacked in one observation, along its first axis."""
    n_step: int = 1
    """Steps of a transition."""
    priorities: bool = False
    """Whether priorities are kept: initially the actor's, then the learner's."""
    reward_clip: float = 0.0
    """Bound of the rewards in initial priorities; 0: none."""

    @property
    def frame(self) -> tuple[int, ...]:
        """Shape of one image or vector of the stack."""
        first, *rest = self.spaces.observation_shape
        return (first // self.stack, *rest)

    def layout(self, streams: int, capacity: int) -> BlockLayout:
        """The memory for `capacity` rows in each of `streams` streams."""
        each = (streams, capacity)
        fields: tuple[Field, ...] = (
            ("cells", (streams, _COLUMNS), torch.int64),
            ("frames", (*each, *self.frame), getattr(torch, self.spaces.observation_dtype)),
            ("records", (*each, self.record.itemsize), torch.uint8),
        )
        return BlockLayout(fields)

    @property
    def record(self) -> np.dtype[np.void]:
        """What a row holds besides its image, side by side: whoever needs one of it needs all, from one cache line."""
        actions = f"({len(self.spaces.action_low)},)float32" if self.spaces.is_continuous else "int64"
        fields = ["acted_at int64", "rewards float32", "discounts float32", "marks uint8", "older uint8"]
        fields += [f"{name} float32" for name in (ACTION_VALUE, STATE_VALUE, "priorities") if self.priorities]
        fields += [f"actions {actions}"]  # the last, as their size differs and kernels know the others' places
        return np.dtype([(name, kind) for name, kind in map(str.split, fields)], align=True)


class Read(NamedTuple):
    """Copies of B transitions."""

    transitions: Transitions
    """With raw observations and a weight of 1."""
    acted_at: Numbers
    """`[B]` T when their first actions were chosen."""
    usable: Truths
    """`[B]` Whether it is a transition (see `lengths_of`), and no row of it was overwritten meanwhile."""


class Steps:
    """The rows of all streams. Stream `actor * environments + e` is written by that actor's process alone."""

    def __init__(
        self, shape: StepShape, actors: int, environments: int, capacity: int, memory: Tensor | None = None
    ) -> None:
        """`capacity` rows for each stream, in `memory` if it is given, uint8, shared.

        Raises ValueError for a stack that does not divide the shape.
        """
        if shape.spaces.observation_shape[0] % shape.stack:
            raise ValueError(f"an observation {shape.spaces.observation_shape} cannot be a stack of {shape.stack}")
        self.shape = shape
        self.actors, self.environments, self.capacity = actors, environments, capacity
        self.streams = actors * environments
        layout = shape.layout(self.streams, capacity)
        self._memory = shared_zeros(layout.block_bytes, dtype=torch.uint8) if memory is None else memory
        tensors = layout.views(self._memory)
        views = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._cells: Numbers = views["cells"]
        # All streams one after the other: position p of stream s is at s * capacity + p.
        frames, records = (views[name].reshape(-1, *views[name].shape[2:]) for name in ("frames", "records"))
        self._record = shape.record
        self._records: NDArray[np.void] = records.view(f"V{self._record.itemsize}")[:, 0]
        """Without names: numpy copies those field by field."""
        named = self._records.view(self._record)
        self.rows: dict[str, NDArray[Any]] = {"frames": frames} | {
            name: named[name] for name in named.dtype.names or ()
        }
        # For the streams written by this process: where the next row continues. A new process starts afresh.
        self._ages = np.full(self.streams, -1)
        """Rows between the start of the episode and the newest row; -1: nothing has been written yet."""
        self._ended = np.zeros(self.streams, bool)
        """Whether the return ended after the newest row."""
        self._pixel = tensors["frames"].dtype
        self._struct = self._as_struct()
        self._address: int = self._struct.ctypes.data

    def _as_struct(self) -> Numbers:
        """`struct steps` of replay.c."""
        shape, frames = self.shape, self.rows["frames"]
        arrays = self._records, self.rows["actions"], frames, self._cells, self._ages, self._ended
        sizes = self._record.itemsize, self._record["actions"].itemsize, frames[0].nbytes
        numbers = self.capacity, shape.n_step, shape.stack, frames.dtype == np.float32, shape.priorities
        return np.array([*(array.ctypes.data for array in arrays), *sizes, *numbers], np.int64)

    def __reduce__(self) -> tuple[type[Steps], tuple[StepShape, int, int, int, Tensor]]:
        """In another process, the same memory."""
        return Steps, (self.shape, self.actors, self.environments, self.capacity, self._memory)

    @property
    def begun(self) -> Numbers:
        """Rows that each stream's writer has begun to write, `[streams]`: of older rows only a capacity is left."""
        return self._cells[:, _BEGUN].copy()

    @property
    def written(self) -> Numbers:
        """Rows written to each stream, `[streams]`."""
        return self._cells[:, _WRITTEN].copy()

    @property
    def put(self) -> Numbers:
        """Steps written to each stream since the memory was made, `[streams]`."""
        return self._cells[:, _STEPS].copy()

    def drawable(self) -> tuple[Numbers, Numbers]:
        """The range of rows in each stream where a transition may begin: the first, and one past the last, `[streams]`.

        The newest rows still lack their successors, and the oldest the images that they are stacked with.
        """
        ends = self.written - self.shape.n_step
        begins = self.begun - self.capacity  # read last: a row in the range may be overwritten, but never unwritten
        begins = np.where(begins > 0, begins + self.shape.stack - 1, 0)
        return begins, np.maximum(ends, begins)

    def begin(self, actor: int) -> None:
        """Another process goes on with the actor's streams: no transition or stack crosses what it adds first."""
        own = slice(actor * self.environments, (actor + 1) * self.environments)
        self._ages[own], self._ended[own] = -1, False

    def add(self, actor: int, rollout: Rollout) -> None:
        """Append a rollout to the streams of its actor."""
        seen = rollout.observations if rollout.raw is None else rollout.raw
        finals = rollout.final_observations if rollout.raw is None else rollout.raw_final
        if _PUT is None:
            self._add(actor, rollout, seen[:-1].numpy(), finals)
            return
        values = [rollout.extras[name] if self.shape.priorities else None for name in (ACTION_VALUE, STATE_VALUE)]
        steps = (seen.to(self._pixel), rollout.actions, rollout.rewards, rollout.discounts, rollout.last, *values)
        ends = (*rollout.truncated, None if finals is None else finals.to(self._pixel))
        tensors = [None if tensor is None else tensor.contiguous() for tensor in (*steps, *ends)]
        counts = self.environments, len(rollout.last), len(ends[0]), rollout.acted_at
        numbers = float(rollout.reward_scale), self.shape.reward_clip, LEAST_PRIORITY
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        _PUT(self._address, actor * self.environments, *counts, *numbers, *addresses)

    def _add(self, actor: int, rollout: Rollout, seen: NDArray[Any], finals: Tensor | None) -> None:
        """The same in Python, of raw observations `[T, E, ...]` and those at time limits."""
        own = slice(actor * self.environments, (actor + 1) * self.environments)
        streams = np.arange(own.start, own.stop)
        last = rollout.last.numpy()
        cut = tuple(part.numpy() for part in rollout.truncated)
        steps = len(last)

        before = self._cells[own, _WRITTEN].copy()
        after = before + steps
        if len(cut[0]):
            after += np.bincount(cut[1], minlength=len(streams))
        # A writer that died may have begun more rows than its successor begins now. Those are lost.
        self._cells[own, _BEGUN] = np.maximum(self._cells[own, _BEGUN], after)
        numbers = before + np.arange(steps)[:, None]
        if len(cut[0]):
            shift = np.zeros((steps + 1, len(streams)), np.int64)
            shift[cut[0] + 1, cut[1]] = 1  # one more row after each step at which an episode was truncated
            numbers += shift[:-1].cumsum(0)
        places = self.place(streams, numbers)

        starts, ages = self._find_episodes(own, seen, last)
        newest, oldest = self.shape.frame[0], self.shape.stack - 1
        rows = self.rows
        records = np.zeros(places.shape, self._record)
        records["actions"] = rollout.actions.numpy()
        records["rewards"] = rollout.rewards.numpy()
        records["discounts"] = rollout.discounts.numpy()
        records["marks"] = LAST * last + START * starts
        records["older"] = np.minimum(ages, oldest)
        records["acted_at"] = rollout.acted_at
        if self.shape.priorities:
            for name in (ACTION_VALUE, STATE_VALUE):
                records[name] = rollout.extras[name].numpy()
        rows["frames"][places] = seen[:, :, -newest:]
        self._records[places] = records.view(self._records.dtype)
        if len(cut[0]):
            final_places = self.place(streams[cut[1]], numbers[cut] + 1)
            assert finals is not None
            rows["frames"][final_places] = finals.numpy()[:, -newest:]
            rows["marks"][final_places] = FINAL
            rows["older"][final_places] = np.minimum(ages[cut] + 1, oldest)
            if self.shape.priorities:
                # Nobody acted on the last observation of a truncated episode: the value before it stands in.
                rows[STATE_VALUE][final_places] = records[STATE_VALUE][cut]
        if self.shape.priorities:
            self._first_priorities(streams, before, after, float(rollout.reward_scale))
        self._cells[own, _STEPS] += steps
        self._cells[own, _WRITTEN] = after

    def _find_episodes(self, own: slice, seen: NDArray[Any], last: Truths) -> tuple[Truths, Numbers]:
        """Which observations `[T, E, ...]` begin an episode, and how many rows of the episode are before each.

        A rollout marks lost lives and ends of episodes alike. The images tell them apart: after an end all but the
        newest image of the stack are zeros.
        """
        starts = np.empty_like(last)
        starts[0], starts[1:] = self._ended[own], last[:-1]
        numbers = np.arange(len(last))[:, None]
        ended = starts.nonzero()
        older = seen[ended][:, : -self.shape.frame[0]]
        starts[ended] = ~older.any(tuple(range(1, older.ndim)))
        starts[0] |= self._ages[own] < 0
        # The row in which the episode began, relative to the first row here; negative if it began earlier.
        first = np.maximum.accumulate(np.where(starts, numbers, -1 - self._ages[own]), 0)
        ages = numbers - first
        self._ages[own], self._ended[own] = ages[-1], last[-1]
        return starts, ages

    def _first_priorities(self, own: Numbers, before: Numbers, after: Numbers, scale: float) -> None:
        """Store initial priorities of the transitions that are complete now, in all streams `own` `[E]` at once.

        They are absolute n-step errors, computed from the action values that the actors left in the rows.
        """
        n = self.shape.n_step
        which, rows = ranges(np.maximum(0, before - n), np.maximum(0, after - n))
        places, records, lengths = self._find(own[which], rows)
        self.rows["priorities"][places[0]] = first_priorities(records, lengths, scale, self.shape.reward_clip)

    def renew(self, streams: Numbers, rows: Numbers, priorities: NDArray[np.floating[Any]]) -> None:
        """Store new priorities `[B]` in those of the rows `[B]` that are still there, for a restarted learner.

        This is the only cell with two writers. A learner that is suspended for a whole rollout between the check and
        the write stores its priorities with the steps that came after.
        """
        there = rows >= self.begun[streams] - self.capacity
        self.rows["priorities"][self.place(streams[there], rows[there])] = priorities[there]

    def read(self, streams: Numbers, rows: Numbers) -> Read:
        """The transitions that begin with these rows `[B]` of the `drawable` range."""
        if _READ is None:
            return self._read(streams, rows)
        count, n, shape = len(rows), self.shape.n_step, (len(rows), *self.shape.spaces.observation_shape)
        observations, following = torch.empty(shape, dtype=self._pixel), torch.empty(shape, dtype=self._pixel)
        actions = torch.from_numpy(np.empty(count, self._record["actions"]))
        rewards, discounts, last = torch.empty(n, count), torch.empty(n, count), torch.empty(n, count, dtype=torch.bool)
        acted_at, usable = np.empty(count, np.int64), np.empty(count, bool)
        copies = (observations, actions, rewards, discounts, last, following)
        arrays: tuple[Any, ...] = (streams, rows, acted_at, usable)
        addresses = [addressof(c_char.from_buffer(array)) for array in arrays]  # sooner than `array.ctypes.data`
        _READ(self._address, count, *addresses, *[tensor.data_ptr() for tensor in copies])
        return Read(Transitions(*copies, torch.ones(count)), acted_at, usable)

    def _read(self, streams: Numbers, rows: Numbers) -> Read:
        """The same in Python."""
        places, records, lengths = self._find(streams, rows)
        following = lengths, np.arange(len(lengths))
        transitions = Transitions(
            observations=self._stacked(places[0], records["older"][0]),
            actions=torch.from_numpy(records["actions"][0].copy()),
            rewards=torch.from_numpy(records["rewards"][:-1].copy()),
            discounts=torch.from_numpy(records["discounts"][:-1].copy()),
            last=torch.from_numpy((records["marks"][:-1] & LAST) > 0),
            following=self._stacked(places[following], records["older"][following]),
            weights=torch.ones(len(lengths)),
        )
        return Read(transitions, records["acted_at"][0], (lengths > 0) & self._intact(streams, rows))

    def _intact(self, streams: Numbers, rows: Numbers) -> Truths:
        """`[B]` Whether no row is being overwritten that belongs to the transitions beginning with these rows.

        If True after a read, everything that was read is valid.
        """
        oldest = np.maximum(rows - (self.shape.stack - 1), 0)
        return np.asarray(oldest >= self.begun[streams] - self.capacity)

    def _find(self, streams: Numbers, rows: Numbers) -> tuple[Numbers, NDArray[np.void], Numbers]:
        """Of the transitions that begin there, places and copies `[n + 1, B]` of their rows, and their lengths."""
        places = self.place(streams, rows + np.arange(self.shape.n_step + 1)[:, None])
        records = self._records.take(places).view(self._record)
        return places, records, lengths_of(records["marks"])

    def _stacked(self, places: Numbers, older: NDArray[np.uint8]) -> Tensor:
        """The observations `[B, ...]` whose newest images are at these places."""
        stack = self.shape.stack
        if stack == 1:
            return torch.from_numpy(self.rows["frames"].take(places, 0))
        back = np.arange(stack - 1, -1, -1)
        behind = places[:, None] - back
        behind += self.capacity * (back > (places % self.capacity)[:, None])  # the ring goes round
        frames = self.rows["frames"].take(behind, 0)
        frames[older[:, None] < back] = 0
        return torch.from_numpy(frames.reshape(len(places), *self.shape.spaces.observation_shape))

    def place(self, streams: Numbers, rows: Numbers) -> Numbers:
        """Positions in the arrays of `rows` of these rows of these streams; the arguments broadcast."""
        return streams * self.capacity + rows % self.capacity

    def state(self) -> dict[str, Tensor]:
        """Copies of all rows, and the counts. Rows overwritten during the copy count as lost."""
        cells = self._cells.copy()
        kept = np.stack([np.maximum(0, self.begun - self.capacity), cells[:, _WRITTEN]], 1)
        places = self.place(*ranges(*kept.T))
        rows = {name: torch.from_numpy(view[places]) for name, view in self.rows.items()}
        cells[:, _BEGUN] = self.begun
        counts = {
            "cells": cells,
            "kept": kept,
            "newest": np.stack([self._ages, self._ended]),
            "capacity": np.array(self.capacity),
        }
        return rows | {name: torch.from_numpy(array) for name, array in counts.items()}

    def restore(self, state: Mapping[str, Tensor], writers_go_on: bool) -> None:
        """Restore what `state` returned. With `writers_go_on` writers continue their episodes, else they start afresh.

        Raises UsageError if it does not fit.
        """
        if not self._fits(state):
            raise UsageError(
                "the checkpoint's replay memory has different --workers, --envs-per-worker, --memory-steps or "
                "observations: resume with its settings, or with --no-checkpoint-replay"
            )
        places = self.place(*ranges(*state["kept"].numpy().T))
        for name, view in self.rows.items():
            view[places] = state[name].numpy()
        self._cells[:] = state["cells"].numpy()
        if writers_go_on:
            ages, ended = state["newest"].numpy()
            self._ages[:], self._ended[:] = ages, ended.astype(bool)

    def _fits(self, state: Mapping[str, Tensor]) -> bool:
        """Whether these are the tensors of `state`, whoever made them: compiled code believes what they say."""
        streams = self.streams
        shapes = {"cells": self._cells.shape, "kept": (streams, 2), "newest": (2, streams), "capacity": ()}
        if not all(is_like(state.get(name), np.int64, *shape) for name, shape in shapes.items()):
            return False
        cells, newest = state["cells"].numpy()[:, : _STEPS + 1], state["newest"].numpy()
        begins, ends = state["kept"].numpy().T
        ordered = [np.zeros_like(begins), begins, ends, cells[:, _WRITTEN], cells[:, _BEGUN]]
        if not (
            int(state["capacity"]) == self.capacity
            and ((cells >= 0) & (cells < _MOST_ROWS)).all()
            and ((newest >= -1) & (newest < _MOST_ROWS)).all()
            and (np.diff(ordered, axis=0) >= 0).all()
            and (ends - begins <= self.capacity).all()
        ):
            return False
        count, spaces = int((ends - begins).sum()), self.shape.spaces
        if not all(is_like(state.get(name), view.dtype, count, *view.shape[1:]) for name, view in self.rows.items()):
            return False
        actions, priorities = state["actions"], state.get("priorities")
        return (spaces.is_continuous or are_below(actions, spaces.actions)) and (
            priorities is None or bool((priorities >= 0).all())
        )


def ranges(begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """The ranges from `begins[i]` to `ends[i]`, concatenated: for each number its i, and the number."""
    counts = np.maximum(ends - begins, 0)
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(counts.cumsum() - counts, counts) + begins[which]
