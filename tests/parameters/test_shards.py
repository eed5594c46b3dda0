"""Shards and hosts when calls are lost, repeated, late and out of order, and when either side dies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncrl.core.errors import NotFinite
from asyncrl.core.moments import merge
from asyncrl.core.updates import Descent, UpdateRule
from asyncrl.parameters.shards import (
    Account,
    Change,
    Exchanged,
    Exchanger,
    Gradients,
    Ledger,
    Pusher,
    Report,
    Shard,
    State,
    beginning,
    slices,
)
from asyncrl.runtime.link import NEVER, Answer, Call, Caller, Empty

HOSTS, MOST_UPDATES = 2, 60


@dataclass
class Host:
    """A host's memory, its exchanger, and what the test knows of it."""

    incarnation: int
    live: np.ndarray
    exchanger: Any
    """An Exchanger, or a Pusher."""
    caller: Caller[Change]
    made: int = 0
    sent: dict[int, set[int]] = field(default_factory=dict)
    """The updates in each of its deltas, by the call's number."""
    heard: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and version of what it has accepted."""


class Exchanging(RuleBasedStateMachine):
    """Every update adds 1 to a component of theta that is its own: how often it is applied can be read anywhere."""

    descent: Descent | None = None
    """How the shard applies gradients, if it does."""

    def __init__(self) -> None:
        super().__init__()
        self.known: State | None = None
        """What who fills empty shards has last seen."""
        self.begun = self.next_update = 0
        self.calls: list[Call[Change]] = []
        self.answers: list[tuple[int, int, Answer]] = []
        self.hosts: dict[int, Host] = {}
        self.incarnations = [0] * HOSTS
        self.acknowledged: dict[int, tuple[int, int, int]] = {}
        """Of each update the exchange (host, incarnation, number) that brought it."""
        self.lost: set[int] = set()
        self.account = Account()
        self.seen: set[int] = set()
        """Updates that have ever been in theta."""
        self.newest_version: dict[int, int] = {}
        self.newest_epoch = NEVER
        self.start_shard()
        first = beginning(np.zeros(MOST_UPDATES, np.float32))
        self.begins: list[tuple[str, int, State]] = [(self.shard.who()[0], 1, first)]
        self.begin_arrives(0)
        for host in range(HOSTS):
            self.join(host)
            self.exchange(host)
            self.exchange(host)

    def start_shard(self) -> None:
        self.shard = Shard(HOSTS, Ledger(HOSTS, 1, 1), self.descent)

    def join(self, host: int) -> None:
        self.incarnations[host] += 1
        live, caller = np.zeros(MOST_UPDATES, np.float32), Caller[Change](host, self.incarnations[host])
        self.hosts[host] = Host(self.incarnations[host], live, Exchanger(caller, live), caller)

    @rule(host=st.integers(0, HOSTS - 1))
    def another_joins(self, host: int) -> None:
        """In the place of one that has died, or that lives on and does not know that it was replaced."""
        self.join(host)

    @rule(host=st.integers(0, HOSTS - 1), again=st.booleans())
    def work_and_call(self, host: int, again: bool) -> None:
        """A new call, or the last one again; what is never delivered is lost."""
        one = self.hosts[host]
        if one.caller.joined and self.next_update < MOST_UPDATES and not again:
            self.work(one, self.next_update)
            one.made += 1
            self.next_update += 1
        self.calls.append(self.call_of(one))

    def work(self, one: Host, update: int) -> None:
        one.live[update] += 1

    def call_of(self, one: Host) -> Call[Change]:
        if one.caller.has_credit:
            call = one.exchanger.call(one.made, Report(np.array([[one.made]]), ()))
            if call.load.delta is not None:
                one.sent[call.number] = set(np.flatnonzero(call.load.delta))
        return one.caller.waiting[0]

    @precondition(lambda self: self.calls)
    @rule(age=st.integers(0, 5), again=st.booleans())
    def call_arrives(self, age: int, again: bool) -> None:
        """One of the newest on their way, which may arrive once more later."""
        which = max(0, len(self.calls) - 1 - age)
        call = self.calls[which] if again else self.calls.pop(which)
        if not self.shard.empty:
            self.answers.append((call.host, call.incarnation, self.shard.exchange(call)))

    @precondition(lambda self: self.answers)
    @rule(age=st.integers(0, 5), again=st.booleans())
    def answer_arrives(self, age: int, again: bool) -> None:
        which = max(0, len(self.answers) - 1 - age)
        self.hear(*(self.answers[which] if again else self.answers.pop(which)))

    @precondition(lambda self: not self.shard.empty)
    @rule(host=st.integers(0, HOSTS - 1))
    def exchange(self, host: int) -> None:
        """All goes well; but the call may arrive once more later."""
        self.work_and_call(host, again=False)
        self.call_arrives(0, again=True)
        self.answer_arrives(0, again=False)

    def hear(self, host: int, incarnation: int, answer: Answer) -> Exchanged | None:
        one = self.hosts[host]
        if one.incarnation != incarnation:
            return None
        exchanged = one.exchanger.accept(answer)
        if exchanged is not None:
            one.heard.append((answer.epoch, answer.news.version))
            for number, updates in one.sent.items():
                if number <= answer.taken:
                    self.acknowledged |= dict.fromkeys(updates, (host, incarnation, number))
            one.sent = {number: updates for number, updates in one.sent.items() if number > answer.taken}
            self.note_what_is_lost_already(answer)
        return exchanged

    def note_what_is_lost_already(self, answer: Answer) -> None:
        """The shard may have died since it sent this answer."""
        if answer.epoch < self.shard.callee.epoch:
            self.note_losses()

    @rule()
    def shard_dies(self) -> None:
        self.start_shard()

    def held(self, one: Host) -> set[int]:
        """Updates that a host has sent, and will send again unless it hears that they are in theta."""
        return set().union(*one.sent.values())

    def reported(self, ended: bool = False) -> tuple[int, int]:
        """Updates in theta, and lost ones, as the run reports them."""
        return self.account.balance([self.shard.state()], ended)

    def note_losses(self) -> None:
        if not self.shard.empty:
            theta = self.shard.state()["theta"]
            self.lost |= {update for update in self.acknowledged if not theta[update]}

    @rule()
    def somebody_looks(self) -> None:
        if not self.shard.empty:
            self.known = self.shard.state()

    @precondition(lambda self: self.shard.empty)
    @rule()
    def somebody_fills(self) -> None:
        """With the newest that is known; what was sent to an earlier life may still arrive."""
        self.begun += 1
        self.begins.append((self.shard.who()[0], self.begun + 1, self.known or self.begins[0][2]))

    @rule(age=st.integers(0, 3))
    def begin_arrives(self, age: int) -> None:
        life, times, state = self.begins[max(0, len(self.begins) - 1 - age)]
        if self.shard.begin(life, times, state):
            self.note_losses()

    @invariant()
    def no_update_is_applied_twice(self) -> None:
        if not self.shard.empty:
            assert set(np.unique(self.shard.state()["theta"])) <= {0, 1}
        for one in self.hosts.values():
            assert set(np.unique(one.live)) <= {0, 1}

    @invariant()
    def what_was_acknowledged_stays_but_for_what_a_death_took(self) -> None:
        if not self.shard.empty:
            theta = self.shard.state()["theta"]
            assert all(theta[update] for update in self.acknowledged.keys() - self.lost)
            assert self.shard.updates >= 0

    @invariant()
    def what_is_reported_is_so(self) -> None:
        """What was in theta and is not now is lost, unless a living host will send it again."""
        if not self.shard.empty:
            theta = set(np.flatnonzero(self.shard.state()["theta"]).tolist())
            self.seen |= theta
            missing = self.seen - theta
            lost = missing.difference(*(self.held(one) for one in self.hosts.values()))
            updates, lost_ones = self.reported()
            assert updates == len(theta)
            assert len(lost) <= lost_ones <= len(missing)

    @invariant()
    def what_was_lost_is_not_sent_again(self) -> None:
        if not self.shard.empty:
            theta = self.shard.state()["theta"]
            assert not any(theta[update] for update in self.lost)

    @invariant()
    def versions_do_not_fall_within_an_epoch_nor_do_epochs(self) -> None:
        if not self.shard.empty:
            epoch, version = self.shard.callee.epoch, self.shard.version
            assert epoch >= self.newest_epoch
            assert version >= self.newest_version.get(epoch, 0)
            self.newest_epoch, self.newest_version[epoch] = epoch, version
        for one in self.hosts.values():
            assert one.heard == sorted(one.heard)

    @invariant()
    def a_shard_without_parameters_gives_none(self) -> None:
        if self.shard.empty:
            with pytest.raises(Empty):
                self.shard.exchange(Call(0, 1, NEVER, 1, 1, Change()))

    def teardown(self) -> None:
        """Once calls arrive again, all hosts have the same theta within five rounds, and nothing is left unsent."""
        if self.shard.empty:
            self.shard.begin(self.shard.who()[0], self.begun + 2, self.known or self.begins[0][2])
            self.note_losses()
        for _ in range(5):
            for host in list(self.hosts):
                self.hear(host, self.hosts[host].incarnation, self.shard.exchange(self.call_of(self.hosts[host])))
        theta = self.shard.state()["theta"]
        self.no_update_is_applied_twice()
        assert all((one.live == theta).all() for one in self.hosts.values())
        self.what_is_reported_is_so()
        assert self.reported() == self.reported(ended=True) == (theta.sum(), len(self.seen) - theta.sum())


Exchanging.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestExchanging = Exchanging.TestCase

BOUND = 2
"""Gradients that are older are dropped."""
ADDING = UpdateRule("momentum-sgd", decay=0.0)
"""theta - eta gradient."""


@dataclass
class Posting(Host):
    """A host whose gradients go to the shard."""

    waiting: list[tuple[int, int]] = field(default_factory=list)
    """Updates that have not been judged, and the version of theta at which each was computed."""
    carried: dict[int, int] = field(default_factory=dict)
    """How many of them are in each call."""
    seen: int = 0


class Pushing(Exchanging):
    """The same with gradients, of which a call has all that wait; the shard applies them, unless they are too old."""

    descent = Descent(ADDING, max_staleness=BOUND)

    def __init__(self) -> None:
        self.dropped: set[int] = set()
        super().__init__()

    def join(self, host: int) -> None:
        self.incarnations[host] += 1
        live, caller = np.zeros(MOST_UPDATES, np.float32), Caller[Change](host, self.incarnations[host])
        self.hosts[host] = Posting(self.incarnations[host], live, Pusher(caller, live), caller)

    def work(self, one: Host, update: int) -> None:
        assert isinstance(one, Posting)
        one.waiting.append((update, one.seen))

    @rule(host=st.integers(0, HOSTS - 1))
    def work_and_wait(self, host: int) -> None:
        """Another gradient, for the next call."""
        one = self.hosts[host]
        if one.caller.joined and self.next_update < MOST_UPDATES:
            self.work(one, self.next_update)
            one.made += 1
            self.next_update += 1

    def call_of(self, one: Host) -> Call[Change]:
        assert isinstance(one, Posting)
        if one.caller.has_credit:
            gradients = None
            if one.waiting:
                updates, versions = (np.array(column) for column in zip(*one.waiting, strict=True))
                gradients = Gradients(-np.eye(MOST_UPDATES, dtype=np.float32)[updates], np.ones(len(updates)), versions)
            call = one.exchanger.push(gradients, Report(np.array([[one.made]]), ()))
            one.carried[call.number] = len(one.waiting)
        return one.caller.waiting[0]

    def held(self, one: Host) -> set[int]:
        assert isinstance(one, Posting)
        return {update for update, _ in one.waiting}

    def hear(self, host: int, incarnation: int, answer: Answer) -> Exchanged | None:
        one = self.hosts[host]
        if one.incarnation != incarnation:
            return None
        assert isinstance(one, Posting)
        exchanged: Exchanged | None = one.exchanger.accept(answer)
        if exchanged is None:
            return None
        one.heard.append((answer.epoch, answer.news.version))
        one.seen = answer.news.updates
        if len(exchanged.judged.applied):
            carried = one.carried[one.caller.settled]
            judged, one.waiting = np.array(one.waiting[:carried])[:, 0], one.waiting[carried:]
            applied = exchanged.judged.applied
            assert (applied == (exchanged.judged.staleness <= BOUND)).all()
            self.acknowledged |= dict.fromkeys(judged[applied].tolist(), (host, incarnation, one.caller.settled))
            self.dropped |= set(judged[~applied].tolist())
            self.note_what_is_lost_already(answer)
        return exchanged

    @invariant()
    def what_was_too_old_is_nowhere(self) -> None:
        if not self.shard.empty:
            theta = self.shard.state()["theta"]
            assert not any(theta[update] for update in self.dropped)

    def teardown(self) -> None:
        """Once calls arrive again, every gradient that waits is judged."""
        super().teardown()
        assert not any(one.waiting for one in self.hosts.values() if isinstance(one, Posting))


Pushing.TestCase.settings = settings(max_examples=20, stateful_step_count=50, deadline=None)
TestPushing = Pushing.TestCase


def filled(shard: Shard, state: State, epoch: int = 1) -> Shard:
    """The shard, no longer empty."""
    assert shard.begin(shard.who()[0], epoch, state)
    return shard


def settle(shard: Shard, exchanger: Exchanger) -> Exchanged:
    """Deliver the call that waits, and its answer, until it is settled."""
    while exchanger.caller.waiting:
        exchanged = exchanger.accept(shard.exchange(exchanger.caller.waiting[0]))
    assert exchanged is not None
    return exchanged


def exchange(shard: Shard, exchanger: Exchanger, made: int = 0) -> Exchanged:
    """A call by which nothing goes wrong."""
    exchanger.call(made)
    return settle(shard, exchanger)


def joined(shard: Shard, host: int, incarnation: int = 1, size: int = 1) -> Exchanger:
    """A host that has joined."""
    exchanger = Exchanger(Caller(host, incarnation), np.zeros(size, np.float32))
    exchange(shard, exchanger)
    return exchanger


def pair(theta: list[float]) -> tuple[Shard, Exchanger, np.ndarray]:
    """A shard, and a host that has joined."""
    shard = filled(Shard(2), beginning(np.array(theta, np.float32)))
    exchanger = joined(shard, 0, size=len(theta))
    return shard, exchanger, exchanger.live


def test_a_host_adds_what_the_others_sent_to_what_its_workers_have_made_meanwhile() -> None:
    """theta 1; this host makes 1.5 of it and, during the call, 1.75; another has added 4 in the meantime."""
    shard, exchanger, live = pair([1.0])
    other = joined(shard, 1)
    other.live += 4
    exchange(shard, other, made=8)

    live += 0.5
    exchanger.call(made=3)
    live += 0.25
    exchanged = settle(shard, exchanger)

    assert exchanged.judged.staleness.tolist() == [8]
    assert live.tolist() == [5.75]
    assert shard.state()["theta"].tolist() == [5.5]
    assert (shard.version, shard.updates) == (2, 11)
    again = exchanger.call(made=4).load
    assert again.delta is not None
    assert again.delta.tolist() == [0.25]
    assert again.updates == 1


def test_a_host_that_is_alone_is_never_written_to() -> None:
    """Its workers' own numbers stay to the bit, however theta and delta are rounded."""
    random = np.random.default_rng(0)
    shard, exchanger, live = pair(random.normal(size=1000).tolist())
    for _ in range(20):
        live += random.normal(size=1000).astype(np.float32) / 3
        exchanger.call()
        live += random.normal(size=1000).astype(np.float32) / 3
        before = live.copy()
        settle(shard, exchanger)
        assert (live == before).all()


