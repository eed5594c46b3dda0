"""A parameter server in shards between hosts: the rules, independent of the transport.

The workers of a host write to its shared memory, lock-free. For each shard an exchanger sends the change of theta since
the last exchange, and adds the changes made by other hosts:

    delta = live - base;  send delta;  live += theta - base - delta;  base = theta

So updates that workers make during an exchange are kept. With `--push every-update` a host sends the gradients of its
workers instead, as they come, and takes theta as the shard answers it. The shard judges each gradient by its age and
applies it by the optimiser, whose statistics live in the shard. Either way a call may be lost, repeated, late, or out
of order, and a shard or a host may die at any moment. Still:

- No delta or gradient is applied twice: calls are numbered per host and incarnation, and an unanswered call is repeated
  unchanged.
- A shard that dies comes back from its checkpoint in a new epoch. It loses fewer than `every` acknowledged exchanges,
  and no host sends them again. A delta is applied only in the epoch for which it was sent, so a late call cannot bring
  lost ones back.
- The number of updates in theta is saved with theta and falls with it. Each call says how many of its host's updates
  were acknowledged, so the shard knows how many it has lost. `Account` adds this up for the whole run.
- Versions never decrease within an epoch, and epochs never decrease.
- In a run that has begun, a shard never starts from nothing: it waits until the driver fills it.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.core.errors import NotFinite
from asyncrl.core.moments import merge
from asyncrl.core.updates import Descent

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
class Gradients:
    """Finite gradients of a host's workers, in the order in which a shard applies them."""

    values: NDArray[np.float32]
    """`[N, P]` already clipped."""
    rates: NDArray[np.float64]
    """`[N]` eta of each."""
    versions: NDArray[np.int64]
    """`[N]` updates in the shard's part of theta when each was computed."""


@dataclass(frozen=True)
class Judged:
    """What became of gradients."""

    applied: NDArray[np.bool_]
    """`[N]` whether each was applied; the others were too old."""
    staleness: NDArray[np.int64]
    """`[N]` updates since the theta that each was computed at."""


_NONE = Judged(np.zeros(0, bool), np.zeros(0, np.int64))


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
    acknowledged: int = 0
    """Updates of this incarnation in earlier calls that the shard has acknowledged, even if it has lost them since."""
    report: Report | None = None
    gradients: Gradients | None = None
    """To be applied instead of a delta."""


