"""A replay memory: the newest steps of all actors, from which a learner draws transitions again and again.

Actors write their own rows (`asyncrl.experience.steps`) and never wait for a reader; a row that was overwritten while
it was read is noticed and another drawn. What does make them wait is the replay ratio: updates per step, the same on
any machine. Whoever is ahead waits, the learner for steps, the actors for updates.

Drawn by priority (Schaul et al. 2016), an actor leaves the first priority beside its steps (Horgan et al. 2018), and
the learner keeps a tree over all places of its own, brought up to date whenever it draws. What it makes of a priority
it leaves beside the step as well: one that died is followed by one that goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.losses import importance_weights
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.experience.priorities import Priorities
from asyncrl.experience.steps import LEAST_PRIORITY, Drawn, Numbers, Steps, StepShape, ranges
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.normalize import Normalizer
from asyncrl.runtime.protocols import LEARNER, Batch, Receipt
from asyncrl.runtime.seeding import REPLAY, generator
from asyncrl.runtime.shared_memory import shared_zeros

_COLUMNS = 8  # int64 per row: no two learners share a cache line
TRIES = 100
"""How often what cannot be used is drawn again, before the learner waits for more steps."""


@dataclass(frozen=True)
class ReplayPlan:
    """How much is kept and how it is drawn, as plain data. At least `4 t_max + n_step + stack` steps of each stream."""

    shape: StepShape
    actors: int
    environments: int
    """Of each actor."""
    t_max: int
    """Steps of each environment that are put at once."""
    capacity: int
    """Steps that are kept of all environments together."""
    warmup_steps: int
    minibatch: int
    ratio: float
    """Updates per step put after the warm-up."""
    priority_exponent: float = 0.0
    """0: all are drawn equally often."""
    importance_exponent: float = 0.0
    seed: tuple[int, ...] = (0,)
    """Of the run, and what distinguishes this part of it."""
    kept: bool = False
    """Whether checkpoints hold the memory."""
    bundled: bool = False
    """Whether each actor has a learner of its own, which draws from its steps alone."""
    learners: int = 1
    """How many draw from it."""

    @property
    def rows(self) -> int:
        """Rows of each environment's ring."""
        return -(-self.capacity // (self.actors * self.environments))

    @property
    def bytes(self) -> int:
        """Of shared memory that it will take when it is full."""
        counts = self.learners * 8 * _COLUMNS
        return self.shape.layout(self.actors * self.environments, self.rows).block_bytes + counts


class Replay:
    """The memory as an experience: actors put, learners take minibatches as long as the replay ratio lets them.

    Where they are *bundled*, each learner draws from the steps of its own actor, and the ratio is theirs.
    """

    def __init__(self, plan: ReplayPlan, clock: Clock, make_normalizer: Callable[[], Normalizer | None]) -> None:
        """`make_normalizer` gives a learner's view of the moments, by which what was drawn is normalised."""
        self.plan = plan
        self.steps = Steps(plan.shape, plan.actors, plan.environments, plan.rows)
        self._clock = clock
        self._make_normalizer = make_normalizer
        # Minibatches learnt from, a row per learner.
        self._learnt = shared_zeros(plan.learners, _COLUMNS, dtype=torch.int64)
        self._drawing: dict[int, _Drawing] = {}
        """By the learner's place, of those in this process."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_drawing": {}}

    def _place(self, number: int) -> int:
        """A learner's row, by its number, which is its actor's if they are bundled."""
        return number if self.plan.bundled else LEARNER - number

    def _streams(self, number: int) -> slice:
        """The streams that a learner draws from."""
        each = self.plan.environments
        return slice(number * each, (number + 1) * each) if self.plan.bundled else slice(None)

    def learnt(self, number: int = LEARNER) -> int:
        """Minibatches that were learnt from since the memory was made, by whoever draws from the same steps."""
        return int(self._learnt[number, 0] if self.plan.bundled else self._learnt[:, 0].sum())

    def beyond(self, number: int = LEARNER) -> float:
        """Steps that were put into what a learner draws from since the warm-up; below 0 while that lasts."""
        warm_up = self.plan.warmup_steps / (self.plan.actors if self.plan.bundled else 1)
        return float(self.steps.put[self._streams(number)].sum()) - warm_up

    def ahead(self, number: int = LEARNER) -> float:
        """Updates that are due by the replay ratio; below 1 the learner waits. -inf: the memory is still being filled.

        A resumed run begins with an empty memory, and fills it again.
        """
        beyond = self.beyond(number)
        return self.plan.ratio * beyond - self.learnt(number) if beyond >= 0 else float("-inf")

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout: the learner has to keep up with the replay ratio.

        Before it waits, some environment has put more than a transition takes; so never do both wait for each other.
        """
        plan = self.plan
        streams = self.steps.streams // (plan.actors if plan.bundled else 1)
        each = plan.t_max + plan.shape.n_step + plan.shape.stack
        return self.ahead(actor) <= 1 + plan.ratio * each * streams

    def put(self, actor: int, rollout: Rollout, version: int) -> Receipt:
        """Copy a rollout's steps into the actor's rings, and count them."""
        self.steps.add(actor, rollout)
        self._clock.count(actor, rollout.steps)
        return Receipt(True, steps=self._clock.steps, finished=self._clock.finished())

    def take(self, learner: int = LEARNER) -> Batch | None:
        """A minibatch, normalised by the newest moments; None while none is due, or nothing can be drawn yet."""
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
            "replay_ratio": self.learnt(learner) / max(1.0, self.beyond(learner)),
            **drawing.facts,
        }
        return Batch(transitions, [], keys=drawing.keys, facts=facts)

    def _begin(self, place: int) -> _Drawing:
        # A learner's successor goes on with another count, and so with another stream of random numbers.
        random = generator(self.plan.seed[0], REPLAY, *self.plan.seed[1:], place, int(self._learnt[place, 0]))
        own = self._streams(place if self.plan.bundled else LEARNER)
        self._drawing[place] = _Drawing(self.plan, self.steps, own, self._make_normalizer(), random)
        return self._drawing[place]

    def release(self, learner: int = LEARNER) -> None:
        """The learner has learnt from what it took."""
        self._learnt[self._place(learner), 0] += 1

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """The learner's errors `[B]` of what it took: new priorities of what is still there."""
        self._drawing[self._place(learner)].renew(keys.numpy(), errors.numpy())

    def priorities(self, keys: Tensor, learner: int = LEARNER) -> Tensor:
        """p^alpha `[B]` by which the learner draws those keys `[B]` of its newest minibatch."""
        return torch.from_numpy(self._drawing[self._place(learner)].priorities(keys.numpy()))

    def state(self) -> dict[str, Tensor] | None:
        """Copies of all steps, and of what the learners of this process will draw; None: it is not kept."""
        if not self.plan.kept:
            return None
        parts = {"steps": self.steps.state()}
        parts |= {f"drawing.{place}": drawing.state() for place, drawing in self._drawing.items()}
        state = {f"{part}.{name}": tensor for part, own in parts.items() for name, tensor in own.items()}
        return {"learnt": self._learnt.clone()} | state

    def restore(self, state: Mapping[str, Tensor], exactly: bool = True) -> None:
        """Go back to what `state` said; if not `exactly`, with actors and learners that begin anew.

        Raises UsageError if it does not fit.
        """
        self.steps.restore(_below(state, "steps"), writers_go_on=exactly)
        if state["learnt"].shape != self._learnt.shape:
            raise UsageError("the checkpoint's replay memory is of another --layout or number of --learners")
        self._learnt.copy_(state["learnt"])
        self._drawing = {}
        if exactly:
            for place in range(self.plan.learners):
                if own := _below(state, f"drawing.{place}"):
                    self._begin(place).restore(own)


