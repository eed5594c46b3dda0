"""The machines of a Ray cluster: are they alike, do they reach each other, and how fast is an exchange with a shard?

As in a run, one process of our own connects to Ray, and there is one actor per machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import statistics
import time
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, cast

import numpy as np
import psutil

from asyncrl.backends.processes import end, start
from asyncrl.backends.ray.connection import connect, is_reached
from asyncrl.core.devices import usable_cores
from asyncrl.doctor import Finding, advise, judge
from asyncrl.doctor.room import SHARED_MEMORY, size
from asyncrl.parameters.shards import Change, Exchanger, Ledger, Shard, beginning
from asyncrl.runtime.link import Link, receive
from asyncrl.runtime.threads import enforce_one_thread
from asyncrl.storage.run_folder import versions

REPEATS = 20
"""Calls and exchanges that are timed on each machine, after one that is not."""
ANSWER_SECONDS = 60.0
"""Time for an actor to start and answer."""
SURVEY_SECONDS = 300.0
"""Time for everything."""
LEAVE_SECONDS = 20.0
"""Time for Ray to end."""
PORTS = ("NodeManagerPort", "ObjectManagerPort")
"""Ray's names for the ports of a machine to which the others connect."""
SLOW_CALL_SECONDS = 0.05
SLOW_EXCHANGE_SECONDS = 0.5
"""Half of the longest interval between two exchanges."""
CLOCK_SECONDS = 1.0


@dataclass(frozen=True)
class Machine:
    """What was found on one machine."""

    name: str
    versions: dict[str, str | None]
    cores: int
    threads: int
    """Threads of torch in an actor, after the settings that workers make."""
    shared_bytes: int | None
    """Free shared memory; None if the system does not say."""
    token: bool
    """Whether this machine's Ray requires a token."""
    exposed: tuple[int, ...]
    """Ports, among those of Ray that the others connect to, that listen on all interfaces."""
    unreachable: tuple[str, ...]
    """HOST:PORT of the other machines to which no connection could be opened."""
    ahead_seconds: float
    """How far its clock is ahead of that of the doctor's machine."""
    uncertain_seconds: float
    """The greatest error of that."""
    call_seconds: tuple[float, ...]
    """Durations of empty calls to a shard on the doctor's machine."""
    exchange_seconds: tuple[float, ...]
    """Durations of exchanges of all parameters with it."""