def test_what_a_shard_has_lost_is_counted_and_not_sent_again() -> None:
    """Copied after 2 of 3 exchanges of 4 updates: the third is lost, also from theta; work goes on from there."""
    shard = filled(Shard(1), beginning(np.zeros(1, np.float32)))
    exchanger = joined(shard, 0)
    for made in (4, 8, 12):
        known = shard.state()
        exchanger.live += 1
        exchange(shard, exchanger, made)
    exchanger.live += 10
    late = exchanger.call(made=15)

    successor = filled(Shard(1), known, epoch=2)
    exchanged = exchanger.accept(successor.exchange(late))

    assert exchanged is not None
    assert exchanged.lost == 4
    assert exchanger.live.tolist() == [12]
    assert exchanger.caller.epoch == 2
    settle(successor, exchanger)
    assert successor.state()["theta"].tolist() == [12]
    assert Account().balance([successor.state()]) == (11, 4)


def account_of(*shards: Shard, ended: bool = False, account: Account | None = None) -> tuple[int, int]:
    """Updates in theta, and lost ones."""
    return (account or Account()).balance([shard.state() for shard in shards], ended)


def test_what_a_lost_host_has_brought_to_one_of_two_shards_is_lost() -> None:
    """While the host lives the rest is on its way. It is lost once another has taken its place, or the run ends."""
    shards = [pair([0.0])[0] for _ in range(2)]

    def join(incarnation: int) -> list[Exchanger]:
        return [joined(shard, 1, incarnation) for shard in shards]

    first, second = join(1)
    for shard, exchanger, made in ((shards[0], first, 7), (shards[1], second, 5)):
        exchanger.live += made
        exchange(shard, exchanger, made)

    assert account_of(*shards) == (5, 0)
    assert account_of(*shards, ended=True) == (5, 2)
    account = Account()
    account_of(*shards, account=account)
    join(2)
    assert account_of(*shards, account=account) == (5, 2)


