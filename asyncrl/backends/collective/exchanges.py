"""The collective operations of a group of ranks, by gloo."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo, Work

from asyncrl.backends.collective.board import Board, RanksLost, first_line
from asyncrl.backends.collective.launch import LOOPBACK, own_address
from asyncrl.backends.outcome import Signals
from asyncrl.runtime.clock import Watch, polling

LOOK_SECONDS = 0.5
"""Longest time for which an exchange is waited for without a look at signals."""
PATIENCE_SECONDS = 5.0
"""Time for an exchange to complete after a signal, before this rank leaves without the others."""
FOREVER = timedelta(days=365)
"""gloo's own limit for an exchange: its clock goes on while the whole run is suspended, so `Exchanges` has its own."""


class Interrupted(Exception):
    """A signal came before the run had begun, or a second one, or one while an exchange waits for other ranks."""


Ended = Callable[[float], bool]
"""Waits up to so many seconds for something to end; returns whether it has. Raises what that raised."""


def in_thread(call: Callable[[], object]) -> Ended:
    """Start a call that can only block, in a thread of its own."""
    failures: list[Exception] = []

    def make() -> None:
        try:
            call()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()

    def ended(seconds: float) -> bool:
        thread.join(seconds)
        if failures:
            raise failures[0]
        return not thread.is_alive()

    return ended


class Exchanges:
    """The exchanges of one run. If a rank does not take part in time, the run is lost."""

    def __init__(self, board: Board, seconds: float, signals: Signals) -> None:
        """Connects all ranks. Raises RanksLost."""
        self._board, self._seconds, self._signals = board, seconds, signals
        self._newest: Work | None = None
        self._group: Any = None
        """A ProcessGroupGloo; torch's stubs do not know its operations."""
        if board.size > 1:  # alone, the inputs are the results
            self._await(in_thread(self._connect))

    def _connect(self) -> None:
        """Connect to all other ranks through the interface that leads to rank 0.

        By default gloo often resolves the host's name to 127.0.0.1. The user's GLOO_SOCKET_IFNAME takes precedence, but
        for the loopback: there nobody else shall listen.
        """
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = FOREVER
        options._devices = [
            ProcessGroupGloo.create_device(interface=interface)
            if interface and self._board.host != LOOPBACK
            else ProcessGroupGloo.create_device(hostname=own_address(self._board.host))
        ]
        self._group = ProcessGroupGloo(self._board.store, self._board.rank, self._board.size, options)

    def reduce(self, vector: Tensor) -> Callable[[], None]:
        """Start to overwrite a vector with the sum of all ranks' vectors; returns a function that waits until done."""
        return self._begin(lambda group: group.allreduce([vector]))

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0."""
        self._begin(lambda group: group.broadcast(tensor, 0))()

    def share(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        tensors = [tensor.clone() for _ in range(self._board.size)]
        self._begin(lambda group: group.allgather([tensors], [tensor]))()
        return tensors

    def gather(self, message: Tensor) -> tuple[list[Tensor], float]:
        """Send bytes of any length to rank 0, which gets the messages of all ranks; the others get an empty list.

        Also returns the seconds spent waiting for the other ranks to arrive.
        """
        began = time.perf_counter()
        sizes = [int(size) for size in self.share(torch.tensor([message.numel()]))]
        waited = time.perf_counter() - began
        padded = torch.zeros(max(sizes), dtype=torch.uint8)  # gloo gathers tensors of one size
        padded[: message.numel()] = message
        gathered = [] if self._board.rank else [padded.clone() for _ in sizes]
        self._begin(lambda group: group.gather(gathered, padded, 0))()
        return [own[:size] for own, size in zip(gathered, sizes, strict=False)], waited

    def close(self) -> None:
        """Leave the group, unless an exchange still waits for another rank: it cannot be cancelled."""
        if self._newest is not None:
            with contextlib.suppress(RuntimeError):
                self._newest.wait(timedelta(seconds=LOOK_SECONDS))
            if not self._newest.is_completed():
                _abandoned.append(self._group)
        self._group = self._newest = None

    def _begin(self, start: Callable[[Any], Work]) -> Callable[[], None]:
        if self._group is None:
            return lambda: None
        self._board.begun, self._board.came = self._board.begun + 1, time.monotonic()
        try:
            work = self._newest = start(self._group)
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None

        def ended(seconds: float) -> bool:
            with contextlib.suppress(RuntimeError):  # timed out, or failed: see below
                work.wait(timedelta(seconds=seconds))
            if not work.is_completed():
                return False
            work.wait()  # raises if it has failed
            return True

        return lambda: self._await(ended)

    def _await(self, ended: Ended) -> None:
        """Wait for an exchange. Raises RanksLost if it fails, Interrupted after a signal if it takes too long."""
        asked, watch = None, Watch(PATIENCE_SECONDS)
        try:
            for _ in polling(self._seconds):
                if ended(min(LOOK_SECONDS, self._seconds / 8)):
                    return
                watch.look()
                if self._signals.first is not None:
                    asked = asked or time.monotonic()
                    if self._signals.urgent or watch.silence(asked) > PATIENCE_SECONDS:
                        raise Interrupted
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None
        raise RanksLost(f"an exchange took longer than {self._seconds:g} seconds")


_abandoned: list[Any] = []
"""Groups with an exchange that still waits for other ranks: to free them would wait, too."""


def leave(code: int) -> None:
    """End a rank that was launched: at once after a failure, since gloo's threads may wait for a rank that is gone."""
    if code not in (0, 2) or _abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
