"""A group of ranks: where they meet, the messages between them, and their exchanges.

The transport is torch's: gloo for exchanges, and a key-value store at rank 0 for all other messages, which are plain
data with a seal (`backends/seals.py`).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from asyncrl.backends.launch import LOOPBACK, Launch, interface_towards, own_address, tcp_address
from asyncrl.backends.outcome import Signals
from asyncrl.backends.seals import SECRET, Sealed
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.runtime.clock import Watch
from asyncrl.storage.run_folder import versions

JOIN_SECONDS = 300.0
"""Time for all ranks to join, and again to build their environments."""
BEAT_SECONDS = 1.0
"""Interval between a rank's heartbeats."""
SILENT_SECONDS = 3.5
"""A rank without a heartbeat for this long is lost."""
GRACE_SECONDS = 10.0
"""Time for a rank to leave after the run, before it kills itself."""
LOOK_SECONDS = 0.5
"""Interval at which rank 0 checks on its evaluator and the rows of other ranks."""
PATIENCE_SECONDS = 5.0
"""Time for an exchange to complete after a signal, before this rank leaves without the others."""
POLL_SECONDS = 0.02
DOUBT_SECONDS = 10.0
"""Time for rank 0 to replace a message that lacks the secret, before its ranks conclude that it has another one."""
FOREVER = timedelta(days=365)
"""gloo's own limit for an exchange: its clock goes on while the whole run is suspended, so `Exchanges` has its own."""


class RanksLost(Exception):
    """An exchange failed because ranks are gone, or too late."""


class Interrupted(Exception):
    """A signal came before the run had begun, or a second one, or one while an exchange waits for other ranks."""


class Board:
    """Messages between ranks besides the exchanges: keys and values in a store at rank 0, readable by all.

    A thread publishes once a second that this process is alive, and how many exchanges it has begun. It also ends the
    process if the run is over but the process does not notice, because it hangs in an environment or cannot reach rank
    0's host.
    """

    def __init__(self, host: str, port: int, rank: int, size: int, secret: bytes, serve: bool = False) -> None:
        """`serve`: the store is here, at no other address than `host`; port 0 picks a free one.

        Raises RanksLost if no store answers in JOIN_SECONDS, UsageError if rank 0 has another `secret`.
        """
        self.rank, self.size = rank, size
        self.begun = 0
        """Exchanges this rank has begun."""
        self._store = _serve_store(host, port) if serve else _open_store(host, port)
        self.host, self.port = host, int(self._store.port)
        self._warned = False
        self._joining = Sealed(self._store, secret, self._warn)
        self._nonce = secrets.token_hex(16) if serve else ""
        self.announce()
        nonce: str = self._nonce or await_rank_0(self._store, secret, "nonce", f"{host}:{port}")
        self._seal = hmac.digest(secret, nonce.encode(), "sha256")  # messages of earlier runs are strangers', too
        self._values = Sealed(self._store, self._seal, self._warn)
        self._beats: dict[int, tuple[int, int]] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def store(self) -> Store:
        """The part of the store that gloo uses to connect."""
        return PrefixStore("gloo", self._store)

    def announce(self) -> None:
        """Rank 0: tell those who know the secret which run this is; again, if a stranger has overwritten it."""
        if self._nonce:
            self._joining.put("nonce", self._nonce)

    def put(self, key: str, value: Any) -> None:
        """Write a value that all ranks can read: plain data, not None."""
        self._values.put(key, value)

    def get(self, key: str) -> Any:
        """A value; None if there is none of a rank of this run."""
        return self._values.get(key)

    def take(self, key: str) -> Any:
        """Read a value and delete it; None if there is none."""
        return self._values.take(key)

    def each(self, key: str) -> dict[int, Any]:
        """The values that ranks have written under `key/RANK`, by rank."""
        found = {rank: self.get(f"{key}/{rank}") for rank in range(self.size)}
        return {rank: value for rank, value in found.items() if value is not None}

    def beat(self, end: Callable[[int], None] = os._exit) -> None:
        """Start the heartbeat. `end` kills this process if it must."""
        values = Sealed(_open_store(self.host, self.port), self._seal, self._warn)
        others = range(1, self.size)
        leaving = ["over"] if self.rank else [f"left/{rank}" for rank in others]
        watched = [] if self.rank else ["answer", "go", "over", *(f"beat/{rank}" for rank in others)]

        def live() -> None:
            count, over_since, watch = 0, None, Watch(GRACE_SECONDS)
            while not self._closed.wait(BEAT_SECONDS):
                watch.look()
                try:
                    count += 1
                    values.put(f"beat/{self.rank}", [count, self.begun])
                    found = {key: values.get(key) for key in (*leaving, *watched)}  # which warns of strangers
                    over = any(found[key] is not None for key in leaving)
                except RuntimeError:  # rank 0 or the connection to it is lost
                    over = True
                over_since = (over_since or time.monotonic()) if over else None
                if over_since is not None and watch.silence(over_since) > GRACE_SECONDS and not self._closed.is_set():
                    print_line(f"asyncrl: rank {self.rank} hangs at the end of the run, and ends itself", error=True)
                    end(1)

        self._thread = threading.Thread(target=live, daemon=True, name="beat")
        self._thread.start()

    def beats(self) -> dict[int, tuple[int, int]]:
        """The number of heartbeats of each rank, and of exchanges begun by the last one. Neither ever falls."""
        for rank, (count, begun) in self.each("beat").items():
            self._beats[rank] = max(self._beats.get(rank, (0, 0)), (count, begun))
        return dict(self._beats)

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * BEAT_SECONDS)

    def _warn(self, key: str) -> None:
        """Say once for all ranks that there is a stranger."""
        if self.rank == 0 and not self._warned:
            self._warned = True
            print_line(f"asyncrl: a message without this run's secret was ignored ({key})", error=True)


