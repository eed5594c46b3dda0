"""A store that the package has never heard of, in private memory behind a socket: everything takes it as it is.

Its 62 lines are transport only: counting, update rule, target and checkpoints are the package's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.doctor.learning import BOOTSTRAPS, TARGET
from asyncrl.parameters.shared import SharedStore
from asyncrl.runtime.protocols import Counts, Receipt, Store, Update
from asyncrl.runtime.run import Run
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.records import read_records
from tests.commands.test_doctor import judged
from tests.seams.running import learnt, train
from tests.support import make_run, status_of


# The store.
def packed(value: Any) -> Any:
    """Tensors as arrays, which travel by value."""
    if isinstance(value, dict):
        return {name: packed(item) for name, item in value.items()}
    return value.detach().numpy() if isinstance(value, Tensor) else value


def unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: unpacked(item) for name, item in value.items()}
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def answer(store: Store, size: int, connection: Connection, lock: threading.Lock) -> None:
    """Do what one client asks until it hangs up, and nothing else meanwhile."""
    with suppress(EOFError, OSError), connection:
        while True:
            name, *words = (unpacked(word) for word in connection.recv())
            with lock:
                if name in ("pull", "target"):
                    into = torch.empty(size)
                    result = getattr(store, name)(into), packed(into)
                elif name == "push":
                    result = store.push(Update(*words))
                else:
                    own = getattr(store, name)
                    result = packed(own(*words) if callable(own) else own)
                connection.send(result)


class RemoteStore:
    """A handle is an address; each process has a connection of its own."""

    updates = property(lambda self: self.ask("updates"))
    lost = property(lambda self: self.ask("lost"))
    torn = property(lambda self: self.ask("torn"))

    def __init__(self, address: str) -> None:
        self.address, self.connection = address, None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.address,)

    def ask(self, *words: Any) -> Any:
        self.connection = self.connection or Client(self.address)
        self.connection.send([packed(word) for word in words])
        return unpacked(self.connection.recv())

    def copy(self, name: str, into: Tensor) -> Any:
        result, content = self.ask(name)
        into.copy_(torch.from_numpy(content))
        return result

    def pull(self, into: Tensor) -> int:
        return self.copy("pull", into)

    def target(self, into: Tensor) -> None:
        self.copy("target", into)

    def push(self, update: Update) -> Receipt:
        return self.ask("push", update.worker, update.gradient, update.version, update.steps, update.loss)

    def view(self) -> None:
        return None

    target_view = view

    def counts(self, worker: int | None = None) -> Counts:
        return self.ask("counts", worker)

    def snapshot(self) -> Tensor:
        return self.ask("snapshot")

    def state(self) -> dict[str, Tensor]:
        return self.ask("state")

    def restore(self, *words: Any) -> None:
        self.ask("restore", *words)

    def lose(self, updates: int) -> None:
        self.ask("lose", updates)


# The tests.
@contextmanager
def served(folder: Path, algorithm: str, **settings: Any) -> Iterator[Run]:
    """A run whose parameters are in private memory of this process, served by a thread per client."""
    run = make_run(folder / "remote", algorithm, **settings)
    initial, config, clock = run.handles.store.snapshot(), run.spec.config, run.handles.clock
    store = SharedStore(initial, config.descent, config.workers, clock, zeros=private_zeros)
    assert not store.theta.is_shared()
    address, lock, over = str(folder / "socket"), threading.Lock(), threading.Event()

    def serve() -> None:
        while True:
            connection = listener.accept()
            if over.is_set():
                connection.close()
                return
            threading.Thread(target=answer, args=(store, len(initial), connection, lock), daemon=True).start()

    with Listener(address) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        remote = RemoteStore(address)
        try:
            yield replace(run, handles=replace(run.handles, store=remote))
        finally:
            over.set()
            Client(address).close()
            thread.join()
            if remote.connection is not None:
                remote.connection.close()


def private_zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


SETTINGS: dict[str, Any] = {"total_steps": 3000, "evaluation_interval_steps": 1000, "evaluation_episodes": 2}


@pytest.mark.parametrize("algorithm", ["a3c", "one_step_q", "one_step_sarsa", "a2c", "ppo"])
def test_a_serial_run_with_one_worker_is_the_shared_stores_bit_by_bit(tmp_path: Path, algorithm: str) -> None:
    """Parameters, statistics, target and evaluations; an algorithm that would act on theta itself acts on copies."""
    settings = SETTINGS | {"workers": 1, "backend": "serial"}
    shared = make_run(tmp_path / "shared", algorithm, **settings)
    train(shared)

    with served(tmp_path, algorithm, **settings) as remote:
        train(remote)

    assert learnt(remote) == learnt(shared)
    assert learnt(shared)["counters"][1] > 10
    assert len(learnt(shared)["evaluations"]) >= 3


@pytest.mark.parametrize("backend", ["serial", "local"])
@pytest.mark.parametrize("algorithm", ["a3c", "one_step_q", "impala"])
def test_every_update_of_two_workers_arrives_exactly_once(tmp_path: Path, algorithm: str, backend: str) -> None:
    """What the records add up to, what the store counted, and what the checkpoint says."""
    with served(tmp_path, algorithm, **SETTINGS, workers=2, backend=backend) as run:
        train(run)
        updates = run.handles.store.updates

    path = run.spec.folder.path
    rows = [row for file in path.glob("*.jsonl") for row in read_records(file) if "time" in row]
    assert sum(row.get("updates", 0) for row in rows) == updates == status_of(path)["updates"] > 10
    assert load_newest(run.spec.folder.checkpoints)[0].updates == updates
    assert sum(row.get("worker_steps", 0) for row in rows) == status_of(path)["steps"] >= 3000
    assert not any(status_of(path)["unrecorded"].values())


def test_what_a_checkpoint_holds_can_be_put_back_into_it(tmp_path: Path) -> None:
    """What `restore` is given comes out of `snapshot` and `state` again."""
    with served(tmp_path, "one_step_q", workers=2) as run:
        store = run.handles.store
        theta, state = store.snapshot() + 1.0, store.state()
        state["statistics"] += 0.5

        store.restore(theta, state, Counts(30, 4))

        assert torch.equal(store.snapshot(), theta)
        assert torch.equal(store.state()["statistics"], state["statistics"])
        assert store.counts() == Counts(30, 4)


@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_the_doctor_listens_to_it(tmp_path: Path, algorithm: str) -> None:
    """Each gradient is the true one and reaches theta exactly once; the target is renewed when it is due."""
    target = {"target_interval_steps": 20} if algorithm == "n_step_q" else {}
    with served(tmp_path, algorithm, workers=1, envs_per_worker=1, t_max=10, **target) as run:
        findings = judged(run)

        assert (TARGET in {finding.check for finding in findings}) == bool(target)
        findings = [finding for finding in findings if finding.check != BOOTSTRAPS]  # no episode is cut
        assert [finding.verdict for finding in findings] == ["ok"] * len(findings), findings
