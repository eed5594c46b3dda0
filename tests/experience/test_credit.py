"""Parcels from hosts to a learner when they are lost, repeated, late and out of order, and when either side dies."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncrl.experience.credit import Forwarder, Inlet, Parcel, Taken

HOSTS, ROOM, CREDIT = 2, 3, 2
Load = tuple[int, int, int]
"""Host, incarnation, and which of its rollouts."""


class Forwarding(RuleBasedStateMachine):
    """Each load is one of a kind, so that what the learner gets can be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.learner_dies()
        self.hosts: dict[int, Forwarder[Load]] = {}
        self.incarnations = [0] * HOSTS
        self.made = [0] * HOSTS
        self.parcels: list[Parcel[Load]] = []
        self.answers: list[tuple[int, int, Taken]] = []

    @rule()
    def learner_dies(self) -> None:
        self.inlet: Inlet[Load] = Inlet(HOSTS, ROOM, getattr(self, "epoch", 0) + 1)
        self.epoch = self.inlet.epoch
        self.got: list[Load] = []
        """By this learner."""

    @rule(host=st.integers(0, HOSTS - 1))
    def join(self, host: int) -> None:
        self.incarnations[host] += 1
        self.made[host] = 0
        self.hosts[host] = Forwarder(host, self.incarnations[host], CREDIT)

    @rule(host=st.integers(0, HOSTS - 1))
    def die(self, host: int) -> None:
        self.hosts.pop(host, None)

    @rule(host=st.integers(0, HOSTS - 1))
    def act(self, host: int) -> None:
        one = self.hosts.get(host)
        if one is not None and one.has_credit:
            self.made[host] += 1
            self.parcels.append(one.send((host, self.incarnations[host], self.made[host])))

    @rule(host=st.integers(0, HOSTS - 1))
    def send_again(self, host: int) -> None:
        if host in self.hosts:
            self.parcels += self.hosts[host].waiting

    @precondition(lambda self: self.parcels)
    @rule(which=st.integers(0, 1000), again=st.booleans())
    def parcel_arrives(self, which: int, again: bool) -> None:
        which %= len(self.parcels)
        parcel = self.parcels[which] if again else self.parcels.pop(which)
        self.answers.append((parcel.host, parcel.incarnation, self.inlet.deliver(parcel)))

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 1000), again=st.booleans())
    def answer_arrives(self, which: int, again: bool) -> None:
        which %= len(self.answers)
        host, incarnation, taken = self.answers[which] if again else self.answers.pop(which)
        if host in self.hosts and self.incarnations[host] == incarnation and self.hosts[host].accept(taken):
            self.parcels += self.hosts[host].waiting

    @precondition(lambda self: self.parcels)
    @rule(which=st.integers(0, 1000))
    def parcel_is_lost(self, which: int) -> None:
        self.parcels.pop(which % len(self.parcels))

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
    inlet.deliver(Parcel(0, 2, 1, 1, "of the successor"))

    assert inlet.deliver(Parcel(0, 1, 1, 1, "of the one before")).retired
    assert inlet.take() == "of the successor"
    assert inlet.take() is None
