"""Several hosts simulated in one process, for the serial backend.

Each has its own theta, statistics, counters and moments, as the shared memory of a host would hold them. They exchange
with shards by the code of real hosts (`backends/exchange.py`, `parameters/shards.py`); only the wire is simulated. It
counts the turns of all workers: one *turn of every worker* is as many of them as there are workers, which on real hosts
act at the same time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.backends.exchange import Exchange, Lane, Times
from asyncrl.backends.handles import with_decays_of
from asyncrl.backends.host import Beginning, Member, build
from asyncrl.backends.reports import KINDS
from asyncrl.core.moments import merge
from asyncrl.parameters.mirror import Mirror
from asyncrl.parameters.shards import Answer, Call, Ledger, Report, Shard, beginning, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import ENDED, FINISH, RUNNING
from asyncrl.runtime.run import Handles, Role, Run, RunSpec, build_worker
from asyncrl.storage.records import RecordWriter


@dataclass(eq=False)
class Letter:
    """A call on its way, and the answer on its way back."""

    shard: int
    call: Call
    sent: int
    """Turn at which it was sent."""
    answer: Answer | None = None
    """None until it has reached the shard."""

    def state(self) -> dict[str, Any]:
        """It as plain data and arrays."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Letter:
        """The letter whose state it is."""
        call, answer = state["call"], state["answer"]
        call = Call(**call | {"epoch": _epoch(call), "report": _report(call["report"])})
        if answer is not None:
            answer = Answer(**answer | {"epoch": _epoch(answer), "others": _report(answer["others"])})
        return cls(int(state["shard"]), call, int(state["sent"]), answer)


def _epoch(state: Mapping[str, Any]) -> tuple[int, int]:
    filled, recovered = state["epoch"]
    return filled, recovered


def _report(state: Mapping[str, Any] | None) -> Report | None:
    return None if state is None else Report(state["tallies"], tuple(state["moments"]))


class SimulatedWire:
    """Calls reach their shard after half of the delay, and answers the host after the other half. None is lost."""

    def __init__(self, shards: Sequence[Shard], delay: int) -> None:
        """`delay` is in turns of single workers."""
        self.delay = delay
        self.turn = 0
        """Turns since the run began."""
        self.delivered = 0
        """Calls that have reached their shard."""
        self._shards = shards
        self._under_way: deque[Letter] = deque()
        """What has not reached its shard yet, in the order of sending."""

    def send(self, shard: int, call: Call) -> Letter:
        """Send a call; returns the letter, for `receive`."""
        letter = Letter(shard, call, self.turn)
        self._under_way.append(letter)
        self.deliver()
        return letter

    def receive(self, calls: Sequence[Letter], seconds: float) -> list[tuple[Letter, Answer]]:
        """Those of `calls` whose answer is there. It does not wait."""
        there = [letter for letter in calls if self.turn - letter.sent >= self.delay]
        return [(letter, letter.answer) for letter in there if letter.answer is not None]

    def deliver(self) -> None:
        """Hand the shards what reaches them by now."""
        while self._under_way and 2 * (self.turn - self._under_way[0].sent) >= self.delay:
            letter = self._under_way.popleft()
            letter.answer = self._shards[letter.shard].exchange(letter.call)
            self.delivered += 1

    def restore(self, turn: int, letters: Sequence[Letter]) -> None:
        """Go on at that turn, with these letters under way."""
        self.turn = turn
        self._under_way.extend(sorted((one for one in letters if one.answer is None), key=lambda one: one.sent))


