"""The connection of a process to a Ray cluster. Ray is imported only then: it reads environment variables and starts
threads."""

from __future__ import annotations

import os
import secrets
import socket

from asyncrl.backends import sockets
from asyncrl.backends.process_trees import lead_session

REACH_SECONDS = 5.0
"""Time to open a connection to a port."""
LONGEST_TMPDIR = 40
"""Bytes in the path below which Ray makes a session's folder, since a socket's path there has 67 more."""
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's default of 15 would put workers behind everything else
    "RAY_max_direct_call_object_size": "2000000",  # bytes; by way of Ray's store, from 100 kB on, a call costs twice
    "RAY_task_events_max_num_task_in_gcs": "1000",  # calls the head remembers; Ray's 100,000 take 350 MB
}
"""For Ray's processes, unless they are set already."""


def connect(address: str) -> None:
    """Connect this process, a child of its own, to the cluster at `address`; empty: RAY_ADDRESS, or a new cluster.

    Raises ConnectionError with one line.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    for variable, value in VARIABLES.items():
        os.environ.setdefault(variable, value)
    if address == "local":  # private: only this run's processes may connect
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
        for folder in sockets.short_folders(LONGEST_TMPDIR)[:1]:  # of its sockets; by default it is that of TMPDIR
            os.environ.setdefault("RAY_TMPDIR", folder)
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and not is_reached(host.strip("[]"), int(port)):  # Ray would end this process
        raise ConnectionError(f"there is no Ray cluster at {address}: start one with ray start --head")
    import ray  # reads the variables

    own = {"num_cpus": 1, "include_dashboard": False} if address == "local" else {}
    lead_session()  # so Ray's processes are in it too
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except Exception as error:  # Ray raises ConnectionError, but also a plain Exception
        what = "be started" if own else f"be reached at {address}"
        raise ConnectionError(f"Ray could not {what}: {' '.join(str(error).split())[:300]}") from None


def is_reached(host: str, port: int) -> bool:
    """Whether a connection can be opened."""
    try:
        socket.create_connection((host, port), REACH_SECONDS).close()
    except (OSError, UnicodeError):  # the latter for what cannot be a host's name
        return False
    return True
