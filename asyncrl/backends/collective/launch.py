"""Which launcher started this process as one of several, and where these meet, from environment variables.

torchrun, mpirun (Open MPI, and MPICH or Intel MPI through PMI) and srun only start the processes; communication is by
gloo.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import socket
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.core.errors import UsageError
from asyncrl.storage.stored import user_key

LOOPBACK = "127.0.0.1"
SECRET = "ASYNCRL_SECRET"
"""The environment variable in which the ranks of a launcher find their secret."""
SHORTEST_SECRET = 16
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "PMI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
}
"""The variables in which each says the rank, the number of ranks, and the number of those on this machine."""
FIRST_PORT, PORTS = 20_000, 10_000
"""Range of the default port, which is derived from the job's number, so that two jobs on a host seldom share it."""


@dataclass(frozen=True)
class Launch:
    """One of the processes that a launcher has started."""

    by: str
    """torchrun, mpirun, PMI or srun."""
    rank: int
    size: int
    address: str
    """Where they meet: tcp://HOST:PORT or file://PATH."""
    agent: bool = False
    """Whether torchrun's agent already listens there, rather than rank 0."""
    attempt: str = ""
    """Distinguishes this attempt from earlier ones with the same agent."""
    here: bool | None = None
    """Whether all ranks are on this machine; None if the launcher does not say."""
    given: bytes = field(default=b"", repr=False)
    """The secret in the environment; empty without one."""

    def meets_here(self, host: str) -> bool:
        """Whether all ranks are on this machine, where `host` is the address at which they meet.

        Raises UsageError if other machines cannot reach that address.
        """
        loopback = ipaddress.ip_address(host).is_loopback
        if loopback and self.here is False:
            raise UsageError(
                f"ranks on several machines cannot meet at {host}, which is local to each machine: "
                "give --init-method tcp://ADDRESS:PORT with rank 0's network address"
            )
        return loopback if self.here is None else self.here

    def secret(self, host: str) -> bytes:
        """The secret that all ranks share, which meet at `host`. Raises UsageError without one."""
        if not self.given and not self.meets_here(host):
            raise UsageError(
                f"ranks on several machines authenticate with a secret: set {SECRET} to the same long random text "
                "for all of them (see docs/clusters.md)"
            )
        if self.given:
            return self.given
        try:
            return hmac.digest(user_key(), b"ranks", "sha256")
        except OSError as error:
            raise UsageError(
                f"the ranks have no usable secret ({error.strerror}{f', {error.filename}' if error.filename else ''}): "
                f"set {SECRET} for all of them"
            ) from None


def launched(environment: Mapping[str, str], init_method: str = "") -> Launch | None:
    """The launch described by environment variables; None if no launcher started this process. Raises UsageError.

    `init_method` overrides the launcher's address.
    """
    by = _launcher(environment)
    if by is None:
        return None
    name, of, here = LAUNCHERS[by]
    try:
        rank, size = int(environment[name]), int(environment[of])
    except ValueError:
        raise UsageError(f"{name} and {of} must be numbers") from None
    if not 0 <= rank < size:
        raise UsageError(f"{by} reports an impossible rank: {rank} of {size}")
    alone = environment[here] == str(size) if here in environment else None  # srun says 1(x2) on two machines
    address = init_method or _address(by, alone, environment)
    # The store of torchrun's agent outlives an attempt; a board for each attempt keeps them apart.
    agent = not init_method and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    secret = environment.get(SECRET, "")
    if secret and len(secret) < SHORTEST_SECRET:
        raise UsageError(f"{SECRET} must have at least {SHORTEST_SECRET} characters: try openssl rand -hex 16")
    return Launch(by, rank, size, address, agent, attempt, alone, secret.encode())


def ranks_here(environment: Mapping[str, str], ranks: int) -> int:
    """How many of a run's ranks are on the machine of rank 0, which asks; one if their launcher does not say.

    Without a launcher rank 0 starts all of them.
    """
    by = _launcher(environment)
    if by is None:
        return ranks
    said = re.match(r"\d+", environment.get(LAUNCHERS[by][2], ""))  # srun says 2(x3),1 on four machines
    return int(said[0]) if said else 1


def _launcher(environment: Mapping[str, str]) -> str | None:
    """Who has started this process. SLURM's plugin for PMI says the same as srun, which also knows the hosts."""
    said = {by: [environment.get(name) for name in names[:2]] for by, names in LAUNCHERS.items()}
    by = next((by for by, values in said.items() if None not in values), None)
    return "srun" if by == "PMI" and said["srun"] == said["PMI"] else by


def _address(by: str, alone: bool | None, environment: Mapping[str, str]) -> str:
    """Where ranks started by `by` meet."""
    if host := environment.get("MASTER_ADDR"):
        return f"tcp://{host}:{environment.get('MASTER_PORT') or _port(environment)}"
    if by == "srun" and (nodes := environment.get("SLURM_STEP_NODELIST")):
        return f"tcp://{_first_host(nodes)}:{_port(environment)}"
    if alone:
        return f"tcp://{LOOPBACK}:{_port(environment)}"
    raise UsageError(f"{by} does not say where rank 0 is: give --init-method tcp://HOST:PORT, with rank 0's host")


def _first_host(nodes: str) -> str:
    """The first name in SLURM's compact list of hosts: node01 for node[01-04]."""
    if "[" not in nodes:
        return nodes.split(",")[0]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=30)
        if answer.returncode == 0 and answer.stdout.split():
            return answer.stdout.split()[0]
    raise UsageError(f"scontrol could not list the hosts of {nodes}: give --init-method tcp://HOST:PORT")


def _port(environment: Mapping[str, str]) -> int:
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMI_JOBID", "UID", "USER")
    return FIRST_PORT + zlib.crc32("/".join(environment.get(name, "") for name in names).encode()) % PORTS


def tcp_address(address: str) -> tuple[str, int]:
    """Host and port of tcp://HOST:PORT, with the name resolved. Raises UsageError, where gloo would wait for ever."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not address.startswith("tcp://") or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--init-method takes tcp://HOST:PORT or file://PATH, got {address!r}")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid host name"
        raise UsageError(f"ranks cannot meet: there is no host {host!r} ({reason})") from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)  # gloo finds its interface by an IPv4 address
    return str(found[0][4][0]), int(port)


def own_address(towards: str) -> str:
    """The address of this host on the route to `towards`, a numerical address."""
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return towards
