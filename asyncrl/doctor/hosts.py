"""The machines of a Ray cluster: are they alike, do they reach each other, and how fast is an exchange with a shard?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from multiprocessing.context import BaseContext

from asyncrl.backends.survey import Machine, survey
from asyncrl.doctor import Finding, advise, judge
from asyncrl.doctor.room import size

SLOW_CALL_SECONDS = 0.05
SLOW_EXCHANGE_SECONDS = 0.5
"""Half of the longest interval between two exchanges."""
CLOCK_SECONDS = 1.0


def examine(context: BaseContext, address: str, workers: int, needed: int, parameters: int) -> list[Finding]:
    """All checks of a cluster for a run with so many workers per host, `needed` bytes of shared memory on each."""
    try:
        machines = survey(context, address, parameters)
    except ConnectionError as error:
        remedy = "see what it says; a cluster with a token wants RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN here too"
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
    return advise(
        "Ray requires a token",
        not without,
        f"not on {', '.join(without)}: whoever reaches their ports can run programs there" if without else "on each",
        "set RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN before each ray start, and for the command",
    )


def check_ports(machines: Sequence[Machine]) -> Finding:
    """Whether each machine's Ray is reached by all others."""
    cut = [f"{one.name} cannot reach {', '.join(one.unreachable)}" for one in machines if one.unreachable]
    exposed = [f"{one.name} {', '.join(map(str, one.exposed))}" for one in machines if one.exposed]
    open_to_all = f"; open on all interfaces: {'; '.join(exposed)}" if exposed else ""
    return judge(
        "ports",
        not cut,
        ("; ".join(cut) or "each machine reaches all others") + open_to_all,
        "open these ports between the machines (ray start --node-manager-port, --object-manager-port set them)",
    )


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
        "something sets threads after asyncrl was imported: see what that machine's environment does",
    )


def check_shared_memory(machines: Sequence[Machine], needed: int) -> Finding:
    """Whether a host's share of the run fits on each machine."""
    known = [(one.shared_bytes, one.name) for one in machines if one.shared_bytes is not None]
    figure = f"each host needs {size(needed)}"
    if not known:
        return Finding("shared memory of hosts", "note", f"{figure}; the machines do not say how much there is")
    free, name = min(known)
    return judge(
        "shared memory of hosts",
        free > needed,
        f"{figure}; {size(free)} free on {name}, which has least",
        "make /dev/shm larger there, ask for fewer --workers, or give Ray less (ray start --object-store-memory)",
    )


def check_shard(machines: Sequence[Machine], parameters: int) -> list[Finding]:
    """How long calls and exchanges of the slowest machine take."""
    slowest = max(machines, key=lambda one: statistics.median(one.call_seconds))
    call = statistics.median(slowest.call_seconds)
    narrowest = max(machines, key=lambda one: statistics.median(one.exchange_seconds))
    exchange = statistics.median(narrowest.exchange_seconds)
    rate = 2 * 4 * parameters / exchange / 1e6  # there and back, float32
    return [
        advise(
            "a call to a shard",
            call < SLOW_CALL_SECONDS,
            f"{1e3 * call:.2f} ms, at most {1e3 * max(slowest.call_seconds):.2f}, from {slowest.name}",
            "the link is slow: ask for more --exchange-updates, or put the machines closer together",
        ),
        advise(
            f"an exchange of {parameters:,} numbers",
            exchange < SLOW_EXCHANGE_SECONDS,
            f"{1e3 * exchange:.2f} ms, at most {1e3 * max(narrowest.exchange_seconds):.2f}, from {narrowest.name}: "
            f"{rate:.0f} MB/s",
            "the link is narrow: hosts will learn of each other late; ask for a smaller --network",
        ),
    ]
