"""The servers of a run on Ray as the driver sees them: shards or the learner, which have theta, and replay hosts.

The driver starts and fills them, and regularly copies their state into the memory that it shares with the supervisor.
Ray restarts one that dies, which is then empty: it is filled with the newest copy, a replay host with nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from asyncrl.backends.ray.actors import CALL_SECONDS, Place, RayWire, placed
from asyncrl.backends.ray.learner import MOMENTS, LearnerHost
from asyncrl.backends.ray.memory import ReplayHost
from asyncrl.backends.ray.reports import KINDS, LEFT, Seen, Tell
from asyncrl.backends.supervisor import TROUBLES, tolerated
from asyncrl.core.devices import CPU
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Account, Ledger, Shard, beginning, slices
from asyncrl.runtime.clock import BUILDING, RUNNING, Watch
from asyncrl.runtime.link import Empty, State
from asyncrl.runtime.protocols import LEARNER, Counts, in_theta
from asyncrl.runtime.run import Run

COPY_SECONDS, SMALL_COPY_SECONDS = 0.5, 0.1
"""Interval between copies of theta and all counts; the second if theta is small. The evaluator sees the copies, and
what small networks learn is learnt in seconds."""
SMALL_BYTES = 100_000
"""Up to this size a copy costs no more than the call."""


class ServerPlace(Place):
    """The place of a server."""

    kind = ""
    """What it is called."""

    def __init__(self, number: int, known: State, interval: float, tell: Tell) -> None:
        """`known` is what it is filled with at first."""
        super().__init__(number, interval=interval)
        self.known = known
        """The newest known state."""
        self.filled = 0
        """How often it was filled."""
        self.trouble = ""
        """Why the driver has killed the last one, if it has."""
        self._tell = tell

    @property
    def name(self) -> str:
        """What it is called, with its machine."""
        return f"{self.kind} {self.number} on {self.machine}"

    def ask(self) -> Any:
        """Ask for its state."""
        return self.actor.state.remote()

    def take(self, answer: Any) -> None:
        """Keep its state."""
        self.known = {name: np.array(array) for name, array in answer.items()}

    def fail(self, error: Exception) -> None:
        """Fill it if it is empty; otherwise Ray is starting it again."""
        self.started()
        if isinstance(error, Empty):
            with contextlib.suppress(ray.exceptions.RayError):
                self.fill()

    def hang(self, cause: str) -> None:
        """Kill it, so that Ray starts another."""
        self.trouble = cause
        self.started()
        ray.kill(self.actor, no_restart=False)

    def fill(self, seconds: float = CALL_SECONDS) -> None:
        """Fill it, which may take so long. Raises Ray's errors."""
        life, self.machine = ray.get(self.actor.who.remote(), timeout=seconds)
        self.filled += 1
        if ray.get(self.actor.begin.remote(life, self.filled, self.filling()), timeout=seconds):
            self.answered, self.starting = time.monotonic(), False
            if self.filled > 1:
                self.note_loss(self.take_trouble())

    def filling(self) -> State:
        """What it is filled with when it is empty."""
        return self.known

    def take_trouble(self) -> str:
        """Why it was lost. To be asked once per loss: the next one has another reason."""
        trouble, self.trouble = self.trouble, ""
        return trouble or "was lost with its process"

    def note_loss(self, cause: str) -> None:
        """Another has taken its place."""


class ShardPlace(ServerPlace):
    """The place of a shard."""

    kind = "shard"

    def note_loss(self, cause: str) -> None:
        """It has gone back to the newest copy."""
        version, updates = (int(count) for count in self.known["counts"])
        self._tell("say", f"{self.name} {cause}; it continues from version {version:,} with {updates:,} updates")
        self._tell("event", "shard_lost", {"shard": self.number, "cause": cause, "updates": updates})


class MemoryPlace(ServerPlace):
    """The place of a replay host."""

    kind = "replay host"

    def note_loss(self, cause: str) -> None:
        """Its memory begins anew."""
        cause = f"{cause}, and {int(self.known['stored'][0]):,} steps are lost with it"
        self._tell("say", f"{self.kind} {self.number} {cause}; a new one fills its memory again")
        self._tell("event", "replay_host_lost", {"replay_host": self.number, "cause": cause})


def start_memories(run: Run, tell: Tell, nodes: Sequence[dict[str, Any]]) -> list[MemoryPlace]:
    """Start the replay hosts on `nodes`: each has the replay memory of some hosts. Without `--replay-hosts` none."""
    places = []
    for number in range(run.spec.replay_hosts):
        place = MemoryPlace(number, {"stored": np.zeros(1)}, COPY_SECONDS, tell)
        options = spread(ReplayHost, nodes, number, max_concurrency=concurrency(run.spec.config.most_hosts))
        place.actor = options.remote(run.spec, number)
        places.append(place)
    return places


def spread(kind: type, nodes: Sequence[dict[str, Any]], number: int, **options: Any) -> Any:
    """The class of the server of this number, for Ray, to be started on one of `nodes`, the driver's being the first.

    Ray may place an actor elsewhere though the node that it should softly be on has room. Without the driver's node
    there is no run; from another one a server must be able to move.
    """
    at = number % len(nodes)
    return placed(kind, nodes[at], soft=at > 0, max_restarts=-1, **options)