@dataclass(frozen=True)
class Answer:
    """A shard's answer to a call."""

    number: int
    """Number of the call."""
    epoch: Epoch
    version: int
    """Calls whose delta or gradients were applied since the run began, without those that were lost."""
    theta: NDArray[np.float32]
    """`[P]` the shard's theta, with what the call brought if it was applied."""
    taken: int
    """Number of the host's newest call whose delta or gradients are in theta."""
    contributed: int
    """Updates of this incarnation of the host in theta."""
    updates: int
    """Updates in theta."""
    staleness: int | None = None
    """Updates of other hosts since the host last saw theta; None if no delta was applied now."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, with tallies `[K]`, from the shard that keeps the ledger."""
    retired: bool = False
    """Whether a later incarnation has replaced this one."""
    judged: Judged | None = None
    """What became of the call's gradients, if it is the newest that was taken: the same whenever it is repeated."""


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
        self,
        hosts: int,
        save: Callable[[State], None],
        every: int = 20,
        ledger: Ledger | None = None,
        descent: Descent | None = None,
    ) -> None:
        """Begins empty. `save` stores a state for `recover`; it is called before the first answer and every `every`
        calls that change theta. One of the shards keeps the `ledger`. `descent`: how gradients are applied."""
        self._life = uuid.uuid4().hex
        self.ledger = ledger
        self._save, self._every = save, every
        self._incarnations = np.zeros(hosts, np.int64)
        self._taken = np.zeros(hosts, np.int64)
        self._contributed = np.zeros((hosts, 2), np.int64)
        """`[H, 2]` updates in theta that each host has brought: its earlier incarnations, and the current one."""
        self._lost = np.zeros((hosts, 2), np.int64)
        """The same for updates that were acknowledged and are in theta no more."""
        self._judged = [_NONE] * hosts
        """What became of the gradients of each host's newest call that was taken."""
        self._theta: NDArray[np.float32] | None = None
        self._descent = descent
        self._statistics = np.zeros((0, 0), np.float32)
        """`[S, P]` of the optimiser. They live here, where it is applied: each gradient changes them once."""
        self.epoch = NEVER
        self.version = self.updates = 0

    @property
    def empty(self) -> bool:
        """Whether it waits to be filled."""
        return self._theta is None

    def life(self) -> str:
        """Distinguishes this process of the shard from earlier ones."""
        return self._life

    def begin(self, life: str, times: int, state: State) -> bool:
        """Fill an empty shard: at first with `beginning(theta)`, later with its newest known `state`.

        `times` counts the attempts in this run, from 1. Returns whether the shard was filled now: a call for an earlier
        `life`, or a repeated one, changes nothing.
        """
        if not self.empty or life != self._life:
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
            self._contributed[:], self._lost[:] = state["contributed"], state["lost"]
            self._judged = [
                Judged(np.array(state[f"applied.{host}"], bool), np.array(state[f"staleness.{host}"], np.int64))
                for host in range(len(self._taken))
            ]
        if "counts" in state:
            self.version, self.updates = (int(count) for count in state["counts"])
        if self._descent is not None:
            shape = (self._descent.rule.statistics, len(theta))
            self._statistics = np.array(state.get("statistics", np.zeros(shape)), np.float32)
        if self.ledger is not None and "tallies" in state:
            self.ledger.restore(state)
        self.epoch, self._theta = epoch, theta
        self._save(self.state())

    def exchange(self, call: Call) -> Answer:
        """Apply the delta or the gradients unless that was done before or is for another epoch. Raises Empty."""
        if self._theta is None:
            raise Empty
        host = call.host
        if call.incarnation < self._incarnations[host]:
            return Answer(call.number, self.epoch, self.version, self._theta[:0], 0, 0, self.updates, retired=True)
        if call.incarnation > self._incarnations[host]:
            self._incarnations[host], self._taken[host], self._judged[host] = call.incarnation, 0, _NONE
            for counts in (self._contributed[host], self._lost[host]):
                counts[:] = counts.sum(), 0
        if self.ledger is not None and call.report is not None:
            self.ledger.note(host, call.incarnation, call.report)
        staleness = None
        new = call.epoch == self.epoch and call.number > self._taken[host]
        if new:
            self._lost[host, 1] = max(0, call.acknowledged - self._contributed[host, 1])
        if new and (call.delta is not None or call.gradients is not None):
            before = self.updates
            if call.delta is not None:
                staleness = self.updates - call.seen
                self._theta += call.delta
                self.updates += call.updates
            if call.gradients is not None:
                self._judged[host] = self._learn(self._theta, call.gradients)
            self._taken[host] = call.number
            self._contributed[host, 1] += self.updates - before
            self.version += 1
            if self.version % self._every == 0:
                self._save(self.state())
        others = None if self.ledger is None else self.ledger.others(host)
        taken, contributed = int(self._taken[host]), int(self._contributed[host, 1])
        theta = self._theta.copy()
        judged = self._judged[host] if call.gradients is not None and call.number == taken else None
        return Answer(
            call.number, self.epoch, self.version, theta, taken, contributed, self.updates, staleness, others,
            judged=judged,
        )  # fmt: skip

    def _learn(self, theta: NDArray[np.float32], gradients: Gradients) -> Judged:
        """Judge each gradient by its own age, and apply it unless it is too old (Nair et al. 2015)."""
        assert self._descent is not None
        judged = Judged(np.zeros(len(gradients.values), bool), np.zeros(len(gradients.values), np.int64))
        live, statistics, most = (
            torch.from_numpy(theta),
            torch.from_numpy(self._statistics),
            self._descent.max_staleness,
        )
        each = zip(gradients.values, gradients.rates.tolist(), gradients.versions.tolist(), strict=True)
        for number, (gradient, rate, version) in enumerate(each):
            # The version may be of updates that were lost since.
            judged.staleness[number] = staleness = max(0, self.updates - version)
            if 0 < most < staleness:
                continue
            own = torch.from_numpy(np.array(gradient))  # what a call brings may be read-only
            self._descent.rule.apply(live, own, statistics, rate, self.updates)
            self.updates += 1
            judged.applied[number] = True
        return judged

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
            "lost": self._lost.copy(),
            **{f"applied.{host}": judged.applied.astype(np.uint8) for host, judged in enumerate(self._judged)},
            **{f"staleness.{host}": judged.staleness for host, judged in enumerate(self._judged)},
            **({} if self._descent is None else {"statistics": self._statistics.copy()}),
            **({} if self.ledger is None else self.ledger.state()),
        }


