"""The processes of a run on Ray, each an actor, and the wire between them.

Ray places and monitors processes and carries their calls. The rules of shards are in `parameters/shards.py`, the work
of a host is in `backends/host.py`, that of a learner in `backends/learner_host.py`, that of a replay host in
`backends/replay_host.py`.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ray
import safetensors.numpy
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.backends.host import Beginning, Host
from asyncrl.backends.learner_host import LearnerHost
from asyncrl.backends.replay_host import ReplayHost
from asyncrl.backends.reports import KINDS, Seen
from asyncrl.core.errors import DiskFull
from asyncrl.core.updates import Descent
from asyncrl.parameters.shards import Answer, Call, Empty, Ledger, Shard, State
from asyncrl.runtime.run import RunSpec
from asyncrl.runtime.threads import enforce_one_thread, request_one_thread
from asyncrl.storage.files import disk_is_full, replace_file

SAVED_EVERY = 20
"""Exchanges between two checkpoints of a shard."""
PUSHES_SAVED_EVERY = 500
"""The same for a shard that applies gradients, which are many more calls."""


def placed(kind: type, node: dict[str, Any] | None, soft: bool = False, **options: Any) -> Any:
    """An actor's class for Ray, to be started on a node; `soft`: or elsewhere if that is gone.

    Ray counts no core for it, and repeats no call.
    """
    if node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=soft)
    return ray.remote(kind).options(num_cpus=0, max_task_retries=0, **options)


class Keeper:
    """What the driver asks each process that has a part of the run's state."""

    def machine(self) -> str:
        """Name of the machine on which it runs."""
        return socket.gethostname()


class ShardActor(Keeper):
    """A shard's process. Ray restarts it when it dies, but repeats no call."""

    def __init__(
        self, file: str, hosts: int, workers: int, sizes: tuple[int, ...], first: bool, descent: Descent | None = None
    ) -> None:
        """Saves its state to `file`, or elsewhere if this machine lacks the run's folder. `first`: keeps the ledger.

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
        self._shard = Shard(hosts, self._save, every, ledger, descent)
        if place.is_file():
            self._shard.recover(cast(State, safetensors.numpy.load(place.read_bytes())))

    def _save(self, state: State) -> None:
        try:
            replace_file(self._file, safetensors.numpy.save(cast(dict[str, NDArray[Any]], state)))
        except OSError as error:
            if not disk_is_full(error):
                raise
            name = self._file.stem.replace("-", " ")
            raise DiskFull(f"{name} could not save its state: the disk is full") from error

    def life(self) -> str:
        """See `Shard.life`."""
        return self._shard.life

    def begin(self, life: str, times: int, state: State) -> bool:
        """See `Shard.begin`."""
        return self._shard.begin(life, times, state)

    def exchange(self, call: Call) -> Answer:
        """See `Shard.exchange`."""
        return self._shard.exchange(call)

    def state(self) -> State:
        """See `Shard.state`."""
        return self._shard.state()

    def forget(self) -> None:
        """Remove the saved state, at the end of the run."""
        shutil.rmtree(self._file.parent, ignore_errors=True)


class LearnerActor(Keeper):
    """The learner's process. Ray restarts it when it dies, but repeats no call; several calls may run at once."""

    def __init__(self, spec: RunSpec) -> None:
        request_one_thread()
        enforce_one_thread()
        self._learner = LearnerHost(spec)

    def connect(self, memories: Sequence[Any]) -> None:
        """See `LearnerHost.connect`. Not an argument of the constructor: Ray need not keep it for a restart."""
        self._learner.connect(RayWire(memories))

    def life(self) -> str:
        """See `LearnerHost.life`."""
        return self._learner.life

    def begin(self, life: str, times: int, state: State) -> bool:
        """See `LearnerHost.begin`."""
        return self._learner.begin(life, times, state)

    def exchange(self, call: Any) -> Any:
        """See `LearnerHost.exchange`."""
        return self._learner.exchange(call)

    def look(self, told: int, start: bool, order: int, phases: list[int]) -> Seen:
        """See `LearnerHost.look`."""
        return self._learner.look(told, start, order, phases)

    def state(self) -> State:
        """See `LearnerHost.state`."""
        return self._learner.state()

    def statistics(self) -> State:
        """See `LearnerHost.statistics`."""
        return self._learner.statistics()

    def forget(self) -> None:
        """See `LearnerHost.close`."""
        self._learner.close()


class ReplayActor(Keeper):
    """A replay host's process. Ray restarts it when it dies, but repeats no call; several calls may run at once."""

    def __init__(self, spec: RunSpec, number: int) -> None:
        request_one_thread()
        enforce_one_thread()
        self._memory = ReplayHost(spec, number)

    def life(self) -> str:
        """See `ReplayHost.life`."""
        return self._memory.life

    def begin(self, life: str, times: int, state: State) -> bool:
        """See `ReplayHost.begin`."""
        return self._memory.begin(life, times, state)

    def exchange(self, call: Any) -> Any:
        """See `ReplayHost.exchange`."""
        return self._memory.exchange(call)

    def state(self) -> State:
        """See `ReplayHost.state`."""
        return self._memory.state()


class RayWire:
    """A connection to keepers, of a host, or of the learner to its replay hosts."""

    def __init__(self, keepers: Sequence[Any]) -> None:
        self._keepers = keepers

    def send(self, shard: int, call: Any) -> Any:
        """Make a call; returns its handle, for `receive`."""
        return self._keepers[shard].exchange.remote(call)

    def receive(self, calls: Sequence[Any], seconds: float) -> list[tuple[Any, Any]]:
        """Wait up to `seconds` for any of `calls`; returns the ended ones, each with its answer, None if it is lost.

        Raises what a keeper has raised, but for Empty.
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
    except Empty:  # the keeper waits to be filled
        return None
    except ray.exceptions.RayTaskError:  # an error within the call: the same call would raise it again
        raise
    except ray.exceptions.RayError:  # the keeper is gone, or cannot be reached
        return None


class HostActor:
    """A host's process."""

    def __init__(self, beginning: Beginning, keepers: Sequence[Any]) -> None:
        request_one_thread()
        enforce_one_thread()
        self._host = Host(beginning, RayWire(keepers))

    def look(self, told: int, start: bool, order: int) -> Seen:
        """See `Host.look`."""
        return self._host.look(told, start, order)

    def state(self) -> State | None:
        """See `Host.state`."""
        return self._host.state()

    def close(self) -> None:
        """See `Host.close`."""
        self._host.close()


def in_words(error: Exception) -> str:
    """Ray's reason for a loss, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if isinstance(error, ray.exceptions.ActorDiedError) and lines else type(error).__name__)[:200]
