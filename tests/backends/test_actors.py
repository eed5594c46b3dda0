"""How the driver calls actors, without a cluster: calls are answered, fail, or stay without an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncrl.backends.outcome import Signals
from asyncrl.backends.ray.reports import Seen, Tell
from asyncrl.runtime.clock import BUILDING, FINISH, GO_ON, LEAVE, READY, RUNNING, Clock, Watch
from asyncrl.runtime.link import Empty, State
from asyncrl.runtime.protocols import LEARNER, Counts

ray = pytest.importorskip("ray")

from asyncrl.backends.ray import leader as leader_of  # noqa: E402
from asyncrl.backends.ray.actors import Place, Poller  # noqa: E402
from asyncrl.backends.ray.driver import LOST_SECONDS, Driver, HostPlace  # noqa: E402
from asyncrl.backends.ray.servers import Learner, ServerPlace  # noqa: E402

SILENT = object()
"""In place of an answer: there is none yet."""


class Cluster:
    """Ray's part: what the newest call of each actor comes to, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.advance)
        monkeypatch.setattr(ray, "wait", self.wait)
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(ray, "kill", lambda actor, no_restart=True: None)

    def poller(self, hang_seconds: float) -> Poller:
        poller = Poller(hang_seconds, self.lines.append)
        poller.watch = Watch(hang_seconds, lambda: self.now)
        return poller

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, calls: Sequence[Callable[[], Any]], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ended = [call for call in calls if call() is not SILENT]
        if not ended:
            self.advance(timeout)
        return ended, []

    def get(self, call: Callable[[], Any], timeout: float | None = None) -> Any:
        answer = call()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