def concurrency(hosts: int) -> int:
    """How many calls an actor must be able to take at once if so many hosts call it: some calls wait for news."""
    return 8 + 4 * hosts


class Servers:
    """What shards and learner have in common: theta."""

    places: Sequence[ServerPlace]

    def __init__(self, run: Run, tell: Tell) -> None:
        spec, handles = run.spec, run.handles
        assert isinstance(handles.store, Mirror)
        self._spec, self._handles, self._tell = spec, handles, tell
        self._store: Mirror = handles.store
        self._clock = handles.clock
        self.moments = tuple(rows.numpy() for rows in handles.moments.state().values())
        """Moments from before a resume."""
        self.steps = handles.clock.steps
        """T at which the run was begun or resumed."""
        self.updates = in_theta(handles.store).updates
        """Updates in theta then."""
        self.lost = handles.store.lost
        """Updates that had been lost by then."""
        self._writers = spec.config.workers
        """Number of those on each host who count something."""
        self.theta = handles.store.snapshot().numpy()
        """`[P]` theta then."""
        self.copy_seconds = COPY_SECONDS if self.theta.nbytes > SMALL_BYTES else SMALL_COPY_SECONDS
        self.ended = False
        """Whether no host sends anything any more."""

    def start(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Start them on `nodes`, of which the first is the driver's."""
        raise NotImplementedError

    def show(self) -> None:
        """Copy the newest known theta and all counts to the memory shared with the supervisor."""
        states = [place.known for place in self.places]
        if "tallies" not in states[0]:
            return
        config = self._spec.config
        ledger = Ledger(config.most_hosts, self._writers, KINDS, tuple(len(row) for row in self.moments))
        ledger.restore(states[0])
        # Workers of all hosts first, then learners of all hosts.
        workers, learners = np.split(ledger.of_workers(), [config.workers], axis=1)
        tallies = np.concatenate([workers.reshape(-1, KINDS), learners.reshape(-1, KINDS)])
        theta = torch.from_numpy(np.concatenate([cast(NDArray[np.float32], known["theta"]) for known in states]))
        self._store.show(theta, self._updates(tallies[:, 1:]), self._balance())
        self._handles.moments.lay_down(self.moments, ledger.all().moments)
        for worker, steps in enumerate(workers[..., 0].ravel().tolist()):
            self._clock.tell(worker, steps)

    def _updates(self, of_workers: NDArray[np.int64]) -> NDArray[np.int64]:
        """What became of the updates of workers and learner, a row of `Counts` for each."""
        return of_workers

    def _balance(self) -> tuple[int, int]:
        """Updates in the newest known copy of theta, and updates that were lost."""
        raise NotImplementedError


class Shards(Servers):
    """Shards: each has a part of theta, and hosts learn. They apply gradients, if hosts push every update."""

    def __init__(self, run: Run, tell: Tell) -> None:
        super().__init__(run, tell)
        config = run.spec.config
        self._writers += run.spec.learners // config.most_hosts
        self._descent = config.descent if run.spec.pushes_every_update else None
        self._account = Account()
        statistics = None if self._descent is None else self._store.state()["statistics"][0].numpy()
        self.places = [
            ShardPlace(
                shard,
                beginning(self.theta[part], None if statistics is None else statistics[:, part], self.updates),
                self.copy_seconds,
                tell,
            )
            for shard, part in enumerate(slices(self.theta.size, config.parameter_shards))
        ]

    def start(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Start them on `nodes`; the first keeps the ledger."""
        hosts = self._spec.config.most_hosts
        ledger = Ledger(hosts, self._writers, KINDS, tuple(len(row) for row in self.moments))
        for place in self.places:
            options = spread(Shard, nodes, place.number)
            place.actor = options.remote(hosts, None if place.number else ledger, self._descent)

    def _balance(self) -> tuple[int, int]:
        """Updates in every part of the newest known theta, and updates that were lost."""
        updates, lost = self._account.balance([place.known for place in self.places], self.ended)
        return updates, self.lost + lost

    def show(self) -> None:
        """The same with the optimiser's statistics, if the shards have them."""
        super().show()
        if self._descent is not None:
            parts = [cast(NDArray[np.float32], place.known["statistics"]) for place in self.places]
            self._store.show_statistics({"statistics": np.concatenate(parts, axis=1)[None]})


class Learner(ServerPlace, Servers):
    """The learner: it has all of theta, and learns from what hosts send, or from what replay hosts have.

    It is looked at like a host, too: it has news, and makes progress or not.
    """

    def __init__(
        self,
        run: Run,
        tell: Tell,
        watch: Watch,
        memories: Sequence[MemoryPlace],
        orders: Callable[[], tuple[bool, int, list[int]]],
        hear: Callable[[Place, Seen], None],
        version: Callable[[], int],
    ) -> None:
        """`orders` are the arguments of `LearnerHost.look`, `hear` processes news, and `version` is the newest version
        of its theta that a host has."""
        Servers.__init__(self, run, tell)
        ServerPlace.__init__(self, LEARNER, beginning(self.theta), self.copy_seconds, tell)
        self.places = [self]
        self._watch, self._memories = watch, memories
        self._orders, self._hear, self._version = orders, hear, version
        self._before = run.handles.store.counts()
        """Updates from before a resume, with those that were lost then."""
        self._life = ""
        """Of the process that was to be filled last."""

    @property
    def name(self) -> str:
        """The learner, with its machine."""
        return f"the learner on {self.machine}"

    def lacks_resource(self) -> str | None:
        """Why it cannot start on this cluster; None if it can."""
        config, resources = self._spec.config, ray.cluster_resources()
        if getattr(config, "learner_device", CPU) != CPU and "GPU" not in resources:
            return f"--learner-device {config.learner_device}: no machine of the cluster has a GPU for Ray"  # type: ignore[attr-defined]
        resource = config.learner_resource
        if not resource or resource in resources:
            return None
        start = f"""ray start --resources='{{"{resource}": 1}}'"""
        return f"no machine of the cluster has the resource {resource}: start one with {start}"

    def start(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Start it on the driver's node and no other, since without that node there is no run, or where it must be."""
        config = self._spec.config
        options: dict[str, Any] = {"max_concurrency": concurrency(config.most_hosts)}
        if getattr(config, "learner_device", CPU) != CPU:
            options["num_gpus"] = 1  # Ray hides all GPUs from those that do not ask
        if config.learner_resource:
            options["resources"] = {config.learner_resource: 0.001}
        node = None if config.learner_resource else nodes[0]
        self.actor = placed(LearnerHost, node, max_restarts=-1, **options).remote(self._spec)

    def fill(self, seconds: float = CALL_SECONDS) -> None:
        """Fill it, unless it was lost too often. Raises Ray's errors."""
        life, _ = ray.get(self.actor.who.remote(), timeout=seconds)
        if life != self._life:  # to fill it may take several attempts, but each process was lost once
            self._life, self.told = life, 0
            if self.filled:
                self._note_death(self.take_trouble())
        if self.gone:
            return
        if self._memories:  # not an argument of the constructor, which Ray keeps for a restart
            wire = RayWire([place.actor for place in self._memories])
            ray.get(self.actor.connect.remote(wire), timeout=seconds)
        super().fill(seconds)

    def _note_death(self, trouble: str) -> None:
        """Note the loss of the learner, which may be one too many."""
        self.lose(trouble, self._spec.config.worker_restarts, self._watch)
        lost = max(0, self._version() - self._counts().updates)
        updates, _ = self._balance()
        cause = f"{trouble}, and {lost:,} updates are lost with it"
        self._tell("loss", "gone" if self.gone else "restarted", LEARNER, cause)
        if self.gone:
            self._tell("failed", f"the learner failed too often: it {trouble}", None)
        else:
            self._tell("say", f"the learner {cause}; another continues from update {updates:,}")

    def filling(self) -> State:
        """The newest copy, and what else it begins with."""
        known, lost = self._counts(), self._balance()[1]
        # Counts stay, also those of lost updates: hosts have rollouts that were made with them.
        counts = known._replace(updates=max(known.updates, self._version()))
        lost += counts.updates - known.updates
        return {
            **self.known,
            **{name: tensor.numpy() for name, tensor in self._store.state().items()},
            **dict(zip(MOMENTS, self.moments, strict=True)),
            "steps": np.array([self.steps]),
            "seconds": np.array([self._clock.seconds]),
            "counts": np.array(counts, np.int64),
            "lost": np.array([lost]),
        }

    def ask(self) -> Any:
        """Ask for its news and its state, and pass on the orders."""
        return self.actor.look.remote(self.told, *self._orders())

    def take(self, answer: Any) -> None:
        """Note how it is; if it is not ready in time, or makes no progress, it is killed: Ray starts another."""
        seen = cast(Seen, answer)
        super().take(seen.state)
        self._hear(self, seen)
        (phase,), (silence,) = seen.phases, seen.silence
        self._clock.vouch(LEARNER, phase, silence)
        self.left = seen.outcome == LEFT
        if seen.outcome is not None and not self.left:
            self.gone = True
            self._tell("failed", seen.outcome.reason, seen.outcome.traceback)
        limit = tolerated(phase, self._spec.config.hang_seconds)
        if phase in (BUILDING, RUNNING) and silence > limit and not self.trouble:
            self.hang(TROUBLES[phase].format(limit))

    def _counts(self) -> Counts:
        """What became of the updates until the newest known copy of the learner's theta, with those that were lost."""
        known = self.known
        return Counts(*(int(count) for count in known["counts"])) if "lost" in known else self._before

    def _balance(self) -> tuple[int, int]:
        """Updates in the newest known copy of the learner's theta, and updates that were lost."""
        lost = int(self.known.get("lost", [self.lost])[0])
        return self._counts().updates - lost, lost

    def _updates(self, of_workers: NDArray[np.int64]) -> NDArray[np.int64]:
        own = np.array(self._counts(), np.int64) - np.array(self._before, np.int64)
        return np.concatenate([of_workers, own[None]])
