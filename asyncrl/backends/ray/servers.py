"""The keepers of theta in a run on Ray: shards or the learner, whichever the algorithm has, as the driver sees them.

The driver starts them and fills them, and regularly copies their state into the memory that it shares with the
supervisor. From the newest copy it fills a keeper that has lost everything. Replay hosts, which have no theta, are
watched in the same way; one that has lost everything begins with an empty memory.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from asyncrl.backends.ray.actors import RayWire, SavedShard, get, patience, placed
from asyncrl.backends.ray.learner import LearnerHost, filling
from asyncrl.backends.ray.memory import ReplayHost
from asyncrl.backends.ray.reports import KINDS, LEFT, Place, Seen
from asyncrl.backends.supervisor import READY_SECONDS
from asyncrl.core.devices import CPU
from asyncrl.core.errors import DiskFull
from asyncrl.core.moments import merge
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Account, Ledger, State, beginning, slices
from asyncrl.runtime.clock import RUNNING, Silences, Watch
from asyncrl.runtime.link import NEVER, Empty
from asyncrl.runtime.protocols import LEARNER, Counts, in_theta
from asyncrl.runtime.run import Run

PULL_SECONDS, SMALL_PULL_SECONDS = 0.5, 0.1
"""Interval between copies of theta and all counts; the second if theta is small. The evaluator sees the copies, and
what small networks learn is learnt in seconds."""
SMALL_BYTES = 100_000
"""Up to this size a copy costs no more than the call."""
CALL_SECONDS = 10.0
"""Time-out of a call for which the driver waits."""

Tell = Callable[..., None]
"""Tells the supervisor something."""


class Keepers:
    """What shards and learner have in common."""

    kind = ""
    """What they are called."""

    def __init__(self, run: Run, parts: Sequence[slice], tell: Tell) -> None:
        """Keeper k has theta[parts[k]]."""
        spec, handles = run.spec, run.handles
        assert isinstance(handles.store, Mirror)
        self._spec, self._handles, self._tell = spec, handles, tell
        self._store: Mirror = handles.store
        self._clock = handles.clock
        state = handles.moments.state()
        self.moments = (state["observation_moments"].numpy(), state["return_moments"].numpy())
        """Moments from before a resume."""
        self.steps = handles.clock.steps
        """T at which the run was begun or resumed."""
        self.updates = in_theta(handles.store).updates
        """Updates in theta then."""
        theta = handles.store.snapshot().numpy()
        self.lost = handles.store.lost
        """Updates that had been lost by then."""
        self._known: list[State] = [beginning(theta[part], updates=self.updates) for part in parts]
        """The newest known state of each keeper, for one that has lost everything."""
        self._filled = [0] * len(parts)
        """How often each keeper was filled."""
        self._writers = spec.config.workers
        """Number of those on each host who count something."""
        self.actors: list[Any] = []
        self._pulls: list[Any] = [None] * len(parts)
        """A pending call of each keeper."""
        self._pulled = [0.0] * len(parts)
        """When each was called last."""
        self._machines = [""] * len(parts)
        self.pull_seconds = PULL_SECONDS if theta.nbytes > SMALL_BYTES else SMALL_PULL_SECONDS
        self._patience = patience(spec.config.hang_seconds)
        self._watch = Watch(spec.config.hang_seconds)
        self._silences = Silences(self._say)
        self._answered = [0.0] * len(parts)
        """When each keeper has answered last, or was found to be starting again."""
        self._allowed = [READY_SECONDS] * len(parts)
        """How long each keeper may take to answer."""
        self._troubles = [""] * len(parts)
        """Why each was killed by the driver."""
        self.ended = False
        """Whether no host sends anything any more."""

    def start(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Start them on `nodes`, of which the first is the driver's."""
        self.actors = self._start(nodes)

    def begin(self) -> None:
        """Fill them, once they have started."""
        for keeper in range(len(self.actors)):
            self._fill(keeper, seconds=READY_SECONDS)
            self._find(keeper)
            self._expect(keeper, self._patience)

    def pull(self, wait: bool = False) -> None:
        """Copy theta and all counts to the memory shared with the supervisor, if it is time.

        A keeper that is stopped, or hangs, is killed, so that Ray starts another.
        """
        self._watch.look()
        now = time.monotonic()
        for keeper, actor in enumerate(self.actors):
            if self._pulls[keeper] is None and (wait or now - self._pulled[keeper] >= self.pull_seconds):
                self._pulls[keeper], self._pulled[keeper] = actor.state.remote(), now
        pulls = [call for call in self._pulls if call is not None]
        if not pulls:
            return
        answered, _ = ray.wait(pulls, num_returns=len(pulls), timeout=CALL_SECONDS if wait else 0)
        for keeper, call in enumerate(self._pulls):
            if call in answered:
                self._pulls[keeper] = None
                self._take(keeper, call)
            elif call is not None:
                self._await(keeper)
        if answered:
            self._show()

    def _take(self, keeper: int, call: Any) -> None:
        """Process a keeper's answer."""
        try:
            before, self._known[keeper] = self._known[keeper], {k: np.array(v) for k, v in ray.get(call).items()}
            if self._allowed[keeper] != self._patience:  # it was started again, perhaps elsewhere
                self._find(keeper)
            self._note(keeper, before)
            self._expect(keeper, self._patience)
        except Empty:
            with contextlib.suppress(ray.exceptions.RayError):
                self._fill(keeper)
                self._find(keeper)
            self._expect(keeper, self._patience)
        except ray.exceptions.RayError:  # it is being restarted
            self._silences.end(self.name(keeper), answers=False)
            self._expect(keeper, READY_SECONDS)

    def _await(self, keeper: int) -> None:
        """A keeper has not answered yet."""
        if self._watch.silence(self._pulled[keeper]) > CALL_SECONDS:
            self._pulls[keeper] = None  # it is called again
        silence, allowed = self._watch.silence(self._answered[keeper]), self._allowed[keeper]
        if silence > allowed:
            self._replace(keeper, f"did not answer for {allowed:g} seconds")
        elif allowed == self._patience:
            self._silences.note(self.name(keeper), silence)

    def _expect(self, keeper: int, seconds: float) -> None:
        """A keeper has answered, or is being started: so many seconds may pass until it answers again."""
        self._answered[keeper], self._allowed[keeper] = time.monotonic(), seconds
        if seconds == self._patience:
            self._silences.end(self.name(keeper), answers=True)

    def _find(self, keeper: int) -> None:
        """Note on which machine a keeper is."""
        with contextlib.suppress(ray.exceptions.RayError):
            self._machines[keeper] = ray.get(self.actors[keeper].machine.remote(), timeout=CALL_SECONDS)

    def name(self, keeper: int) -> str:
        """What a keeper is called, with its machine."""
        return f"{self.kind} {keeper} on {self._machines[keeper]}"

    def _note(self, keeper: int, before: State) -> None:
        """A keeper's newest state is known, and `before` was known before."""

    def _replace(self, keeper: int, trouble: str) -> None:
        """Kill a keeper, so that Ray starts another."""
        self._troubles[keeper] = trouble
        self._silences.end(self.name(keeper), answers=False)
        self._expect(keeper, READY_SECONDS)
        ray.kill(self.actors[keeper], no_restart=False)

    def _take_trouble(self, keeper: int) -> str:
        """Why a keeper was lost. To be asked once per loss: the next one has another reason."""
        trouble, self._troubles[keeper] = self._troubles[keeper], ""
        return trouble or "was lost with its process"

    def statistics_of(self, host: Any) -> Any:
        """The call for the store's state besides theta, which a keeper has or a host."""
        raise NotImplementedError

    def show_statistics(self, call: Any) -> None:
        """Copy what such a call returns, if it does."""
        with contextlib.suppress(ray.exceptions.RayError, Empty):
            state = ray.get(call, timeout=CALL_SECONDS)
            if state is not None:
                self._store.show_statistics(state)

    def forget(self) -> None:
        """Remove their files, at the end of the run."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get([actor.forget.remote() for actor in self.actors], timeout=CALL_SECONDS)

    def _show(self) -> None:
        if "tallies" not in self._known[0]:
            return
        config = self._spec.config
        ledger = Ledger(config.most_hosts, self._writers, KINDS, tuple(len(row) for row in self.moments))
        ledger.restore(self._known[0])
        # Workers of all hosts first, then learners of all hosts.
        workers, learners = np.split(ledger.of_workers(), [config.workers], axis=1)
        tallies = np.concatenate([workers.reshape(-1, KINDS), learners.reshape(-1, KINDS)])
        theta = torch.from_numpy(np.concatenate([cast(NDArray[np.float32], known["theta"]) for known in self._known]))
        self._store.show(theta, self._updates(tallies[:, 1:]), self._balance())
        rows = zip(self.moments, ledger.all().moments, strict=True)
        self._handles.moments.lay_down([merge(earlier, row) for earlier, row in rows])
        for worker, steps in enumerate(workers[..., 0].ravel().tolist()):
            self._clock.tell(worker, steps)

    def _updates(self, of_workers: NDArray[np.int64]) -> NDArray[np.int64]:
        """What became of the updates of workers and learner, a row of `Counts` for each."""
        return of_workers

    def _balance(self) -> tuple[int, int]:
        """Updates in the newest known copy of theta, and updates that were lost."""
        raise NotImplementedError

    def _start(self, nodes: Sequence[dict[str, Any]]) -> list[Any]:
        raise NotImplementedError

    def _fill(self, keeper: int, seconds: float = CALL_SECONDS) -> bool:
        """Fill an empty keeper. Returns whether it was; one that has just recovered by itself is left alone."""
        actor = self.actors[keeper]
        self._filled[keeper] += 1
        life = ray.get(actor.life.remote(), timeout=seconds)
        try:
            return bool(get(actor.begin.remote(life, self._filled[keeper], self._filling(keeper)), seconds))
        except DiskFull as error:
            self._tell("failed", str(error), None)
            return False

    def _filling(self, keeper: int) -> State:
        """What an empty keeper is filled with."""
        return self._known[keeper]

    def _say(self, line: str) -> None:
        self._tell("say", line)


class Shards(Keepers):
    """Shards: each has a part of theta, and hosts learn. They apply gradients, if hosts push every update."""

    kind = "shard"

    def __init__(self, run: Run, tell: Tell) -> None:
        store, config = run.handles.store, run.spec.config
        assert isinstance(store, Mirror)
        parts = slices(store.theta.numel(), config.parameter_shards)
        super().__init__(run, parts, tell)
        self._writers += run.spec.learners // config.most_hosts
        self._descent = config.descent if run.spec.pushes_every_update else None
        if self._descent is not None:
            theta, statistics = store.snapshot().numpy(), store.state()["statistics"][0].numpy()
            self._known = [beginning(theta[part], statistics[:, part], self.updates) for part in parts]
        self._account = Account()

    def _balance(self) -> tuple[int, int]:
        """Updates in every part of the newest known theta, and updates that were lost."""
        updates, lost = self._account.balance(self._known, self.ended)
        return updates, self.lost + lost

    def _note(self, keeper: int, before: State) -> None:
        """One that comes back in another epoch was lost, whoever has ended it."""
        epoch, earlier = (state.get("epoch", np.array(NEVER)).tolist() for state in (self._known[keeper], before))
        if earlier in (epoch, [*NEVER]):
            return
        cause = self._take_trouble(keeper)
        version, updates = (int(count) for count in self._known[keeper]["counts"])
        self._say(f"{self.name(keeper)} {cause}; it continues from version {version:,} with {updates:,} updates")
        self._tell("event", "shard_lost", {"shard": keeper, "cause": cause, "updates": updates})

    def statistics_of(self, host: Any) -> Any:
        """The call for the store's state besides theta, which hosts have."""
        return host.state.remote()

    def _show(self) -> None:
        super()._show()
        if self._descent is not None:
            parts = [cast(NDArray[np.float32], known["statistics"]) for known in self._known]
            self._store.show_statistics({"statistics": np.concatenate(parts, axis=1)[None]})

    def _start(self, nodes: Sequence[dict[str, Any]]) -> list[Any]:
        config, folder = self._spec.config, self._spec.folder.path / f"shards-{uuid.uuid4().hex[:8]}"
        sizes = tuple(len(row) for row in self.moments)
        actors = []
        for shard in range(len(self._known)):
            at = shard % len(nodes)
            # Ray may place an actor elsewhere though the node that it should softly be on has room. Without the first
            # node, the driver's, there is no run; from another one a shard must be able to move.
            options = placed(SavedShard, nodes[at], soft=at > 0, max_restarts=-1)
            file = str(folder / f"shard-{shard}.safetensors")
            actors.append(options.remote(file, config.most_hosts, self._writers, sizes, shard == 0, self._descent))
        return actors

    def _replace(self, keeper: int, trouble: str) -> None:
        self._say(f"{self.name(keeper)} {trouble}; another starts from its checkpoint")
        super()._replace(keeper, trouble)


