"""Parameters in shards between hosts: the rules, as plain objects that know nothing of how calls travel.

Workers of a host write to its own memory, lock-free. Beside them an exchanger per shard sends what has become of theta
since the last exchange, and adds what the others have made of it meanwhile:

    delta = live - base;  send delta;  live += theta - base - delta;  base = theta

so nothing that workers do meanwhile is lost. A call may be lost, repeated, late, or out of order, and a shard or a host
may die at any moment. What holds all the same:

- no delta is applied twice: calls are numbered by host and incarnation, and one that was not answered is made again as
  it was;
- a shard that dies comes back from its checkpoint under a new epoch; of what it had acknowledged it loses less than
  `every` exchanges, and no host sends those again. A delta is applied only in the epoch it was sent for: a late call
  cannot bring back what is lost;
- versions never fall within an epoch, and epochs never fall;
- a shard never begins empty in a run that has begun: it waits until somebody who knows fills it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.errors import NotFinite
from asyncrl.core.moments import merge

Epoch = tuple[int, int]
"""How often a shard was filled from outside, and how often it has come back by itself since."""
NEVER: Epoch = (0, 0)
"""Before the first."""
State = dict[str, NDArray[np.generic]]
"""What a shard is, as arrays by name."""


class Empty(Exception):
    """A shard without parameters was asked for them."""


class Retired(Exception):
    """A host's place has been given to another: nothing of it counts any more."""


@dataclass(frozen=True)
class Report:
    """What a host has counted since it joined. It only grows, so a report that is lost or repeated does no harm."""

    tallies: NDArray[np.int64]
    """`[W, K]`: K counts of each of its W workers."""
    moments: tuple[NDArray[np.float64], ...]
    """Rows (count, mean, squared deviations) of what its workers have seen."""


@dataclass(frozen=True)
class Call:
    """What a host asks of a shard."""

    host: int
    incarnation: int
    """How many held the host's place before, from 1."""
    number: int
    """Of this incarnation's calls; one that is made again keeps it."""
    epoch: Epoch = NEVER
    """In which the delta may be applied."""
    delta: NDArray[np.float32] | None = None
    """To be added to theta `[P]` of the shard; None: the host only asks for it."""
    updates: int = 0
    """Of its workers that the delta is made of."""
    seen: int = 0
    """Updates that were in theta when the host saw it last."""
    report: Report | None = None


@dataclass(frozen=True)
class Answer:
    """What a shard says to a call."""

    number: int
    """Of the call."""
    epoch: Epoch
    version: int
    """Deltas applied since the run began, but for those that were lost."""
    theta: NDArray[np.float32]
    """`[P]` of the shard, with the delta if it was applied."""
    taken: int
    """Number of the host's newest call whose delta is in theta."""
    contributed: int
    """How many deltas of this incarnation of the host are."""
    updates: int
    """That theta is made of."""
    staleness: int | None = None
    """Updates of other hosts since the host saw theta last; None if no delta was applied now."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, if the shard keeps the ledger: tallies `[K]`."""
    retired: bool = False