def test_of_several_shards_the_fewest_updates_and_the_most_losses_count() -> None:
    """Two updates are on their way to one or the other: neither number falls because of that."""
    lost = np.array([[0, 5]])
    for first, second, told in ((100, 101, (100, 5)), (102, 101, (101, 5))):
        states = [{"counts": np.array([0, first]), "lost": lost}, {"counts": np.array([0, second])}]
        assert Account().balance(states) == told


def test_a_loss_is_known_though_nobody_is_left_who_could_tell() -> None:
    """By what was seen of the shard before: 9 updates, of which it is filled with 3."""
    shard = filled(Shard(1), beginning(np.zeros(1, np.float32), updates=100))
    exchanger, account = joined(shard, 0), Account()
    states = []
    for made in (1, 3, 9):
        exchanger.live += 1
        exchange(shard, exchanger, made)
        states.append(shard.state())
    assert account_of(shard, account=account) == (109, 0)

    successor = filled(Shard(1), states[1], epoch=2)

    assert account_of(successor, account=account) == (103, 6)


def test_a_begin_meant_for_an_earlier_life_does_not_fill_an_empty_shard() -> None:
    """It would put a run that has learnt back to its first parameters."""
    first, second = Shard(1), Shard(1)

    assert not second.begin(first.who()[0], 1, beginning(np.zeros(1, np.float32)))
    assert second.empty
    filled(second, beginning(np.ones(1, np.float32)), epoch=2)
    assert not second.begin(second.who()[0], 2, beginning(np.zeros(1, np.float32)))
    assert second.state()["theta"].tolist() == [1]


