"""A parameter server in shards between hosts: the rules, independent of the transport.

The workers of a host write to its shared memory, lock-free. For each shard an exchanger sends the change of theta since
the last exchange, and adds the changes made by other hosts:

    delta = live - base;  send delta;  live += theta - base - delta;  base = theta

So updates that workers make during an exchange are kept. A call may be lost, repeated, late, or out of order, and a
shard or a host may die at any moment. Still:

- No delta is applied twice: calls are numbered per host and incarnation, and an unanswered call is repeated unchanged.
- A shard that dies comes back from its checkpoint in a new epoch. It loses fewer than `every` acknowledged exchanges,
  and no host sends them again. A delta is applied only in the epoch for which it was sent, so a late call cannot bring
  lost ones back.
- Versions never decrease within an epoch, and epochs never decrease.
- In a run that has begun, a shard never starts from nothing: it waits until the driver fills it.
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
"""How often a shard was filled from outside, and how often it has recovered from its checkpoint since."""
NEVER: Epoch = (0, 0)
"""Before a shard's first epoch."""
State = dict[str, NDArray[np.generic]]
"""The state of a shard, as arrays by name."""


class Empty(Exception):
    """A shard without parameters was asked for them."""


class Retired(Exception):
    """A host has been replaced: its calls no longer count."""


@dataclass(frozen=True)
class Report:
    """What a host has counted since it joined. Counts only grow, so a lost or repeated report does no harm."""

    tallies: NDArray[np.int64]
    """`[W, K]`: K counts for each of its W workers."""
    moments: tuple[NDArray[np.float64], ...]
    """Rows (count, mean, squared deviations) of its workers' observations and returns."""


@dataclass(frozen=True)
class Call:
    """A host's request to a shard."""

    host: int
    incarnation: int
    """Counts the processes that have had the host's number, from 1."""
    number: int
    """Counts this incarnation's calls; a repeated call keeps its number."""
    epoch: Epoch = NEVER
    """The epoch in which the delta may be applied."""
    delta: NDArray[np.float32] | None = None
    """`[P]` to be added to the shard's theta; None: the host only asks for theta."""
    updates: int = 0
    """Updates of its workers in the delta."""
    seen: int = 0
    """Updates in theta when the host last saw it."""
    report: Report | None = None


@dataclass(frozen=True)
class Answer:
    """A shard's answer to a call."""

    number: int
    """Number of the call."""
    epoch: Epoch
    version: int
    """Deltas applied since the run began, without those that were lost."""
    theta: NDArray[np.float32]
    """`[P]` the shard's theta, with the delta if it was applied."""
    taken: int
    """Number of the host's newest call whose delta is in theta."""
    contributed: int
    """Deltas of this incarnation of the host in theta."""
    updates: int
    """Updates in theta."""
    staleness: int | None = None
    """Updates of other hosts since the host last saw theta; None if no delta was applied now."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, with tallies `[K]`, from the shard that keeps the ledger."""
    retired: bool = False
    """Whether a later incarnation has replaced this one."""


class Ledger:
    """The counts of all hosts: for each the sum over its earlier incarnations, and those of the current one."""

    def __init__(self, hosts: int, workers: int, kinds: int, sizes: tuple[int, ...] = ()) -> None:
        """`kinds` counts for each of `workers` workers on each of `hosts` hosts, and rows of moments of `sizes`."""
        self._incarnations = np.zeros(hosts, np.int64)
        self._tallies = np.zeros((hosts, 2, workers, kinds), np.int64)
        """`[H, 2, W, K]`: of earlier incarnations, and of the current one."""
        self._moments = [np.zeros((hosts, 2, size)) for size in sizes]

    def note(self, host: int, incarnation: int, report: Report) -> None:
        """Record a report; an outdated one is ignored."""
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
        """Sums over everything but the current incarnation of a host."""
        everybody = [(one, time) for one in np.flatnonzero(self._incarnations).tolist() for time in (0, 1)]
        return self._sum([place for place in everybody if place != (host, 1)])

    def all(self) -> Report:
        """Sums over everything."""
        return self.others(-1)

    def of_workers(self) -> NDArray[np.int64]:
        """Counts for each worker of each host, `[H, W, K]`."""
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
        """A copy of the ledger."""
        rows = {f"moments.{number}": rows.copy() for number, rows in enumerate(self._moments)}
        return {"reporters": self._incarnations.copy(), "tallies": self._tallies.copy(), **rows}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore what `state` returned."""
        self._incarnations[:] = state["reporters"]
        self._tallies[:] = state["tallies"]
        for number, rows in enumerate(self._moments):
            rows[:] = state[f"moments.{number}"]


class Shard:
    """A part of theta `[P]`, and who has contributed to it. Not for concurrent calls."""

    def __init__(
        self, hosts: int, save: Callable[[State], None], every: int = 20, ledger: Ledger | None = None
    ) -> None:
        """Begins empty. `save` stores a state for `recover`; it is called before the first answer and every `every`
        deltas. One of the shards keeps the `ledger`."""
        self.life = uuid.uuid4().hex
        """Distinguishes this process of the shard from earlier ones."""
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
        """Fill an empty shard: at first with `beginning(theta)`, later with its newest known `state`.

        `times` counts the attempts in this run, from 1. Returns whether the shard was filled now: a call for an earlier
        `life`, or a repeated one, changes nothing.
        """
        if not self.empty or life != self.life:
            return False
        self._restore(state, (times, 0))
        return True

    def recover(self, state: State) -> None:
        """Restore a saved state, in a new epoch."""
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
        """Apply the delta unless it was applied before or is for another epoch. Raises Empty."""
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
        """A copy of the shard's state. Raises Empty."""
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
    """The first state of a shard."""
    return {"theta": theta}


