"""The replay memory of a run as its learner sees it, if it is in replay hosts (`asyncrl.backends.replay_host`).

One call to each of them is always pending. It brings the newest errors there and comes back with a minibatch once one
is due by that memory's replay ratio, while the learner learns from another. The learner takes whichever is there. So
each memory is drawn from as often as its own hosts' steps ask for, and a lost one makes nobody wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from asyncrl.backends.calls import Draw, Drew, Feedback, tensor_of, transitions_of
from asyncrl.backends.exchange import ANSWER_SECONDS, LAST_SECONDS, PAUSE_SECONDS
from asyncrl.backends.reports import Wire
from asyncrl.experience.landing import WithoutActors
from asyncrl.experience.replay import normalized
from asyncrl.runtime.clock import Clock, Watch
from asyncrl.runtime.normalize import Normalizer
from asyncrl.runtime.protocols import LEARNER, Batch

LOOK_SECONDS = 0.005
"""How long a learner without a minibatch waits for one before it looks after other things."""
DUE_SECONDS = 0.25
"""How long a memory may wait until a minibatch is due before it answers that none is."""


@dataclass(eq=False)
class Lane:
    """What the learner has to do with one memory."""

    number: int = 1
    """Of the minibatch that is asked for."""
    draw: Draw | None = None
    """The pending call, or one that failed and is to be repeated."""
    call: Any = None
    """Handle of the pending call."""
    since: float = -math.inf
    """When it was made."""
    due: float = 0.0
    """When the next call may be made."""
    drew: Drew | None = None
    """A minibatch that has come."""
    feedback: Feedback | None = None
    """For the next call."""
    heard: float = -math.inf
    """When the memory last answered."""
    empty: float = -math.inf
    """When the last call was made to which the memory answered that nothing is due."""


class RemoteReplay(WithoutActors):
    """The memories as the experience of one learner, for its thread; `drained` may be called by another."""

    def __init__(self, wire: Wire, memories: int, learner: int, clock: Clock, normalizer: Normalizer | None) -> None:
        """The wire's keepers are the memories. `learner` is greater than that of any earlier learner."""
        self._wire, self._learner, self._clock, self._normalizer = wire, learner, clock, normalizer
        self.lanes: Sequence[Lane] = [Lane() for _ in range(memories)]
        self._next = 0
        """The memory whose minibatch is preferred: they take turns."""
        self._taken: tuple[Lane, int] = self.lanes[0], 0
        """From which memory the minibatch is that is being learnt from, and the memory's epoch."""
        self._ending = math.inf
        self._watch = Watch(LAST_SECONDS)
        """For whoever asks whether the memories are drained."""

    def take(self, learner: int = LEARNER) -> Batch | None:
        """The next minibatch that has come, normalised by the newest moments; None if there is none yet."""
        self._ask()
        if self._ready() is None:
            self._receive(LOOK_SECONDS)
        lane = self._ready()
        if lane is None:
            return None
        drew, lane.drew = lane.drew, None
        assert drew is not None
        assert drew.transitions is not None
        self._taken, self._next = (lane, drew.epoch), self.lanes.index(lane) + 1
        self._ask()  # so that the next one is under way while this one is learnt from
        keys = None if drew.keys is None else tensor_of(drew.keys)
        return Batch(normalized(transitions_of(drew.transitions), self._normalizer), [], keys=keys, facts=drew.facts)

    def _ready(self) -> Lane | None:
        """The first memory in turn whose minibatch has come."""
        in_turn = (self.lanes[(self._next + further) % len(self.lanes)] for further in range(len(self.lanes)))
        return next((lane for lane in in_turn if lane.drew is not None), None)

    def _ask(self) -> None:
        """Have a call pending to each memory whose minibatch has not come."""
        now = time.monotonic()
        for memory, lane in enumerate(self.lanes):
            if lane.call is not None or lane.drew is not None or now < lane.due:
                continue
            if lane.draw is None:
                seconds = DUE_SECONDS if self._ending == math.inf else 0.0
                lane.draw = Draw(self._learner, lane.number, self._clock.steps, seconds, lane.feedback)
                lane.feedback = None
            lane.call, lane.since = self._wire.send(memory, lane.draw), now

    def _receive(self, seconds: float) -> None:
        """Wait up to `seconds` for an answer; a call that has failed, or is overdue, is made again later."""
        calls = {lane.call: lane for lane in self.lanes if lane.call is not None}
        answers = self._wire.receive(list(calls), seconds) if calls else []
        now = time.monotonic()
        for call, answer in answers:
            lane = calls[call]
            lane.call = None
            if answer is None:  # the memory is gone, or waits to be filled
                lane.due = now + PAUSE_SECONDS
                continue
            lane.heard, lane.draw = now, None
            if answer.transitions is None:
                lane.empty = lane.since
            else:
                lane.drew = answer
                lane.number += 1
        for lane in self.lanes:
            if lane.call is not None and now - lane.since > ANSWER_SECONDS:
                lane.call = None

    def feedback(self, keys: Tensor, errors: Tensor, learner: int = LEARNER) -> None:
        """Keep errors for the next call to the memory that the newest minibatch is from."""
        lane, epoch = self._taken
        lane.feedback = Feedback(epoch, keys.numpy(), errors.numpy())

    def release(self, learner: int = LEARNER) -> None:
        """Does nothing: a minibatch counts as learnt in its memory once it has been drawn."""

    def drained(self) -> bool:
        """Whether no memory has anything left to learn from, once hosts have sent their last steps.

        One that does not answer any more is not waited for.
        """
        now = time.monotonic()
        self._ending = ending = min(self._ending, now)
        return all(
            lane.empty > ending or (lane.drew is None and self._watch.silence(max(lane.heard, ending)) > LAST_SECONDS)
            for lane in self.lanes
        )
