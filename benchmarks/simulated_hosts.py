"""Hosts that are simulated in one process: what more hosts do to data efficiency, on one machine.

    python benchmarks/simulated_hosts.py a3c --hosts 16 --env-id CartPole-v1 --workers 64 --total-steps 200_000

This is a run of the serial backend (its settings follow), but the workers are divided evenly among `--hosts` hosts,
which have what hosts of the ray backend have: theta, the optimiser's statistics, moments and counters of their own.
They exchange changes of theta with `--parameter-shards` shards by the code of real hosts (`backends/ray/to_shards.py`,
`parameters/shards.py`). Only the processes, the clock and the wire are simulated. The clock counts turns: one *turn of
every worker* is as many turns as there are workers, which on real hosts act at the same time. `--exchange-delay` is the
time from a call to its answer in this unit.

Such a run repeats itself to the bit. It writes the records of a run on hosts.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from asyncrl.backends import serial
from asyncrl.backends.ray.exchange import Times
from asyncrl.backends.ray.member import Beginning, Member, build
from asyncrl.backends.ray.reports import KINDS
from asyncrl.backends.ray.to_shards import ToShards
from asyncrl.catalog import module_of
from asyncrl.commands.train import main as train
from asyncrl.core.errors import UsageError
from asyncrl.core.moments import merge
from asyncrl.parameters.shards import Change, Ledger, Shard, beginning, slices
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.clock import ENDED, FINISH, RUNNING
from asyncrl.runtime.hosts import on_one_host
from asyncrl.runtime.link import Answer, Call
from asyncrl.runtime.protocols import Counts, name_of
from asyncrl.runtime.roles import Role, build_worker
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.storage.records import RecordWriter


@dataclass(frozen=True)
class Plan:
    """What is simulated."""

    hosts: int
    shards: int
    delay: float
    """Turns of every worker from a call to its answer."""


@dataclass(eq=False)
class Letter:
    """A call on its way, and the answer on its way back."""

    shard: int
    call: Call[Change]
    sent: int
    """Turn at which it was sent."""
    answer: Answer | None = None
    """None until it has reached the shard."""


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

    def send(self, shard: int, call: Call[Change]) -> Letter:
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
        one = on_one_host(whole)
        self.spec: RunSpec = replace(one, first_worker=beginning.host * one.config.workers)
        self._handles = build(beginning, self.spec)
        self._writer = RecordWriter(whole.folder.exchange_file(beginning.host))
        self.exchange = ToShards(self, wire, times)

    @property
    def handles(self) -> Handles:
        """What this host's workers share."""
        return self._handles

    def say(self, line: str) -> None:
        """Nothing goes wrong on a simulated wire."""

    def tell_exchanges(self, row: dict[str, Any] | None) -> None:
        """Write a row on exchanges."""
        if row is not None:
            self._writer.write(self.at(row))

    def build_worker(self, worker: int) -> Role:
        """One of its workers, ready to go."""
        run, everywhere = Run(self.spec, self._handles), self.spec.among_all(worker)
        path = self.spec.folder.records_file(name_of(everywhere))
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