class Remote:
    """A method of an actor."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def remote(self, *words: Any) -> Callable[[], Any]:
        return lambda: self._act(*words)


class Actor:
    """A server whose state is as the test says."""

    def __init__(self) -> None:
        self.answer: Any = {"counts": [1, 2]}
        self.begun: list[tuple[str, int, State]] = []
        self.state, self.who = Remote(lambda: self.answer), Remote(lambda: ("its life", "its machine"))
        self.begin = Remote(self._begin)

    def _begin(self, life: str, epoch: int, state: State) -> bool:
        if self.begun[-1:] != [(life, epoch, state)]:
            self.begun.append((life, epoch, state))
        return True


class OfServer(ServerPlace):
    kind = "server"

    def __init__(self, tell: Tell) -> None:
        super().__init__(0, {}, 0.1, tell)
        self.actor, self.losses = Actor(), list[str]()

    def note_loss(self, cause: str) -> None:
        self.losses.append(cause)


def polled(cluster: Cluster, place: Place, poller: Poller, seconds: float) -> None:
    """Poll for so long."""
    until = cluster.now + seconds
    while cluster.now < until:
        poller.poll([place], 0.25)
        cluster.advance(0.05)


def test_a_silent_server_is_named_then_replaced_and_filled_with_what_was_known(cluster: Cluster) -> None:
    """Named after five seconds; killed after the time that hangs are allowed; the next one is found to be empty."""
    place, poller = OfServer(lambda *_: None), cluster.poller(20.0)
    place.fill()
    polled(cluster, place, poller, 1.0)
    assert {name: array.tolist() for name, array in place.known.items()} == {"counts": [1, 2]}

    place.actor.answer = SILENT
    polled(cluster, place, poller, 10.0)
    assert cluster.lines == ["server 0 on its machine has not answered for 5 seconds"]
    assert (place.losses, place.starting) == ([], False)
    polled(cluster, place, poller, 12.0)
    assert place.starting

    place.actor.answer = ray.exceptions.ActorUnavailableError("it is being restarted", None)
    polled(cluster, place, poller, 200.0)
    place.actor.answer = Empty()
    polled(cluster, place, poller, 0.2)
    assert place.losses == ["did not answer for 20 seconds"]
    assert [(epoch, sorted(state)) for _, epoch, state in place.actor.begun] == [(1, []), (2, ["counts"])]
    assert len(cluster.lines) == 1


def test_a_server_that_answers_again_is_said_to_and_no_call_is_waited_for_too_long(cluster: Cluster) -> None:
    """A call without an answer is made again, and every call in its time."""
    place, poller = OfServer(lambda *_: None), cluster.poller(60.0)
    place.fill()
    place.actor.answer = SILENT
    polled(cluster, place, poller, 15.0)
    before = place.called
    assert cluster.now - before < 10.0
    place.actor.answer = {"counts": [3, 4]}
    polled(cluster, place, poller, 0.5)

    assert cluster.lines[-1] == "server 0 on its machine answers again"
    assert place.known["counts"].tolist() == [3, 4]
    assert place.losses == []


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("phase", "silence", "trouble"),
    [
        (BUILDING, 299.0, ""),
        (BUILDING, 301.0, "was not ready after 300 seconds"),
        (READY, 1000.0, ""),  # it waits for hosts
        (RUNNING, 19.0, ""),
        (RUNNING, 21.0, "made no progress for 20 seconds"),
    ],
)
def test_a_learner_that_hangs_is_ended_though_its_process_answers(phase: int, silence: float, trouble: str) -> None:
    """It learns in a thread of its own. While it is built, in the constructor of a network for example, it has longer.

    --hang-seconds is 20.
    """
    place = object.__new__(Learner)
    place._spec = SimpleNamespace(config=SimpleNamespace(hang_seconds=20.0))  # type: ignore[assignment]
    place._clock, place._hear, place.trouble = Clock(1, 100, learners=1), lambda *_: None, ""

    place.take(Seen([], 0, [phase], [silence]))

    assert place.trouble == trouble


def test_a_learner_that_takes_several_attempts_to_fill_was_lost_once(cluster: Cluster) -> None:
    """Calls of its successor, which is empty, time out. One that dies before it is filled was lost as well."""
    said: list[tuple[Any, ...]] = []
    place, lives, failures = object.__new__(Learner), ["first"], [0]
    ServerPlace.__init__(place, LEARNER, {}, 0.1, lambda *words: said.append(words))
    place._spec = SimpleNamespace(config=SimpleNamespace(worker_restarts=2))  # type: ignore[assignment]
    place._watch, place._memories, place._version, place._before = Watch(now=time.monotonic), [], lambda: 0, Counts()
    place.lost, place._life = 0, ""
    place.filling = dict  # type: ignore[method-assign]

    def begin(*_: Any) -> bool:
        failures[0] -= 1
        if failures[0] >= 0:
            raise ray.exceptions.GetTimeoutError("slow")
        return True

    place.actor = SimpleNamespace(who=Remote(lambda: (lives[-1], "its machine")), begin=Remote(begin))
    place.fill()
    place.told = 7
    lives.append("second")
    failures[0] = 4
    for _ in range(5):
        place.fail(Empty())

    assert [words[:2] for words in said if words[0] == "loss"] == [("loss", "restarted")]
    assert (len(place.losses), place.gone, place.starting, place.told) == (1, False, False, 0)

    for life in ("third", "fourth"):
        lives.append(life)
        failures[0] = 2
        for _ in range(2):
            place.fail(Empty())
    assert [words[:2] for words in said if words[0] == "loss"][1:] == [("loss", "restarted"), ("loss", "gone")]
    assert place.gone


@pytest.mark.parametrize(("order", "is_over"), [(GO_ON, False), (FINISH, True), (LEAVE, True)])
def test_a_run_that_ends_while_no_host_is_there_has_ended(order: int, is_over: bool) -> None:
    """The only host has died, and its successor is not due before the run's time is up."""
    driver = object.__new__(Driver)
    driver._clock = Clock(1, 100)
    driver._learner, driver._watch, driver._inhabited, driver._leaving = None, Watch(), time.monotonic(), 0.0
    place = HostPlace(0, driver)
    place.due = time.monotonic() + 1000
    driver._places, driver._nodes = [place], [{"NodeID": "a"}]
    if order != GO_ON:
        driver._clock.stop(order)

    assert driver._over() is is_over


def test_a_run_without_any_host_is_given_up_in_the_end() -> None:
    """In one line, and no earlier."""
    said: list[tuple[Any, ...]] = []
    driver = object.__new__(Driver)
    driver._clock, driver._learner, driver._watch = Clock(1, 100), None, Watch()
    driver._places, driver._nodes = [HostPlace(0, driver)], [{"NodeID": "a"}]
    driver._tell = lambda *words: said.append(words)  # type: ignore[method-assign, assignment]

    driver._inhabited = time.monotonic() - LOST_SECONDS + 60
    assert not driver._over()
    driver._inhabited = time.monotonic() - LOST_SECONDS - 1
    assert driver._over()
    assert said == [("failed", "no host was available for 120 seconds", None)]