class Ledger:
    """What all hosts have counted: sums over the incarnations that are gone, and what the present one says."""

    def __init__(self, hosts: int, workers: int, kinds: int, sizes: tuple[int, ...] = ()) -> None:
        """`kinds` counts of each of `workers` workers of each of `hosts` hosts; rows of moments of these `sizes`."""
        self._incarnations = np.zeros(hosts, np.int64)
        self._tallies = np.zeros((hosts, 2, workers, kinds), np.int64)
        """`[H, 2, W, K]`: of those gone, and of the present one."""
        self._moments = [np.zeros((hosts, 2, size)) for size in sizes]

    def note(self, host: int, incarnation: int, report: Report) -> None:
        """Take a report in; one that is older than what is known says nothing."""
        if incarnation > self._incarnations[host]:
            self._incarnations[host] = incarnation
            tallies = self._tallies[host]
            tallies[0] += tallies[1]
            tallies[1] = 0
            for rows in self._moments:
                rows[host, 0] = merge(rows[host, 0], rows[host, 1])
                rows[host, 1] = 0
        known = self._tallies[host, 1]
        if incarnation == self._incarnations[host] and bool((report.tallies >= known).all()):
            known[:] = report.tallies
            for rows, row in zip(self._moments, report.moments, strict=True):
                rows[host, 1] = row

    def others(self, host: int) -> Report:
        """Sums over all but the present incarnation of a host."""
        everybody = [(one, time) for one in range(len(self._tallies)) for time in (0, 1)]
        return self._sum([place for place in everybody if place != (host, 1)])

    def all(self) -> Report:
        """Sums over everybody."""
        return self.others(-1)

    def of_workers(self) -> NDArray[np.int64]:
        """Counts of each worker of each host, `[H, W, K]`."""
        tallies: NDArray[np.int64] = self._tallies.sum(1)
        return tallies

    def _sum(self, places: list[tuple[int, int]]) -> Report:
        tallies = np.zeros(self._tallies.shape[-1], np.int64)
        moments = [np.zeros(rows.shape[-1]) for rows in self._moments]
        for place in places:
            tallies += self._tallies[place].sum(0)
            moments = [merge(total, rows[place]) for total, rows in zip(moments, self._moments, strict=True)]
        return Report(tallies, tuple(moments))

    def state(self) -> State:
        """All of it."""
        rows = {f"moments.{number}": rows.copy() for number, rows in enumerate(self._moments)}
        return {"reporters": self._incarnations.copy(), "tallies": self._tallies.copy(), **rows}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go back to what `state` said."""
        self._incarnations[:] = state["reporters"]
        self._tallies[:] = state["tallies"]
        for number, rows in enumerate(self._moments):
            rows[:] = state[f"moments.{number}"]


class Shard:
    """A part of theta `[P]` and who has contributed to it. One call at a time."""

    def __init__(
        self, hosts: int, save: Callable[[State], None], every: int = 20, ledger: Ledger | None = None
    ) -> None:
        """Empty. `save` keeps a state where `recover` will be given it from, before the first answer and after `every`
        deltas. One of the shards keeps the `ledger`."""
        self.life = uuid.uuid4().hex
        """Tells this process of the shard from those before it."""
        self.ledger = ledger
        self._save, self._every = save, every
        self._incarnations = np.zeros(hosts, np.int64)
        self._taken = np.zeros(hosts, np.int64)
        self._contributed = np.zeros(hosts, np.int64)
        self._theta: NDArray[np.float32] | None = None
        self.epoch = NEVER
        self.version = self.updates = 0

    @property
    def empty(self) -> bool:
        """Whether it waits to be filled."""
        return self._theta is None

    def begin(self, life: str, times: int, state: State) -> bool:
        """Fill an empty shard: for the first time with `beginning(theta)`, later with the newest `state` known.

        `times` counts from 1 how often this was done in the run. Whether it was done now: a call that was meant for an
        earlier `life`, or comes a second time, changes nothing.
        """
        if not self.empty or life != self.life:
            return False
        self._restore(state, (times, 0))
        return True

    def recover(self, state: State) -> None:
        """Come back from what was saved, under a new epoch."""
        filled, times = (int(part) for part in state["epoch"])
        self._restore(state, (filled, times + 1))

    def _restore(self, state: State, epoch: Epoch) -> None:
        theta = np.array(state["theta"], np.float32)
        if "taken" in state:
            self._incarnations[:], self._taken[:] = state["incarnations"], state["taken"]
            self._contributed[:] = state["contributed"]
            self.version, self.updates = (int(count) for count in state["counts"])
        if self.ledger is not None and "tallies" in state:
            self.ledger.restore(state)
        self.epoch, self._theta = epoch, theta
        self._save(self.state())

    def exchange(self, call: Call) -> Answer:
        """Apply a delta unless it is applied already, or of another epoch. Raises Empty."""
        if self._theta is None:
            raise Empty
        host = call.host
        if call.incarnation < self._incarnations[host]:
            return Answer(call.number, self.epoch, self.version, self._theta[:0], 0, 0, self.updates, retired=True)
        if call.incarnation > self._incarnations[host]:
            self._incarnations[host], self._taken[host], self._contributed[host] = call.incarnation, 0, 0
        if self.ledger is not None and call.report is not None:
            self.ledger.note(host, call.incarnation, call.report)
        staleness = None
        if call.delta is not None and call.epoch == self.epoch and call.number > self._taken[host]:
            staleness = self.updates - call.seen
            self._theta += call.delta
            self._taken[host] = call.number
            self._contributed[host] += 1
            self.version += 1
            self.updates += call.updates
            if self.version % self._every == 0:
                self._save(self.state())
        others = None if self.ledger is None else self.ledger.others(host)
        taken, contributed = int(self._taken[host]), int(self._contributed[host])
        theta = self._theta.copy()
        return Answer(
            call.number, self.epoch, self.version, theta, taken, contributed, self.updates, staleness, others
        )  # fmt: skip

    def state(self) -> State:
        """All of it. Raises Empty."""
        if self._theta is None:
            raise Empty
        return {
            "theta": self._theta.copy(),
            "epoch": np.array(self.epoch, np.int64),
            "counts": np.array([self.version, self.updates], np.int64),
            "incarnations": self._incarnations.copy(),
            "taken": self._taken.copy(),
            "contributed": self._contributed.copy(),
            **({} if self.ledger is None else self.ledger.state()),
        }


def beginning(theta: NDArray[np.float32]) -> State:
    """The state of a shard to which nobody has contributed yet."""
    return {"theta": theta}


@dataclass(frozen=True)
class Exchanged:
    """What an answer has brought."""

    staleness: int | None
    """Updates of other hosts that this host's delta did not know of; None if it was not applied by this very call."""
    included: bool = True
    """Whether what the host sent is in theta now."""
    lost: int = 0
    """Exchanges of this host that had been acknowledged and that the shard has lost."""
    others: Report | None = None