def _serve_store(host: str, port: int) -> TCPStore:
    """A store that listens at `host` only: by itself it would listen on all interfaces."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family) as own:
            place = os.dup(own.fileno())  # the store closes it
            number = own.getsockname()[1]
            return TCPStore(host, number, None, True, wait_for_workers=False, master_listen_fd=place)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"cannot listen at {host}:{port}, where ranks should meet: {first_line(error)}") from None


def _open_store(host: str, port: int) -> TCPStore:
    try:
        return TCPStore(host, port, None, False, timedelta(seconds=JOIN_SECONDS), wait_for_workers=False)
    except (RuntimeError, ValueError):
        raise RanksLost(f"nobody answers at {host}:{port}, where ranks should meet") from None


def await_rank_0(store: Store, secret: bytes, key: str, place: str) -> Any:
    """Wait until rank 0 has written a value. Raises RanksLost if it does not, UsageError if it has another secret."""
    doubtful: list[float] = []
    watch, began = Watch(DOUBT_SECONDS), time.monotonic()
    values = Sealed(store, secret, lambda _: doubtful.append(time.monotonic()))
    while (value := values.get(key)) is None:
        if doubtful and watch.silence(doubtful[0]) > DOUBT_SECONDS:
            raise UsageError(
                f"what rank 0 says at {place} does not carry this rank's secret: give all ranks the same {SECRET}"
            )
        if watch.silence(began) > JOIN_SECONDS:
            raise RanksLost(f"rank 0 did not come within {JOIN_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return value


def first_line(error: BaseException) -> str:
    """What happened in an error of gloo, which can be pages long, without the location in its source."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\.(cc|h):\d+\] ", "", line).split(". ")[0]