def beginning(theta: NDArray[np.float32], statistics: NDArray[np.float32] | None = None, updates: int = 0) -> State:
    """The first state of a shard. One that applies gradients also has the optimiser's statistics `[S, P]`.

    `updates` is how many of them theta and statistics have seen.
    """
    state: State = {"theta": theta, "counts": np.array([0, updates], np.int64)}
    return state if statistics is None else {**state, "statistics": statistics}


class Account:
    """How many updates of a run are in theta, and how many were lost, as told from the states of its shards.

    A loss is known although no host is left to tell of it: states that were looked at earlier have more updates.
    """

    def __init__(self) -> None:
        self._most: dict[tuple[int, int], NDArray[np.int64]] = {}
        """`[K]` for each host and incarnation the most updates of it that were seen in each shard, lost ones among
        them."""

    def balance(self, states: Sequence[State], ended: bool = False) -> tuple[int, int]:
        """Updates in theta, and updates that were lost; with several shards those of the shard with the fewest.

        So every part of theta has had at least so many updates. A shard has lost what it had acknowledged before it
        fell back to an earlier state. It has also lost what a host that is gone brought to another shard only.
        `ended`: no host makes a further call, so all of them are gone.
        """
        for shard, state in enumerate(states):
            brought = _brought(state)
            for host, incarnation in enumerate(state.get("incarnations", np.zeros(0, np.int64)).tolist()):
                most = self._most.setdefault((host, incarnation), np.zeros(len(states), np.int64))
                most[shard] = max(most[shard], brought[host, 1])
        return min(
            (int(state["counts"][1]), int(state.get("lost", np.zeros(0)).sum()) + self._missing(shard, state, ended))
            for shard, state in enumerate(states)
        )

    def _missing(self, shard: int, state: State, ended: bool) -> int:
        """Updates that the shard has lost and does not know of."""
        if "incarnations" not in state:  # it has not been heard of since it was filled
            return 0
        brought = _brought(state).sum(1)
        missing = -brought
        for (host, incarnation), most in self._most.items():
            gone = ended or incarnation < state["incarnations"][host]
            missing[host] += most.max() if gone else most[shard]
        return int(np.maximum(missing, 0).sum())


def _brought(state: State) -> NDArray[np.int64]:
    """`[H, 2]` updates that were acknowledged to earlier incarnations of each host, and to the current one."""
    nobody: NDArray[Any] = np.zeros((0, 2), np.int64)
    total: NDArray[np.int64] = state.get("contributed", nobody) + state.get("lost", nobody)
    return total


@dataclass(frozen=True)
class Exchanged:
    """The result of an exchange."""

    staleness: tuple[int, ...]
    """Updates that this host's delta, or each of its gradients, did not know of; empty if this very call did not apply
    it. For a delta they are those of other hosts."""
    included: bool = True
    """Whether what the host sent is in theta now."""
    lost: int = 0
    """Updates of this host that had been acknowledged and that the shard has lost."""
    others: Report | None = None
    judged: Judged | None = None
    """What became of the gradients that were sent, if they are included."""


