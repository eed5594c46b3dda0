"""Calls to a server when they are lost, repeated, late and out of order, and when either side dies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncrl.runtime.link import Answer, Call, Callee, Caller, Link, Retired, receive

HOSTS, CREDIT = 2, 2
Load = tuple[int, int, int]
"""Host, incarnation, and which of its calls."""


class Calling(RuleBasedStateMachine):
    """Each load is one of a kind, so that what the server takes can be told apart. A receipt is the load itself."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[int, Caller[Load]] = {}
        self.incarnations = [0] * HOSTS
        self.heard = [[] for _ in range(HOSTS)]  # type: ignore[var-annotated]
        self.calls: list[Call[Load]] = []
        self.answers: list[tuple[int, int, Answer]] = []
        self.epoch = 0
        self.lost: set[Load] = set()
        self.saved: tuple[Any, ...] = ([0] * HOSTS, [0] * HOSTS, [None] * HOSTS, [])
        self.server_dies()
        for host in range(HOSTS):
            self.join(host)
            self.forward(host)
            self.forward(host)

    @rule()
    def server_dies(self) -> None:
        """It comes back as it was saved, in a new epoch."""
        taken_before = set(self.got) if self.epoch else set()
        self.epoch += 1
        self.server = Callee(HOSTS, self.epoch)
        incarnations, taken, receipts, got = self.saved
        self.server.incarnations[:], self.server.taken[:], self.server.receipts = incarnations, taken, list(receipts)
        self.got: list[Load] = list(got)
        waiting = {call.load for one in self.hosts.values() for call in one.waiting}
        self.lost |= taken_before - set(got) - waiting

    @rule()
    def server_is_saved(self) -> None:
        server = self.server
        self.saved = server.incarnations.copy(), server.taken.copy(), list(server.receipts), list(self.got)

    def join(self, host: int) -> None:
        self.incarnations[host] += 1
        self.heard[host] = []
        self.hosts[host] = Caller(host, self.incarnations[host], CREDIT)

    @rule(host=st.integers(0, HOSTS - 1))
    def another_joins(self, host: int) -> None:
        """In the place of one that has died; its calls may still arrive."""
        self.join(host)

    @rule(host=st.integers(0, HOSTS - 1))
    def act_and_call(self, host: int) -> None:
        """Something new if there is credit, or what waits once more; what is never delivered is lost."""
        one = self.hosts[host]
        if one.has_credit:
            one.call((host, self.incarnations[host], one.calls + 1))
        self.calls += one.waiting

    @precondition(lambda self: self.calls)
    @rule(age=st.integers(0, 3), again=st.booleans())
    def call_arrives(self, age: int, again: bool) -> None:
        """One of the newest on their way, which may arrive once more later."""
        which = max(0, len(self.calls) - 1 - age)
        call = self.calls[which] if again else self.calls.pop(which)
        self.answers.append((call.host, call.incarnation, self.deliver(call)))

    def deliver(self, call: Call[Load]) -> Answer:
        if self.server.admit(call):
            self.got.append(call.load)
            self.server.receipts[call.host] = call.load
        return self.server.answer(call, len(self.got))

    @precondition(lambda self: self.answers)
    @rule(age=st.integers(0, 3), again=st.booleans())
    def answer_arrives(self, age: int, again: bool) -> None:
        which = max(0, len(self.answers) - 1 - age)
        self.hear(*(self.answers[which] if again else self.answers.pop(which)))

    def hear(self, host: int, incarnation: int, answer: Answer) -> None:
        one = self.hosts[host]
        if self.incarnations[host] != incarnation:
            return
        settled = one.accept(answer)
        if settled is None:
            return
        self.heard[host].append((answer.epoch, answer.news))
        if settled:
            assert answer.receipt == settled[-1].load
        if answer.epoch == self.epoch:  # what is not sent again must have been taken
            assert {call.load for call in settled} <= set(self.got)
        else:  # by a server that has died since
            self.lost |= {call.load for call in settled} - set(self.got)

    @rule(host=st.integers(0, HOSTS - 1))
    def forward(self, host: int) -> None:
        """All goes well; but the call may arrive once more later."""
        self.act_and_call(host)
        self.call_arrives(0, again=True)
        self.answer_arrives(0, again=False)

    @invariant()
    def nothing_is_taken_twice_and_each_hosts_in_order(self) -> None:
        assert len(self.got) == len(set(self.got))
        for host in range(HOSTS):
            own = [load[1:] for load in self.got if load[0] == host]
            assert own == sorted(own)

    @invariant()
    def what_was_lost_is_not_sent_again(self) -> None:
        assert not self.lost & set(self.got)

    @invariant()
    def hosts_hear_of_the_server_in_order_and_wait_for_few_answers(self) -> None:
        for host, one in self.hosts.items():
            assert self.heard[host] == sorted(self.heard[host])
            assert len(one.waiting) <= CREDIT

    def teardown(self) -> None:
        """Once calls arrive again, the server has all that waited, and hosts have credit again."""
        left = {host: {call.load for call in one.waiting} for host, one in self.hosts.items()}
        for _ in range(4):
            for host, one in self.hosts.items():
                for call in list(one.waiting):
                    self.hear(host, self.incarnations[host], self.deliver(call))
        for host, one in self.hosts.items():
            assert not one.waiting
            assert left[host] <= set(self.got)


