"""The driver of a run on Ray, between hosts and servers, and the run's supervisor.

The driver is another process: when the head of a cluster dies, Ray exits the driver silently, and the supervisor must
survive to report how the run ended. The driver copies the state of servers and hosts into memory that it shares with
the supervisor, which looks after the run as with any backend.

One actor per host runs that host's workers as ordinary processes. Each actor is pinned to its own node by name. A
placement group would need all of its nodes at once, but here hosts come and go.
"""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray

from asyncrl.backends.ray.actors import CALL_SECONDS, Place, Poller, RayWire, in_words, living_nodes, placed
from asyncrl.backends.ray.host import Host
from asyncrl.backends.ray.member import Beginning
from asyncrl.backends.ray.reports import LEFT, Seen
from asyncrl.backends.ray.servers import Learner, Servers, Shards, start_memories
from asyncrl.backends.supervisor import READY_SECONDS
from asyncrl.parameters.mirror import Mirror
from asyncrl.runtime.clock import BUILDING, ENDED, FINISH, GO_ON, LEAVE, READY, RUNNING
from asyncrl.runtime.link import State
from asyncrl.runtime.run import Run
from asyncrl.storage.files import append_whole, unlinked
from asyncrl.storage.records import RecordWriter

POLL_SECONDS = 0.025
"""How long the driver waits for answers before it looks after other things."""
NODES_SECONDS = 1.0
"""Interval between listings of the cluster's machines."""
COME_SECONDS = 60.0
"""How long the run waits for all hosts before it begins; others join later."""
LOST_SECONDS = 120.0
"""A run without any host for this long has failed."""
LEAVE_SECONDS = 15.0
"""Time for all hosts to leave."""


class HostPlace(Place):
    """The place of a host, on whichever machine."""

    def __init__(self, number: int, driver: Driver) -> None:
        super().__init__(number)
        self._driver = driver
        self.node = ""
        """Of the machine, for Ray."""
        self.seen: Seen | None = None

    @property
    def name(self) -> str:
        """The host, with its machine."""
        return f"host {self.number} on {self.machine}"

    def fill(self, node: dict[str, Any], begin: Beginning, wire: RayWire) -> None:
        """Start a host on a machine."""
        self.node, self.machine = node["NodeID"], node["NodeManagerHostname"]
        self.incarnation, self.told, self.seen = begin.incarnation, 0, None
        self.actor = placed(Host, node).remote(begin, wire)
        self.started()

    def ask(self) -> Any:
        """Ask for its news, and pass on the orders."""
        return self.actor.look.remote(self.told, *self._driver.orders())

    def take(self, answer: Any) -> None:
        """Pass on its news."""
        self.seen = cast(Seen, answer)
        self._driver.take(self, self.seen)

    def fail(self, error: Exception) -> None:
        """It is lost, unless the connection is broken: then Ray decides whether it is dead."""
        if not isinstance(error, ray.exceptions.ActorUnavailableError):
            self._driver.lose(self, in_words(error))

    def hang(self, cause: str) -> None:
        """Kill it."""
        ray.kill(self.actor)
        self._driver.lose(self, cause)