class _Drawing:
    """What a learner draws with."""

    def __init__(
        self, plan: ReplayPlan, steps: Steps, own: slice, normalizer: Normalizer | None, random: torch.Generator
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._others = np.ones(steps.streams, bool)
        """Streams that it does not draw from, `[streams]`."""
        self._others[own] = False
        self._normalizer = normalizer
        self._generator = random
        self._tree = Priorities(len(steps.rows["actions"])) if plan.priority_exponent else None
        self._known: Numbers = np.zeros(steps.streams, np.int64)
        """The row at which each stream's rows end that are in the tree, `[streams]`."""
        self.acted_at: Numbers = np.zeros(0, np.int64)
        """Of the newest minibatch, `[B]`."""
        self.keys: Tensor | None = None
        self.facts: dict[str, float] = {}

    def next(self) -> Transitions | None:
        """The next minibatch; None if there is none to be had."""
        begins, ends = self._steps.drawable()
        ends[self._others] = begins[self._others]
        if self._tree is not None:
            self._look(self._tree, begins, ends)
        found = self._draw(begins, ends)
        if found is None:
            return None
        drawn, streams, rows = found
        weights = torch.ones(len(rows))
        if self._tree is not None:
            weights = self._weigh(self._tree, streams, rows, int((ends - begins).sum()))
        self.acted_at = drawn.acted_at
        normalizer = self._normalizer
        if normalizer is not None:
            normalizer.renew()
        return Transitions(
            observations=drawn.observations if normalizer is None else normalizer.observe(drawn.observations),
            actions=drawn.actions,
            rewards=drawn.rewards,
            discounts=drawn.discounts,
            last=drawn.last,
            following=drawn.following if normalizer is None else normalizer.observe(drawn.following),
            weights=weights,
            reward_scale=1.0 if normalizer is None else normalizer.reward_scale,
        )

    def _draw(self, begins: Numbers, ends: Numbers) -> tuple[Drawn, Numbers, Numbers] | None:
        """A minibatch and the streams and rows it begins with; what cannot be used is drawn again."""
        count = self._plan.minibatch
        if not self._total(begins, ends):
            return None
        places = (np.arange(count) + self._uniform(count)) / count  # one of each part, so that all parts are drawn
        streams, rows = self._at(places, begins, ends)
        for _ in range(TRIES):
            bad = ~self._steps.whole(streams, rows)
            if not bad.any():
                drawn = self._steps.read(streams, rows)
                bad = ~self._steps.intact(streams, rows)
                if not bad.any():
                    return drawn, streams, rows
            streams[bad], rows[bad] = self._at(self._uniform(int(bad.sum())), begins, ends)
        return None

    def _uniform(self, count: int) -> np.ndarray:
        return torch.rand(count, generator=self._generator, dtype=torch.float64).numpy()

    def _total(self, begins: Numbers, ends: Numbers) -> float:
        return float((ends - begins).sum()) if self._tree is None else self._tree.total

    def _at(self, shares: np.ndarray, begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Streams and rows in which the shares `[n]` of all there is lie, each in [0, 1)."""
        if self._tree is None:
            counts = (ends - begins).cumsum()
            numbers = (shares * counts[-1]).astype(np.int64)
            streams = counts.searchsorted(numbers, side="right")
            return streams, ends[streams] - (counts[streams] - numbers)
        streams, slots = np.divmod(self._tree.sample(shares), self._steps.capacity)
        newest = self._known[streams] - 1
        return streams, newest - (newest - slots) % self._steps.capacity

    def _look(self, tree: Priorities, begins: Numbers, ends: Numbers) -> None:
        """Bring the tree up to date: first priorities of new rows, none of those that are gone."""
        steps = self._steps
        gone_streams, gone = ranges(ends, np.maximum(steps.begun, steps.written) + steps.shape.stack - 1)
        tree.set(steps.place(gone_streams, gone), np.zeros(len(gone)))
        streams, rows = ranges(np.maximum(self._known, begins), ends)
        places = steps.place(streams, rows)
        tree.set(places, steps.rows["priorities"][places].astype(np.float64) ** self._plan.priority_exponent)
        self._known = ends

    def _weigh(self, tree: Priorities, streams: Numbers, rows: Numbers, count: int) -> Tensor:
        """Importance weights `[B]` of what was drawn, the largest of them 1; keys and facts of it."""
        priorities = tree.priority(self._steps.place(streams, rows))
        self.keys = torch.from_numpy(rows * self._steps.streams + streams)
        self.facts = {
            "priority_mean": tree.total / max(1, count),
            "priority_max_drawn": float(priorities.max()),
        }
        return importance_weights(torch.from_numpy(priorities), self._plan.importance_exponent)

    def priorities(self, keys: Numbers) -> np.ndarray:
        """Those in the tree of what was drawn."""
        assert self._tree is not None
        rows, streams = np.divmod(keys, self._steps.streams)
        return self._tree.priority(self._steps.place(streams, rows))

    def renew(self, keys: Numbers, errors: np.ndarray) -> None:
        """New priorities of what was drawn, unless other rows have taken its place in the tree.

        Errors that are no numbers are left out: the store counts them, and says so if they go on.
        """
        assert self._tree is not None
        rows, streams = np.divmod(keys, self._steps.streams)
        there = (rows >= self._known[streams] - self._steps.capacity) & np.isfinite(errors)
        places = self._steps.place(streams[there], rows[there])
        priorities = np.abs(errors[there]).astype(np.float64) + LEAST_PRIORITY
        self._tree.set(places, priorities**self._plan.priority_exponent)
        self._steps.renew(streams[there], rows[there], priorities)

    def state(self) -> dict[str, Tensor]:
        """Everything that what is drawn next depends on."""
        read = None if self._normalizer is None else self._normalizer.read
        return {
            "generator": self._generator.get_state(),
            "known": torch.from_numpy(self._known.copy()),
            "read": torch.zeros(0, dtype=torch.float64) if read is None else torch.from_numpy(read.copy()),
        } | ({} if self._tree is None else self._tree.state())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` said."""
        self._generator.set_state(state["generator"])
        self._known = state["known"].numpy().copy()
        if self._tree is not None:
            self._tree.restore(state)
        if self._normalizer is not None:
            read = state["read"].numpy()
            self._normalizer.restore({"read": read if len(read) else None, "discounted": None})


def _below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries whose names begin with a prefix and a dot, without them."""
    return {name.removeprefix(f"{prefix}."): own for name, own in state.items() if name.startswith(f"{prefix}.")}