class Renumbered(RecordWriter):
    """Records of a worker that is numbered among those of all hosts."""

    def __init__(self, path: Path, worker: int) -> None:
        super().__init__(path)
        self._worker = worker

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row."""
        super().write({**row, "worker": self._worker})


class SimulatedHost(Member):
    """What would be on one host."""

    def __init__(self, beginning: Beginning, wire: SimulatedWire, times: Times) -> None:
        super().__init__(beginning)
        whole = beginning.spec
        config = replace(
            whole.config, workers=whole.config.workers // whole.config.simulate_hosts, simulate_hosts=0,
            parameter_shards=1, exchange_delay=1.0,
        )  # fmt: skip
        config = with_decays_of(config, whole.config.simulate_hosts)
        self.spec: RunSpec = replace(whole, config=config, first_worker=beginning.host * config.workers)
        self._handles = build(beginning, self.spec)
        self._writer = RecordWriter(whole.folder.exchange_file(beginning.host))
        self.exchange = Exchange(self, wire, times)

    @property
    def handles(self) -> Handles:
        """What this host's workers share."""
        return self._handles

    @property
    def store(self) -> SharedStore:
        """Its theta."""
        assert isinstance(self._handles.store, SharedStore)
        return self._handles.store

    def say(self, line: str) -> None:
        """Nothing goes wrong on a simulated wire."""

    def tell_exchanges(self, row: dict[str, Any] | None) -> None:
        """Write a row on exchanges."""
        if row is not None:
            self._writer.write(self.at(row))

    def build_worker(self, worker: int) -> Role:
        """One of its workers, ready to go."""
        run, everywhere = Run(self.spec, self._handles), self.spec.among_all(worker)
        path = self.spec.folder.worker_file(everywhere)
        return build_worker(run, worker, make_writer=lambda _: Renumbered(path, everywhere))

    def end_worker(self, worker: int) -> None:
        """Note that a worker has made its last update."""
        clock = self._handles.clock
        clock.enter(worker, ENDED)
        if all(phase == ENDED for phase in clock.phases()):
            self.done.set()

    def close(self) -> None:
        """Write the last row."""
        self.exchange.write_row()
        self._writer.close()

    def state(self) -> dict[str, Any]:
        """Everything that its workers share, and its exchange."""
        handles = self._handles
        return {
            "theta": handles.store.snapshot(),
            "store": handles.store.state(),
            "counts": self.store.rows(),
            "steps": [*handles.clock.worker_steps(), handles.clock.base_steps],
            "moments": handles.moments.rows(),
            "lanes": [_lane_state(lane) for lane in self.exchange.lanes],
        }

    def restore(self, state: Mapping[str, Any]) -> list[Letter]:
        """Restore what `state` returned; returns the letters under way."""
        handles = self._handles
        handles.store.restore(state["theta"], state["store"], handles.store.counts(None))
        self.store.restore_rows(state["counts"])
        *steps, others = state["steps"]
        for worker, own in enumerate(steps):
            handles.clock.tell(worker, own)
        handles.clock.rebase(others)
        handles.moments.restore_rows(state["moments"])
        lanes = zip(self.exchange.lanes, state["lanes"], strict=True)
        letters = [_restore_lane(lane, own) for lane, own in lanes]
        self.joined.set()
        return [letter for letter in letters if letter is not None]


def _lane_state(lane: Lane[Any]) -> dict[str, Any]:
    letter = None if lane.call is None else lane.call.state()
    own = {"since": lane.since, "made": lane.made, "brought": lane.brought}
    return {**own, "exchanger": lane.exchanger.state(), "letter": letter}


def _restore_lane(lane: Lane[Any], state: Mapping[str, Any]) -> Letter | None:
    lane.since, lane.made, lane.brought = state["since"], state["made"], state["brought"]
    letter = None if state["letter"] is None else Letter.from_state(state["letter"])
    lane.call = letter
    lane.exchanger.restore(state["exchanger"], None if letter is None else letter.call)
    return letter


