"""What a host sends to the learner of a run, and gets from it, for algorithms with a learner.

The host's actors put rollouts into rings in its memory. From there they go to their *keeper* in parcels, on credit
(`asyncrl.experience.credit`). That is the learner, or one of the replay hosts if these have the memory. A rollout keeps
its place in the ring until the keeper is done with it. One more call is always pending, a question, which the keeper
answers after its next batch: with what it is done with and, if it is the learner, with its new theta. With replay hosts
there is a second question: the learner is asked for theta.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithm import IN_STEP, MEMORY
from asyncrl.backends.calls import Answer, Question
from asyncrl.backends.exchange import ALONE_SECONDS, ANSWER_SECONDS, LAST_SECONDS, PAUSE_SECONDS
from asyncrl.backends.handles import rollout_shape
from asyncrl.backends.member import Member
from asyncrl.backends.reports import Wire
from asyncrl.experience.batches import Batches
from asyncrl.experience.credit import Forwarder, Numbered, Taken
from asyncrl.experience.landing import CREDIT, Cargo
from asyncrl.experience.messages import FIRST, copied
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Retired
from asyncrl.runtime.clock import Watch
from asyncrl.runtime.protocols import Counts

LEARNER_KEEPER = 0
"""The learner's number on the wire; replay host k has number 1 + k."""
GATHER_SECONDS = 0.01
"""Shortest interval between parcels, and between questions, unless actors wait for each other."""
LOOK_SECONDS = 0.002
"""Interval between looks at the rings, if actors wait for each other."""
AGAIN_SECONDS = 0.02
"""Pause before a parcel that was not taken is sent again."""
NEWS_SECONDS = 0.25
"""How long the keeper may wait for its next batch before it answers a question."""
THETA_SECONDS = 0.1
"""Shortest interval between copies of theta, if the learner samples from a memory: it makes more updates than that."""
REPORT_SECONDS = 0.1
"""Shortest interval between reports of steps and moments."""


@dataclass
class Asked:
    """What a host knows of the learner, or of a replay host, from its questions."""

    host: int
    """The number that this host has there."""
    pace: float
    """Shortest interval between questions, in seconds."""
    since: float = 0.0
    """When the newest question was asked."""
    epoch: int = 0
    """The newest of its epochs that has been heard of."""
    news: int = 0
    """`Answer.news` of the newest answer."""
    answered: bool = False
    """Whether any question was answered."""


