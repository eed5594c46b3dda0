"""The learner of a run on several hosts: the ordinary learner loop, fed from hosts, which ask it for theta.

The transport is elsewhere, as for hosts. A learner begins empty and is filled by the driver of the run, at first with
the run's beginning. One that has died is filled with the newest copy of theta, and is a new epoch for the hosts: what
they had sent to the one before is lost.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from traceback import format_exc
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithm import MEMORY
from asyncrl.backends.handles import rollout_shape, shared
from asyncrl.backends.outcome import Outcome, failed
from asyncrl.backends.processes import follow
from asyncrl.backends.ray.arrivals import Arrivals, Delivery, Rollouts
from asyncrl.backends.ray.memory import RemoteReplay
from asyncrl.backends.ray.reports import KINDS, LEFT, Journal, Seen, Statistics
from asyncrl.core.devices import CPU, require_device
from asyncrl.core.errors import NotFinite, UsageError
from asyncrl.experience.batches import Batches
from asyncrl.experience.replay import Replay
from asyncrl.parameters.shards import Ledger
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import BUILDING, FINISH, GO_ON, LEAVE, Watch
from asyncrl.runtime.hosts import on_one_machine
from asyncrl.runtime.link import Answer, Call, Callee, Empty, Server, State, Wire
from asyncrl.runtime.normalize import make_normalizer
from asyncrl.runtime.protocols import LEARNER, Counts, Experience, name_of
from asyncrl.runtime.roles import build_learner
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.storage.rows import Passed
from asyncrl.storage.run_folder import RunFolder
from asyncrl.storage.temporary import temporary_folder

ENDLESS = 2**62
"""T at which the learner would end by itself. It ends when it is told to, after the last rollout of the last host."""
TRIES = 100
"""How often theta is copied again if the learner has changed it meanwhile."""
MOMENTS = ("observation_moments", "return_moments")
"""Names of the rows of moments at which the run was begun or resumed, in what a learner is filled with."""
CLOSE_SECONDS = 10.0


class LearnerHost(Server):
    """The learner."""

    def __init__(self, spec: RunSpec) -> None:
        """`spec` is that of the whole run. The learner begins empty."""
        super().__init__()
        config = spec.config
        self._hosts, self._workers = config.all_workers // config.workers, config.workers
        self._scratch = Path(temporary_folder())
        self._spec = replace(on_one_machine(spec, config.all_workers), folder=RunFolder(self._scratch))
        self._samples = spec.method.experience == MEMORY
        self._replay_hosts = spec.replay_hosts
        self._memories: Wire | None = None
        self._journal = Journal()
        self._statistics = Statistics()
        self._handles: Handles | None = None
        self._outcome: Outcome | None = None
        self._watch = Watch(config.hang_seconds)

    # ------------------------------------------------------------------------------------------- called by the driver

    def connect(self, memories: Wire) -> None:
        """Called before `begin` if there are replay hosts: these are on its wire."""
        self._memories = memories

    def fill(self, epoch: int, state: State) -> None:
        """Take over a state, and begin to learn.

        It has what was known last of theta and the ledger, the store's state besides theta, the `MOMENTS` and steps at
        which the run began or was resumed, its seconds so far, and of how many updates in the counts theta has lost.
        """
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
        theta = tensors.pop("theta")
        begun = int(state["steps"][0]), float(state["seconds"][0])
        handles = shared(self._spec, theta, *begun, self._memories is None)
        handles.clock.total_steps = ENDLESS
        handles.store.restore(theta, tensors, Counts(*(int(count) for count in state["counts"])))
        self._lost = state["lost"]
        self._earlier = [np.array(state[name], np.float64) for name in MOMENTS]
        self._ledger = Ledger(self._hosts, self._workers, KINDS, tuple(map(len, handles.moments.of_workers())))
        if "tallies" in state:
            self._ledger.restore(state)
        self._callee = Callee(self._hosts, epoch)
        self._experience = self._make_experience(handles, epoch)
        self._count(handles)
        self._watch.look()  # nobody has looked so far, but it was not suspended
        handles.clock.enter(LEARNER, BUILDING)  # the time in which it must be ready begins
        # For a learner alone: its actors are on hosts, and nothing of it is saved.
        self._handles = replace(handles, experience=cast(Experience, self._experience))
        self._thread = threading.Thread(target=self._learn, daemon=True, name=name_of(LEARNER))
        self._thread.start()

    def look(self, told: int, start: bool, order: int, phases: list[int]) -> Seen:
        """News since number `told`, and the present state. `start`: the clock runs; `phases` are those of all workers.

        `order` is GO_ON, FINISH after the hosts have left, or LEAVE. Raises Empty.
        """
        clock = self._filled().clock
        self._watch.look()
        for worker, phase in enumerate(phases):
            clock.vouch(worker, phase, 0.0)
        if start and not clock.started():
            clock.start()
        if order == FINISH and isinstance(self._experience, RemoteReplay) and not self._experience.drained():
            order = GO_ON  # minibatches are still due
        clock.stop(order)
        outcome = self._outcome  # before the news, so that everything told by then is reported too
        news, told = self._journal.since(told)
        silence = self._watch.silence(time.monotonic() - clock.heartbeat_age(LEARNER))
        statistics = self._statistics.of(self._filled().store, ended=outcome is not None)
        return Seen(news, told, [clock.phase(LEARNER)], [silence], outcome, 0, self.state(), statistics)

    def state(self) -> State:
        """Theta, the counts of updates, and what hosts have reported. Raises Empty."""
        handles = self._filled()
        with self.lock:
            reported = self._ledger.state()
        theta, counts = self._copy(handles)
        return {"theta": theta, "counts": np.array(counts, np.int64), "lost": self._lost, **reported}

    def forget(self) -> None:
        """End the learner, and remove its files."""
        if self._handles is not None:
            self._handles.clock.stop(LEAVE)
            self._thread.join(timeout=CLOSE_SECONDS)
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------- called by hosts

    def exchange(self, call: Call[Rollouts]) -> Answer:
        """Take rollouts, unless replay hosts do, and answer with news and theta. Raises Empty."""
        handles, experience, load = self._filled(), self._experience, call.load
        others = None
        if load.report is not None:
            with self.lock:
                self._ledger.note(call.host, call.incarnation, load.report)
                others = self._ledger.others(call.host)
                self._count(handles)
        if isinstance(experience, Arrivals):
            answer, newest = experience.hear(call)
        else:
            with self.lock:
                self._callee.admit(call)
                answer, newest = self._callee.answer(call, Delivery()), True
        # Theta after that, so that it has the updates of all batches that are done.
        counts, theta = handles.store.counts(), None
        if call.epoch != answer.epoch or (load.theta and newest and load.version != counts.updates):
            theta, counts = self._copy(handles)
        if answer.retired:
            return answer
        return replace(answer, news=replace(answer.news, counts=counts, theta=theta, others=others))

    def _make_experience(self, handles: Handles, times: int) -> Arrivals | RemoteReplay:
        """Where the learner takes its batches from: what hosts send here, or the replay hosts."""
        spec = self._spec
        if self._memories is not None:
            normalizer = make_normalizer(handles.moments, LEARNER, spec)
            return RemoteReplay(self._memories, self._replay_hosts, times, handles.clock, normalizer)
        rings_or_memory = cast(Batches | Replay, handles.experience)
        shape = rollout_shape(spec)
        return Arrivals(rings_or_memory, shape, self._hosts, self._workers, self._callee)

    def _filled(self) -> Handles:
        if self._handles is None:
            raise Empty
        return self._handles

    def _count(self, handles: Handles) -> None:
        """Set T, and the moments of observations and returns, to what hosts have reported."""
        if self._samples:  # elsewhere each rollout comes with the moments of its actor
            handles.moments.lay_down(self._earlier, self._ledger.all().moments)
        for worker, steps in enumerate(self._ledger.of_workers()[..., 0].ravel().tolist()):
            handles.clock.tell(worker, steps)

    def _copy(self, handles: Handles) -> tuple[NDArray[np.float32], Counts]:
        """Theta and its counts, if possible not from within an update."""
        theta, counts = cast(SharedStore, handles.store).counted_copy(tries=TRIES)
        return theta.numpy(), counts

    # ------------------------------------------------------------------------------------------------------- the work

    def _learn(self) -> None:
        """The learner's thread."""
        handles, name = self._filled(), name_of(LEARNER)
        run = Run(self._spec, handles)
        try:
            require_device(getattr(self._spec.config, "learner_device", CPU))
            torch.set_num_threads(getattr(self._spec.config, "learner_threads", 1))
            file = self._spec.folder.records_file(name).name
            rows = Passed(lambda _, row: self._journal.tell("row", file, dict(row)))
            role = build_learner(run, make_writer=lambda _: rows)
            with contextlib.closing(role):
                follow(role, handles.clock, LEARNER)
            self._outcome = LEFT
        except UsageError as error:
            self._outcome = failed(str(error))
        except NotFinite as error:
            culprit = self._spec.folder.culprit_file(name)
            with contextlib.suppress(OSError):
                self._journal.tell("file", culprit.name, culprit.read_bytes())
            self._outcome = failed(f"{name}: {error}")
        except BaseException as error:  # of user code, SystemExit too
            self._outcome = failed(f"{name} raised {type(error).__name__}: {error}", format_exc())