Calling.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestCalling = Calling.TestCase


class DeafWire:
    """Only some calls are answered; each handle is its call."""

    def __init__(self, server: Callee) -> None:
        self.server, self.sent = server, list[Call[str]]()
        self.answers: dict[int, Answer | None] = {}
        """By which of the calls that were sent."""

    def send(self, server: int, call: Call[str]) -> int:
        self.sent.append(call)
        return len(self.sent) - 1

    def receive(self, calls: Any, seconds: float) -> list[tuple[int, Answer | None]]:
        return [(call, self.answers.pop(call)) for call in calls if call in self.answers]


def test_a_call_is_repeated_when_its_answer_is_late_or_it_failed_and_not_before() -> None:
    """By the clock of the link: after 10 s without an answer, or 0.2 s after a failure."""
    wire, now = DeafWire(Callee(1, 1)), [0.0]
    link: Link[str] = Link(wire, 0, 0, 1, now=lambda: now[0])
    link.call("first")

    def sent_at(moment: float) -> int:
        now[0] = moment
        receive([link], 0.0)
        link.repeat()
        return len(wire.sent)

    assert [sent_at(moment) for moment in (1.0, 9.9, 10.1)] == [1, 1, 2]
    wire.answers[1] = None
    assert [sent_at(moment) for moment in (11.0, 11.1, 11.3)] == [2, 2, 3]
    assert link.heard == 0.0
    wire.server.admit(wire.sent[2])
    wire.answers[2] = wire.server.answer(wire.sent[2], "news")
    now[0] = 12.0
    ((heard_on, answer, took),) = receive([link], 0.0)

    assert (heard_on, answer.news, link.heard) == (link, "news", 12.0)
    assert took == pytest.approx(0.7)
    assert link.accept(answer) == []  # it was for no epoch: it waits for the one it has heard of
    link.repeat()
    assert wire.sent[-1].epoch == 1
    assert link.again == 3


def test_a_host_whose_place_is_taken_is_told_so() -> None:
    """What it still sends is not taken."""
    server, first, second = Callee(1, 1), Caller[str](0, 1), Caller[str](0, 2)
    for caller in (first, second):
        caller.call("hello")
        caller.accept(server.answer(caller.waiting[0]))
    assert server.admit(second.waiting[0])

    assert not server.admit(first.waiting[0])
    with pytest.raises(Retired):
        first.accept(server.answer(first.waiting[0]))
