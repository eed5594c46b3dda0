"""The driver of a run on Ray, and its actors, between hosts, shards or a learner, and the run's supervisor.

Ray places and monitors processes and carries their calls. The rules of shards are in `parameters/shards.py`, the work
of a host is in `backends/host.py`, that of a learner in `backends/learner_host.py`. Shards or the learner, whichever
the page has, are the *keepers* of theta. The driver is a separate process: when the head of a cluster dies, Ray exits
the driver silently, and the supervisor must survive to report how the run ended. The driver copies the state of keepers
and hosts into memory that it shares with the supervisor, which looks after the run as with any backend.

One actor per host runs that host's workers as ordinary processes. Each actor is pinned to its own node by name. A
placement group would need all of its nodes at once, but here hosts come and go.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
import safetensors.numpy
import torch
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.backends.handles import GRADIENT
from asyncrl.backends.host import Beginning, Host
from asyncrl.backends.learner_host import LearnerHost, filling
from asyncrl.backends.reports import KINDS, LEFT, Seen
from asyncrl.backends.supervisor import BACK_OFF_SECONDS, BUDGET_SECONDS, READY_SECONDS
from asyncrl.core.moments import merge
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Answer, Call, Empty, Ledger, Shard, State, beginning, slices
from asyncrl.runtime.clock import BUILDING, ENDED, FINISH, GO_ON, LEAVE, READY, RUNNING
from asyncrl.runtime.protocols import LEARNER, Counts
from asyncrl.runtime.run import Run, RunSpec, load_page
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage.files import append_whole, write_synced
from asyncrl.storage.records import RecordWriter

LOOK_SECONDS = 0.1
"""Interval between calls of `Host.look`."""
PULL_SECONDS = 0.5
"""Interval between copies of theta and all counts."""
STATISTICS_SECONDS = 10.0
"""Interval between copies of a host's statistics."""
NODES_SECONDS = 1.0
"""Interval between listings of the cluster's machines."""
CALL_SECONDS = 10.0
"""Time-out of a call for which the driver waits."""
COME_SECONDS = 60.0
"""How long the run waits for all hosts before it begins; others join later."""
LOST_SECONDS = 120.0
"""A run without any host for this long has failed."""
LEAVE_SECONDS = 15.0
"""Time for all hosts to leave."""
SAVED_EVERY = 20
"""Exchanges between two checkpoints of a shard."""


# ------------------------------------------------------------------------------------------------------------- actors


class ShardActor:
    """A shard's process. Ray restarts it when it dies, but repeats no call."""

    def __init__(self, file: str, hosts: int, workers: int, sizes: tuple[int, ...], first: bool) -> None:
        """Saves its state to `file`, or elsewhere if this machine lacks the run's folder. `first`: keeps the ledger."""
        enforce_one_thread()
        place = Path(file)
        if not place.parent.parent.is_dir():  # the run's folder is on another machine
            place = Path(tempfile.gettempdir()) / f"asyncrl-{place.parent.name}" / place.name
        place.parent.mkdir(exist_ok=True)
        self._file = place
        ledger = Ledger(hosts, workers, KINDS, sizes) if first else None
        self._shard = Shard(hosts, self._save, SAVED_EVERY, ledger)
        if place.is_file():
            self._shard.recover(cast(State, safetensors.numpy.load(place.read_bytes())))

    def _save(self, state: State) -> None:
        temporary = self._file.with_suffix(".new")
        write_synced(temporary, safetensors.numpy.save(cast(dict[str, NDArray[Any]], state)))
        temporary.replace(self._file)

    def life(self) -> str:
        """See `Shard.life`."""
        return self._shard.life

    def begin(self, life: str, times: int, state: State) -> bool:
        """See `Shard.begin`."""
        return self._shard.begin(life, times, state)

    def exchange(self, call: Call) -> Answer:
        """See `Shard.exchange`."""
        return self._shard.exchange(call)

    def state(self) -> State:
        """See `Shard.state`."""
        return self._shard.state()

    def forget(self) -> None:
        """Remove the saved state, at the end of the run."""
        shutil.rmtree(self._file.parent, ignore_errors=True)