def test_what_is_no_number_never_leaves_its_host() -> None:
    """All others would have it for ever."""
    _, exchanger, live = pair([0.0])
    live += np.nan

    with pytest.raises(NotFinite):
        exchanger.call()


def applying(hosts: int = 2, **descent: Any) -> tuple[Shard, list[Pusher]]:
    """A shard that applies gradients to theta (0, 0), and hosts that have joined."""
    first = beginning(np.zeros(2, np.float32), np.zeros((1, 2), np.float32))
    shard = filled(Shard(hosts, descent=Descent(**descent)), first)
    pushers = [Pusher(Caller(host, 1), np.zeros(2, np.float32)) for host in range(hosts)]
    for pusher in pushers:
        push(shard, pusher, None)
    return shard, pushers


def push(shard: Shard, pusher: Pusher, gradients: Gradients | None) -> Exchanged:
    """A push by which nothing goes wrong."""
    pusher.push(gradients)
    return settle(shard, pusher)


def gradients_of(*rows: tuple[tuple[float, float], float, int]) -> Gradients:
    """Gradient, eta and version of each."""
    values, rates, versions = zip(*rows, strict=True)
    return Gradients(np.array(values, np.float32), np.array(rates), np.array(versions))


def test_a_shard_applies_each_gradient_with_its_own_rate_and_to_the_same_statistics() -> None:
    """m <- 0.5 m + 0.5 d, theta <- theta - eta m: of two hosts, the second batch being of two gradients."""
    shard, (first, second) = applying(rule=UpdateRule("momentum-sgd", decay=0.5))

    push(shard, first, gradients_of(((2.0, 0.0), 1.0, 0)))
    exchanged = push(shard, second, gradients_of(((0.0, 4.0), 0.5, 0), ((0.0, 0.0), 2.0, 1)))

    # m is (1, 0), then (0.5, 2), then (0.25, 1)
    assert shard.state()["theta"].tolist() == second.live.tolist() == [-1 - 0.25 - 0.5, -1 - 2]
    assert exchanged.judged.staleness.tolist() == [1, 1]
    assert (shard.version, shard.updates) == (2, 3)
    assert shard.state()["statistics"].tolist() == [[0.25, 1.0]]


