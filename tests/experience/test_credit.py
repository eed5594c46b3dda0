"""Parcels from hosts to a learner when they are lost, repeated, late and out of order, and when either side dies."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncrl.experience.credit import Forwarder, Inlet, Numbered, Taken

HOSTS, ROOM, CREDIT = 2, 3, 2
Load = tuple[int, int, int]
"""Host, incarnation, and which of its rollouts."""


class Forwarding(RuleBasedStateMachine):
    """Each load is one of a kind, so that what the learner gets can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[int, Forwarder[Load]] = {}
        self.incarnations = [0] * HOSTS
        self.made = [0] * HOSTS
        self.parcels: list[Numbered[Load]] = []
        self.answers: list[tuple[int, int, Taken]] = []
        self.epoch = 0
        self.learner_dies()
        for host in range(HOSTS):
            self.join(host)
            self.forward(host)
            self.forward(host)

    @rule()
    def learner_dies(self) -> None:
        self.epoch += 1
        self.inlet: Inlet[Load] = Inlet(HOSTS, ROOM, self.epoch)
        self.got: list[Load] = []
        """By this learner."""

    def join(self, host: int) -> None:
        self.incarnations[host] += 1
        self.made[host] = 0
        self.hosts[host] = Forwarder(host, self.incarnations[host], CREDIT)

    @rule(host=st.integers(0, HOSTS - 1))
    def another_joins(self, host: int) -> None:
        """In the place of one that has died; what it sent may still arrive."""
        self.join(host)

    @rule(host=st.integers(0, HOSTS - 1))
    def act_and_send(self, host: int) -> None:
        """Something new if there is credit, or what waits once more; what is never delivered is lost."""
        one = self.hosts[host]
        if one.has_credit:
            self.made[host] += 1
            self.parcels.append(one.send((host, self.incarnations[host], self.made[host])))
        else:
            self.parcels += one.waiting

    @precondition(lambda self: self.parcels)
    @rule(age=st.integers(0, 3), again=st.booleans())
    def parcel_arrives(self, age: int, again: bool) -> None:
        """One of the newest on their way, which may arrive once more later."""
        which = max(0, len(self.parcels) - 1 - age)
        parcel = self.parcels[which] if again else self.parcels.pop(which)
        self.answers.append((parcel.host, parcel.incarnation, self.inlet.deliver(parcel)))

    @rule(host=st.integers(0, HOSTS - 1))
    def ask(self, host: int) -> None:
        """What has been taken, without sending anything."""
        incarnation = self.incarnations[host]
        self.answers.append((host, incarnation, self.inlet.acknowledge(host, incarnation)))

    @precondition(lambda self: self.answers)
    @rule(age=st.integers(0, 3), again=st.booleans())
    def answer_arrives(self, age: int, again: bool) -> None:
        which = max(0, len(self.answers) - 1 - age)
        host, incarnation, taken = self.answers[which] if again else self.answers.pop(which)
        one = self.hosts[host]
        if self.incarnations[host] != incarnation:
            return
        before = {parcel.load for parcel in one.waiting}
        if one.accept(taken):
            self.parcels += one.waiting
        if taken.epoch == self.epoch:  # what is not sent again must have been taken
            acknowledged = before - {parcel.load for parcel in one.waiting}
            assert acknowledged <= {*self.got, *self.inlet._queue}

    @rule(host=st.integers(0, HOSTS - 1))
    def forward(self, host: int) -> None:
        """All goes well; but the parcel may arrive once more later."""
        self.act_and_send(host)
        self.parcel_arrives(0, again=True)
        self.answer_arrives(0, again=False)

    @rule()
    def learn(self) -> None:
        load = self.inlet.take()
        if load is not None:
            self.got.append(load)

    @invariant()
    def a_learner_gets_nothing_twice_and_each_hosts_in_order(self) -> None:
        assert len(self.got) == len(set(self.got))
        for host in range(HOSTS):
            own = [load[1:] for load in self.got if load[0] == host]
            assert own == sorted(own)

    @invariant()
    def nothing_piles_up(self) -> None:
        assert len(self.inlet) <= ROOM
        assert all(len(one.waiting) <= CREDIT for one in self.hosts.values())

    def teardown(self) -> None:
        """Once parcels arrive again, the learner gets all that was not acknowledged, and hosts have credit again."""
        left = {host: [parcel.load for parcel in one.waiting] for host, one in self.hosts.items()}
        for _ in range(4):
            for one in self.hosts.values():
                for parcel in list(one.waiting):
                    one.accept(self.inlet.deliver(parcel))
                    self.learn()
        while len(self.inlet):
            self.learn()
        for host, one in self.hosts.items():
            assert one.has_credit
            assert not one.waiting
            assert set(left[host]) <= set(self.got)


Forwarding.TestCase.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
TestForwarding = Forwarding.TestCase


def test_a_learner_that_is_slow_makes_hosts_wait() -> None:
    """Room for one, credit for two: the second is not taken, and a third may not be sent before."""
    inlet: Inlet[str] = Inlet(1, room=1, epoch=1)
    host: Forwarder[str] = Forwarder(0, 1, credit=2)
    host.accept(Taken(1, 0))
    for load in ("first", "second"):
        host.accept(inlet.deliver(host.send(load)))

    assert [parcel.load for parcel in host.waiting] == ["second"]
    host.accept(inlet.deliver(host.waiting[0]))
    host.send("third")
    assert not host.has_credit

    assert inlet.take() == "first"
    host.accept(inlet.deliver(host.waiting[0]))
    assert host.has_credit
    assert inlet.take() == "second"


def test_a_host_whose_place_is_taken_is_told_so() -> None:
    """What it still sends is not learnt from."""
    inlet: Inlet[str] = Inlet(1, room=4, epoch=1)
    inlet.deliver(Numbered(0, 2, 1, 1, "of the successor"))

    assert inlet.deliver(Numbered(0, 1, 1, 1, "of the one before")).retired
    assert inlet.take() == "of the successor"
    assert inlet.take() is None