class Forwarding:
    """The host's side."""

    def __init__(self, host: Member, wire: Wire) -> None:
        self._host, self._wire = host, wire
        beginning, handles = self._host.beginning, self._host.handles
        spec = beginning.spec
        self._incarnation = beginning.incarnation
        self._rings = cast(Batches, handles.experience).rings
        self._store = cast(Mirror, handles.store)
        self._shape = rollout_shape(spec)
        kind = spec.method.experience
        self._pace, self._poll = (0.0, LOOK_SECONDS) if kind == IN_STEP else (GATHER_SECONDS, GATHER_SECONDS)
        self._theta_seconds = THETA_SECONDS if kind == MEMORY else 0.0
        self._keeper, self._keeper_name = LEARNER_KEEPER, "learner"
        """Whom the parcels go to."""
        self._asked = {LEARNER_KEEPER: Asked(beginning.host, self._pace)}
        """Those that are asked, by their numbers on the wire."""
        if memories := spec.replay_hosts:
            own, memory = divmod(beginning.host, memories)
            self._keeper, self._keeper_name = 1 + memory, f"replay host {memory}"
            self._asked = {LEARNER_KEEPER: Asked(beginning.host, THETA_SECONDS), self._keeper: Asked(own, self._pace)}
            self._theta_seconds = 0.0  # whenever the learner is asked
        self._place = self._asked[self._keeper].host
        """The number of this host among those that send parcels to the same keeper."""
        self._forwarder: Forwarder[Cargo] = Forwarder(self._place, self._incarnation, CREDIT)
        self._interval = spec.config.record_interval_seconds
        self._sent = [0] * len(self._rings)
        """Rollouts of each ring that have been put into parcels."""
        self._begun = [0] * len(self._rings)
        """How many of them an earlier keeper has taken."""
        self._calls: dict[Any, tuple[float, int, Numbered[Cargo] | Question]] = {}
        """Pending calls, when they were made, and to whom."""
        self._due: dict[tuple[int, int], float] = {}
        """For parcels that wait, by epoch and number: when they may be sent again."""
        self._packed = self._reported = self._renewed = 0.0
        self._heard = time.monotonic()
        """When the learner last answered. A host waits for a replay host as long as it takes."""
        self._record = Record(beginning.host)

    def run(self) -> None:
        """Forward rollouts until the workers have ended and the keeper has all of them.

        Raises TimeoutError if the learner does not answer, Retired if another has taken this host's place.
        """
        host = self._host
        ending = last = False
        ended, watch = float("inf"), Watch(ALONE_SECONDS)
        while True:
            now = time.monotonic()
            watch.look()
            if host.done.is_set() and not ending:
                ending, ended = True, now
                self._forget_questions()  # the last one has the last report
            if last and not self._unsent() and not self._forwarder.waiting:
                break
            if watch.silence(ended) > LAST_SECONDS:
                host.say("the last rollouts were not taken")
                break
            self._send(now)
            self._ask(now, ending)
            last |= self._receive() and ending
            if watch.silence(self._heard) > ALONE_SECONDS:
                raise TimeoutError(f"the learner has not answered for {ALONE_SECONDS:.0f} seconds")
            if now - self._record.since >= self._interval:
                host.tell_exchanges(self._record.take())
        host.tell_exchanges(self._record.take())

    # ----------------------------------------------------------------------------------------------------- what is sent

    def _unsent(self) -> list[tuple[int, int]]:
        """Workers and sequence numbers of rollouts that are in no parcel yet."""
        return [
            (worker, sequence)
            for worker, (ring, sent) in enumerate(zip(self._rings, self._sent, strict=True))
            for sequence in range(sent, ring.written)
        ]

    def _send(self, now: float) -> None:
        """Send what is new, if there is credit, and again what was not taken."""
        forwarder, pending = self._forwarder, {_key(call) for *_, call in self._calls.values()}
        for parcel in forwarder.waiting:
            if _key(parcel) not in pending and now >= self._due.get(_key(parcel), 0.0):
                self._record.again += _key(parcel) in self._due
                self._call(self._keeper, parcel, now)
        if not self._asked[self._keeper].answered or not forwarder.has_credit or now - self._packed < self._pace:
            return
        if unsent := self._unsent():
            self._packed = now
            self._record.parcels += 1
            self._record.rollouts += len(unsent)
            parcel = forwarder.send(Cargo(self._place, self._incarnation, self._pack(unsent)))
            self._call(self._keeper, parcel, now)

    def _pack(self, unsent: list[tuple[int, int]]) -> list[tuple[int, NDArray[np.uint8]]]:
        rollouts = []
        for worker, sequence in unsent:
            block = self._rings[worker].block(sequence)
            assert block is not None  # nobody overwrites what has not been released
            mark = FIRST if sequence in self._host.firsts[worker] else 0
            rollouts.append((worker, copied(self._shape, block, mark).numpy()))
            self._sent[worker] = sequence + 1
        return rollouts

    def _ask(self, now: float, last: bool) -> None:
        """Have one question pending to each that is asked; the first and the last are answered at once."""
        pending = {to for _, to, call in self._calls.values() if isinstance(call, Question)}
        for to, asked in self._asked.items():
            if to not in pending and now >= asked.since + asked.pace:
                asked.since = now
                self._call(to, self._question(to, asked, now, last), now)

    def _question(self, to: int, asked: Asked, now: float, last: bool) -> Question:
        question = Question(asked.host, self._incarnation, asked.epoch)
        if asked.answered and not last:
            wants = now - self._renewed >= self._theta_seconds
            seconds = NEWS_SECONDS if to == self._keeper else 0.0
            seen = asked.news, self._store.updates, wants, seconds
            question = Question(asked.host, self._incarnation, asked.epoch, *seen)
        if to == LEARNER_KEEPER and (now - self._reported >= REPORT_SECONDS or last):
            self._reported = now
            question = replace(question, report=self._host.report())
        return question

    def _call(self, to: int, call: Numbered[Cargo] | Question, now: float) -> None:
        if isinstance(call, Numbered):
            self._due[_key(call)] = now
        self._calls[self._wire.send(to, call)] = now, to, call

    def _forget_questions(self) -> None:
        self._calls = {handle: made for handle, made in self._calls.items() if isinstance(made[-1], Numbered)}
        for asked in self._asked.values():
            asked.since = 0.0

    # ------------------------------------------------------------------------------------------------------- what comes

    def _receive(self) -> bool:
        """Process answers. Returns whether the learner has answered a question."""
        if not self._calls:
            time.sleep(self._poll)
            return False
        answered = False
        for handle, answer in self._wire.receive(list(self._calls), self._poll):
            since, who, call = self._calls.pop(handle)
            now = time.monotonic()
            if answer is None:  # it is gone, or waits to be filled
                if isinstance(call, Numbered):
                    self._due[_key(call)] = now + PAUSE_SECONDS
                else:
                    self._asked[who].since = now + PAUSE_SECONDS
                continue
            if who == LEARNER_KEEPER:
                self._heard = now
            if isinstance(call, Numbered):
                self._record.seconds.append(now - since)
                self._due[_key(call)] = now + AGAIN_SECONDS
                self._accept(answer)
            else:
                answered |= who == LEARNER_KEEPER
                self._learn(who, answer)
        now = time.monotonic()
        overdue = [handle for handle, (since, *_) in self._calls.items() if now - since > ANSWER_SECONDS]
        for handle in overdue:
            del self._calls[handle]
        return answered

    def _accept(self, taken: Taken) -> None:
        """Process an acknowledgement. A new keeper is sent what was not acknowledged; what was is lost."""
        if taken.retired:
            raise Retired
        forwarder, before = self._forwarder, self._forwarder.epoch
        if forwarder.accept(taken):
            waiting = [worker for parcel in forwarder.waiting for worker, _ in parcel.load.rollouts]
            lost = 0
            for worker, ring in enumerate(self._rings):
                self._begun[worker] = self._sent[worker] - waiting.count(worker)
                lost += self._begun[worker] - ring.freed
                ring.release(self._begun[worker] - ring.freed)
            if before:
                self._record.lost += lost
                lost_with = f"{lost} rollouts of this host were lost with the one before"
                self._host.say(f"there is a new {self._keeper_name}; {lost_with}")
        self._asked[self._keeper].epoch = forwarder.epoch
        self._due = {_key(parcel): self._due.get(_key(parcel), 0.0) for parcel in forwarder.waiting}

    def _learn(self, who: int, answer: Answer) -> None:
        """Show the workers the new theta, then free what the keeper is done with."""
        asked = self._asked[who]
        if answer.taken.epoch < asked.epoch:
            return
        if who == self._keeper:
            self._accept(answer.taken)
        asked.epoch, asked.news, asked.answered = answer.taken.epoch, answer.news, True
        if who == LEARNER_KEEPER:
            self._show(answer)
        if who == self._keeper:
            for ring, begun, done in zip(self._rings, self._begun, answer.done, strict=True):
                ring.release(begun + done - ring.freed)

    def _show(self, answer: Answer) -> None:
        """Let the workers see theta, and T and the updates of others."""
        if answer.others is not None:
            self._host.learn_of_others(answer.others)
        if answer.theta is not None:
            tallies = np.zeros((len(self._rings) + 1, len(Counts._fields)), np.int64)
            tallies[-1] = answer.counts
            self._store.show(torch.from_numpy(np.array(answer.theta)), tallies)
            self._record.versions += 1
            self._renewed = time.monotonic()
        self._host.joined.set()


def _key(call: Numbered[Cargo] | Question) -> tuple[int, int]:
    """Epoch and number of a parcel."""
    return (call.epoch, call.number) if isinstance(call, Numbered) else (0, 0)


class Record:
    """Figures of a host's parcels since its last row."""

    def __init__(self, host: int) -> None:
        self._host = host
        self._clear()

    def _clear(self) -> None:
        self.since = time.monotonic()
        self.seconds: list[float] = []
        """From a parcel to its answer."""
        self.parcels = self.rollouts = self.again = self.versions = self.lost = 0

    def take(self) -> dict[str, Any] | None:
        """The next row; None if nothing was sent or received."""
        if not (self.parcels or self.again or self.versions or self.lost):
            return None
        row = {
            "host": self._host,
            "parcels": self.parcels,
            "rollouts": self.rollouts,
            "parcel_seconds_mean": round(statistics.fmean(self.seconds), 6) if self.seconds else None,
            "parcel_seconds_max": round(max(self.seconds), 6) if self.seconds else None,
            "parcels_again": self.again,
            "versions": self.versions,
            "rollouts_lost": self.lost,
        }
        self._clear()
        return row
