"""A parameter server in shards between hosts: what hosts bring, and what becomes of it.

The workers of a host write to its shared memory, lock-free. For each shard an exchanger sends the change of theta since
the last exchange, and adds the changes made by other hosts:

    delta = live - base;  send delta;  live += theta - base - delta;  base = theta

So updates that workers make during an exchange are kept. With `--push every-update` a host sends the gradients of its
workers instead, as they come, and takes theta as the shard answers it. The shard judges each gradient by its age and
applies it by the optimiser, whose statistics live in the shard. Calls follow the rules of `asyncrl.runtime.link`, so
that nothing is applied twice though calls are lost and repeated, and either side may die at any moment. Besides:

- A shard that dies begins empty and is filled with the newest copy that the driver has, in a new epoch. It has lost
  what it acknowledged since that copy was made, and no host sends that again.
- The number of updates in theta is saved with theta and falls with it. Each call says how many of its host's updates
  were acknowledged, so the shard knows how many it has lost. `Account` adds this up for the whole run.
- Versions never decrease within an epoch, and epochs never decrease.
- In a run that has begun, a shard never starts from nothing: it waits until the driver fills it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.core.errors import NotFinite
from asyncrl.core.moments import merge
from asyncrl.core.updates import Descent
from asyncrl.runtime.link import Answer, Call, Callee, Caller, Empty, Server, State


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
    """What became of a delta or of gradients: the receipt of a call that brought any."""

    applied: NDArray[np.bool_]
    """`[N]` whether each was applied; the others were too old."""
    staleness: NDArray[np.int64]
    """`[N]` updates since the theta that each was computed at; of a delta those of other hosts."""


_NONE = Judged(np.zeros(0, bool), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Change:
    """What a host brings to a shard; without a delta and gradients it only asks for theta."""

    delta: NDArray[np.float32] | None = None
    """`[P]` to be added to the shard's theta."""
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
class News:
    """What a shard answers."""

    version: int
    """Calls whose delta or gradients were applied since the run began, without those that were lost."""
    theta: NDArray[np.float32]
    """`[P]` the shard's theta, with what the call brought if it was applied."""
    contributed: int
    """Updates of this incarnation of the host in theta."""
    updates: int
    """Updates in theta."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, with tallies `[K]`, from the shard that keeps the ledger."""


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
        tallies = np.zeros(self._tallies.shape[-1], np.int64)
        moments = [np.zeros(rows.shape[-1]) for rows in self._moments]
        for place in itertools.product(np.flatnonzero(self._incarnations).tolist(), (0, 1)):
            if place != (host, 1):
                tallies += self._tallies[place].sum(0)
                moments = [merge(total, rows[place]) for total, rows in zip(moments, self._moments, strict=True)]
        return Report(tallies, tuple(moments))

    def all(self) -> Report:
        """Sums over everything."""
        return self.others(-1)

    def of_workers(self) -> NDArray[np.int64]:
        """Counts for each worker of each host, `[H, W, K]`."""
        tallies: NDArray[np.int64] = self._tallies.sum(1)
        return tallies

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