class Simulation:
    """All hosts and shards of a run, and what the run knows of them: the part of the driver of the ray backend."""

    def __init__(self, run: Run) -> None:
        """`run` has what the evaluator, the monitor and checkpoints see: a mirror."""
        self._run, self._clock = run, run.handles.clock
        assert isinstance(run.handles.store, Mirror)
        self._store: Mirror = run.handles.store
        config, state = run.spec.config, run.handles.moments.state()
        self._each = config.workers // config.simulated_hosts
        self._moments = (state["observation_moments"].numpy(), state["return_moments"].numpy())
        """Moments from before the simulation began."""
        sizes = tuple(len(row) for row in self._moments)
        self._ledger = Ledger(config.simulated_hosts, self._each, KINDS, sizes)
        self._parts = slices(self._store.theta.numel(), config.parameter_shards)
        self._shards = [
            Shard(config.simulated_hosts, lambda state: None, ledger=None if shard else self._ledger)
            for shard in range(len(self._parts))
        ]
        wire = self._wire = SimulatedWire(self._shards, round(config.exchange_delay * config.workers))
        times = Times(
            lambda: wire.turn / config.workers, "turns",
            shortest=0.0, longest=math.inf, answer=math.inf, pause=0.0, alone=math.inf, last=math.inf,
        )  # fmt: skip
        own = {name: tensor.numpy() for name, tensor in self._store.state().items()}
        begun = (self._clock.steps, self._clock.seconds, self._moments)
        self._hosts = [
            SimulatedHost(Beginning(run.spec, host, 1, *begun, own), wire, times)
            for host in range(config.simulated_hosts)
        ]
        self._shown = 0
        """Calls that had reached their shard when theta was shown."""
        self._before: NDArray[np.int64] = np.zeros((config.workers, KINDS), np.int64)
        """What each worker had counted when the run was resumed."""

    def build_worker(self, worker: int) -> Role:
        """A worker, by its number among all."""
        host, own = divmod(worker, self._each)
        return self._hosts[host].build_worker(own)

    def begin(self) -> None:
        """Fill the shards, and let all hosts take theta from there, unless they have been restored."""
        theta = self._store.snapshot().numpy()
        for shard, part in zip(self._shards, self._parts, strict=True):
            shard.begin(shard.life, 1, beginning(theta[part]))
        while not all(host.joined.is_set() for host in self._hosts):
            self._exchange_all()

    def start(self) -> None:
        """The clock runs."""
        for host in self._hosts:
            host.handles.clock.start()
            for worker in range(self._each):
                host.handles.clock.enter(worker, RUNNING)

    def follow(self, worker: int, ended: bool) -> None:
        """A worker has had its turn; `ended`: it was its last."""
        number, own = divmod(worker, self._each)
        host, wire = self._hosts[number], self._wire
        wire.turn += 1
        wire.deliver()
        if ended:
            host.end_worker(own)
        host.exchange.step()
        self._clock.tell(worker, host.handles.clock.worker_steps()[own] - int(self._before[worker, 0]))
        if wire.delivered != self._shown:
            self._show()
        if self._clock.finished():
            for other in self._hosts:
                other.handles.clock.stop(FINISH)

    def end(self) -> None:
        """All workers have ended: exchange until the shards have all of their updates."""
        while any(host.exchange.step() for host in self._hosts):
            self._exchange_all()
        self._show()

    def close(self) -> None:
        """Close the files."""
        for host in self._hosts:
            host.close()

    def _exchange_all(self) -> None:
        for host in self._hosts:
            host.exchange.step()
        self._wire.turn += max(1, self._wire.delay)
        self._wire.deliver()

    def _show(self) -> None:
        """Copy theta, counts, moments and one host's statistics to where evaluator, monitor and checkpoints look."""
        self._shown = self._wire.delivered
        theta = torch.from_numpy(np.concatenate([shard.state()["theta"] for shard in self._shards]))
        tallies = self._ledger.of_workers().reshape(-1, KINDS) - self._before
        self._store.show(theta, tallies[:, 1:])
        rows = zip(self._moments, self._ledger.all().moments, strict=True)
        self._run.handles.moments.lay_down([merge(earlier, row) for earlier, row in rows])
        self._store.show_statistics({name: own.numpy() for name, own in self._hosts[0].handles.store.state().items()})

    def state(self) -> dict[str, Any]:
        """Everything that `restore` needs."""
        return {
            "turn": self._wire.turn,
            "begun": self._hosts[0].beginning.steps,
            "moments": list(self._moments),
            "shards": [shard.state() for shard in self._shards],
            "hosts": [host.state() for host in self._hosts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken; instead of `begin`."""
        for shard, own in zip(self._shards, state["shards"], strict=True):
            shard.begin(shard.life, 1, own)
        self._moments = (state["moments"][0], state["moments"][1])
        letters: list[Letter] = []
        for host, own in zip(self._hosts, state["hosts"], strict=True):
            host.beginning = replace(host.beginning, steps=int(state["begun"]), moments=self._moments)
            letters += host.restore(own)
        self._wire.restore(int(state["turn"]), letters)
        self._before = self._ledger.of_workers().reshape(-1, KINDS)
        self._before[:, 0] = [steps for host in self._hosts for steps in host.handles.clock.worker_steps()]