class LearnerActor:
    """The learner's process. Ray restarts it when it dies, but repeats no call; several calls may run at once."""

    def __init__(self, spec: RunSpec) -> None:
        request_one_thread()
        enforce_one_thread()
        self._learner = LearnerHost(spec)

    def life(self) -> str:
        """See `LearnerHost.life`."""
        return self._learner.life

    def begin(self, life: str, times: int, state: State) -> bool:
        """See `LearnerHost.begin`."""
        return self._learner.begin(life, times, state)

    def exchange(self, call: Any) -> Any:
        """See `LearnerHost.exchange`."""
        return self._learner.exchange(call)

    def look(self, told: int, start: bool, order: int, phases: list[int]) -> Seen:
        """See `LearnerHost.look`."""
        return self._learner.look(told, start, order, phases)

    def state(self) -> State:
        """See `LearnerHost.state`."""
        return self._learner.state()

    def statistics(self) -> State:
        """See `LearnerHost.statistics`."""
        return self._learner.statistics()

    def forget(self) -> None:
        """See `LearnerHost.close`."""
        self._learner.close()


class RayWire:
    """A host's connection to the keepers."""

    def __init__(self, keepers: Sequence[Any]) -> None:
        self._keepers = keepers

    def send(self, shard: int, call: Any) -> Any:
        """Make a call; returns its handle, for `receive`."""
        return self._keepers[shard].exchange.remote(call)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it failed."""
        ready, _ = ray.wait(list(calls), timeout=seconds)
        return [(call, _answer(call)) for call in ready]


def _answer(call: Any) -> Any:
    try:
        return ray.get(call)
    except (ray.exceptions.RayError, Empty):  # the keeper is gone, cannot be reached, or waits to be filled
        return None


class HostActor:
    """A host's process."""

    def __init__(self, beginning: Beginning, keepers: Sequence[Any]) -> None:
        request_one_thread()
        enforce_one_thread()
        self._host = Host(beginning, RayWire(keepers))

    def look(self, told: int, start: bool, order: int) -> Seen:
        """See `Host.look`."""
        return self._host.look(told, start, order)

    def state(self) -> State | None:
        """See `Host.state`."""
        return self._host.state()

    def close(self) -> None:
        """See `Host.close`."""
        self._host.close()


# ------------------------------------------------------------------------------------------------------------- driver


def living_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, in Ray's words; this one comes first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


@dataclass
class Place:
    """The place of a host or of the learner in the run, on whichever machine."""

    number: int
    node: str = ""
    name: str = ""
    """Name of the machine."""
    actor: Any = None
    """None: the place is empty."""
    incarnation: int = 0
    look: Any = None
    """A pending call of `Host.look`."""
    looked: float = 0.0
    told: int = 0
    seen: Seen | None = None
    losses: list[float] = field(default_factory=list)
    """Times of losses, by the monotonic clock, within the budget's time."""
    due: float = 0.0
    """When the place may be filled again."""
    gone: bool = False
    """Whether it stays empty after too many losses."""
    left: bool = False
    """Whether its work is finished."""