def test_a_gradient_that_is_too_old_is_dropped_whatever_else_is_in_its_call() -> None:
    """The bound is one update by others; each is judged by itself, and a repeated call is told the same."""
    shard, (first, second) = applying(rule=ADDING, learning_rate=1.0, max_staleness=1)
    for _ in range(2):
        push(shard, first, gradients_of(((1.0, 0.0), 1.0, shard.updates)))

    call = second.push(gradients_of(((0.0, 1.0), 1.0, 0), ((0.0, 2.0), 1.0, 1), ((0.0, 4.0), 1.0, 2)))
    shard.exchange(call)
    exchanged = settle(shard, second)

    assert exchanged.judged.applied.tolist() == [False, True, True]
    assert exchanged.judged.staleness.tolist() == [2, 1, 1]
    assert shard.state()["theta"].tolist() == [-2, -6]
    assert shard.updates == 4


def test_a_shard_that_comes_back_has_its_statistics_and_judgements() -> None:
    """An answer that was lost with the shard is given by its successor, though in another epoch."""
    descent = Descent(UpdateRule("momentum-sgd", decay=0.5))
    first = beginning(np.zeros(2, np.float32), np.ones((1, 2), np.float32), updates=7)
    shard = filled(Shard(1, descent=descent), first)
    pusher = Pusher(Caller(0, 1), np.zeros(2, np.float32))
    push(shard, pusher, None)
    shard.exchange(pusher.push(gradients_of(((1.0, 3.0), 1.0, 7))))

    successor = filled(Shard(1, descent=descent), shard.state(), epoch=2)
    exchanged = settle(successor, pusher)

    assert exchanged.judged.applied.tolist() == [True]
    assert exchanged.lost == 0
    assert successor.updates == 8
    assert successor.state()["theta"].tolist() == [-1, -2]
    assert successor.state()["statistics"].tolist() == [[1, 2]]


