"""Single steps in shared memory: a ring of rows for each environment, overwritten when full, read anywhere.

A row is what was seen and done in one step. Of stacked images it keeps only the newest: the others are those of the
rows before it, and before an episode's first there are zeros. Where a time limit cut an episode a row more follows,
with nothing but its last observation. So what a step led to always stands in the next row, across the borders of
rollouts, and no rollout has to be kept whole.

Rows are numbered 0, 1, 2, ... in each stream; row r lies in place r modulo the capacity. A stream's writer says in one
cell how far it has begun to write and in another how far it has written, so of row r is left what was written while
`begun` - capacity <= r < `written`: who copies a row asks again afterwards. Every cell but a priority has one writer,
and nobody waits.
What `asyncrl.experience.ring` says of the order of stores holds here as well.

A writer that dies leaves rows that were never written, and its successor, whose environments are others, begins a new
stream in the same ring: its first row is marked, and nothing is joined across it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.returns import n_step_targets
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.experience.ring import BlockLayout, Field
from asyncrl.runtime.shared_memory import shared_zeros

Numbers: TypeAlias = NDArray[np.int64]
Truths: TypeAlias = NDArray[np.bool_]

LAST, START, FINAL = 1, 2, 4
"""Marks of a row: the return is cut after it; an episode, or a writer, begins with it; it is no step, but the last
observation of an episode that a time limit cut."""
_BEGUN, _WRITTEN, _STEPS = range(3)
"""Columns of a stream's cells: rows begun and rows written, and steps among those, since the memory was made."""
_COLUMNS = 8
LEAST_PRIORITY = 1e-6
"""Added to every absolute error, so that what has none may be drawn again."""
ACTION_VALUE, STATE_VALUE = "action_value", "state_value"
"""What acting has to leave for the first priorities: Q(s, a) and max_a Q(s, a)."""


