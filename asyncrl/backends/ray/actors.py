"""The machines of a Ray cluster, and the actors of a run as the driver sees them.

Ray places, monitors and restarts processes, and carries their calls, but repeats none. Its actors are instances of
ordinary classes: `Host` (host.py), `Shard` (parameters/shards.py), `LearnerHost` (learner.py), `ReplayHost`
(memory.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.backends.ray.reports import Say
from asyncrl.backends.supervisor import Restartable, tolerated
from asyncrl.runtime.clock import BUILDING, RUNNING, Silences, Watch
from asyncrl.runtime.link import Empty

SILENT_SECONDS = 75.0
"""An actor that has not answered for this long is replaced; earlier with a shorter `--hang-seconds`.

Ray finds a dead machine after about 65 seconds, and a host waits for 120 seconds for the servers.
"""
CALL_SECONDS = 10.0
"""A call without an answer is made again after this time."""


def living_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, in Ray's words; this one comes first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


def placed(kind: type, node: dict[str, Any] | None, soft: bool = False, **options: Any) -> Any:
    """An actor's class for Ray, to be started on a node; `soft`: or elsewhere if that is gone.

    Ray counts no core for it, and repeats no call.
    """
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=soft)
    return ray.remote(kind).options(num_cpus=0, max_task_retries=0, **options)


@dataclass(eq=False)
class Place(Restartable):
    """An actor's place in a run. The driver calls the actor again and again, with at most one call pending."""

    interval: float = 0.25
    """Seconds between two calls."""
    actor: Any = None
    """None: the place is empty."""
    machine: str = ""
    """Its name."""
    call: Any = None
    """The pending one."""
    called: float = 0.0
    """When the newest call was made."""
    answered: float = 0.0
    """When the actor last answered, or was started."""
    starting: bool = True
    """Whether it has not answered since it was started."""
    told: int = 0
    """How many of its news are known."""
    left: bool = False
    """Whether its work is finished."""

    @property
    def name(self) -> str:
        """What the actor is called, with its machine."""
        raise NotImplementedError

    def ask(self) -> Any:
        """Make the call for news; returns Ray's handle."""
        raise NotImplementedError

    def take(self, answer: Any) -> None:
        """Process an answer."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """A call has failed, by Ray's error or because the actor is Empty."""
        raise NotImplementedError

    def hang(self, cause: str) -> None:
        """End an actor that does not answer."""
        raise NotImplementedError

    def started(self) -> None:
        """An actor is being started here, or started again."""
        self.call, self.answered, self.starting = None, time.monotonic(), True


class Poller:
    """Calls actors, and notices those that do not answer."""

    def __init__(self, hang_seconds: float, say: Say) -> None:
        """An actor may take as long as it needs if `hang_seconds` is 0."""
        self._patience = min(hang_seconds, SILENT_SECONDS)
        self.watch = Watch(hang_seconds)
        self._silences = Silences(say)

    def poll(self, places: Sequence[Place], seconds: float, everyone: bool = False) -> list[Place]:
        """Call those whose time has come, and wait up to `seconds` for any answer; `everyone`: all of both.

        Returns the places of those that have answered.
        """
        self.watch.look()
        now = time.monotonic()
        for place in places:
            if place.actor is not None and place.call is None and (everyone or now - place.called >= place.interval):
                place.call, place.called = place.ask(), now
        calls = [place.call for place in places if place.call is not None]
        if not calls:
            time.sleep(seconds)
            return []
        ended, _ = ray.wait(calls, num_returns=len(calls) if everyone else 1, timeout=seconds)
        answered = []
        for place in places:
            if place.call in ended:
                answered += [place] if self._receive(place) else []
            elif place.call is not None:
                self._await(place)
        return answered

    def _receive(self, place: Place) -> bool:
        """A call has ended. Returns whether with an answer."""
        name, call, place.call = place.name, place.call, None
        try:
            answer = ray.get(call)
        except (Empty, ray.exceptions.RayError) as error:
            place.fail(error)
            if place.starting or place.actor is None:
                self._silences.end(name, answers=False)
            return False
        place.answered, place.starting = time.monotonic(), False
        self._silences.end(name, answers=True)
        place.take(answer)
        return True

    def _await(self, place: Place) -> None:
        """An actor has not answered yet. One that is stopped, or hangs, is ended."""
        if self.watch.silence(place.called) > CALL_SECONDS:
            place.call = None
        silence = self.watch.silence(place.answered)
        allowed = tolerated(BUILDING if place.starting else RUNNING, self._patience)
        if silence > allowed:
            self._silences.end(place.name, answers=False)
            place.hang(f"did not answer for {allowed:g} seconds")
        elif not place.starting:
            self._silences.note(place.name, silence)


class RayWire:
    """The connection of a host to servers, or of the learner to its replay hosts."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = servers

    def send(self, server: int, call: Any) -> Any:
        """Make a call; returns its handle, for `receive`."""
        return self._servers[server].exchange.remote(call)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it is lost.

        Raises what a server has raised, but for Empty.
        """
        ready, _ = ray.wait(list(calls), timeout=seconds)
        return [(call, _answer(call)) for call in ready]


def _answer(call: Any) -> Any:
    try:
        return ray.get(call)
    except Empty:  # the server waits to be filled
        return None
    except ray.exceptions.RayTaskError:  # an error within the call: the same call would raise it again
        raise
    except ray.exceptions.RayError:  # the server is gone, or cannot be reached
        return None


def in_words(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, ray.exceptions.ActorDiedError) and lines else type(error).__name__)[:200]