class Driver:
    """One run on a cluster, in the driver's process."""

    def __init__(self, run: Run, pipe: Connection) -> None:
        """`pipe` connects to the supervisor."""
        self._run, self._pipe = run, pipe
        spec, handles = run.spec, run.handles
        self._spec, self._clock = spec, handles.clock
        assert isinstance(handles.store, Mirror)
        self._store: Mirror = handles.store
        self._places = [HostPlace(number, self) for number in range(spec.config.most_hosts)]
        self._wanted = len(self._places)
        """Number of hosts for which the run waits before it begins."""
        self._poller = Poller(spec.config.hang_seconds, self._say)
        self._watch = self._poller.watch
        self._nodes = living_nodes()
        self._memories = start_memories(run, self._tell, self._nodes)
        self._learner: Learner | None = None
        if spec.learns_on_hosts:
            self._servers: Servers = Shards(run, self._tell)
        else:
            about_hosts = self._orders_of_learner, self._hear, self._version
            self._servers = self._learner = Learner(run, self._tell, self._watch, self._memories, *about_hosts)
        self._everyone: list[Place] = [*self._places, *self._servers.places, *self._memories]
        self._listed = 0.0
        self._writers: dict[str, RecordWriter] = {}
        self._ready = False
        self._began = self._inhabited = time.monotonic()
        self._leaving = 0.0
        """When all hosts were asked to leave."""

    def drive(self) -> None:
        """Follow the run to its end."""
        if self._learner is not None and (reason := self._learner.lacks_resource()):
            self._tell("failed", reason, None)
            return
        self._servers.start(self._nodes)
        for place in (*self._memories, *self._servers.places):
            place.fill(READY_SECONDS)
        self._began = self._inhabited = time.monotonic()  # they may have taken minutes on a busy machine
        room = len(self._places)
        if self._spec.config.hosts == "auto":
            self._wanted = min(len(self._nodes), room)
        self._say(f"{len(self._nodes)} machines in the cluster, {self._wanted} hosts wanted, room for {room}")
        while not self._over():
            if time.monotonic() - self._listed >= NODES_SECONDS:
                self._listed, self._nodes = time.monotonic(), living_nodes()
            self._fill_places()
            self._poll()
            self._tell_ready()
        self._end()

    # -------------------------------------------------------------------------------------------------------- hosts

    def _fill_places(self) -> None:
        """Start a host on each machine without one, while there are empty places."""
        if self._order() != GO_ON:
            return
        taken = {place.node for place in self._places if place.actor is not None}
        now = time.monotonic()
        # The machine of a lost host waits with its place, so that no other place is filled there meanwhile.
        taken |= {place.node for place in self._places if place.gone or place.left or now < place.due}
        free = [node for node in self._nodes if node["NodeID"] not in taken]
        for place in self._places:
            if place.actor is None and not place.gone and not place.left and now >= place.due and free:
                self._fill(place, free.pop(0))

    def _fill(self, place: HostPlace, node: dict[str, Any]) -> None:
        known, state = self._servers, {name: tensor.numpy() for name, tensor in self._store.state().items()}
        # The statistics are of one host: Adam corrects them by what that one, or one like it, has made.
        hosts = len(self._places)
        workers, learners = np.split(state["writer_updates"], [hosts * self._spec.config.workers])
        if len(learners) % hosts:  # hosts have none, and a store has a row for one all the same
            learners = np.zeros(hosts, np.int64)
        made = np.concatenate([workers.reshape(hosts, -1), learners.reshape(hosts, -1)], axis=1)
        state["writer_updates"] = made[made.sum(1).argmax()]
        begin = Beginning(
            self._spec, place.number, place.incarnation + 1, known.steps, self._clock.seconds, known.moments,
            cast(State, state), known.updates,
        )  # fmt: skip
        place.fill(node, begin, RayWire([one.actor for one in (*known.places, *self._memories)]))
        self._enter(place, BUILDING)
        if self._ready or place.incarnation > 1:
            self._say(f"host {place.number} joins, on {place.machine}")
            self._tell("event", "host_joined", {"host": place.number})

    def _poll(self, seconds: float = POLL_SECONDS, everyone: bool = False) -> None:
        """Call all whose time has come, and process what they report."""
        if any(place.actor is not None for place in self._places):
            self._inhabited = time.monotonic()
        answered = self._poller.poll(self._servers.places if everyone else self._everyone, seconds, everyone)
        if any(place in answered for place in self._servers.places):
            self._servers.show()

    def orders(self) -> tuple[bool, int]:
        """What hosts are told: whether the clock runs, and GO_ON, FINISH or LEAVE."""
        return self._clock.started(), self._order()

    def _orders_of_learner(self) -> tuple[bool, int, list[int]]:
        """The same for the learner, with the phases of all workers."""
        started, order = self.orders()
        if order == FINISH and not self._all_left():
            order = GO_ON  # their last rollouts are still to be learnt from
        return started, order, self._phases()

    def _version(self) -> int:
        """The newest version of the learner's theta that a host has."""
        return max((place.seen.version for place in self._places if place.seen is not None), default=0)

    def _phases(self) -> list[int]:
        """Phases of all workers, for the learner, which waits for those that run."""
        phases = []
        for place in self._places:
            absent = ENDED if place.gone or place.left or not place.incarnation else BUILDING
            seen = None if place.actor is None else place.seen
            phases += [absent] * self._spec.config.workers if seen is None else seen.phases
        return phases

    def _hear(self, place: Place, seen: Seen) -> None:
        """Process news of a host or of the learner."""
        place.told = seen.told
        if seen.statistics is not None:
            self._store.show_statistics(seen.statistics)
        for kind, *facts in seen.news:
            if kind == "row":
                self._write(*facts)
            elif kind == "file":
                self._keep(*facts)
            else:
                self._tell(kind, *facts)

    def take(self, place: HostPlace, seen: Seen) -> None:
        """Process what a host reports."""
        self._hear(place, seen)
        for worker, (phase, silence) in enumerate(zip(seen.phases, seen.silence, strict=True)):
            # A worker counts as ended only once theta has all of its updates.
            self._clock.vouch(self._first(place) + worker, min(phase, RUNNING), silence)
        if seen.outcome == LEFT:
            place.left = True
            self._dismiss(place)
        elif seen.outcome is not None:
            self._dismiss(place)
            self._tell("failed", seen.outcome.reason, seen.outcome.traceback)

    def lose(self, place: HostPlace, cause: str) -> None:
        """Note the loss of a host. Another will start on the same machine or a free one, unless too many were lost."""
        place.actor = place.call = None
        place.lose(cause, self._spec.config.worker_restarts, self._watch)
        self._enter(place, ENDED if place.gone else BUILDING)
        follows = "it is not replaced" if place.gone else "another will start on a free machine"
        self._say(f"{place.name} is lost ({cause}); {follows}")
        self._tell("event", "host_gone" if place.gone else "host_lost", {"host": place.number, "cause": cause})

    def _dismiss(self, place: HostPlace) -> None:
        actor, place.actor = place.actor, None
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(actor.close.remote(), timeout=CALL_SECONDS)
        ray.kill(actor)

    # ------------------------------------------------------------------------------------------------- the supervisor

    def _order(self) -> int:
        if self._clock.leaving():
            return LEAVE
        return FINISH if self._clock.finished() else GO_ON

    def _over(self) -> bool:
        """Whether no host is working, and none will."""
        if self._order() == LEAVE:
            self._leaving = self._leaving or time.monotonic()
            late = self._watch.silence(self._leaving) > LEAVE_SECONDS
            return late or all(place.actor is None for place in self._places)
        if self._learner is not None and self._learner.gone:
            return True
        if self._all_gone():
            last = max((place for place in self._places if place.gone), key=lambda place: place.losses[-1])
            reason = f"all hosts failed too often: {last.name} is lost ({last.cause})"
            self._tell("failed", reason, None)
            return True
        if self._watch.silence(self._inhabited) > LOST_SECONDS:
            self._tell("failed", f"no host was available for {LOST_SECONDS:.0f} seconds", None)
            return True
        return self._all_left()

    def _all_gone(self) -> bool:
        """Whether hosts were lost too often in every place, or on every machine that there is, and none is left."""
        if any(place.actor is not None or place.left for place in self._places):
            return False
        gone = {place.node for place in self._places if place.gone}
        nowhere = bool(gone) and gone.issuperset(node["NodeID"] for node in self._nodes)
        return nowhere or all(place.gone for place in self._places)

    def _all_left(self) -> bool:
        """Whether the hosts have finished their work, or the run has ended while none was there."""
        at_work = [place for place in self._places if place.actor is not None]
        return not at_work and (self._order() == FINISH or any(place.left for place in self._places))

    def _tell_ready(self) -> None:
        """Tell the supervisor that the run can begin: all hosts are ready, or those that came in time."""
        if self._ready or self._order() != GO_ON:
            return
        phases = [READY if place.seen is None else min(place.seen.phases) for place in self._places if place.seen]
        late = self._watch.silence(self._began) > COME_SECONDS
        if phases and min(phases) >= READY and (len(phases) >= self._wanted or late):
            self._ready = True
            self._tell("ready", len(phases))

    def _end(self) -> None:
        """All hosts are done: copy the last theta, and let the supervisor finish."""
        if any(place.left for place in self._places):  # by their own count, the end of which may have been lost
            self._clock.stop(FINISH)
        if self._learner is not None:
            self._await_learner(self._learner)
        self._servers.ended = True
        for _ in range(2):  # the first call may have been pending before the hosts were done
            self._poll(CALL_SECONDS, everyone=True)
        for place in self._places:
            self._enter(place, ENDED)
        self._tell("ended")
        if self._learner is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._learner.actor.forget.remote(), timeout=CALL_SECONDS)
        for writer in self._writers.values():
            writer.close()
            self._clock.note_unwritten(0, writer.missing)  # this process writes for all hosts

    def _await_learner(self, learner: Learner) -> None:
        """Let the learner learn from the last rollouts, unless it must leave."""
        while not (learner.left or learner.gone):
            if self._leaving and self._watch.silence(self._leaving) > LEAVE_SECONDS:
                break
            self._poll()
            self._leaving = self._leaving or (time.monotonic() if self._order() == LEAVE else 0.0)

    def _first(self, place: HostPlace) -> int:
        return place.number * self._spec.config.workers

    def _enter(self, place: HostPlace, phase: int) -> None:
        for worker in range(self._spec.config.workers):
            self._clock.vouch(self._first(place) + worker, phase, 0.0)
        if self._learner is None:  # the host's own, if it has any
            each = len(self._clock.learners) // len(self._places)
            for learner in self._clock.learners[place.number * each : (place.number + 1) * each]:
                self._clock.vouch(learner, phase, 0.0)

    def _write(self, file: str, row: dict[str, Any]) -> None:
        if file not in self._writers:
            self._writers[file] = RecordWriter(self._spec.folder.path / file)
        self._writers[file].write(row)

    def _keep(self, name: str, content: bytes) -> None:
        if content:
            place = self._spec.folder.path / Path(name).name
            with contextlib.suppress(OSError), open(place, "ab", 0, opener=unlinked) as file:
                append_whole(file, content)

    def _say(self, line: str) -> None:
        self._tell("say", line)

    def _tell(self, *what: Any) -> None:
        self._pipe.send(what)