class Caller:
    """A host's side of one shard: at most one call is pending, and it is repeated until it is answered."""

    def __init__(self, host: int, incarnation: int, live: NDArray[np.float32]) -> None:
        """`live` `[P]` is the memory that the host's workers read; the first answer fills it."""
        self._host, self._incarnation = host, incarnation
        self._live = live
        self._pending: Call | None = None
        self._number = self._seen = self._acknowledged = self._lost = 0
        self.epoch = NEVER

    @property
    def joined(self) -> bool:
        """Whether the shard has ever answered."""
        return self.epoch != NEVER

    @property
    def idle(self) -> bool:
        """Whether no call is pending."""
        return self._pending is None

    @property
    def calls(self) -> int:
        """Calls so far, with a pending one."""
        return self._number

    def _begin(self, call: Call, report: Report | None) -> Call:
        """Number a call; it is pending from now on."""
        self._number += 1
        self._pending = replace(
            call, host=self._host, incarnation=self._incarnation, number=self._number, epoch=self.epoch,
            acknowledged=self._acknowledged, report=report,
        )  # fmt: skip
        return self._pending

    def _answered(self, answer: Answer) -> Call | None:
        """The pending call, if this is an answer to it that counts. Raises Retired."""
        pending = self._pending
        if pending is None or answer.number != pending.number or answer.epoch < self.epoch:
            return None
        if answer.retired:
            raise Retired
        return pending

    def _settle(self, answer: Answer, updates: int) -> int:
        """The pending call is settled, and `updates` of it are in theta. Returns how many others are no more."""
        self._pending = None
        self._acknowledged += updates
        before, self._lost = self._lost, max(0, self._acknowledged - answer.contributed)
        self.epoch, self._seen = answer.epoch, answer.updates
        return max(0, self._lost - before)


class Exchanger(Caller):
    """Sends the change of theta since the last exchange, and adds what others have changed."""

    def __init__(self, host: int, incarnation: int, live: NDArray[np.float32]) -> None:
        """`live` `[P]` is the memory that the host's workers write to as well."""
        super().__init__(host, incarnation, live)
        self._base: NDArray[np.float32] | None = None
        """The shard's theta in its last answer."""
        self._made = self._pending_made = 0
        """Updates of the host's workers in base, and the same once the pending call is answered."""

    def call(self, made: int = 0, report: Report | None = None, now: NDArray[np.float32] | None = None) -> Call:
        """The pending call, or a new one. `made` is the number of updates by the host's workers so far.

        `now` `[P]` is a copy of live that has just these, in which the change of theta is returned; None: live.
        Raises NotFinite if the change of theta is not finite, which would spread to all hosts.
        """
        if self._pending is not None:
            return self._pending
        delta = None if self._base is None else np.subtract(self._live if now is None else now, self._base, out=now)
        if delta is not None and not bool(np.isfinite(delta).all()):
            raise NotFinite("the host's parameters are not finite")
        self._pending_made = made
        return self._begin(Call(0, 0, 0, delta=delta, updates=made - self._made, seen=self._seen), report)

    def accept(self, answer: Answer) -> Exchanged | None:
        """Add the answer to the pending call to live. None if it answers another call; then nothing changes.

        Raises Retired.
        """
        pending = self._answered(answer)
        if pending is None:
            return None
        included = pending.delta is not None and answer.taken >= pending.number
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
        self._base = answer.theta
        lost = self._settle(answer, pending.updates if included else 0)
        return Exchanged(() if answer.staleness is None else (answer.staleness,), included, lost, answer.others)


class Pusher(Caller):
    """Sends gradients, and takes theta as the shard has it.

    Gradients of a call that the shard has not taken, since it has come back in another epoch meanwhile, may be sent
    again in a new call: their first call is of an epoch that is over, so it is never applied any more.
    """

    def call(self, gradients: Gradients | None = None, report: Report | None = None) -> Call:
        """The pending call, or a new one; without gradients it only asks for theta, as the first one must."""
        if self._pending is not None:
            return self._pending
        assert self.joined or gradients is None
        return self._begin(Call(0, 0, 0, gradients=gradients), report)

    def accept(self, answer: Answer) -> Exchanged | None:
        """Copy the answer to the pending call to live. None if it answers another call; then nothing changes.

        Raises Retired.
        """
        pending = self._answered(answer)
        if pending is None:
            return None
        brought = pending.gradients is not None
        included = self.joined and (not brought or answer.taken >= pending.number)
        self._live[:] = answer.theta
        judged = answer.judged if brought and included else None
        lost = self._settle(answer, 0 if judged is None else int(judged.applied.sum()))
        staleness = () if judged is None else tuple(judged.staleness[judged.applied].tolist())
        return Exchanged(staleness, included, lost, answer.others, judged)


def slices(parameters: int, shards: int) -> list[slice]:
    """The part of theta `[P]` in each shard: equal sizes, except for rounding."""
    cuts = [parameters * shard // shards for shard in range(shards + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]