class Exchanges:
    """The collective operations of a group of ranks. If a rank does not take part in time, the run is lost."""

    def __init__(self, board: Board, seconds: float, signals: Signals) -> None:
        """Connects all ranks. Raises RanksLost, and UsageError in a program that uses torch.distributed itself."""
        if dist.is_initialized():
            raise UsageError("--backend collective needs torch.distributed for itself; this program already uses it")
        self._board = board
        self._signals = signals
        self._seconds = seconds
        self._newest: Work | None = None
        with interface_towards(board.host):
            self._in_thread(lambda: dist.init_process_group("gloo", None, FOREVER, board.size, board.rank, board.store))

    def reduce(self, vector: Tensor) -> Callable[[], None]:
        """Start to overwrite a vector with the sum of all ranks' vectors; returns a function that waits until done."""
        return self._begin(lambda: dist.all_reduce(vector, async_op=True))

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0."""
        self._begin(lambda: dist.broadcast(tensor, 0, async_op=True))()

    def share(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        tensors = [tensor.clone() for _ in range(self._board.size)]
        self._begin(lambda: dist.all_gather(tensors, tensor, async_op=True))()
        return tensors

    def gather(self, message: Tensor) -> tuple[list[Tensor], float]:
        """Send bytes of any length to rank 0, which gets the messages of all ranks; the others get an empty list.

        Also returns the seconds spent waiting for the other side to arrive.
        """
        messages, waited = [message], 0.0
        size = torch.tensor([message.numel()])

        def agree(exchange: Callable[..., object], rank: int) -> None:
            nonlocal waited
            began = time.perf_counter()
            exchange(size, rank)
            waited += time.perf_counter() - began

        def send() -> None:
            agree(dist.send, 0)
            dist.send(message, 0)

        def receive() -> None:
            for rank in range(1, self._board.size):
                agree(dist.recv, rank)
                messages.append(torch.empty(int(size), dtype=torch.uint8))
                dist.recv(messages[-1], rank)

        self._in_thread(send if self._board.rank else receive)
        return [] if self._board.rank else messages, waited

    def close(self) -> None:
        """Leave the group, unless an exchange still waits for another rank: it cannot be cancelled."""
        if self._newest is not None:
            with contextlib.suppress(RuntimeError):
                self._newest.wait(timedelta(seconds=LOOK_SECONDS))
            if not self._newest.is_completed():
                _abandoned.append(self._newest)
                return
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _in_thread(self, exchange: Callable[[], object]) -> None:
        """Run an operation of gloo that can only block, in a thread."""
        self._begin(lambda: InThread(exchange))()

    def _begin(self, start: Callable[[], Work]) -> Callable[[], None]:
        if self._board.size == 1:  # alone: the inputs are the results
            return lambda: None
        self._board.begun += 1
        try:
            work = self._newest = start()
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None
        return lambda: self._await(work)

    def _await(self, work: Work) -> None:
        """Wait for an exchange. Raises RanksLost if it fails, Interrupted after a signal if it takes too long."""
        asked, began = None, time.monotonic()
        watch = Watch(min(self._seconds, PATIENCE_SECONDS))
        while not work.is_completed():
            with contextlib.suppress(RuntimeError):  # timed out, or failed: see below
                work.wait(timedelta(seconds=min(LOOK_SECONDS, self._seconds / 8)))
            waited = watch.silence(began)
            if work.is_completed():
                break
            if self._signals.first is not None:
                asked = asked or time.monotonic()
                if self._signals.urgent or watch.silence(asked) > PATIENCE_SECONDS:
                    raise Interrupted
            if waited > self._seconds:
                raise RanksLost(f"an exchange took longer than {self._seconds:g} seconds")
        try:
            work.wait()
        except RuntimeError as error:
            raise RanksLost(first_line(error)) from None


_abandoned: list[Work] = []
"""Exchanges that this process has left, and that may still wait for other ranks."""


def leave(code: int, at_once: bool = False) -> None:
    """Exit at once if asked to, or if one of gloo's threads still waits in an exchange: a normal exit would, too."""
    if at_once or not all(work.is_completed() for work in _abandoned):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Work(Protocol):
    """An exchange that has begun."""

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        ...

    def wait(self, timeout: timedelta = ...) -> object:
        """Wait for its end. Raises RuntimeError if it failed or the time is up."""
        ...


