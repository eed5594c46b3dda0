"""Two hosts for tests: network namespaces on this machine, joined by a pair of virtual devices."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

HOSTS = (f"asyncrl-{os.getpid()}-a", f"asyncrl-{os.getpid()}-b")
ADDRESSES = ("10.78.0.1", "10.78.0.2")


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command ip."""
    return subprocess.run(["ip", *words], capture_output=True, text=True)


def on(host: str) -> tuple[str, ...]:
    """The words that run a command on a host."""
    return ("ip", "netns", "exec", host)


class Wire:
    """What joins the hosts."""

    def cut(self) -> None:
        """Nothing gets through any more."""
        ip("-n", HOSTS[1], "link", "set", "arl-t1", "down")

    def mend(self) -> None:
        """Everything gets through again."""
        ip("-n", HOSTS[1], "link", "set", "arl-t1", "up")

    def cut_from(self, host: int) -> None:
        """What this host sends is lost, what it is sent arrives: it believes the other one to be elsewhere."""
        nobody = ("lladdr", "02:00:00:00:00:99", "dev", f"arl-t{host}", "nud", "permanent")
        ip("-n", HOSTS[host], "neigh", "replace", ADDRESSES[1 - host], *nobody)


@contextmanager
def two_hosts() -> Iterator[Wire]:
    """The hosts and their wire. Skips the test where they cannot be made."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip (iproute2)")
    try:
        for host in HOSTS:
            if (made := ip("netns", "add", host)).returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        wire = ip("link", "add", "arl-t0", "netns", HOSTS[0], "type", "veth", "peer", "arl-t1", "netns", HOSTS[1])
        if wire.returncode:
            pytest.skip(f"no virtual devices here: {wire.stderr.strip()}")
        for rank, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True)):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", f"arl-t{rank}")
            for device in ("lo", f"arl-t{rank}"):
                ip("-n", host, "link", "set", device, "up")
        yield Wire()
    finally:
        for host in HOSTS:
            ip("netns", "del", host)
