"""What may be assumed of a backend. The terms, such as theta', T, store and experience, are in docs/glossary.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from asyncrl.core.rollout import Rollout, Transitions

EVALUATOR, LEARNER = -1, -2
"""The numbers of the evaluator and the learner; workers count from 0, further learners are -3, -4, ..."""


def name_of(who: int) -> str:
    """The name of a process of a run, in messages and file names."""
    if who >= 0:
        return f"worker-{who:02}"
    names = {EVALUATOR: "evaluator", LEARNER: "learner"}
    return names.get(who, f"learner-{LEARNER - who:02}")


def in_records(who: int) -> int | str:
    """How records name a process of a run: a worker by its number."""
    return who if who >= 0 else name_of(who)


@dataclass(slots=True)
class Update:
    """A gradient on its way into theta."""

    worker: int
    """Who computed it: a worker or LEARNER."""
    gradient: Tensor
    """`[P]`; the store may overwrite it."""
    version: int
    """Version of theta when it was computed: the number of updates in theta."""
    steps: int
    """Agent steps it was computed from, to be counted in T; 0 if an actor's `put` has counted them."""
    loss: Tensor | float | None = None
    """The scalar whose gradient it is."""


NOT_FINITE, STALE, OUTLIER = "not finite", "stale", "outlier"
"""Why an update was dropped: a gradient with a NaN or an infinity, one that is too old, one of an unusual loss."""
UNDER_WAY = "under way"
"""Why it has neither been applied nor dropped: a later push completes it."""


class Counts(NamedTuple):
    """What became of updates that were pushed; all but the first were dropped."""

    updates: int = 0
    """Applied to theta."""
    dropped_gradients: int = 0
    """Not finite."""
    stale_gradients: int = 0
    """Older than --max-staleness."""
    outlier_gradients: int = 0
    """Of a loss beyond --max-loss-deviations."""


@dataclass(slots=True)
class Receipt:
    """What became of an update."""

    applied: bool
    """False: it has been dropped."""
    reason: str = ""
    """Why it was dropped: NOT_FINITE, STALE or OUTLIER."""
    norm: float = 0.0
    """L2 norm before clipping."""
    staleness: int = 0
    """Updates by others since the version the gradient is of."""
    learning_rate: float = 0.0
    """eta with which it was applied."""
    earlier: Receipt | None = None
    """Of the update before, if this push completed that one as well."""


class Store(Protocol):
    """Where the parameters live. Hogwild, a parameter server and Ray differ only in this."""

    @property
    def updates(self) -> int:
        """Updates applied to theta so far: its version."""

    @property
    def lost(self) -> int:
        """How many of these are in theta no more, because an earlier theta had to take its place; 0 on one machine,
        unless the learner died within an update."""

    def lose(self, updates: int) -> None:
        """Set how many updates of the run were lost in all."""

    @property
    def torn(self) -> bool:
        """Whether the only learner has begun an update and not ended it: if it is dead, half an update is in theta."""

    def counts(self, worker: int | None = None) -> Counts:
        """Counts of one worker's updates since the run began or was resumed; None: of all updates of the run."""

    def pull(self, into: Tensor) -> int:
        """Copy theta to `into` `[P]`; returns its version."""

    def view(self) -> Tensor | None:
        """theta `[P]` itself, for algorithms that act on it while others write; None if it can only be copied."""

    def push(self, update: Update) -> Receipt:
        """Apply an update once, count its steps, and refresh theta^- if that is due.

        A store may have one update under way: its push returns what became of the one before.
        """

    def target(self, into: Tensor) -> None:
        """Copy theta^- to `into` `[P]`."""

    def target_view(self) -> Tensor | None:
        """theta^- `[P]` itself, which may change while it is read; None if it can only be copied."""

    def snapshot(self) -> Tensor:
        """A private copy of theta `[P]`, taken while others may be writing."""

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that belongs in a checkpoint besides theta."""

    def restore(self, theta: Tensor, state: Mapping[str, Tensor], counts: Counts) -> None:
        """Restore what a checkpoint holds; `counts` are those from before a resume.

        Raises UsageError, naming the setting, if it does not fit.
        """


def in_theta(store: Store) -> Counts:
    """What became of all updates of the run; applied ones that were lost are not counted."""
    counts = store.counts()
    return counts._replace(updates=counts.updates - store.lost)


class Experience(Protocol):
    """Where rollouts go on their way from actors to a learner. Nothing here blocks: callers try again."""

    def has_room(self, actor: int) -> bool:
        """Whether the actor may make its next rollout."""

    def put(self, actor: int, rollout: Rollout, version: int) -> None:
        """Hand over a copy of a rollout made with theta of `version`, and count its steps."""

    def take(self, learner: int = LEARNER) -> Batch | None:
        """A learner's next batch; None if there is none yet. A learner in an actor's process has the actor's number."""

    def release(self, learner: int = LEARNER) -> None:
        """The learner is done with what it took."""

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """The learner's newest errors `[B]` of what it took under these `keys` `[B]`, for sampling by priority."""

    def state(self) -> dict[str, Tensor] | None:
        """Copies of what is between actors and learner, while nobody puts or takes; None: it is not saved."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises UsageError if it does not fit."""


@dataclass(frozen=True)
class Batch:
    """What a learner takes at once."""

    rollout: Rollout | Transitions
    """All environments of its actors, side by side; or transitions sampled from a memory."""
    versions: list[int]
    """For each rollout the version of theta it was made with; empty for sampled transitions."""
    waiting: int = 0
    """Rollouts that are left."""
    missing: int = 0
    """Actors without a rollout in time."""
    again: int = 0
    """Rollouts that a learner had taken before it died; it may have learnt from them."""
    keys: Tensor | None = None
    """`[B]` int64, the keys for feedback about errors; None: no feedback."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Figures of a memory for the records."""
