"""A host's link with the learner, for algorithms with one, and with its replay host if there are any.

The host's actors put rollouts into rings in its memory. From there they go to their *taker*: the learner, or the replay
host that has this host's part of the memory. A rollout keeps its place in the ring until the taker is done with it.
A call brings what is new, and the taker answers once it has news: it is done with rollouts and, if it is the learner,
has a new theta. A further call makes it answer the one before at once. With replay hosts the learner is asked for theta
besides.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, cast

import numpy as np
import torch

from asyncrl.algorithm import IN_STEP, MEMORY
from asyncrl.backends.handles import rollout_shape
from asyncrl.backends.ray.arrivals import CREDIT, Delivery, Rollouts
from asyncrl.backends.ray.member import ALONE_SECONDS, LAST_SECONDS, Member
from asyncrl.experience.batches import Batches
from asyncrl.experience.blocks import FIRST, copied
from asyncrl.parameters.mirror import Mirror
from asyncrl.runtime.clock import Watch
from asyncrl.runtime.link import NEVER, Link, Wire, receive
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


class ToLearner:
    """The host's side."""

    def __init__(self, host: Member, wire: Wire) -> None:
        self._host = host
        beginning, handles = host.beginning, host.handles
        spec, incarnation = beginning.spec, beginning.incarnation
        self._rings = cast(Batches, handles.experience).rings
        self._store = cast(Mirror, handles.store)
        self._shape = rollout_shape(spec)
        kind = spec.method.experience
        self._pace, self._poll = (0.0, LOOK_SECONDS) if kind == IN_STEP else (GATHER_SECONDS, GATHER_SECONDS)
        self._theta_seconds = THETA_SECONDS if kind == MEMORY else 0.0
        self._news_seconds = THETA_SECONDS if kind == MEMORY else NEWS_SECONDS
        self._learner: Link[Rollouts] = Link(wire, 0, beginning.host, incarnation, CREDIT)
        self._taker, self._taker_name = self._learner, "learner"
        if memories := spec.replay_hosts:
            # For its replay host it is a number among the hosts of that memory.
            own, memory = divmod(beginning.host, memories)
            self._taker, self._taker_name = Link(wire, 1 + memory, own, incarnation, CREDIT), f"replay host {memory}"
            self._theta_seconds, self._news_seconds = 0.0, NEWS_SECONDS
        self._links = [self._learner] if self._taker is self._learner else [self._learner, self._taker]
        self._called = dict.fromkeys(self._links, -math.inf)
        """When the newest call to each was made."""
        self._news = 0
        """`Delivery.news` of the taker's newest answer."""
        self._sent = [0] * len(self._rings)
        """Rollouts of each ring that have been put into calls."""
        self._begun = [0] * len(self._rings)
        """How many of them earlier takers have taken."""
        self._last = math.inf
        """Number of the last call to the learner, once the workers have ended: the next one has the last report."""
        self._renewed = self._reported = -math.inf
        self._record = Record(beginning.host)

    def run(self) -> None:
        """Send rollouts until the workers have ended and the taker has all of them.

        Raises TimeoutError if the learner does not answer, Retired if another has taken this host's place.
        """
        host = self._host
        ended, watch = math.inf, Watch(ALONE_SECONDS)
        interval = host.beginning.spec.config.record_interval_seconds
        while True:
            watch.look()
            if host.done.is_set() and ended == math.inf:
                ended, self._last = time.monotonic(), self._learner.calls
            if self._learner.settled > self._last and not self._unsent() and not self._taker.waiting:
                break
            if watch.silence(ended) > LAST_SECONDS:
                host.say("the last rollouts were not taken")
                break
            self._call()
            self._receive()
            if watch.silence(self._learner.heard) > ALONE_SECONDS:  # for a replay host it waits as long as it takes
                raise TimeoutError(f"the learner has not answered for {ALONE_SECONDS:.0f} seconds")
            if time.monotonic() - self._record.since >= interval:
                host.tell_exchanges(self._record.take())
        host.tell_exchanges(self._record.take())

    # ----------------------------------------------------------------------------------------------------- what is sent

    def _unsent(self) -> list[tuple[int, int]]:
        """Workers and sequence numbers of rollouts that are in no call yet."""
        return [
            (worker, sequence)
            for worker, (ring, sent) in enumerate(zip(self._rings, self._sent, strict=True))
            for sequence in range(sent, ring.written)
        ]

    def _call(self) -> None:
        """Send what is new, if there is credit, and have a call pending to each server."""
        now, unsent = time.monotonic(), self._unsent()
        for link in self._links:
            before = link.again
            link.repeat()
            takes = link is self._taker
            self._record.again += takes * (link.again - before)
            paced = now - self._called[link] >= (self._pace if takes else THETA_SECONDS)
            is_due = paced and (not link.under_way or (takes and unsent))
            if not link.has_credit or not (is_due or (link is self._learner and link.calls == self._last)):
                continue
            self._called[link] = now
            load = self._load(link, unsent if takes else [], now)
            self._record.calls += bool(load.rollouts)
            self._record.rollouts += len(load.rollouts)
            link.call(load)

    def _load(self, link: Link[Rollouts], unsent: list[tuple[int, int]], now: float) -> Rollouts:
        """What a call brings, and what it asks for. The first and the last are answered at once."""
        ending, report = self._last < math.inf, None
        if link is self._learner and (ending or now - self._reported >= REPORT_SECONDS):
            self._reported, report = now, self._host.report()
        wants = link is self._learner and now - self._renewed >= self._theta_seconds
        seconds = self._news_seconds if link is self._taker and link.joined and not ending else 0.0
        return Rollouts(self._pack(unsent), self._news, self._store.updates, wants, seconds, report)

    def _pack(self, unsent: list[tuple[int, int]]) -> list[Any]:
        rollouts = []
        for worker, sequence in unsent:
            block = self._rings[worker].block(sequence)
            assert block is not None  # nobody overwrites what has not been released
            mark = FIRST if sequence in self._host.firsts[worker] else 0
            rollouts.append((worker, copied(self._shape, block, mark).numpy()))
            self._sent[worker] = sequence + 1
        return rollouts

    # ------------------------------------------------------------------------------------------------------- what comes

    def _receive(self) -> None:
        """Process answers: show the workers a new theta, then free what the taker is done with."""
        if not any(link.under_way for link in self._links):
            time.sleep(self._poll)
        for link, answer, took in receive(self._links, self._poll):
            epoch, settled = link.epoch, link.accept(answer)
            if settled is None:
                continue
            news = cast(Delivery, answer.news)
            if link is self._taker and link.epoch != epoch:
                self._begin_anew(lost=epoch != NEVER)
            if any(call.load.rollouts for call in settled):
                self._record.seconds.append(max(0.0, took - news.waited))
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
            self._record.lost += rollouts
            lost_with = f"{rollouts} rollouts of this host were lost with the one before"
            self._host.say(f"there is a new {self._taker_name}; {lost_with}")

    def _show(self, news: Delivery) -> None:
        """Let the workers see theta, and T and the updates of others."""
        if news.others is not None:
            self._host.learn_of_others(news.others)
        if news.theta is not None and news.counts.updates >= self._store.updates:
            tallies = np.zeros((len(self._rings) + 1, len(Counts._fields)), np.int64)
            tallies[-1] = news.counts
            self._store.show(torch.from_numpy(np.array(news.theta)), tallies)
            self._record.versions += 1
            self._renewed = time.monotonic()
            self._host.joined.set()


class Record:
    """Figures of a host's calls since its last row."""

    def __init__(self, host: int) -> None:
        self._host = host
        self._clear()

    def _clear(self) -> None:
        self.since = time.monotonic()
        self.seconds: list[float] = []
        """From a call with rollouts to its answer, without the time that the answer waited for news."""
        self.calls = self.rollouts = self.again = self.versions = self.lost = 0

    def take(self) -> dict[str, Any] | None:
        """The next row; None if nothing was sent or received."""
        if not (self.calls or self.again or self.versions or self.lost):
            return None
        row = {
            "host": self._host,
            "parcels": self.calls,
            "rollouts": self.rollouts,
            "parcel_seconds_mean": round(statistics.fmean(self.seconds), 6) if self.seconds else None,
            "parcel_seconds_max": round(max(self.seconds), 6) if self.seconds else None,
            "parcels_again": self.again,
            "versions": self.versions,
            "rollouts_lost": self.lost,
        }
        self._clear()
        return row