class Memories(Keepers):
    """Replay hosts: each has the replay memory of some hosts. Without `--replay-hosts` there are none."""

    kind = "replay host"

    def __init__(self, run: Run, tell: Tell) -> None:
        super().__init__(run, [slice(0, 0)] * run.spec.replay_hosts, tell)

    def _start(self, nodes: Sequence[dict[str, Any]]) -> list[Any]:
        config, actors = self._spec.config, []
        for number in range(len(self._known)):
            at = number % len(nodes)
            calls = concurrency(config.most_hosts)
            options = placed(ReplayHost, nodes[at], soft=at > 0, max_restarts=-1, max_concurrency=calls)
            actors.append(options.remote(self._spec, number))
        return actors

    def _fill(self, keeper: int, seconds: float = CALL_SECONDS) -> bool:
        begun = super()._fill(keeper, seconds)
        if begun and self._filled[keeper] > 1:
            stored = int(self._known[keeper].get("stored", np.zeros(1))[0])
            cause = f"{self._take_trouble(keeper)}, and {stored:,} steps are lost with it"
            self._say(f"replay host {keeper} {cause}; another fills its memory anew")
            self._tell("event", "replay_host_lost", {"replay_host": keeper, "cause": cause})
        return begun


def concurrency(hosts: int) -> int:
    """How many calls an actor must be able to take at once if so many hosts call it: some calls wait for news."""
    return 8 + 4 * hosts