def test_the_ledger_adds_up_workers_and_incarnations_and_forgets_what_comes_late() -> None:
    """Two hosts of two workers; the first host is replaced once."""
    samples = np.random.default_rng(0).normal(size=(3, 5))
    rows = [moments_of(part) for part in samples]
    ledger = Ledger(2, workers=2, kinds=1, sizes=(3,))

    def report(first: int, second: int, row: np.ndarray) -> Report:
        return Report(np.array([[first], [second]]), (row,))

    ledger.note(0, 1, report(3, 4, rows[0]))
    ledger.note(1, 1, report(10, 0, rows[1]))
    ledger.note(0, 1, report(1, 1, rows[2]))  # sent before the first
    ledger.note(0, 2, report(5, 6, rows[2]))
    ledger.note(0, 1, report(9, 9, rows[1]))  # of one that is gone

    assert ledger.of_workers()[..., 0].tolist() == [[8, 10], [10, 0]]
    assert ledger.others(0).tallies.tolist() == [17]
    assert ledger.others(1).tallies.tolist() == [18]
    assert ledger.all().tallies.tolist() == [28]
    np.testing.assert_allclose(ledger.all().moments[0], moments_of(samples.reshape(-1)))
    np.testing.assert_allclose(ledger.others(0).moments[0], merge(rows[0], rows[1]))


def moments_of(samples: np.ndarray) -> np.ndarray:
    """Count, mean and squared deviations."""
    mean = samples.mean()
    return np.array([samples.size, mean, np.square(samples - mean).sum()])


def test_slices_cover_theta_in_equal_parts() -> None:
    """In order and without a gap, also where it does not divide."""
    cut = slices(10, 3)

    assert [(part.start, part.stop) for part in cut] == [(0, 3), (3, 6), (6, 10)]