class Shard(Server):
    """A part of theta `[P]`, and who has contributed to it. Not for concurrent calls."""

    def __init__(self, hosts: int, ledger: Ledger | None = None, descent: Descent | None = None) -> None:
        """One of the shards keeps the `ledger`, an empty one. `descent`: how gradients are applied."""
        super().__init__()
        self.ledger = copy.deepcopy(ledger)  # what has come over a transport may be read-only
        self.callee = Callee(hosts)
        self._contributed = np.zeros((hosts, 2), np.int64)
        """`[H, 2]` updates in theta that each host has brought: its earlier incarnations, and the current one."""
        self._lost = np.zeros((hosts, 2), np.int64)
        """The same for updates that were acknowledged and are in theta no more."""
        self._theta: NDArray[np.float32] | None = None
        self._descent = descent
        self._statistics = np.zeros((0, 0), np.float32)
        """`[S, P]` of the optimiser. They live here, where it is applied: each gradient changes them once."""
        self.version = self.updates = 0

    def fill(self, epoch: int, state: State) -> None:
        """Take over a state: at first `beginning(theta)`, later the newest known one."""
        theta = np.array(state["theta"], np.float32)
        if "taken" in state:
            self.callee.incarnations[:], self.callee.taken[:] = state["incarnations"], state["taken"]
            self._contributed[:], self._lost[:] = state["contributed"], state["lost"]
            self.callee.receipts = [
                Judged(np.array(state[f"applied.{host}"], bool), np.array(state[f"staleness.{host}"], np.int64))
                for host in range(len(self._lost))
            ]
        self.version, self.updates = (int(count) for count in state["counts"])
        if self._descent is not None:
            shape = (self._descent.rule.statistics, len(theta))
            self._statistics = np.array(state.get("statistics", np.zeros(shape)), np.float32)
        if self.ledger is not None and "tallies" in state:
            self.ledger.restore(state)
        self.callee.epoch, self._theta = epoch, theta

    def exchange(self, call: Call[Change]) -> Answer:
        """Apply the delta or the gradients unless that was done before or is for another epoch. Raises Empty."""
        if self._theta is None:
            raise Empty
        host, change = call.host, call.load
        if call.incarnation > self.callee.incarnations[host]:
            for counts in (self._contributed[host], self._lost[host]):
                counts[:] = counts.sum(), 0
        if self.callee.admit(call):
            self._lost[host, 1] = max(0, change.acknowledged - self._contributed[host, 1])
            before, judged = self.updates, None
            if change.delta is not None:
                judged = Judged(np.ones(1, bool), np.array([max(0, self.updates - change.seen)]))
                self._theta += change.delta
                self.updates += change.updates
            elif change.gradients is not None:
                judged = self._learn(self._theta, change.gradients)
            if judged is not None:
                self.callee.receipts[host] = judged
                self._contributed[host, 1] += self.updates - before
                self.version += 1
        others = None
        if self.ledger is not None and not self.callee.is_retired(call):
            if change.report is not None:
                self.ledger.note(host, call.incarnation, change.report)
            others = self.ledger.others(host)
        contributed = int(self._contributed[host, 1])
        return self.callee.answer(call, News(self.version, self._theta.copy(), contributed, self.updates, others))

    def _learn(self, theta: NDArray[np.float32], gradients: Gradients) -> Judged:
        """Judge each gradient by its own age, and apply it unless it is too old (Nair et al. 2015)."""
        assert self._descent is not None
        rule, most = self._descent.rule, self._descent.max_staleness
        judged = Judged(np.zeros(len(gradients.values), bool), np.zeros(len(gradients.values), np.int64))
        live, statistics = torch.from_numpy(theta), torch.from_numpy(self._statistics)
        each = zip(gradients.values, gradients.rates.tolist(), gradients.versions.tolist(), strict=True)
        for number, (gradient, rate, version) in enumerate(each):
            # The version may be of updates that were lost since.
            judged.staleness[number] = staleness = max(0, self.updates - version)
            if 0 < most < staleness:
                continue
            own = torch.from_numpy(np.array(gradient))  # what a call brings may be read-only
            rule.apply(live, own, statistics, rate, self.updates)
            self.updates += 1
            judged.applied[number] = True
        return judged

    def state(self) -> State:
        """A copy of the shard's state. Raises Empty."""
        if self._theta is None:
            raise Empty
        receipts = [(host, receipt or _NONE) for host, receipt in enumerate(self.callee.receipts)]
        return {
            "theta": self._theta.copy(),
            "counts": np.array([self.version, self.updates], np.int64),
            "incarnations": self.callee.incarnations.copy(),
            "taken": self.callee.taken.copy(),
            "contributed": self._contributed.copy(),
            "lost": self._lost.copy(),
            **{f"applied.{host}": judged.applied.astype(np.uint8) for host, judged in receipts},
            **{f"staleness.{host}": judged.staleness for host, judged in receipts},
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
        """Updates in theta, and updates that were lost; with several shards the fewest of one and the most of one.

        So every part of theta has had at least so many updates. A shard has lost what it had acknowledged before it
        fell back to an earlier state. It has also lost what a host that is gone brought to another shard only.
        `ended`: no host makes a further call, so all of them are gone.
        """
        for shard, state in enumerate(states):
            brought = _brought(state)
            for host, incarnation in enumerate(state.get("incarnations", np.zeros(0, np.int64)).tolist()):
                most = self._most.setdefault((host, incarnation), np.zeros(len(states), np.int64))
                most[shard] = max(most[shard], brought[host, 1])
        lost = [
            int(state.get("lost", np.zeros(0)).sum()) + self._missing(shard, state, ended)
            for shard, state in enumerate(states)
        ]
        return min(int(state["counts"][1]) for state in states), max(lost)

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
    """What an answer has brought."""

    judged: Judged = _NONE
    """What became of the delta or the gradients of the call that it settles, if it settles any."""
    lost: int = 0
    """Updates of this host that had been acknowledged and that the shard has lost."""


class Exchanger:
    """A host's side of one shard. This one sends the change of theta, and adds what others have changed."""

    def __init__(self, caller: Caller[Change], live: NDArray[np.float32]) -> None:
        """`live` `[P]` is the memory that the host's workers read, and write to; the first answer fills it."""
        self.caller, self.live = caller, live
        self._base: NDArray[np.float32] | None = None
        """The shard's theta in its last answer."""
        self._made = self._seen = self._acknowledged = self._lost = 0

    def call(self, made: int = 0, report: Report | None = None, now: NDArray[np.float32] | None = None) -> Call[Change]:
        """A new call. `made` is the number of updates by the host's workers so far.

        `now` `[P]` is a copy of live that has just these, in which the change of theta is returned; None: live.
        Raises NotFinite if the change of theta is not finite, which would spread to all hosts.
        """
        if self._base is None:
            return self.caller.call(Change(report=report))
        delta = np.subtract(self.live if now is None else now, self._base, out=now)
        if not bool(np.isfinite(delta).all()):
            raise NotFinite("the host's parameters are not finite")
        updates, self._made = made - self._made, made
        return self.caller.call(Change(delta, updates, self._seen, self._acknowledged, report))

    def accept(self, answer: Answer) -> Exchanged | None:
        """Bring live up to date. None if the answer is outdated; then nothing changes. Raises Retired."""
        settled = self.caller.accept(answer)
        if settled is None:
            return None
        change, judged = (settled[0].load, answer.receipt or _NONE) if settled else (Change(), _NONE)
        self._take(answer.news.theta, change)
        self._acknowledged += int(judged.applied.sum()) if change.delta is None else change.updates
        before, self._lost = self._lost, max(0, self._acknowledged - answer.news.contributed)
        self._seen = answer.news.updates
        return Exchanged(judged, max(0, self._lost - before))

    def _take(self, theta: NDArray[np.float32], change: Change) -> None:
        if self._base is None:
            self.live[:] = theta
        else:
            known = self._base if change.delta is None else self._base + change.delta
            # Rounded as in the shard: for a single host the difference is exactly 0, and workers are not disturbed.
            others = theta - known
            if others.any():
                self.live += others
        self._base = theta


class Pusher(Exchanger):
    """Sends gradients, and takes theta as the shard has it."""

    def push(self, gradients: Gradients | None = None, report: Report | None = None) -> Call[Change]:
        """A new call; without gradients it only asks for theta, as the first one must."""
        assert self.caller.joined or gradients is None
        return self.caller.call(Change(acknowledged=self._acknowledged, report=report, gradients=gradients))

    def _take(self, theta: NDArray[np.float32], change: Change) -> None:
        self.live[:] = theta


def slices(parameters: int, shards: int) -> list[slice]:
    """The part of theta `[P]` in each shard: equal sizes, except for rounding."""
    cuts = [parameters * shard // shards for shard in range(shards + 1)]
    return [slice(first, last) for first, last in itertools.pairwise(cuts)]