class Learner(Keepers):
    """The learner: it has all of theta, and learns from what hosts send, or from what replay hosts have."""

    kind = "learner"

    def __init__(self, run: Run, tell: Tell, hosts: Sequence[Place], memories: Memories) -> None:
        super().__init__(run, [slice(None)], tell)
        self.place = Place(LEARNER)
        self._hosts, self._memories = hosts, memories
        self._before = run.handles.store.counts()
        """Updates from before a resume, with those that were lost then."""

    def lacks_resource(self) -> str | None:
        """Why it cannot start on this cluster; None if it can."""
        config, resources = self._spec.config, ray.cluster_resources()
        if getattr(config, "learner_device", CPU) != CPU and "GPU" not in resources:
            return f"--learner-device {config.learner_device}: no machine of the cluster has a GPU for Ray"  # type: ignore[attr-defined]
        resource = config.learner_resource
        if not resource or resource in resources:
            return None
        start = f"""ray start --resources='{{"{resource}": 1}}'"""
        return f"no machine of the cluster has the resource {resource}: give it to one by {start}"

    def statistics_of(self, host: Any) -> Any:
        """The call for the store's state besides theta."""
        return self.place.actor.statistics.remote()

    def watch(self, seen: Seen) -> None:
        """Note how the learner is; one that makes no progress is killed, so that Ray starts another."""
        place = self.place
        (phase,), (silence,) = seen.phases, seen.silence
        self._clock.vouch(LEARNER, phase, silence)
        place.left = seen.outcome == LEFT
        if seen.outcome is not None and not place.left:
            place.gone = True
            self._tell("failed", seen.outcome.reason, seen.outcome.traceback)
        hang = self._spec.config.hang_seconds
        if phase == RUNNING and hang and silence > hang:
            self._replace(0, f"made no progress for {hang:g} seconds")

    def _start(self, nodes: Sequence[dict[str, Any]]) -> list[Any]:
        config = self._spec.config
        options: dict[str, Any] = {"max_concurrency": concurrency(len(self._hosts))}
        if getattr(config, "learner_device", CPU) != CPU:
            options["num_gpus"] = 1  # Ray hides all GPUs from those that do not ask
        if config.learner_resource:
            options["resources"] = {config.learner_resource: 0.001}
        # Otherwise on the driver's node and no other: without that node there is no run.
        node = None if config.learner_resource else nodes[0]
        self.place.actor = placed(LearnerHost, node, max_restarts=-1, **options).remote(self._spec)
        return [self.place.actor]

    def _fill(self, keeper: int, seconds: float = CALL_SECONDS) -> bool:
        if self._filled[keeper] and not self._lose():
            return False
        if self._memories.actors:  # not an argument of the constructor, which Ray keeps for a restart
            ray.get(self.place.actor.connect.remote(RayWire(self._memories.actors)), timeout=seconds)
        return super()._fill(keeper, seconds)

    def _replace(self, keeper: int, trouble: str) -> None:
        if not self._troubles[keeper]:
            super()._replace(keeper, trouble)

    def _lose(self) -> bool:
        """Note the loss of the learner. Returns whether it goes on: not after too many losses."""
        place, trouble = self.place, self._take_trouble(0)
        place.lose(trouble, self._spec.config.worker_restarts, self._watch)
        known = self._counts().updates
        lost = max(0, self._seen_version() - known)
        updates, _ = self._balance()
        cause = f"{trouble}, and {lost:,} updates are lost with it"
        self._tell("loss", "gone" if place.gone else "restarted", LEARNER, cause)
        if place.gone:
            self._tell("failed", f"the learner is gone for good: it {trouble}", None)
        else:
            self._say(f"the learner {cause}; another continues from update {updates:,}")
        return not place.gone

    def _filling(self, keeper: int) -> State:
        known, store, lost = self._counts(), self._store.state(), self._balance()[1]
        # Counts stay, also those of lost updates: hosts have rollouts that were made with them.
        counts = known._replace(updates=max(known.updates, self._seen_version()))
        lost += counts.updates - known.updates
        return filling(self._known[keeper], store, self.moments, self.steps, self._clock.seconds, counts, lost)

    def _counts(self) -> Counts:
        """What became of the updates until the newest known copy of the learner's theta, with those that were lost."""
        known = self._known[0]
        return Counts(*(int(count) for count in known["counts"])) if "lost" in known else self._before

    def _balance(self) -> tuple[int, int]:
        """Updates in the newest known copy of the learner's theta, and updates that were lost."""
        lost = int(self._known[0].get("lost", [self.lost])[0])
        return self._counts().updates - lost, lost

    def name(self, keeper: int) -> str:
        """The learner, with its machine."""
        return f"the learner on {self._machines[keeper]}"

    def _seen_version(self) -> int:
        """The newest version of the learner's theta that a host has."""
        return max((place.seen.version for place in self._hosts if place.seen is not None), default=0)

    def _updates(self, of_workers: NDArray[np.int64]) -> NDArray[np.int64]:
        own = np.array(self._counts(), np.int64) - np.array(self._before, np.int64)
        return np.concatenate([of_workers, own[None]])
