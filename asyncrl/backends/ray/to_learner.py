"""A host's link with the learner, for algorithms with one, and with its replay host if there are any.

The host's actors put rollouts into rings in its memory. From there they go to their *taker*: the learner, or the replay
host that has this host's part of the memory. A rollout keeps its place in the ring until the taker is done with it.
A call brings what is new, and the taker answers once it has news: it is done with rollouts and, if it is the learner,
has a new theta. A further call makes it answer the one before at once. With replay hosts the learner is asked for theta
besides.
"""

from __future__ import annotations

import math
import time
from typing import Any, cast

import numpy as np
import torch

from asyncrl.algorithm import IN_STEP, MEMORY
from asyncrl.backends.handles import rollout_shape
from asyncrl.backends.ray.arrivals import CREDIT, Delivery, Rollouts
from asyncrl.backends.ray.exchange import Exchange, Figures, Times
from asyncrl.backends.ray.member import Member
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import FIRST, copied
from asyncrl.parameters.mirror import Mirror
from asyncrl.runtime.link import NEVER, Answer, Link, Wire
from asyncrl.runtime.protocols import Counts

GATHER_SECONDS = 0.01
"""Shortest interval between calls, unless actors wait for each other."""
LOOK_SECONDS = 0.002
"""Interval between looks at the rings, if actors wait for each other."""
NEWS_SECONDS = 0.25
"""How long the taker may wait for news before it answers."""
THETA_SECONDS = 0.1
"""Shortest interval between copies of theta, if the learner samples from a memory: it makes more updates than that."""
REPORT_SECONDS = 0.1
"""Shortest interval between reports of steps and moments."""


