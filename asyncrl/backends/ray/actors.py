"""A run on Ray: the cluster's machines, the processes on them, each an actor, and the wire between them.

Ray places, monitors and restarts processes, and carries their calls, but repeats none. Its actors are instances of
ordinary classes: `host.py`, `learner.py`, `memory.py`, and shards (`parameters/shards.py`), which save themselves here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ray
import safetensors.numpy
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.backends.ray.reports import KINDS, OnMachine
from asyncrl.core.errors import DiskFull
from asyncrl.core.updates import Descent
from asyncrl.parameters.shards import Ledger, Shard, State
from asyncrl.runtime.link import Empty
from asyncrl.runtime.threads import enforce_one_thread
from asyncrl.storage.files import disk_is_full, replace_file

SAVED_EVERY = 20
"""Exchanges between two checkpoints of a shard."""
PUSHES_SAVED_EVERY = 500
"""The same for a shard that applies gradients, which are many more calls."""
SILENT_SECONDS = 75.0
"""An actor that has not answered for this long is replaced; earlier with a shorter `--hang-seconds`.

Ray finds a dead machine after about 65 seconds, and a host waits for 120 seconds for the servers.
"""


def patience(hang_seconds: float) -> float:
    """How long an actor may take to answer; without end if hangs are not to be noticed."""
    return min(hang_seconds, SILENT_SECONDS) if hang_seconds else float("inf")


def living_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, in Ray's words; this one comes first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


def placed(kind: type, node: dict[str, Any] | None, soft: bool = False, **options: Any) -> Any:
    """An actor's class for Ray, to be started on a node; `soft`: or elsewhere if that is gone.

    Ray counts no core for it, and repeats no call.
    """
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=soft)
    return ray.remote(kind).options(num_cpus=0, max_task_retries=0, **options)


class SavedShard(Shard, OnMachine):
    """A shard that saves its state to a file, from which its next process recovers."""

    def __init__(
        self, file: str, hosts: int, workers: int, sizes: tuple[int, ...], first: bool, descent: Descent | None = None
    ) -> None:
        """Saves to `file`, or elsewhere if this machine lacks the run's folder. `first`: keeps the ledger.

        `workers` are those of a host, with its learners. `descent`: it applies gradients.
        """
        enforce_one_thread()
        place = Path(file)
        if not place.parent.parent.is_dir():  # the run's folder is on another machine
            place = Path(tempfile.gettempdir()) / f"asyncrl-{place.parent.name}" / place.name
        place.parent.mkdir(exist_ok=True)
        self._file = place
        ledger = Ledger(hosts, workers, KINDS, sizes) if first else None
        every = SAVED_EVERY if descent is None else PUSHES_SAVED_EVERY
        super().__init__(hosts, self._write, every, ledger, descent)
        if place.is_file():
            self.recover(cast(State, safetensors.numpy.load(place.read_bytes())))

    def _write(self, state: State) -> None:
        try:
            replace_file(self._file, safetensors.numpy.save(cast(dict[str, NDArray[Any]], state)))
        except OSError as error:
            if not disk_is_full(error):
                raise
            name = self._file.stem.replace("-", " ")
            raise DiskFull(f"{name} could not save its state: the disk is full") from error

    def forget(self) -> None:
        """Remove the saved state, at the end of the run."""
        shutil.rmtree(self._file.parent, ignore_errors=True)


class RayWire:
    """The connection of a host to servers, or of the learner to its replay hosts."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = servers

    def send(self, server: int, call: Any) -> Any:
        """Make a call; returns its handle, for `receive`."""
        return self._servers[server].exchange.remote(call)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it is lost.

        Raises what a server has raised, but for Empty.
        """
        ready, _ = ray.wait(list(calls), timeout=seconds)
        return [(call, _answer(call)) for call in ready]


def get(call: Any, seconds: float | None = None) -> Any:
    """What a call returns, or raises. A full disk has one line to say, without Ray's traceback."""
    try:
        return ray.get(call, timeout=seconds)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DiskFull):
            raise error.cause from error
        raise


def _answer(call: Any) -> Any:
    try:
        return get(call)
    except Empty:  # the server waits to be filled
        return None
    except ray.exceptions.RayTaskError:  # an error within the call: the same call would raise it again
        raise
    except ray.exceptions.RayError:  # the server is gone, or cannot be reached
        return None


def in_words(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, ray.exceptions.ActorDiedError) and lines else type(error).__name__)[:200]