class Probe:
    """An actor that looks at its machine."""

    def __init__(self) -> None:
        enforce_one_thread()

    def facts(self, ports: Sequence[int], others: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """Facts of this machine, whose Ray has `ports`, and which `others` of HOST and PORT it cannot reach."""
        import ray
        import torch

        return {
            "versions": versions() | {"ray": ray.__version__},
            "cores": len(usable_cores()),
            "threads": torch.get_num_threads(),
            "shared_bytes": shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None,
            "token": os.environ.get("RAY_AUTH_MODE", "").lower() == "token",
            "exposed": tuple(sorted(set(ports) & on_all_interfaces())),
            "unreachable": tuple(f"{host}:{port}" for host, port in others if not is_reached(host, port)),
        }

    def now(self) -> float:
        """The time by this machine's clock."""
        return time.time()

    def time_calls(self, shard: Any) -> list[float]:
        """Durations of calls that carry nothing."""
        import ray

        return timeit.repeat(lambda: ray.get(shard.who.remote()), repeat=REPEATS + 1, number=1)[1:]

    def time_exchanges(self, shard: Any, host: int, parameters: int) -> list[float]:
        """Durations of exchanges by host number `host`."""
        from asyncrl.backends.ray.actors import RayWire

        link: Link[Change] = Link(RayWire([shard]), 0, host, 1, seconds=ANSWER_SECONDS)
        exchanger = Exchanger(link, np.zeros(parameters, np.float32))

        def exchange() -> None:
            exchanger.call()
            while link.waiting:
                link.repeat()
                answers = receive([link], ANSWER_SECONDS)
                if not answers:
                    raise ConnectionError("the shard did not answer")
                for _, answer, _ in answers:
                    exchanger.accept(answer)

        return timeit.repeat(exchange, repeat=REPEATS + 1, number=1)[1:]


def on_all_interfaces() -> set[int]:
    """The TCP ports at which some program listens on all interfaces; empty if the system does not say."""
    with contextlib.suppress(psutil.Error):
        listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        return {one.laddr.port for one in listening if one.laddr.ip in ("0.0.0.0", "::")}
    return set()


def survey(context: BaseContext, address: str, parameters: int) -> list[Machine]:
    """Look at each machine of the cluster at `address` (as in `connect`); the doctor's own is first.

    Raises ConnectionError with one line if that fails.
    """
    here, there = multiprocessing.Pipe(duplex=False)
    child = context.Process(target=survey_process, args=(there, address, parameters))  # type: ignore[attr-defined]
    start(child)
    there.close()
    try:
        if not here.poll(SURVEY_SECONDS):
            raise ConnectionError(f"Ray did not answer within {SURVEY_SECONDS:.0f} s")
        found = here.recv()
        child.join(LEAVE_SECONDS)
    except EOFError:
        raise ConnectionError("Ray ended the process that checked the cluster: was its head lost?") from None
    finally:
        here.close()
        end(child)
    if isinstance(found, str):
        raise ConnectionError(found)
    return cast(list[Machine], found)


def survey_process(pipe: Connection, address: str, parameters: int) -> None:
    """Send the machines, or in one line why there are none."""
    try:
        connect(address)
        import ray

        try:
            pipe.send(look_at_all(parameters))
        finally:
            ray.shutdown()
    except Exception as error:
        pipe.send(" ".join(f"{'' if type(error) is ConnectionError else type(error).__name__ + ': '}{error}".split()))


def look_at_all(parameters: int) -> list[Machine]:
    """Look at each machine, one after the other, so that none disturbs the figures of another."""
    import ray

    from asyncrl.backends.ray.actors import living_nodes, placed

    nodes = living_nodes()
    shard = placed(Shard, nodes[0]).remote(len(nodes), Ledger(len(nodes), 1, 1))
    life, _ = ray.get(shard.who.remote(), timeout=ANSWER_SECONDS)
    ray.get(shard.begin.remote(life, 1, beginning(np.zeros(parameters, np.float32))), timeout=ANSWER_SECONDS)
    found = [
        look_at(placed(Probe, node).remote(), number, nodes, shard, parameters) for number, node in enumerate(nodes)
    ]
    ray.kill(shard)
    return found


def look_at(probe: Any, number: int, nodes: Sequence[dict[str, Any]], shard: Any, parameters: int) -> Machine:
    """Look at machine `number` of the nodes by a probe there. Raises ConnectionError if it does not answer."""
    import ray

    own = nodes[number]
    others = [(node["NodeManagerAddress"], node[port]) for node in nodes if node is not own for port in PORTS]
    try:
        facts = ray.get(probe.facts.remote([own[port] for port in PORTS], others), timeout=ANSWER_SECONDS)
        clock = min(_compare_clocks(probe) for _ in range(REPEATS))
        calls = ray.get(probe.time_calls.remote(shard), timeout=ANSWER_SECONDS)
        exchanges = ray.get(probe.time_exchanges.remote(shard, number, parameters), timeout=ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise ConnectionError(
            f"an actor on {own['NodeManagerHostname']} did not answer within {ANSWER_SECONDS:.0f} s: do firewalls let "
            "all ports of ray start --min-worker-port ... --max-worker-port through?"
        ) from None
    except ray.exceptions.RayError as error:  # its last line says what was raised there
        last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ConnectionError(f"an actor on {own['NodeManagerHostname']} failed: {last.strip()[:300]}") from None
    ray.kill(probe)
    return Machine(
        name=own["NodeManagerHostname"],
        ahead_seconds=clock[1],
        uncertain_seconds=clock[0],
        call_seconds=tuple(calls),
        exchange_seconds=tuple(exchanges),
        **facts,
    )


def _compare_clocks(probe: Any) -> tuple[float, float]:
    """The greatest error, and how far the probe's clock is ahead of this machine's."""
    import ray

    asked = time.time()
    there = ray.get(probe.now.remote(), timeout=ANSWER_SECONDS)
    answered = time.time()
    return (answered - asked) / 2, there - (asked + answered) / 2


def examine(context: BaseContext, address: str, workers: int, needed: int, parameters: int) -> list[Finding]:
    """All checks of a cluster for a run with so many workers per host, `needed` bytes of shared memory on each."""
    try:
        machines = survey(context, address, parameters)
    except ConnectionError as error:
        remedy = "read the message; a cluster with a token needs RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here too"
        return [Finding("the cluster", "FAIL", str(error), remedy)]
    return judge_machines(machines, workers, needed, parameters)


def judge_machines(machines: Sequence[Machine], workers: int, needed: int, parameters: int) -> list[Finding]:
    """What there is to say of the machines; the first is the doctor's own."""
    return [
        Finding("the cluster", "ok", ", ".join(f"{one.name} ({one.cores} cores)" for one in machines)),
        check_token(machines),
        check_ports(machines),
        check_versions(machines),
        check_clocks(machines),
        check_threads(machines, workers),
        check_shared_memory(machines, needed),
        *check_shard(machines, parameters),
    ]


def check_token(machines: Sequence[Machine]) -> Finding:
    """Whether each machine's Ray requires a token."""
    without = [one.name for one in machines if not one.token]
    figure = f"not on {', '.join(without)}: anybody who reaches it can run programs there" if without else "on each"
    remedy = "set RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN before each ray start, and for the command"
    return advise("Ray requires a token", not without, figure, remedy)


def check_ports(machines: Sequence[Machine]) -> Finding:
    """Whether each machine's Ray is reached by all others."""
    cut = [f"{one.name} cannot reach {', '.join(one.unreachable)}" for one in machines if one.unreachable]
    exposed = [f"{one.name} {', '.join(map(str, one.exposed))}" for one in machines if one.exposed]
    figure = "; ".join(cut) or "each machine reaches all others"
    figure += f"; open on all interfaces: {'; '.join(exposed)}" if exposed else ""
    remedy = "open these ports between the machines (ray start --node-manager-port, --object-manager-port set them)"
    return judge("ports", not cut, figure, remedy)


def check_versions(machines: Sequence[Machine]) -> Finding:
    """Whether all machines have the versions of the first."""
    first = machines[0]
    for one in machines:
        for package, version in first.versions.items():
            if one.versions.get(package) != version:
                said = f"{one.name} has {package} {one.versions.get(package)}, {first.name} has {version}"
                return Finding("versions are the same", "FAIL", said, "install the same versions on all machines")
    shown = ", ".join(f"{package} {first.versions.get(package)}" for package in ("python", "torch", "asyncrl", "ray"))
    return Finding("versions are the same", "ok", shown)


def check_clocks(machines: Sequence[Machine]) -> Finding:
    """Whether clocks agree. No exchange depends on them."""
    worst = max(machines, key=lambda one: abs(one.ahead_seconds))
    figure = f"{worst.name}: {1e3 * worst.ahead_seconds:+.1f} ms, +- {1e3 * worst.uncertain_seconds:.1f}"
    return advise(
        "clocks",
        abs(worst.ahead_seconds) < CLOCK_SECONDS + worst.uncertain_seconds,
        figure,
        "let NTP set the clocks: training does not depend on them, but logs of different machines cannot be compared",
    )


def check_threads(machines: Sequence[Machine], workers: int) -> Finding:
    """Whether workers compute in one thread each."""
    many = [f"{one.threads} on {one.name}" for one in machines if one.threads != 1]
    fewest = min(machines, key=lambda one: one.cores)
    return judge(
        "threads per worker",
        not many,
        "; ".join(many) or f"1; {workers} workers per host, at least {fewest.cores} cores",
        "the number of threads was changed after asyncrl was imported: check the environment's code on that machine",
    )


def check_shared_memory(machines: Sequence[Machine], needed: int) -> Finding:
    """Whether a host's share of the run fits on each machine."""
    known = [(one.shared_bytes, one.name) for one in machines if one.shared_bytes is not None]
    figure = f"each host needs {size(needed)}"
    if not known:
        return Finding("shared memory of hosts", "note", f"{figure}; the machines do not report how much is available")
    free, name = min(known)
    figure += f"; {size(free)} free on {name}, which has the least"
    remedy = "make /dev/shm larger there, use fewer --workers, or give Ray less (ray start --object-store-memory)"
    return judge("shared memory of hosts", free > needed, figure, remedy)


def check_shard(machines: Sequence[Machine], parameters: int) -> list[Finding]:
    """How long calls and exchanges of the slowest machine take."""
    slowest = max(machines, key=lambda one: statistics.median(one.call_seconds))
    call = statistics.median(slowest.call_seconds)
    figure = f"{1e3 * call:.2f} ms, at most {1e3 * max(slowest.call_seconds):.2f}, from {slowest.name}"
    remedy = "the link is slow: increase --exchange-updates, or use machines that are closer together"
    calls = advise("a call to a shard", call < SLOW_CALL_SECONDS, figure, remedy)
    narrowest = max(machines, key=lambda one: statistics.median(one.exchange_seconds))
    exchange = statistics.median(narrowest.exchange_seconds)
    figure = f"{1e3 * exchange:.2f} ms, at most {1e3 * max(narrowest.exchange_seconds):.2f}, from {narrowest.name}: "
    figure += f"{2 * 4 * parameters / exchange / 1e6:.0f} MB/s"  # there and back, float32
    remedy = "the link is narrow: hosts will receive each other's updates late; use a smaller --network"
    return [calls, advise(f"an exchange of {parameters:,} numbers", exchange < SLOW_EXCHANGE_SECONDS, figure, remedy)]