def test_no_host_is_started_where_one_has_just_left() -> None:
    """The run is at its end there, though the driver's count of it is half a second behind."""
    driver = object.__new__(Driver)
    driver._clock, driver._nodes = Clock(1, 100), [{"NodeID": "a"}]
    driver._places = [HostPlace(number, driver) for number in range(3)]
    driver._places[0].node, driver._places[0].left = "a", True
    filled: list[Any] = []
    driver._fill = lambda *given: filled.append(given)  # type: ignore[method-assign]

    driver._fill_places()

    assert filled == []


def test_hosts_that_have_left_end_the_run_for_the_learner_too() -> None:
    """They had made all steps, of which the last report was lost: the learner would wait for ever."""
    driver = object.__new__(Driver)
    driver._clock, driver._learner, driver._servers = Clock(1, 100), None, SimpleNamespace(ended=False)
    driver._places, driver._writers = [HostPlace(0, driver)], {}
    driver._places[0].left = True
    driver._poll = driver._enter = driver._tell = lambda *_, **__: None  # type: ignore[method-assign, assignment]

    driver._end()

    assert driver._order() == FINISH


@pytest.mark.parametrize(
    ("updates", "of_host"), [([1, 1, 3, 4, 0], [3, 4, 0]), ([0, 0, 0, 0, 5, 6, 1, 2], [0, 0, 5, 6])]
)
def test_a_host_that_joins_gets_the_count_of_updates_of_the_statistics(updates: list[int], of_host: list[int]) -> None:
    """They are those of one host, and Adam corrects them by what that one's two workers, or learners, have made."""
    driver, begun = object.__new__(Driver), list[Any]()
    driver._spec = SimpleNamespace(config=SimpleNamespace(workers=2))  # type: ignore[assignment]
    driver._servers = SimpleNamespace(steps=0, moments=(), updates=9, places=[])  # type: ignore[assignment]
    driver._store = SimpleNamespace(state=lambda: {"writer_updates": torch.tensor(updates)})  # type: ignore[assignment]
    driver._clock, driver._memories, driver._ready = Clock(4, 100), [], False
    driver._enter = lambda *_: None  # type: ignore[method-assign]
    place, driver._places = HostPlace(0, driver), [None, None]  # type: ignore[list-item]
    place.fill = lambda node, begin, wire: begun.append(begin)  # type: ignore[method-assign]

    driver._fill(place, {})

    assert begun[0].state["writer_updates"].tolist() == of_host


def test_a_run_that_is_resumed_at_its_end_begins_for_its_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host comes, and nobody else would start the clock that the evaluator waits for."""
    monkeypatch.setattr(leader_of, "wait", lambda *_, **__: None)
    leader, clock, begun = object.__new__(leader_of.Leader), Clock(1, 100, 100), list[int]()
    monitor = SimpleNamespace(
        begin=lambda: begun.append(1), look=lambda: False, look_at_evaluations=lambda: None, verdict=lambda: "all steps"
    )
    leader._run, leader._monitor = SimpleNamespace(handles=SimpleNamespace(clock=clock)), monitor  # type: ignore[assignment]
    leader._driver = SimpleNamespace(sentinel=0, exitcode=None)  # type: ignore[assignment]
    leader._pipe = SimpleNamespace(poll=lambda: False)  # type: ignore[assignment]
    leader._failed, leader._ended = None, True
    supervisor: Any = SimpleNamespace(sentinels=list, tend=lambda: None)

    outcome = leader.follow(supervisor, Signals())

    assert (outcome.state, outcome.reason) == ("finished", "all steps")
    assert clock.started()
    assert begun == [1]


def test_the_workers_of_a_host_that_is_gone_are_gone() -> None:
    """Host 2 of three workers each has 6, 7 and 8; one that is only lost is replaced."""
    leader, events = object.__new__(leader_of.Leader), list[tuple[str, dict[str, Any]]]()
    summary = SimpleNamespace(workers_gone=[])
    leader._run = SimpleNamespace(spec=SimpleNamespace(config=SimpleNamespace(workers=3)))  # type: ignore[assignment]
    leader._monitor = SimpleNamespace(summary=summary, note_event=lambda event, **more: events.append((event, more)))  # type: ignore[assignment]

    leader._hear("event", "host_lost", {"host": 0, "cause": "it is silent"})
    assert summary.workers_gone == []
    leader._hear("event", "host_gone", {"host": 2, "cause": "it is silent"})

    assert summary.workers_gone == [6, 7, 8]
    assert [event for event, _ in events] == ["host_lost", "host_gone"]