@dataclass(frozen=True)
class Exchanged:
    """The result of an exchange."""

    staleness: int | None
    """Updates of other hosts that this host's delta did not know of; None if it was not applied by this very call."""
    included: bool = True
    """Whether what the host sent is in theta now."""
    lost: int = 0
    """Exchanges of this host that had been acknowledged and that the shard has lost."""
    others: Report | None = None


class Exchanger:
    """A host's side of one shard: at most one call is pending, and it is repeated until it is answered."""

    def __init__(self, host: int, incarnation: int, live: NDArray[np.float32]) -> None:
        """`live` `[P]` is the memory that the host's workers write to; the first answer fills it."""
        self._host, self._incarnation = host, incarnation
        self._live = live
        self._base: NDArray[np.float32] | None = None
        """The shard's theta in its last answer."""
        self._pending: Call | None = None
        self._made = self._pending_made = 0
        """Updates of the host's workers in base, and the same once the pending call is answered."""
        self._number = self._contributed = self._seen = 0
        self.epoch = NEVER

    @property
    def joined(self) -> bool:
        """Whether the shard has ever answered."""
        return self._base is not None

    @property
    def idle(self) -> bool:
        """Whether no call is pending."""
        return self._pending is None

    @property
    def calls(self) -> int:
        """Calls so far, with a pending one."""
        return self._number

    def state(self) -> State:
        """A copy of what it knows of the shard, without the pending call. Raises Empty before the first answer."""
        if self._base is None:
            raise Empty
        numbers = [*self.epoch, self._number, self._contributed, self._seen, self._made, self._pending_made]
        return {"base": self._base.copy(), "numbers": np.array(numbers, np.int64)}

    def restore(self, state: Mapping[str, NDArray[np.generic]], pending: Call | None) -> None:
        """Restore what `state` returned, with the call that was pending."""
        self._base, self._pending = np.array(state["base"], np.float32), pending
        filled, recovered, *numbers = (int(number) for number in state["numbers"])
        self.epoch = (filled, recovered)
        self._number, self._contributed, self._seen, self._made, self._pending_made = numbers

    def call(self, made: int = 0, report: Report | None = None) -> Call:
        """The pending call, or a new one. `made` is the number of updates by the host's workers so far.

        Raises NotFinite if the change of theta is not finite, which would spread to all hosts.
        """
        if self._pending is None:
            self._number += 1
            delta = None if self._base is None else self._live - self._base
            if delta is not None and not bool(np.isfinite(delta).all()):
                raise NotFinite("the host's parameters are not finite")
            self._pending_made = made
            call = Call(self._host, self._incarnation, self._number, self.epoch, delta, made - self._made, self._seen)
            self._pending = replace(call, report=report)
        return self._pending

    def accept(self, answer: Answer) -> Exchanged | None:
        """Add the answer to the pending call to live. None if it answers another call; then nothing changes.

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
            # Rounded as in the shard: for a single host the difference is exactly 0, and workers are not disturbed.
            others = answer.theta - known
            if others.any():
                self._live += others
        self._base, self._pending = answer.theta, None
        self.epoch, self._contributed, self._seen = answer.epoch, answer.contributed, answer.updates
        return Exchanged(answer.staleness, included, lost, answer.others)


def slices(parameters: int, shards: int) -> list[slice]:
    """The part of theta `[P]` in each shard: equal sizes, except for rounding."""
    cuts = [parameters * shard // shards for shard in range(shards + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]