class InThread:
    """An exchange in a thread of its own, for operations that would be aborted by a wait with a time-out."""

    def __init__(self, exchange: Callable[[], object]) -> None:
        self._exchange = exchange
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._make, daemon=True, name="exchange")
        self._thread.start()

    def _make(self) -> None:
        try:
            self._exchange()
        except Exception as error:
            self._error = error

    def is_completed(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait for its end, up to `timeout`. Raises what the exchange raised."""
        self._thread.join(None if timeout is None else timeout.total_seconds())
        if self._error is not None:
            raise self._error


def board_of(launch: Launch) -> Board:
    """The board of a launched group, at rank 0; the others find it through the launcher's address.

    Raises RanksLost if rank 0 does not come, UsageError without a secret that all ranks share.
    """
    shared = launch.address.startswith("file://")
    host, port = (socket.gethostbyname(socket.gethostname()), 0) if shared else tcp_address(launch.address)
    secret = launch.secret(host)
    here = LOOPBACK if launch.meets_here(host) else own_address(host)
    if not (launch.agent or shared):
        serves = launch.rank == 0
        return Board(here if serves or here == LOOPBACK else host, port, launch.rank, launch.size, secret, serves)
    # The launcher's own store, or a file, only tells where the board is.
    common: Store = (
        FileStore(launch.address.removeprefix("file://"), launch.size) if shared else _open_store(host, port)
    )
    key = f"asyncrl/{launch.attempt}/board"
    if launch.rank == 0:
        board = Board(here, 0, 0, launch.size, secret, serve=True)
        Sealed(common, secret).put(key, [board.host, board.port])
        return board
    place, number = await_rank_0(common, secret, key, launch.address)
    return Board(place, number, launch.rank, launch.size, secret)


def greet(board: Board, words: Sequence[str]) -> None:
    """Publish who this rank is, and how it was started."""
    hello = {"host": socket.gethostname(), "pid": os.getpid(), "words": list(words), "versions": versions()}
    board.put(f"hello/{board.rank}", hello)


def await_hellos(board: Board, goes_on: Callable[[], None] = lambda: None) -> dict[int, dict[str, Any]]:
    """The greetings of all ranks. Calls `goes_on`, which may raise, meanwhile. Raises UsageError for a late rank."""
    watch, began = Watch(JOIN_SECONDS), time.monotonic()
    found: dict[int, dict[str, Any]] = {}
    while len(found := found | board.each("hello")) < board.size:
        goes_on()
        board.announce()
        if watch.silence(began) > JOIN_SECONDS:
            missing = ", ".join(str(rank) for rank in range(board.size) if rank not in found)
            raise UsageError(f"after {JOIN_SECONDS:.0f} s rank {missing} of {board.size} has not joined")
        time.sleep(POLL_SECONDS)
    return dict(sorted(found.items()))


def disagreement(rank: int, hello: Mapping[str, Any], first: Mapping[str, Any]) -> str | None:
    """How a rank's settings or versions differ from rank 0's, in one line; None if they do not."""
    who = f"rank {rank} on {hello['host']}"
    for package, version in first["versions"].items():
        if hello["versions"].get(package) != version:
            return f"{who} has {package} {hello['versions'].get(package)}, rank 0 has {version}"
    if hello["words"] != first["words"]:
        here, there = first["words"], hello["words"]
        place = next(
            (i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there))
        )
        shown = [" ".join(words[max(0, place - 1) : place + 2]) or "nothing" for words in (there, here)]
        return f"{who} has other settings than rank 0: {shown[0]!r} instead of {shown[1]!r}"
    return None


def wait_for(board: Board, key: str) -> Any:
    """Wait for a message of rank 0. Raises RanksLost if the run is over before it comes."""
    while (value := board.get(key)) is None:
        if board.get("over") is not None:
            raise RanksLost("the run is over")
        time.sleep(POLL_SECONDS)
    return value