class ToLearner(Exchange):
    """The exchange with the learner, and with the replay host that takes this host's rollouts if there are any."""

    silent = "the learner has not"

    def __init__(self, host: Member, wire: Wire) -> None:
        beginning, handles = host.beginning, host.handles
        spec, incarnation = beginning.spec, beginning.incarnation
        self._learner = self._taker = Link[Rollouts](wire, 0, beginning.host, incarnation, CREDIT)
        self._taker_name, links = "learner", [self._learner]
        if memories := spec.replay_hosts:
            # For its replay host it is a number among the hosts of that memory.
            own, memory = divmod(beginning.host, memories)
            self._taker, self._taker_name = Link(wire, 1 + memory, own, incarnation, CREDIT), f"replay host {memory}"
            links.append(self._taker)
        super().__init__(host, links, [self._learner], Times())
        self._rings = cast(Batches, handles.experience).rings
        self._store = cast(Mirror, handles.store)
        self._shape = rollout_shape(spec)
        in_step = spec.method.experience == IN_STEP
        self._pace = 0.0 if in_step else GATHER_SECONDS
        self.look_seconds = self.wait_seconds = LOOK_SECONDS if in_step else GATHER_SECONDS
        samples = spec.method.experience == MEMORY and self._taker is self._learner
        self._theta_seconds = THETA_SECONDS if samples else 0.0
        self._news_seconds = THETA_SECONDS if samples else NEWS_SECONDS
        self._called = dict.fromkeys(links, -math.inf)
        """When the newest call to each was made."""
        self._news = 0
        """`Delivery.news` of the taker's newest answer."""
        self._sent = [0] * len(self._rings)
        """Rollouts of each ring that have been put into calls."""
        self._begun = [0] * len(self._rings)
        """How many of them earlier takers have taken."""
        self._renewed = self._reported = -math.inf

    # ----------------------------------------------------------------------------------------------------- what is sent

    def _unsent(self) -> list[tuple[int, int]]:
        """Workers and sequence numbers of rollouts that are in no call yet."""
        return [
            (worker, sequence)
            for worker, (ring, sent) in enumerate(zip(self._rings, self._sent, strict=True))
            for sequence in range(sent, ring.written)
        ]

    def is_idle(self) -> bool:
        """Whether all rollouts are in calls."""
        return not self._unsent()

    def is_due(self, link: Link[Rollouts], now: float) -> bool:
        """Whether there is something new for the taker, or no call to wait for news."""
        takes = link is self._taker
        if now - self._called[link] < (self._pace if takes else THETA_SECONDS):
            return False
        return not link.under_way or (takes and bool(self._unsent()))

    def call(self, link: Link[Rollouts], now: float) -> None:
        """Send what is new, and ask for news. The first and the last call are answered at once."""
        self._called[link], report = now, None
        if link is self._learner and (self.is_ending or now - self._reported >= REPORT_SECONDS):
            self._reported, report = now, self.host.report()
        rollouts = self._pack() if link is self._taker else []
        wants = link is self._learner and now - self._renewed >= self._theta_seconds
        seconds = self._news_seconds if link is self._taker and link.joined and not self.is_ending else 0.0
        self.figures.counts.update(calls=bool(rollouts), rollouts=len(rollouts))
        link.call(Rollouts(rollouts, self._news, self._store.updates, wants, seconds, report))

    def _pack(self) -> list[Any]:
        rollouts = []
        for worker, sequence in self._unsent():
            mark = FIRST if sequence in self.host.firsts[worker] else 0
            block = self._rings[worker].block(sequence)  # nobody overwrites what has not been released
            rollouts.append((worker, copied(self._shape, block, mark).numpy()))
            self._sent[worker] = sequence + 1
        return rollouts

    # ------------------------------------------------------------------------------------------------------- what comes

    def take(self, link: Link[Rollouts], answer: Answer, took: float) -> None:
        """Show the workers a new theta, then free what the taker is done with."""
        epoch, settled = link.epoch, link.accept(answer)
        if settled is None:
            return
        news = cast(Delivery, answer.news)
        if link is self._taker and link.epoch != epoch:
            self._begin_anew(lost=epoch != NEVER)
        if any(call.load.rollouts for call in settled):
            self.figures.durations.append(max(0.0, took - news.waited))
        if link is self._learner:
            self._show(news)
        if link is self._taker:
            self._news = news.news
            for ring, begun, done in zip(self._rings, self._begun, news.done, strict=True):
                ring.release(begun + done - ring.freed)

    def _begin_anew(self, lost: bool) -> None:
        """There is a new taker: what the one before had taken is lost, and what it had not is sent again."""
        waiting = [worker for call in self._taker.waiting for worker, _ in call.load.rollouts]
        rollouts = 0
        for worker, ring in enumerate(self._rings):
            self._begun[worker] = self._sent[worker] - waiting.count(worker)
            rollouts += self._begun[worker] - ring.freed
            ring.release(self._begun[worker] - ring.freed)
        if lost:
            self.figures.counts["lost"] += rollouts
            lost_with = f"{rollouts} rollouts of this host were lost with the previous one"
            self.host.say(f"there is a new {self._taker_name}; {lost_with}")

    def _show(self, news: Delivery) -> None:
        """Let the workers see theta, and T and the updates of others."""
        if news.others is not None:
            self.host.learn_of_others(news.others)
        if news.theta is not None and news.counts.updates >= self._store.updates:
            tallies = np.zeros((len(self._rings) + 1, len(Counts._fields)), np.int64)
            tallies[-1] = news.counts
            self._store.show(torch.from_numpy(np.array(news.theta)), tallies)
            self.figures.counts["versions"] += 1
            self._renewed = time.monotonic()
            self.host.joined.set()

    def row(self, figures: Figures) -> dict[str, Any] | None:
        """The columns of a row; None if nothing was sent or received."""
        again, self._taker.again = self._taker.again, 0
        counts = figures.counts
        if not (again or counts.total()):
            return None
        return {
            "calls": counts["calls"],
            "rollouts": counts["rollouts"],
            **figures.of_durations("call_seconds"),
            "calls_again": again,
            "versions": counts["versions"],
            "rollouts_lost": counts["lost"],
        }
