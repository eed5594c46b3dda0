"""Where ranks meet, and their messages besides the exchanges: a key-value store at rank 0, readable by all.

The store is torch's. Anybody who reaches its port can write to it, so values are plain data, sent as JSON, with a seal
that only those can make who know the run's secret. Whatever else is there counts as absent.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any, cast

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from asyncrl.backends.collective.launch import LOOPBACK, SECRET, Launch, own_address, tcp_address
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.runtime.clock import Watch, polling
from asyncrl.storage.run_folder import versions

JOIN_SECONDS = 300.0
"""Time for all ranks to join, and again to build their environments."""
BEAT_SECONDS = 1.0
"""Interval between a rank's heartbeats."""
GRACE_SECONDS = 10.0
"""Time for a rank to leave after the run, before it kills itself."""
POLL_SECONDS = 0.02
DOUBT_SECONDS = 10.0
"""Time for rank 0 to replace a message that lacks the secret, before its ranks conclude that it has another one."""
SEAL_BYTES = 32
ABSENT = "\0absent"
"""Never a value: it has no seal."""


class RanksLost(Exception):
    """Ranks are gone, or too late."""


class Sealed:
    """The values in a store that carry a seal made with `secret`: an HMAC of key and value.

    So no value can be moved to another key.
    """

    def __init__(self, store: Store, secret: bytes, warn: Callable[[str], None] = lambda key: None) -> None:
        """`warn` is called with each key whose value was ignored."""
        self._values, self._secret, self._stranger = store, secret, warn

    def put(self, key: str, value: Any) -> None:
        """Write a value that JSON can hold; None counts as absent."""
        text = json.dumps(value).encode()
        self._values.set(key, cast(str, self._seal(key, text) + text))  # typed as str, but it accepts bytes

    def get(self, key: str) -> Any:
        """A value; None if there is none, or one without a valid seal."""
        found = self._values.compare_set(key, ABSENT, ABSENT)  # `get` would wait for a key that does not exist
        if found == ABSENT.encode():
            return None
        seal, text = found[:SEAL_BYTES], found[SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(key, text)):
            self._stranger(key)
            return None
        return json.loads(text)

    def take(self, key: str) -> Any:
        """Read a value and delete it; None if there is none."""
        value = self.get(key)
        if value is not None:
            self._values.delete_key(key)
        return value

    def _seal(self, key: str, text: bytes) -> bytes:
        return hmac.digest(self._secret, key.encode() + b"\0" + text, "sha256")