class Simulation:
    """All hosts and shards of a run, and what the run knows of them: the part of the driver of the ray backend."""

    def __init__(self, run: Run, plan: Plan) -> None:
        """`run` has what the evaluator, the monitor and checkpoints see. Raises UsageError for what has no hosts."""
        config, handles = run.spec.config, run.handles
        self._each = config.workers // plan.hosts
        ray = replace(
            config, backend="ray", hosts=plan.hosts, workers=self._each, parameter_shards=plan.shards,
            schedule="round-robin", delays=(),
        )  # fmt: skip
        self._spec = replace(run.spec, config=ray)
        if not self._spec.learns_on_hosts or self._spec.pushes_every_update or run.handles.experience:
            raise UsageError("hosts are simulated for methods whose workers learn, and that send changes of theta")
        if config.workers % plan.hosts:
            raise UsageError(f"give --workers as a multiple of --hosts {plan.hosts}, which divide them evenly")
        assert isinstance(handles.store, SharedStore)
        self._store, self._clock, self._run = handles.store, handles.clock, run
        self._counted = handles.store.counts()
        """What became of the updates before the simulation began."""
        moments = handles.moments.state()
        self._moments = (moments["observation_moments"].numpy(), moments["return_moments"].numpy())
        """Moments from then."""
        ledger = Ledger(plan.hosts, self._each, KINDS, tuple(len(row) for row in self._moments))
        self._parts = slices(self._store.theta.numel(), plan.shards)
        self._shards = [Shard(plan.hosts, one) for one in (ledger, *[None] * (plan.shards - 1))]
        wire = self._wire = SimulatedWire(self._shards, round(plan.delay * config.workers))
        times = Times(
            lambda: wire.turn / config.workers, "turns",
            shortest=0.0, longest=math.inf, answer=math.inf, alone=math.inf, last=math.inf,
        )  # fmt: skip
        own = {name: tensor.numpy() for name, tensor in self._store.state().items()}
        begun = (self._clock.steps, self._clock.seconds, self._moments)
        self._hosts = [
            SimulatedHost(Beginning(self._spec, host, 1, *begun, own), wire, times) for host in range(plan.hosts)
        ]
        self._shown = 0
        """Calls that had reached their shard when theta was shown."""
        self._begin()

    def build_worker(self, worker: int) -> Role:
        """A worker, by its number among all. With each turn of its own it makes the exchanges that are due."""
        host, own = divmod(worker, self._each)
        role = self._hosts[host].build_worker(own)
        return replace(role, loop=self._followed(role.loop, self._hosts[host], own))

    def close(self) -> None:
        """Write the last rows of all hosts."""
        for host in self._hosts:
            host.close()

    def _begin(self) -> None:
        """Fill the shards, let all hosts take theta from there, and start their clocks."""
        theta = self._store.snapshot().numpy()
        for shard, part in zip(self._shards, self._parts, strict=True):
            shard.begin(shard.who()[0], 1, beginning(theta[part]))
        while not all(host.joined.is_set() for host in self._hosts):
            self._exchange_all()
        for host in self._hosts:
            host.handles.clock.start()
            for worker in range(self._each):
                host.handles.clock.enter(worker, RUNNING)

    def _followed(self, loop: Generator[bool], host: SimulatedHost, own: int) -> Generator[bool]:
        """A worker's loop; the last one of all ends when the shards have every update."""
        try:
            for worked in loop:
                self._follow(host, own)
                yield worked
            host.end_worker(own)
            self._follow(host, own)
            if all(other.done.is_set() for other in self._hosts):
                self._end()
        finally:
            loop.close()

    def _follow(self, host: SimulatedHost, own: int) -> None:
        """A worker has had its turn."""
        self._wire.turn += 1
        self._wire.deliver()
        host.exchange.step()
        self._clock.tell(self._spec.config.workers * host.beginning.host + own, host.handles.clock.worker_steps()[own])
        if self._wire.delivered != self._shown:
            self._show()
        if self._clock.finished():
            for other in self._hosts:
                other.handles.clock.stop(FINISH)

    def _end(self) -> None:
        """All workers have ended: exchange until the shards have all of their updates."""
        while any(host.exchange.step() for host in self._hosts):
            self._exchange_all()
        self._show()

    def _exchange_all(self) -> None:
        for host in self._hosts:
            host.exchange.step()
        self._wire.turn += max(1, self._wire.delay)
        self._wire.deliver()

    def _show(self) -> None:
        """Copy theta, counts, moments and one host's statistics to where evaluator, monitor and checkpoints look."""
        self._shown = self._wire.delivered
        theta = torch.from_numpy(np.concatenate([shard.state()["theta"] for shard in self._shards]))
        ledger = self._shards[0].ledger
        assert ledger is not None
        reported = ledger.all()
        counts = [before + int(now) for before, now in zip(self._counted, reported.tallies[1:], strict=True)]
        self._store.restore(theta, self._store.state() | self._hosts[0].handles.store.state(), Counts(*counts))
        rows = zip(self._moments, reported.moments, strict=True)
        self._run.handles.moments.lay_down([merge(earlier, row) for earlier, row in rows])


def main(words: Sequence[str]) -> int:
    """Train on simulated hosts; returns the command's exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("algorithm", help="the algorithm, one whose workers learn: a3c, n_step_q, ...")
    parser.add_argument("--hosts", type=int, required=True, help="number of hosts")
    parser.add_argument("--parameter-shards", type=int, default=1, help="number of shards")
    parser.add_argument("--exchange-delay", type=float, default=1.0, help="in turns of every worker; 0: none")
    given, others = parser.parse_known_args(words)
    if given.hosts < 1 or given.parameter_shards < 1 or not 0 <= given.exchange_delay < math.inf:
        parser.error("--hosts and --parameter-shards must be at least 1, --exchange-delay not negative")
    plan = Plan(given.hosts, given.parameter_shards, given.exchange_delay)
    simulation: Simulation | None = None

    def build(run: Run, worker: int) -> Role:
        nonlocal simulation
        simulation = simulation or Simulation(run, plan)
        return simulation.build_worker(worker)

    try:
        with mock.patch.object(serial, "build_worker", build):
            return train(module_of(given.algorithm), [*others, "--backend", "serial"])
    finally:
        if simulation is not None:
            simulation.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
