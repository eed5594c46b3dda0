"""A replay memory: the newest steps of all actors, from which a learner samples transitions.

Actors write their own rows (`asyncrl.experience.steps`) and never wait for a reader. A row that was overwritten during
a read is detected, and another is sampled. Only the replay ratio, the number of updates per step, makes anybody wait,
and it is the same on every machine: the learner waits for steps, or the actors for updates.

With prioritised sampling (Schaul et al. 2016) an actor stores an initial priority with each step (Horgan et al. 2018).
The learner keeps a private sum tree over all steps and updates it before each minibatch. It also writes new priorities
back to the steps, so that a restarted learner continues with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.losses import importance_weights
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.experience.blocks import are_below, entries_under, is_like
from asyncrl.experience.priorities import Priorities
from asyncrl.experience.steps import Steps, StepShape, ranges
from asyncrl.experience.transitions import LEAST_PRIORITY, Numbers
from asyncrl.runtime.clock import Clock, shared_zeros
from asyncrl.runtime.normalize import Normalizer
from asyncrl.runtime.protocols import LEARNER, Batch
from asyncrl.runtime.seeding import REPLAY, generator

_COLUMNS = 8  # int64 per row: no two learners share a cache line
TRIES = 100
"""How often unusable rows are replaced by others before the learner waits for more steps."""


@dataclass(frozen=True)
class ReplayPlan:
    """The memory's size and how it is sampled, as plain data.

    The capacity is at least `4 t_max + n_step + stack` steps of each environment.
    """

    shape: StepShape
    actors: int
    environments: int
    """Per actor."""
    t_max: int
    """Steps of each environment in one rollout."""
    capacity: int
    """Steps kept, over all environments."""
    warmup_steps: int
    minibatch: int
    ratio: float
    """Updates per step put after the warm-up."""
    priority_exponent: float = 0.0
    """0: uniform sampling."""
    importance_exponent: float = 0.0
    seed: tuple[int, ...] = (0,)
    """The run's seed, then what distinguishes this part of the run."""
    kept: bool = False
    """Whether checkpoints contain the memory."""
    bundled: bool = False
    """Whether each actor has its own learner, which samples only that actor's steps."""
    learners: int = 1
    in_turns: bool = False
    """Whether actors take turns, so that the first of them would find all room that there is."""

    @property
    def rows(self) -> int:
        """Rows in each environment's ring."""
        return -(-self.capacity // (self.actors * self.environments))

    @property
    def bytes(self) -> int:
        """Shared memory in use once the memory is full."""
        counts = self.learners * 8 * _COLUMNS
        return self.shape.layout(self.actors * self.environments, self.rows).block_bytes + counts


class Replay:
    """The memory as an experience: actors put rollouts, learners take minibatches as the replay ratio allows.

    *Bundled* learners each sample the steps of their own actor, and the ratio holds for each pair.
    """

    def __init__(self, plan: ReplayPlan, clock: Clock, make_normalizer: Callable[[], Normalizer | None]) -> None:
        """`make_normalizer` returns the normalizer of a learner, which is applied to its minibatches."""
        self.plan = plan
        self.steps = Steps(plan.shape, plan.actors, plan.environments, plan.rows)
        self._clock = clock
        self._make_normalizer = make_normalizer
        # Minibatches learnt, one row per learner.
        self._learnt = shared_zeros(plan.learners, _COLUMNS, dtype=torch.int64)
        self._drawing: dict[int, _Drawing] = {}
        """By the learner's row, for the learners in this process."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_drawing": {}}

    def _place(self, number: int) -> int:
        """The row of a learner. A bundled learner has the number of its actor."""
        return number if self.plan.bundled else LEARNER - number

    def _streams(self, number: int) -> slice:
        """The streams that a learner samples from."""
        each = self.plan.environments
        return slice(number * each, (number + 1) * each) if self.plan.bundled else slice(None)

    def learnt(self, number: int = LEARNER) -> int:
        """Minibatches learnt since the memory was made, by all learners that share these steps."""
        return int(self._learnt[number, 0] if self.plan.bundled else self._learnt[:, 0].sum())

    def steps_after_warm_up(self, number: int = LEARNER) -> float:
        """Steps stored in a learner's streams since the warm-up; negative during the warm-up."""
        warm_up = self.plan.warmup_steps / (self.plan.actors if self.plan.bundled else 1)
        return float(self.steps.put[self._streams(number)].sum()) - warm_up

    def ahead(self, number: int = LEARNER) -> float:
        """Updates that are due by the replay ratio: below 1 the learner waits. -inf during the warm-up.

        A resumed run that did not keep its memory warms up again.
        """
        steps = self.steps_after_warm_up(number)
        return self.plan.ratio * steps - self.learnt(number) if steps >= 0 else float("-inf")

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout, or must let the learner catch up with the replay ratio.

        An actor waits only when some environment has stored more steps than a transition needs. So actors and learners
        never wait for each other at the same time. Where they take turns and there is room for some only, those go on
        that have made the fewest steps.
        """
        plan, room = self.plan, self._most_ahead() - self.ahead(actor)
        if not plan.in_turns or plan.bundled or room >= plan.ratio * plan.t_max * self.steps.streams:
            return room >= 0
        put = self.steps.put.reshape(plan.actors, -1).sum(1)
        return room >= 0 and bool(put[actor] == put.min())

    def _most_ahead(self) -> float:
        plan = self.plan
        streams = self.steps.streams // (plan.actors if plan.bundled else 1)
        each = plan.t_max + plan.shape.n_step + plan.shape.stack
        return 1 + plan.ratio * each * streams

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Copy a rollout's steps into the actor's rings, and count them."""
        self.steps.add(actor, rollout)
        self._clock.count(actor, rollout.steps)

    def take(self, learner: int = LEARNER) -> Batch | None:
        """A minibatch, normalised by the newest moments; None if none is due or there is nothing to sample."""
        if self.ahead(learner) < 1:
            return None
        drawing = self._drawing.get(self._place(learner)) or self._begin(self._place(learner))
        transitions = drawing.next()
        if transitions is None:
            return None
        streams = self._streams(learner)
        put = self.steps.put[streams]
        facts = {
            "sample_age": self._clock.steps - float(drawing.acted_at.mean()),
            "memory_fill": float(np.minimum(put / self.steps.capacity, 1.0).mean()),
            "replay_ratio": self.learnt(learner) / max(1.0, self.steps_after_warm_up(learner)),
            **drawing.facts,
        }
        return Batch(transitions, [], keys=drawing.keys, facts=facts)

    def _begin(self, place: int) -> _Drawing:
        # A restarted learner begins at another count, so it gets another stream of random numbers.
        random = generator(self.plan.seed[0], REPLAY, *self.plan.seed[1:], place, int(self._learnt[place, 0]))
        own = self._streams(place if self.plan.bundled else LEARNER)
        self._drawing[place] = _Drawing(self.plan, self.steps, own, self._make_normalizer(), random)
        return self._drawing[place]

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with its minibatch."""
        self._learnt[self._place(learner), 0] += 1

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Make priorities of the learner's errors `[B]`, for those transitions that are still in the memory."""
        self._drawing[self._place(learner)].renew(keys.numpy(), errors.numpy())

    def state(self) -> dict[str, Tensor] | None:
        """Copies of all steps, and of the sampling state of the learners in this process; None: it is not saved."""
        if not self.plan.kept:
            return None
        parts = {"steps": self.steps.state()}
        parts |= {f"drawing.{place}": drawing.state() for place, drawing in self._drawing.items()}
        state = {f"{part}.{name}": tensor for part, own in parts.items() for name, tensor in own.items()}
        return {"learnt": self._learnt.clone()} | state

    def restore(self, state: Mapping[str, Tensor], exactly: bool = True) -> None:
        """Restore what `state` returned; if not `exactly`, actors and learners start afresh on the restored steps.

        Then the replay ratio and the warm-up may be others than before: they hold from now on. Raises UsageError if it
        does not fit.
        """
        self.steps.restore(entries_under(state, "steps"), writers_go_on=exactly)
        learnt = state.get("learnt")
        if learnt is None or not is_like(learnt, np.int64, *self._learnt.shape) or bool((learnt < 0).any()):
            raise UsageError("the checkpoint's replay memory has a different --layout or number of --learners")
        self._learnt.copy_(learnt)
        self._drawing = {}
        if exactly:
            for place in range(self.plan.learners):
                if own := entries_under(state, f"drawing.{place}"):
                    self._begin(place).restore(own)
        else:
            for learners in range(self.plan.learners) if self.plan.bundled else (slice(None),):
                self._forget_what_is_due(learners)

    def _forget_what_is_due(self, learners: int | slice) -> None:
        """Count updates as if they had kept step: nobody has to wait until others have caught up."""
        number = learners if isinstance(learners, int) else LEARNER
        due = self.plan.ratio * max(0.0, self.steps_after_warm_up(number))
        ahead = min(max(0.0, due - self.learnt(number)), self._most_ahead())
        counts = self._learnt[learners, 0]
        self._learnt[learners, 0] = round((due - ahead) / counts.numel())


def normalized(raw: Transitions, normalizer: Normalizer | None) -> Transitions:
    """Transitions as the network should see them, by the newest moments; without a normalizer as they are."""
    if normalizer is None:
        return raw
    normalizer.renew()
    observations, following = normalizer.observe(raw.observations), normalizer.observe(raw.following)
    return replace(raw, observations=observations, following=following, reward_scale=normalizer.reward_scale)


class _Drawing:
    """How one learner samples."""

    def __init__(
        self, plan: ReplayPlan, steps: Steps, own: slice, normalizer: Normalizer | None, random: torch.Generator
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._others = np.ones(steps.streams, bool)
        """`[streams]` True for the streams that it does not sample from."""
        self._others[own] = False
        self._normalizer = normalizer
        self._generator = random
        self._tree = Priorities(len(steps.rows["actions"])) if plan.priority_exponent else None
        self._known: Numbers = np.zeros(steps.streams, np.int64)
        """`[streams]` The first row of each stream that is not in the tree yet."""
        self.acted_at: Numbers = np.zeros(0, np.int64)
        """`[B]` T when the newest minibatch was acted."""
        self.keys: Tensor | None = None
        self.facts: dict[str, float] = {}

    def next(self) -> Transitions | None:
        """The next minibatch; None if there is nothing to sample."""
        begins, ends = self._steps.drawable()
        ends[self._others] = begins[self._others]
        if self._tree is not None:
            self._update_tree(self._tree, begins, ends)
        found = self._draw(begins, ends)
        if found is None:
            return None
        drawn, streams, rows = found
        if self._tree is not None:
            drawn = replace(drawn, weights=self._weigh(self._tree, streams, rows, int((ends - begins).sum())))
        return normalized(drawn, self._normalizer)

    def _draw(self, begins: Numbers, ends: Numbers) -> tuple[Transitions, Numbers, Numbers] | None:
        """A minibatch, and the streams and rows of its first steps; unusable rows are replaced by others."""
        count = self._plan.minibatch
        if not ((ends - begins).any() if self._tree is None else self._tree.total):
            return None
        places = (np.arange(count) + self._uniform(count)) / count  # stratified: one from each of `count` equal parts
        streams, rows = self._at(places, begins, ends)
        for _ in range(TRIES):
            read = self._steps.read(streams, rows)
            if read.usable.all():
                self.acted_at = read.acted_at
                return read.transitions, streams, rows
            bad = ~read.usable
            streams[bad], rows[bad] = self._at(self._uniform(int(bad.sum())), begins, ends)
        return None

    def _uniform(self, count: int) -> np.ndarray:
        return torch.rand(count, generator=self._generator, dtype=torch.float64).numpy()

    def _at(self, shares: np.ndarray, begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Streams and rows at the fractions `shares` `[n]` of the total, each in [0, 1)."""
        if self._tree is None:
            counts = (ends - begins).cumsum()
            numbers = (shares * counts[-1]).astype(np.int64)
            streams = counts.searchsorted(numbers, side="right")
            return streams, ends[streams] - (counts[streams] - numbers)
        streams, slots = np.divmod(self._tree.sample(shares), self._steps.capacity)
        newest = self._known[streams] - 1
        return streams, newest - (newest - slots) % self._steps.capacity

    def _update_tree(self, tree: Priorities, begins: Numbers, ends: Numbers) -> None:
        """Give new rows their initial priority, and overwritten ones none."""
        steps = self._steps
        gone_streams, gone = ranges(ends, np.maximum(steps.begun, steps.written) + steps.shape.stack - 1)
        tree.set(steps.place(gone_streams, gone), np.zeros(len(gone)))
        streams, rows = ranges(np.maximum(self._known, begins), ends)
        places = steps.place(streams, rows)
        tree.set(places, steps.rows["priorities"][places].astype(np.float64) ** self._plan.priority_exponent)
        self._known = ends

    def _weigh(self, tree: Priorities, streams: Numbers, rows: Numbers, count: int) -> Tensor:
        """Importance weights `[B]`, scaled to a maximum of 1. Sets the minibatch's keys and facts."""
        priorities = tree.priority(self._steps.place(streams, rows))
        self.keys = torch.from_numpy(rows * self._steps.streams + streams)
        self.facts = {"priority_mean": tree.total / max(1, count), "priority_max_drawn": float(priorities.max())}
        return importance_weights(torch.from_numpy(priorities), self._plan.importance_exponent)

    def renew(self, keys: Numbers, errors: np.ndarray) -> None:
        """Set priorities from errors `[B]`, except for rows that were overwritten since.

        Errors that are not finite are skipped: the store counts and reports them.
        """
        assert self._tree is not None
        rows, streams = np.divmod(keys, self._steps.streams)
        there = (rows >= self._known[streams] - self._steps.capacity) & np.isfinite(errors)
        places = self._steps.place(streams[there], rows[there])
        priorities = np.abs(errors[there]).astype(np.float64) + LEAST_PRIORITY
        self._tree.set(places, priorities**self._plan.priority_exponent)
        self._steps.renew(streams[there], rows[there], priorities)

    def state(self) -> dict[str, Tensor]:
        """Everything that determines the next minibatches."""
        read = None if self._normalizer is None else self._normalizer.read
        return {
            "generator": self._generator.get_state(),
            "known": torch.from_numpy(self._known.copy()),
            "read": torch.zeros(0, dtype=torch.float64) if read is None else torch.from_numpy(read.copy()),
        } | ({} if self._tree is None else self._tree.state())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises UsageError if it does not fit the steps."""
        self._generator.set_state(state["generator"])
        known, steps, misfit = state["known"], self._steps, "the checkpoint's replay memory has priorities of no steps"
        if not is_like(known, np.int64, steps.streams) or not are_below(known, torch.from_numpy(steps.written) + 1):
            raise UsageError(misfit)
        self._known = known.numpy().copy()
        if self._tree is not None:
            self._tree.restore(state)
            nothing = np.ones(len(self._tree), bool)
            nothing[steps.place(*ranges(np.maximum(0, self._known - steps.capacity), self._known))] = False
            if self._tree.priority(nothing.nonzero()[0]).any():  # drawn, they would be rows before the first
                raise UsageError(misfit)
        if self._normalizer is not None:
            read = state["read"].numpy()
            self._normalizer.restore({"read": read if len(read) else None, "discounted": None})