class Exchanger:
    """A host's side of one shard: at most one call is on its way, and is made again until it is answered."""

    def __init__(self, host: int, incarnation: int, live: NDArray[np.float32]) -> None:
        """`live` `[P]` is what the host's workers write to; the first answer fills it."""
        self._host, self._incarnation = host, incarnation
        self._live = live
        self._base: NDArray[np.float32] | None = None
        """theta as the shard had it when it answered last."""
        self._pending: Call | None = None
        self._made = self._pending_made = 0
        """Updates of the host's workers that are in base, and that will be with the call on its way."""
        self._number = self._contributed = self._seen = 0
        self.epoch = NEVER

    @property
    def joined(self) -> bool:
        """Whether the shard has ever answered."""
        return self._base is not None

    @property
    def idle(self) -> bool:
        """Whether no call is on its way."""
        return self._pending is None

    @property
    def calls(self) -> int:
        """How many there were, the one on its way among them."""
        return self._number

    def call(self, made: int = 0, report: Report | None = None) -> Call:
        """The call that is on its way, or a new one. `made` are the updates of the host's workers so far.

        Raises NotFinite if theta holds what is no number: it would reach all hosts.
        """
        if self._pending is None:
            self._number += 1
            delta = None if self._base is None else self._live - self._base
            if delta is not None and not bool(np.isfinite(delta).all()):
                raise NotFinite("the host's parameters hold numbers that are not finite")
            self._pending_made = made
            call = Call(self._host, self._incarnation, self._number, self.epoch, delta, made - self._made, self._seen)
            self._pending = replace(call, report=report)
        return self._pending

    def accept(self, answer: Answer) -> Exchanged | None:
        """Bring the answer to the call on its way into live; None if it is to another one, and changes nothing.

        Raises Retired.
        """
        pending = self._pending
        if pending is None or answer.number != pending.number or answer.epoch < self.epoch:
            return None
        if answer.retired:
            raise Retired
        included = pending.delta is not None and answer.taken >= pending.number
        lost = max(0, self._contributed + included - answer.contributed)
        if self._base is None:
            self._live[:] = answer.theta
        else:
            known = self._base
            if pending.delta is not None and included:
                known = known + pending.delta
                self._made = self._pending_made
            # Rounded as the shard has: of a host that is alone nothing is left, and workers write undisturbed.
            others = answer.theta - known
            if others.any():
                self._live += others
        self._base, self._pending = answer.theta, None
        self.epoch, self._contributed, self._seen = answer.epoch, answer.contributed, answer.updates
        return Exchanged(answer.staleness, included, lost, answer.others)


def slices(parameters: int, shards: int) -> list[slice]:
    """Which part of theta `[P]` each shard has: equal ones, but for rounding."""
    cuts = [parameters * shard // shards for shard in range(shards + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]