@dataclass(frozen=True)
class StepShape:
    """What all steps of a run have in common, as plain data."""

    spaces: Spaces
    stack: int = 1
    """How many images, or vectors, an observation is stacked of, along its first axis."""
    n_step: int = 1
    """Steps of a transition."""
    priorities: bool = False
    """Whether priorities are kept: first those of the actor, then what the learner makes of them."""
    reward_clip: float = 0.0
    """By which the rewards in first priorities are clipped."""

    @property
    def frame(self) -> tuple[int, ...]:
        """Shape of one image or vector of the stack."""
        first, *rest = self.spaces.observation_shape
        return (first // self.stack, *rest)

    def layout(self, streams: int, capacity: int) -> BlockLayout:
        """The memory of `capacity` rows in each of so many streams."""
        each = (streams, capacity)
        fields: list[Field] = [
            ("cells", (streams, _COLUMNS), torch.int64),
            ("frames", (*each, *self.frame), getattr(torch, self.spaces.observation_dtype)),
            ("actions", each, torch.int64),
            ("rewards", each, torch.float32),
            ("discounts", each, torch.float32),
            ("marks", each, torch.uint8),
            ("older", each, torch.uint8),
            ("acted_at", each, torch.int64),
        ]
        if self.priorities:
            fields += [(name, each, torch.float32) for name in (ACTION_VALUE, STATE_VALUE, "priorities")]
        return BlockLayout(tuple(fields))


@dataclass(frozen=True)
class Drawn:
    """Transitions as they were read: see `asyncrl.core.rollout.Transitions`. Observations are raw."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    last: Tensor
    following: Tensor
    acted_at: Numbers
    """`[B]` T when it was acted."""


class Steps:
    """The rows of all streams. Stream `actor * environments + e` is written by that actor's process alone."""

    def __init__(self, shape: StepShape, actors: int, environments: int, capacity: int) -> None:
        """Allocates `capacity` rows for each stream. Raises ValueError for a stack that does not divide the shape."""
        if shape.spaces.observation_shape[0] % shape.stack:
            raise ValueError(f"an observation {shape.spaces.observation_shape} is no stack of {shape.stack}")
        self.shape = shape
        self.actors, self.environments, self.capacity = actors, environments, capacity
        self.streams = actors * environments
        self._memory = shared_zeros(shape.layout(self.streams, capacity).block_bytes, dtype=torch.uint8)
        self._attach()

    def _attach(self) -> None:
        places = self.shape.layout(self.streams, self.capacity).places()
        views = {name: self._memory[place].view(dtype).view(shape).numpy() for (name, shape, dtype), place in places}
        self._cells: Numbers = views.pop("cells")
        # The places of all streams behind each other: place p of stream s is s * capacity + p.
        self.rows: dict[str, NDArray[Any]] = {name: view.reshape(-1, *view.shape[2:]) for name, view in views.items()}
        # Of the streams that this process writes: what the next row goes on from. A new process begins them anew.
        self._ages = np.full(self.streams, -1)
        """Rows since the episode began, of the newest row; -1: nothing was written yet."""
        self._ended = np.zeros(self.streams, bool)
        """Whether the return was cut after the newest row."""

    def __getstate__(self) -> tuple[StepShape, int, int, int, Tensor]:
        return self.shape, self.actors, self.environments, self.capacity, self._memory

    def __setstate__(self, state: tuple[StepShape, int, int, int, Tensor]) -> None:
        self.shape, self.actors, self.environments, self.capacity, self._memory = state
        self.streams = self.actors * self.environments
        self._attach()

    @property
    def begun(self) -> Numbers:
        """Rows that each stream's writer has begun to write, `[streams]`: those a capacity before are gone."""
        return self._cells[:, _BEGUN].copy()

    @property
    def written(self) -> Numbers:
        """Rows of each stream that are written, `[streams]`."""
        return self._cells[:, _WRITTEN].copy()

    @property
    def put(self) -> Numbers:
        """Steps that were put into each stream since the memory was made, `[streams]`."""
        return self._cells[:, _STEPS].copy()

    def drawable(self) -> tuple[Numbers, Numbers]:
        """The first row of each stream that a transition may begin with, and the first that none may, `[streams]`.

        Its newest rows lack the rows that follow them, its oldest those that their images are stacked with.
        """
        ends = self.written - self.shape.n_step
        begins = self.begun - self.capacity  # asked last: a row may be gone, but never be not there yet
        begins = np.where(begins > 0, begins + self.shape.stack - 1, 0)
        return begins, np.maximum(ends, begins)

    def add(self, actor: int, rollout: Rollout) -> None:
        """Append what an actor has seen to its own streams."""
        own = np.arange(actor * self.environments, (actor + 1) * self.environments)
        observations = rollout.observations if rollout.raw is None else rollout.raw
        finals = rollout.final_observations if rollout.raw is None else rollout.raw_final
        seen, last = observations[:-1].numpy(), rollout.last.numpy()
        cut = tuple(part.numpy() for part in rollout.truncated)
        steps = len(last)

        before = self.written[own]
        after = before + steps + np.bincount(cut[1], minlength=len(own))
        # A writer that died may have begun more rows than its successor does now: those stay gone.
        self._cells[own, _BEGUN] = np.maximum(self._cells[own, _BEGUN], after)
        shift = np.zeros((steps + 1, len(own)), np.int64)
        shift[cut[0] + 1, cut[1]] = 1  # a row more behind each step after which an episode was cut
        numbers = before + np.arange(steps)[:, None] + shift[:-1].cumsum(0)
        places, final_places = self.place(own, numbers), self.place(own[cut[1]], numbers[cut] + 1)

        starts, ages = self._follow(own, seen, last)
        newest, oldest = self.shape.frame[0], self.shape.stack - 1
        rows = self.rows
        rows["frames"][places] = seen[:, :, -newest:]
        rows["actions"][places] = rollout.actions.numpy()
        rows["rewards"][places] = rollout.rewards.numpy()
        rows["discounts"][places] = rollout.discounts.numpy()
        rows["marks"][places] = LAST * last + START * starts
        rows["older"][places] = np.minimum(ages, oldest)
        rows["acted_at"][places] = rollout.acted_at
        if len(final_places):
            assert finals is not None
            rows["frames"][final_places] = finals.numpy()[:, -newest:]
            rows["marks"][final_places] = FINAL
            rows["older"][final_places] = np.minimum(ages[cut] + 1, oldest)
        if self.shape.priorities:
            for name in (ACTION_VALUE, STATE_VALUE):
                rows[name][places] = rollout.extras[name].numpy()
            # Nobody has acted on the last observation of an episode that was cut: its value is that of the one before.
            rows[STATE_VALUE][final_places] = rows[STATE_VALUE][places[cut]]
            self._first_priorities(own, before, after, float(rollout.reward_scale))
        self._cells[own, _STEPS] += steps
        self._cells[own, _WRITTEN] = after

    def _follow(self, own: Numbers, seen: NDArray[Any], last: Truths) -> tuple[Truths, Numbers]:
        """Which of the rows of observations `[T, E, ...]` begin an episode, and how many rows of it are before each.

        A rollout does not tell a lost life, after which images go on to be stacked, from an end, after which all but
        the newest image are zeros. The images do.
        """
        starts: Truths = np.concatenate([self._ended[own][None], last[:-1]])
        ended = starts.nonzero()
        older = seen[ended][:, : -self.shape.frame[0]]
        starts[ended] = ~older.any(tuple(range(1, older.ndim)))
        starts[0] |= self._ages[own] < 0
        numbers = np.arange(len(last))[:, None]
        # The row with which the episode began, counted from the first of these; of one that goes on it lies before.
        first = np.maximum.accumulate(np.where(starts, numbers, -1 - self._ages[own]), 0)
        ages = numbers - first
        self._ages[own], self._ended[own] = ages[-1], last[-1]
        return starts, ages

    def _first_priorities(self, own: Numbers, before: Numbers, after: Numbers, scale: float) -> None:
        """Absolute errors of the transitions that the rows before `after` make drawable, by what acting has left.

        Of all streams `own` `[E]` at once.
        """
        n, clip = self.shape.n_step, self.shape.reward_clip
        which, rows = ranges(np.maximum(0, before - n), np.maximum(0, after - n))
        streams = own[which]
        places, marks = self._places(streams, rows)
        rewards, discounts = (self.rows[name][places[:-1]] for name in ("rewards", "discounts"))
        rewards *= np.float32(scale)
        values = self.rows[STATE_VALUE][self.place(streams, rows + _length(marks))]
        learning = (rewards.clip(-clip, clip) if clip else rewards, discounts, (marks[:-1] & LAST) > 0, values)
        targets = n_step_targets(*(torch.from_numpy(array) for array in learning)).numpy()
        errors = targets - self.rows[ACTION_VALUE][places[0]]
        priorities = np.where(np.isfinite(errors), np.abs(errors), 0) + LEAST_PRIORITY
        self.rows["priorities"][places[0]] = priorities * self._is_whole(marks)

    def renew(self, streams: Numbers, rows: Numbers, priorities: NDArray[np.floating[Any]]) -> None:
        """Leave new priorities `[B]` with those of the rows `[B]` that are still there, for a learner yet to come.

        The one cell that two write: a learner that was held up for a whole rollout between the look and the writing
        leaves them with the steps that came after.
        """
        there = rows >= self.begun[streams] - self.capacity
        self.rows["priorities"][self.place(streams[there], rows[there])] = priorities[there]

    def whole(self, streams: Numbers, rows: Numbers) -> Truths:
        """Whether a transition can begin with each of these drawable rows `[B]`.

        It cannot with one that is no step, nor where another writer began within it.
        """
        return self._is_whole(self._places(streams, rows)[1])

    def intact(self, streams: Numbers, rows: Numbers) -> Truths:
        """Whether nothing has begun to overwrite what transitions beginning with these rows are made of, `[B]`.

        What was read before this said True is theirs, all of it.
        """
        oldest = np.maximum(rows - (self.shape.stack - 1), 0)
        return np.asarray(oldest >= self.begun[streams] - self.capacity)

    def read(self, streams: Numbers, rows: Numbers) -> Drawn:
        """Copies of the transitions that begin with these rows `[B]`; ask afterwards whether they are `intact`."""
        places, marks = self._places(streams, rows)
        first, steps = places[0], places[:-1]
        return Drawn(
            observations=self._stacked(streams, rows),
            actions=torch.from_numpy(self.rows["actions"][first]),
            rewards=torch.from_numpy(self.rows["rewards"][steps]),
            discounts=torch.from_numpy(self.rows["discounts"][steps]),
            last=torch.from_numpy((marks[:-1] & LAST) > 0),
            following=self._stacked(streams, rows + _length(marks)),
            acted_at=self.rows["acted_at"][first],
        )

    def _stacked(self, streams: Numbers, rows: Numbers) -> Tensor:
        """The observations `[B, ...]` of these rows."""
        stack = self.shape.stack
        back = np.arange(stack - 1, -1, -1)
        frames = self.rows["frames"].take(self.place(streams[:, None], rows[:, None] - back), 0)
        if stack > 1:
            frames[self.rows["older"][self.place(streams, rows)][:, None] < back] = 0
        return torch.from_numpy(frames.reshape(len(rows), *self.shape.spaces.observation_shape))

    def place(self, streams: Numbers, rows: Numbers) -> Numbers:
        return streams * self.capacity + rows % self.capacity

    def _places(self, streams: Numbers, rows: Numbers) -> tuple[Numbers, NDArray[np.uint8]]:
        """Places and marks of the n rows of each transition and of the one that follows, `[n + 1, B]`."""
        places = self.place(streams, rows + np.arange(self.shape.n_step + 1)[:, None])
        return places, self.rows["marks"][places]

    def _is_whole(self, marks: NDArray[np.uint8]) -> Truths:
        """`[B]` of marks `[n + 1, B]`."""
        goes_on = _goes_on(marks) & ((marks[:-1] & LAST) == 0)
        joins_others: Truths = (goes_on & ((marks[1:] & START) > 0)).any(0)
        is_step: Truths = (marks[0] & FINAL) == 0
        return is_step & ~joins_others

    def state(self) -> dict[str, Tensor]:
        """Copies of all rows that are there, and the counts. What is overwritten meanwhile counts as gone."""
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
        """Go back to what `state` said. `writers_go_on`: so do those who write, who otherwise begin anew.

        Raises UsageError if it does not fit.
        """
        cells = state["cells"].numpy()
        fits = (
            cells.shape == self._cells.shape
            and int(state["capacity"]) == self.capacity
            and all(name in state and state[name].shape[1:] == view.shape[1:] for name, view in self.rows.items())
        )
        places = self.place(*ranges(*state["kept"].numpy().T)) if fits else np.zeros(0, np.int64)
        if not fits or len(places) != len(state["actions"]):
            raise UsageError(
                "the checkpoint's replay memory is of other --workers, --envs-per-worker, --memory-steps or "
                "observations: go on with its settings, or with --no-checkpoint-replay"
            )
        for name, view in self.rows.items():
            view[places] = state[name].numpy()
        self._cells[:] = cells
        if writers_go_on:
            ages, ended = state["newest"].numpy()
            self._ages[:], self._ended[:] = ages, ended.astype(bool)


def _goes_on(marks: NDArray[np.uint8]) -> Truths:
    """Whether each of the n steps is still of the transition's own return, `[n, B]` of marks `[n + 1, B]`."""
    cut = np.maximum.accumulate((marks[:-1] & LAST) > 0, 0)
    return np.concatenate([np.ones((1, marks.shape[1]), bool), ~cut[:-1]])


def _length(marks: NDArray[np.uint8]) -> Numbers:
    """Steps of each transition `[B]`: n, or as many as there are to its end."""
    return np.asarray(_goes_on(marks).sum(0), np.int64)


def ranges(begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """All numbers from each of `begins` up to its of `ends`: which of them each is from, and the numbers."""
    counts = np.maximum(ends - begins, 0)
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(counts.cumsum() - counts, counts) + begins[which]