class Driver:
    """One run on a cluster, in the driver's process."""

    def __init__(self, run: Run, pipe: Connection) -> None:
        """`pipe` connects to the supervisor."""
        self._run, self._pipe = run, pipe
        spec, handles = run.spec, run.handles
        self._spec, self._clock = spec, handles.clock
        assert isinstance(handles.store, Mirror)
        self._store: Mirror = handles.store
        self._steps = handles.clock.steps
        state = handles.moments.state()
        self._moments = (state["observation_moments"].numpy(), state["return_moments"].numpy())
        """Moments from before a resume."""
        self._places = [Place(number) for number in range(spec.config.most_hosts)]
        self._wanted = len(self._places)
        """Number of hosts for which the run waits before it begins."""
        self._learner = None if load_page(spec.page).EXPERIENCE == GRADIENT else Place(LEARNER)
        self._before = handles.store.counts()
        """Updates from before a resume."""
        self._parts = slices(self._store.theta.numel(), spec.config.parameter_shards)
        theta = self._store.snapshot().numpy()
        self._known: list[State] = [beginning(theta[part]) for part in self._parts]
        """The newest known state of each keeper, for one that has lost everything."""
        self._filled = [0] * len(self._parts)
        """How often each keeper was filled."""
        self._keepers: list[Any] = []
        self._pulls: list[Any] = []
        self._pulled = self._listed = self._copied = 0.0
        self._nodes: list[dict[str, Any]] = []
        self._statistics_call: Any = None
        self._writers: dict[str, RecordWriter] = {}
        self._ready = False
        self._began = self._inhabited = time.monotonic()
        self._leaving = 0.0
        """When all hosts were asked to leave."""

    def drive(self) -> None:
        """Follow the run to its end."""
        self._list_nodes()
        if not self._start_keepers():
            return
        room = len(self._places)
        if self._spec.config.hosts == "auto":
            self._wanted = min(len(self._nodes), room)
        self._say(f"{len(self._nodes)} machines in the cluster, {self._wanted} hosts wanted, room for {room}")
        while not self._over():
            self._list_nodes()
            self._fill_places()
            self._wait()
            self._pull()
            self._tell_ready()
        self._end()

    # ------------------------------------------------------------------------------------------------------- keepers

    def _start_keepers(self) -> bool:
        """Start and fill them; False if the run has failed."""
        if self._learner is None:
            self._start_shards()
        elif (resource := self._spec.config.learner_resource) and resource not in ray.cluster_resources():
            start = f"""ray start --resources='{{"{resource}": 1}}'"""
            self._tell(
                "failed", f"no machine of the cluster has the resource {resource}: give it to one by {start}", None
            )
            return False
        else:
            self._start_learner(self._learner)
        for keeper in range(len(self._keepers)):
            self._fill_keeper(keeper, seconds=READY_SECONDS)
        return True

    def _start_learner(self, place: Place) -> None:
        config = self._spec.config
        options: dict[str, Any] = {"max_concurrency": 8 + 4 * len(self._places)}
        if config.learner_resource:
            options["resources"] = {config.learner_resource: 0.001}
        else:  # on the driver's node and no other: without that node there is no run
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self._nodes[0]["NodeID"], soft=False)
        place.actor = (
            ray.remote(LearnerActor)
            .options(num_cpus=0, max_restarts=-1, max_task_retries=0, **options)
            .remote(self._spec)
        )
        self._keepers.append(place.actor)

    def _start_shards(self) -> None:
        config, folder = self._spec.config, self._spec.folder.path / f"shards-{uuid.uuid4().hex[:8]}"
        sizes = tuple(len(row) for row in self._moments)
        remote = ray.remote(ShardActor)
        for shard in range(len(self._parts)):
            node = self._nodes[shard % len(self._nodes)]["NodeID"]
            options = remote.options(
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
            )
            file = str(folder / f"shard-{shard}.safetensors")
            self._keepers.append(options.remote(file, config.most_hosts, config.workers, sizes, shard == 0))

    def _fill_keeper(self, keeper: int, seconds: float = CALL_SECONDS) -> None:
        """Fill an empty keeper with its newest known state. A shard that has just recovered by itself is left alone."""
        actor = self._keepers[keeper]
        self._filled[keeper] += 1
        again = self._filled[keeper] > 1
        if self._learner is not None and again and not self._lose_learner(self._learner):
            return
        life = ray.get(actor.life.remote(), timeout=seconds)
        begun = ray.get(actor.begin.remote(life, self._filled[keeper], self._filling(keeper)), timeout=seconds)
        if begun and again and self._learner is None:
            version = int(self._known[keeper].get("counts", np.zeros(1))[0])
            self._say(f"shard {keeper} was empty; it continues from the newest copy, version {version}")

    def _filling(self, keeper: int) -> State:
        """What an empty keeper is filled with."""
        known = self._known[keeper]
        if self._learner is None:
            return known
        counts = self._counts()
        # Counts stay, also those of lost updates: hosts have rollouts that were made with them.
        counts = counts._replace(updates=max(counts.updates, self._seen_version()))
        return filling(known, self._store.state(), self._moments, self._steps, self._clock.seconds, counts)

    def _counts(self) -> Counts:
        """What became of the updates that are in the newest known copy of the learner's theta."""
        counts = self._known[0].get("counts")
        return self._before if counts is None else Counts(*(int(count) for count in counts))

    def _seen_version(self) -> int:
        """The newest version of the learner's theta that a host has."""
        return max((place.seen.version for place in self._places if place.seen is not None), default=0)

    def _lose_learner(self, place: Place) -> bool:
        """Note the loss of the learner. Returns whether it goes on: not after too many losses."""
        now = time.monotonic()
        place.losses = [moment for moment in place.losses if now - moment < BUDGET_SECONDS] + [now]
        place.gone = len(place.losses) > self._spec.config.worker_restarts
        known = self._counts().updates
        lost = max(0, self._seen_version() - known)
        self._say(f"the learner was lost; it continues from update {known:,}, {lost:,} later ones are known to be lost")
        cause = f"was lost with its process, and {lost} updates with it"
        self._tell("loss", "gone" if place.gone else "restarted", LEARNER, cause)
        if place.gone:
            self._tell("failed", "the learner is gone for good: it was lost too often", None)
        return not place.gone

    def _pull(self, wait: bool = False) -> None:
        """Copy theta and all counts to the memory shared with the supervisor, if it is time."""
        now = time.monotonic()
        if not self._pulls and (wait or now - self._pulled >= PULL_SECONDS):
            self._pulls, self._pulled = [keeper.state.remote() for keeper in self._keepers], now
        if not self._pulls:
            return
        ready, _ = ray.wait(self._pulls, num_returns=len(self._pulls), timeout=CALL_SECONDS if wait else 0)
        if len(ready) < len(self._pulls):
            if now - self._pulled > CALL_SECONDS:
                self._pulls = []
            return
        pulls, self._pulls = self._pulls, []
        for keeper, call in enumerate(pulls):
            try:
                self._known[keeper] = {name: np.array(array) for name, array in ray.get(call).items()}
            except Empty:
                with contextlib.suppress(ray.exceptions.RayError):
                    self._fill_keeper(keeper)
            except ray.exceptions.RayError:  # it is being restarted
                continue
        self._show()

    def _show(self) -> None:
        if "tallies" not in self._known[0]:
            return
        config = self._spec.config
        ledger = Ledger(config.most_hosts, config.workers, KINDS, tuple(len(row) for row in self._moments))
        ledger.restore(self._known[0])
        tallies = ledger.of_workers().reshape(-1, KINDS)
        theta = torch.from_numpy(np.concatenate([cast(NDArray[np.float32], known["theta"]) for known in self._known]))
        updates = tallies[:, 1:]
        if self._learner is not None:
            own = np.array(self._counts(), np.int64) - np.array(self._before, np.int64)
            updates = np.concatenate([updates, own[None]])
        self._store.show(theta, updates)
        rows = zip(self._moments, ledger.all().moments, strict=True)
        self._run.handles.moments.lay_down([merge(earlier, row) for earlier, row in rows])
        for worker, steps in enumerate(tallies[:, 0].tolist()):
            self._clock.tell(worker, steps)

    # -------------------------------------------------------------------------------------------------------- hosts

    def _list_nodes(self) -> None:
        now = time.monotonic()
        if now - self._listed < NODES_SECONDS:
            return
        self._listed = now
        self._nodes = living_nodes()

    def _fill_places(self) -> None:
        """Start a host on each machine without one, while there are empty places."""
        if self._order() != GO_ON:
            return
        taken = {place.node for place in self._places if place.actor is not None}
        now = time.monotonic()
        # The machine of a lost host waits with its place, so that no other place is filled there meanwhile.
        taken |= {place.node for place in self._places if place.gone or now < place.due}
        free = [node for node in self._nodes if node["NodeID"] not in taken]
        for place in self._places:
            if place.actor is None and not place.gone and not place.left and now >= place.due and free:
                self._fill(place, free.pop(0))

    def _fill(self, place: Place, node: dict[str, Any]) -> None:
        place.node, place.name = node["NodeID"], node["NodeManagerHostname"]
        place.incarnation += 1
        place.told, place.look, place.seen = 0, None, None
        state = {name: tensor.numpy() for name, tensor in self._store.state().items()}
        begin = Beginning(
            self._spec, place.number, place.incarnation, self._steps, self._clock.seconds, self._moments,
            cast(State, state),
        )  # fmt: skip
        options = ray.remote(HostActor).options(
            num_cpus=0, max_restarts=0, scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False)
        )
        place.actor = options.remote(begin, self._keepers)
        self._enter(place, BUILDING)
        if self._ready or place.incarnation > 1:
            self._say(f"host {place.number} joins, on {place.name}")
            self._tell("event", "host_joined", {"host": place.number})

    def _wait(self) -> None:
        """Call `look` of all hosts and of the learner, and process what they report."""
        now = time.monotonic()
        if any(place.actor is not None for place in self._places):
            self._inhabited = now
        everyone = self._places if self._learner is None else [*self._places, self._learner]
        for place in everyone:
            if place.actor is not None and place.look is None and now - place.looked >= LOOK_SECONDS:
                place.look, place.looked = self._look(place), now
        looks = [place.look for place in everyone if place.look is not None]
        if not looks:
            time.sleep(LOOK_SECONDS / 4)
            return
        ready, _ = ray.wait(looks, timeout=LOOK_SECONDS / 2)
        if not ready:
            return
        for place in everyone:
            if place.look in ready:
                self._take(place)
        self._copy_statistics()

    def _look(self, place: Place) -> Any:
        """Ask a host or the learner for its news, and pass on the orders."""
        started, order = self._clock.started(), self._order()
        if place is not self._learner:
            return place.actor.look.remote(place.told, started, order)
        if order == FINISH and not self._all_left():
            order = GO_ON  # their last rollouts are still to be learnt from
        return place.actor.look.remote(place.told, started, order, self._phases())

    def _phases(self) -> list[int]:
        """Phases of all workers, for the learner, which waits for those that run."""
        phases = []
        for place in self._places:
            absent = ENDED if place.gone or place.left or not place.incarnation else BUILDING
            seen = None if place.actor is None else place.seen
            phases += [absent] * self._spec.config.workers if seen is None else seen.phases
        return phases

    def _take(self, place: Place) -> None:
        look, place.look = place.look, None
        try:
            seen = cast(Seen, ray.get(look))
        except ray.exceptions.ActorUnavailableError:
            return  # the connection is broken; Ray decides whether the host is dead
        except ray.exceptions.RayError as error:
            if place is not self._learner:  # Ray restarts that, and it is filled when it is found to be empty
                self._lose(place, _in_words(error))
            return
        fresh, place.told, place.seen = seen.news, seen.told, seen
        for kind, *facts in fresh:
            if kind == "row":
                self._write(*facts)
            elif kind == "file":
                self._keep(*facts)
            else:
                self._tell(kind, *facts)
        if place is self._learner:
            self._watch_learner(place, seen)
            return
        for worker, (phase, silence) in enumerate(zip(seen.phases, seen.silence, strict=True)):
            # A worker counts as ended only once theta has all of its updates.
            self._clock.vouch(self._first(place) + worker, min(phase, RUNNING), silence)
        if seen.outcome == LEFT:
            place.left = True
            if self._learner is None:
                self._show_statistics(place.actor.state.remote())
            self._dismiss(place)
        elif seen.outcome is not None:
            self._dismiss(place)
            self._tell("failed", seen.outcome.reason, seen.outcome.traceback)

    def _watch_learner(self, place: Place, seen: Seen) -> None:
        """Note how the learner is; one that hangs is killed, so that Ray starts another."""
        (phase,), (silence,) = seen.phases, seen.silence
        self._clock.vouch(LEARNER, phase, silence)
        place.left = seen.outcome == LEFT
        if seen.outcome is not None and not place.left:
            place.gone = True
            self._tell("failed", seen.outcome.reason, seen.outcome.traceback)
        hang = self._spec.config.hang_seconds
        if phase == RUNNING and hang and silence > hang:
            self._say(f"the learner made no progress for {hang:g} seconds")
            ray.kill(place.actor, no_restart=False)

    def _lose(self, place: Place, cause: str) -> None:
        """Note the loss of a host. Another will start on the same machine or a free one, unless too many were lost."""
        place.actor = None
        now = time.monotonic()
        place.losses = [moment for moment in place.losses if now - moment < BUDGET_SECONDS] + [now]
        budget = self._spec.config.worker_restarts
        place.gone = len(place.losses) > budget
        place.due = now + BACK_OFF_SECONDS[min(len(place.losses), len(BACK_OFF_SECONDS)) - 1]
        self._enter(place, ENDED if place.gone else BUILDING)
        follows = "it is not replaced" if place.gone else "another will start on a free machine"
        self._say(f"host {place.number} on {place.name} is lost ({cause}); {follows}")
        self._tell("event", "host_gone" if place.gone else "host_lost", {"host": place.number, "cause": cause})

    def _dismiss(self, place: Place) -> None:
        actor, place.actor = place.actor, None
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(actor.close.remote(), timeout=CALL_SECONDS)
        ray.kill(actor)

    def _copy_statistics(self) -> None:
        """Copy a host's statistics from time to time, for checkpoints and for hosts that join."""
        now = time.monotonic()
        inhabited = [place for place in self._places if place.actor is not None and place.seen is not None]
        if self._statistics_call is None and inhabited and now - self._copied >= STATISTICS_SECONDS:
            self._statistics_call, self._copied = self._statistics_of(inhabited[0]), now
        if self._statistics_call is not None and ray.wait([self._statistics_call], timeout=0)[0]:
            call, self._statistics_call = self._statistics_call, None
            self._show_statistics(call)

    def _statistics_of(self, place: Place) -> Any:
        """The call for what the learner keeps besides theta, or a host if there is none."""
        return place.actor.state.remote() if self._learner is None else self._learner.actor.statistics.remote()

    def _show_statistics(self, call: Any) -> None:
        with contextlib.suppress(ray.exceptions.RayError, Empty):
            state = ray.get(call, timeout=CALL_SECONDS)
            if state is not None:
                self._store.show_statistics(state)

    # ------------------------------------------------------------------------------------------------- the supervisor

    def _order(self) -> int:
        if self._clock.leaving():
            return LEAVE
        return FINISH if self._clock.finished() else GO_ON

    def _over(self) -> bool:
        """Whether no host is working, and none will."""
        if self._order() == LEAVE:
            self._leaving = self._leaving or time.monotonic()
            late = time.monotonic() - self._leaving > LEAVE_SECONDS
            return late or all(place.actor is None for place in self._places)
        if self._learner is not None and self._learner.gone:
            return True
        if all(place.gone for place in self._places):
            self._tell("failed", "all hosts are gone for good", None)
            return True
        if time.monotonic() - self._inhabited > LOST_SECONDS:
            self._tell("failed", f"there was no host for {LOST_SECONDS:.0f} seconds", None)
            return True
        return self._all_left()

    def _all_left(self) -> bool:
        """Whether the hosts have finished their work."""
        at_work = [place for place in self._places if place.actor is not None]
        return not at_work and any(place.left for place in self._places)

    def _tell_ready(self) -> None:
        """Tell the supervisor that the run can begin: all hosts are ready, or those that came in time."""
        if self._ready or self._order() != GO_ON:
            return
        phases = [READY if place.seen is None else min(place.seen.phases) for place in self._places if place.seen]
        late = time.monotonic() - self._began > COME_SECONDS
        if phases and min(phases) >= READY and (len(phases) >= self._wanted or late):
            self._ready = True
            self._tell("ready", len(phases))

    def _end(self) -> None:
        """All hosts are done: copy the last theta, and let the supervisor finish."""
        if self._learner is not None:
            self._await_learner(self._learner)
        self._pull(wait=True)
        self._pull(wait=True)  # again: the first may have been pending before the hosts were done
        for place in self._places:
            self._enter(place, ENDED)
        self._tell("ended")
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get([keeper.forget.remote() for keeper in self._keepers], timeout=CALL_SECONDS)
        for writer in self._writers.values():
            writer.close()

    def _await_learner(self, learner: Place) -> None:
        """Let the learner learn from the last rollouts, unless it must leave."""
        while not (learner.left or learner.gone):
            if self._order() == LEAVE and time.monotonic() - (self._leaving or time.monotonic()) > LEAVE_SECONDS:
                break
            self._wait()
            self._pull()
            self._leaving = self._leaving or (time.monotonic() if self._order() == LEAVE else 0.0)
        self._show_statistics(learner.actor.statistics.remote())

    def _first(self, place: Place) -> int:
        return place.number * self._spec.config.workers

    def _enter(self, place: Place, phase: int) -> None:
        for worker in range(self._spec.config.workers):
            self._clock.vouch(self._first(place) + worker, phase, 0.0)

    def _write(self, file: str, row: dict[str, Any]) -> None:
        if file not in self._writers:
            self._writers[file] = RecordWriter(self._spec.folder.path / file)
        self._writers[file].write(row)

    def _keep(self, name: str, content: bytes) -> None:
        if content:
            with open(self._spec.folder.path / Path(name).name, "ab", buffering=0) as file:
                append_whole(file, content)

    def _say(self, line: str) -> None:
        self._tell("say", line)

    def _tell(self, *what: Any) -> None:
        self._pipe.send(what)


def _in_words(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, ray.exceptions.ActorDiedError) and lines else type(error).__name__)[:200]