class Board(Sealed):
    """The messages of one run's ranks.

    A thread publishes once a second that this process is alive, and how many exchanges it has begun. It also ends the
    process if the run is over but the process does not notice, because it hangs in an environment or cannot reach rank
    0's host.
    """

    def __init__(self, host: str, port: int, rank: int, size: int, secret: bytes, serve: bool = False) -> None:
        """`serve`: the store is here, at no other address than `host`; port 0 picks a free one.

        Raises RanksLost if no store answers in JOIN_SECONDS, UsageError if rank 0 has another `secret`.
        """
        self.rank, self.size = rank, size
        self.begun, self.came = 0, time.monotonic()
        """Exchanges this rank has begun, and when it came to the newest one."""
        store = _serve_store(host, port) if serve else _open_store(host, port)
        self.host, self.port = host, int(store.port)
        self.store: Store = PrefixStore("gloo", store)
        """The part of the store that gloo uses to connect."""
        self._joining = Sealed(store, secret, self._warn)
        self._warned = False
        self._nonce = secrets.token_hex(16) if serve else ""
        self.announce()
        nonce = self._nonce or self._join(store, secret)
        # Messages of earlier runs are strangers', too.
        super().__init__(store, hmac.digest(secret, nonce.encode(), "sha256"), self._warn)
        self._beats: dict[int, tuple[int, int]] = {}
        self._closed, self._noticed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def announce(self) -> None:
        """Rank 0: tell those who know the secret that it is here, and whoever asks which run this is.

        Repeated, a stranger cannot prevent it by overwriting a message. The question is part of the answer, so that no
        answer of an earlier run is taken for one.
        """
        if self._nonce:
            self._joining.put("here", True)
            for rank in range(1, self.size):
                if (question := self._joining.get(f"question/{rank}")) is not None:
                    self._joining.put(f"nonce/{rank}", [question, self._nonce])

    def _join(self, store: Store, secret: bytes) -> str:
        """Ask rank 0 which run this is."""
        await_rank_0(store, secret, "here", f"{self.host}:{self.port}")
        question = secrets.token_hex(16)
        for _ in polling(JOIN_SECONDS, POLL_SECONDS):
            self._joining.put(f"question/{self.rank}", question)
            answer = self._joining.get(f"nonce/{self.rank}")
            if answer is not None and answer[0] == question:
                return str(answer[1])
        raise RanksLost(f"rank 0 at {self.host}:{self.port} did not answer within {JOIN_SECONDS:.0f} s")

    def each(self, key: str) -> dict[int, Any]:
        """The values that ranks have written under `key/RANK`, by rank."""
        found = {rank: self.get(f"{key}/{rank}") for rank in range(self.size)}
        return {rank: value for rank, value in found.items() if value is not None}

    def beat(self, end: Callable[[int], None] = os._exit, patience: float = 0.0) -> None:
        """Start the heartbeat. `end` kills this process if it has not noticed the end of the run in time.

        `patience` are seconds beyond GRACE_SECONDS: it may still be on its way to an exchange that will fail.
        """
        own = Sealed(_open_store(self.host, self.port), self._secret, self._warn)  # the other one may be waiting
        leaving = ["over"] if self.rank else [f"left/{rank}" for rank in range(1, self.size)]

        def live() -> None:
            count, over_since, watch = 0, None, Watch(GRACE_SECONDS)
            while not self._closed.wait(BEAT_SECONDS):
                watch.look()
                try:
                    count += 1
                    own.put(f"beat/{self.rank}", [count, self.begun])
                    over = any(own.get(key) is not None for key in leaving)
                except RuntimeError:  # rank 0 or the connection to it is lost
                    over = True
                over_since = (over_since or time.monotonic()) if over else None
                late = over_since is not None and watch.silence(over_since) > GRACE_SECONDS + patience
                if late and not (self._noticed.is_set() or self._closed.is_set()):
                    print_line(
                        f"asyncrl: rank {self.rank} does not respond at the end of the run, so it exits", error=True
                    )
                    end(1)

        self._thread = threading.Thread(target=live, daemon=True, name="beat")
        self._thread.start()

    def beats(self) -> dict[int, tuple[int, int]]:
        """The number of heartbeats of each rank, and of exchanges begun by the last one. Neither ever falls."""
        for rank, (count, begun) in self.each("beat").items():
            self._beats[rank] = max(self._beats.get(rank, (0, 0)), (count, begun))
        return dict(self._beats)

    def wait_for(self, key: str) -> Any:
        """Wait for a message of rank 0. Raises RanksLost if the run is over before it comes."""
        while (value := self.get(key)) is None:
            if self.get("over") is not None:
                raise RanksLost("the run is over")
            time.sleep(POLL_SECONDS)
        return value

    def greet(self, words: Sequence[str], **more: Any) -> None:
        """Publish who this rank is, how it was started, and whatever else."""
        who = {"host": socket.gethostname(), "words": list(words), "versions": versions()}
        self.put(f"hello/{self.rank}", who | more)

    def await_hellos(self, goes_on: Callable[[], None] = lambda: None) -> dict[int, dict[str, Any]]:
        """The greetings of all ranks. Meanwhile calls `goes_on`, which may raise. Raises UsageError for a late rank."""
        found: dict[int, dict[str, Any]] = {}
        for _ in polling(JOIN_SECONDS, POLL_SECONDS):
            found |= self.each("hello")
            if len(found) == self.size:
                return dict(sorted(found.items()))
            goes_on()
            self.announce()
        missing = ", ".join(str(rank) for rank in range(self.size) if rank not in found)
        raise UsageError(f"after {JOIN_SECONDS:.0f} s rank {missing} of {self.size} has not joined")

    def await_ended(self) -> None:
        """Rank 0: wait for the others to leave, since they need the board; not for ever."""
        others = self.each("hello").keys() - {0}
        for _ in polling(GRACE_SECONDS, POLL_SECONDS):
            if others <= self.each("ended").keys():
                return

    def notice(self) -> None:
        """This process knows that the run is over, and ends by itself."""
        self._noticed.set()

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


def await_rank_0(store: Store, secret: bytes, key: str, place: str) -> Any:
    """Wait until rank 0 has written a value. Raises RanksLost if it does not, UsageError if it has another secret."""
    doubtful: list[float] = []
    watch = Watch(DOUBT_SECONDS)
    values = Sealed(store, secret, lambda _: doubtful.append(time.monotonic()))
    for _ in polling(JOIN_SECONDS, POLL_SECONDS):
        watch.look()
        if (value := values.get(key)) is not None:
            return value
        if doubtful and watch.silence(doubtful[0]) > DOUBT_SECONDS:
            raise UsageError(
                f"rank 0's message at {place} does not carry this rank's secret: set the same {SECRET} for all ranks"
            )
    raise RanksLost(f"rank 0 did not appear within {JOIN_SECONDS:.0f} s")


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
        raise RanksLost(f"nothing answers at {host}:{port}, where ranks should meet") from None


def disagreement(rank: int, hello: Mapping[str, Any], first: Mapping[str, Any]) -> str | None:
    """How a rank's settings or versions differ from rank 0's, in one line; None if they do not."""
    who = f"rank {rank} on {hello['host']}"
    for package, version in first["versions"].items():
        if hello["versions"].get(package) != version:
            return f"{who} has {package} {hello['versions'].get(package)}, rank 0 has {version}"
    here, there = first["words"], hello["words"]
    if here != there:
        place = next(i for i, (a, b) in enumerate(zip_longest(here, there)) if a != b)
        shown = [" ".join(words[max(0, place - 1) : place + 2]) or "nothing" for words in (there, here)]
        return f"{who} has different settings from rank 0: {shown[0]!r} instead of {shown[1]!r}"
    return None


def first_line(error: BaseException) -> str:
    """What happened in an error of gloo, which can be pages long, without the location in its source."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^]]*\.(cc|h):\d+\] ", "", line).split(". ")[0]
