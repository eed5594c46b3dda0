"""What every rank of a group does, and the processes of the ranks other than 0."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.algorithm import GRADIENT, algorithm_of
from asyncrl.backends.group import (
    GRACE_SECONDS,
    POLL_SECONDS,
    SILENT_SECONDS,
    Board,
    Exchanges,
    Interrupted,
    InThread,
    RanksLost,
    board_of,
    first_line,
    greet,
    leave,
    wait_for,
)
from asyncrl.backends.handles import clock_of, rollout_shape
from asyncrl.backends.launch import LOOPBACK, Launch
from asyncrl.backends.outcome import Signals
from asyncrl.config.run_config import RunConfig, from_plain, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience.gathered import Gathered, Kept
from asyncrl.parameters.replicas import Replicas
from asyncrl.runtime.accord import Accord
from asyncrl.runtime.clock import ENDED, RUNNING, Clock, Watch
from asyncrl.runtime.normalize import GROWTH, RunMoments
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.run import Handles, Role, Run, RunSpec, build_learner, build_worker
from asyncrl.storage.files import plain
from asyncrl.storage.run_folder import RunFolder

Places = Mapping[int, tuple[str, int]]
"""Host and process of each rank."""


MakeSpec = Callable[[RunConfig], EnvSpec]
"""Returns the environment that a configuration describes."""


@dataclass(frozen=True)
class Beginning:
    """What rank 0 tells the others, besides tensors: plain data."""

    run: Mapping[str, Any]
    """What the ranks of a launcher do not know of the run's description; those that rank 0 has started have it all."""
    steps: int
    seconds: float
    counts: Counts
    places: Places

    @classmethod
    def of(cls, run: Run, places: Places) -> Beginning:
        """That of a run."""
        spec, handles = run.spec, run.handles
        told = {
            "config": to_plain(spec.config),
            "spaces": dataclasses.asdict(spec.spaces),
            "folder": str(spec.folder.path),
            "layout": spec.layout,
            "part": spec.part,
        }
        return cls(told, handles.clock.steps, handles.clock.seconds, handles.store.counts(), places)

    def to_plain(self) -> dict[str, Any]:
        """As data for the board."""
        return dataclasses.asdict(self) | {"places": list(self.places.values())}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Beginning:
        """What `to_plain` wrote."""
        places = {rank: (host, pid) for rank, (host, pid) in enumerate(data["places"])}
        return cls(data["run"], data["steps"], data["seconds"], Counts(*data["counts"]), places)

    def spec(self, algorithm: str, make_spec: MakeSpec) -> RunSpec:
        """The description of the run, for a rank that was started with the command of `algorithm`."""
        config = from_plain(algorithm_of(algorithm).Config, self.run["config"])
        layout = tuple((name, tuple(shape)) for name, shape in self.run["layout"])
        folder = RunFolder(Path(self.run["folder"]))
        spaces = from_plain(Spaces, self.run["spaces"])
        return RunSpec(algorithm, config, make_spec(config), spaces, folder, layout, self.run["part"])


@dataclass(frozen=True)
class Seat:
    """What the process of a rank receives that rank 0 starts itself."""

    spec: RunSpec
    port: int
    secret: bytes = field(repr=False)


def take_turns(roles: Sequence[Role]) -> Iterator[None]:
    """Run the roles of a rank in turn until all have ended; yields after each round."""
    running = list(roles)
    while running:
        running = [role for role in running if next(role.loop, ENDED) is not ENDED]
        if running:
            yield


def connect(handles: Handles, exchanges: Exchanges) -> None:
    """Connect the store, and the experience if there is one, to the transport."""
    cast(Replicas, handles.store).connect(exchanges.reduce)
    if isinstance(handles.experience, Gathered):
        handles.experience.connect(exchanges.gather, exchanges.broadcast)


def equalise(handles: Handles, exchanges: Exchanges, rank: int, counts: Counts) -> None:
    """Copy rank 0's initial state to every rank: parameters, statistics, target, moments."""
    store, moments = handles.store, handles.moments
    theta, state, seen = store.snapshot(), store.state(), moments.state()
    for tensor in (theta, *(state[name] for name in sorted(state)), *(seen[name] for name in sorted(seen))):
        exchanges.broadcast(tensor)
    if rank != 0:
        store.restore(theta, state, counts)
        moments.restore(seen)


class Step:
    """What a rank does after each update, at the same T as all other ranks."""

    def __init__(self, run: Run, exchanges: Exchanges, signals: Signals) -> None:
        config = run.spec.config
        self._moments = run.handles.moments
        self._normalizes = config.normalize_observations or config.normalize_returns
        self._clock, self._accord = run.handles.clock, run.handles.accord
        self._exchanges, self._signals = exchanges, signals
        self._published = -1

    def after_update(self) -> None:
        """Pass a signal on to the next exchange; share moments if T has grown enough since the last time."""
        if self._signals.first is not None and self._accord is not None:
            self._accord.wish = self._signals.first
        steps = self._clock.steps
        if self._normalizes and steps >= GROWTH * self._published:
            assert self._moments.gathered is not None
            self._moments.publish(self._exchanges.share(self._moments.gathered))
            self._published = steps


class Mailbox:
    """A record writer that sends rows to rank 0, which has the run's folder."""

    missing = 0

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Send one row."""
        self._board.put(f"rows/{self._board.rank}/{self._sent}", plain(row))
        self._sent += 1

    def close(self) -> None:
        """Nothing is held."""


class NoWriter:
    """A record writer that discards its rows."""

    missing = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Discard one row."""

    def close(self) -> None:
        """Does nothing."""


def rank_process(seat: Seat, rank: int) -> None:
    """The process of a rank that rank 0 has started. It ignores signals: rank 0 decides when to stop."""
    try:
        board = Board(LOOPBACK, seat.port, rank, seat.spec.config.workers, seat.secret)
        greet(board, [])
        code = attend(board, Signals(), lambda _: seat.spec)
    except (RanksLost, RuntimeError, UsageError):  # rank 0 was lost while this rank started
        code = 1
    if code:
        os._exit(code)


def attend_launched(launch: Launch, algorithm: str, words: Sequence[str], make_spec: MakeSpec) -> int:
    """Run a rank other than 0 that a launcher has started; returns the exit code."""
    try:
        board = board_of(launch)
        greet(board, words)
        with Signals().caught() as signals:
            code = attend(board, signals, lambda beginning: beginning.spec(algorithm, make_spec))
    except (RanksLost, RuntimeError, UsageError) as error:
        print_line(f"asyncrl: rank {launch.rank} on {socket.gethostname()}: {first_line(error)}", error=True)
        code = 2 if isinstance(error, UsageError) else 1
    leave(code, at_once=code not in (0, 2))  # gloo's threads may wait for a rank that is gone
    return code


def attend(board: Board, signals: Signals, spec_of: Callable[[Beginning], RunSpec]) -> int:
    """Run a rank other than 0 when rank 0 says so; returns the exit code. Rank 0 reports its exceptions."""
    board.beat()
    exchanges: Exchanges | None = None
    places: Places = {}
    try:
        word = wait_for(board, "answer")
        if isinstance(word, int):
            board.put(f"ended/{board.rank}", True)
            return word
        beginning = Beginning.from_plain(word)
        spec, places = spec_of(beginning), beginning.places
        exchanges = Exchanges(board, spec.config.collective_timeout_seconds, signals)
        size = sum(int(torch.Size(shape).numel()) for _, shape in spec.layout)
        handles = share(spec, torch.zeros(size), beginning.steps, beginning.seconds, board.rank)
        equalise(handles, exchanges, board.rank, beginning.counts)
        connect(handles, exchanges)
        return _work(Run(spec, handles), board, exchanges, signals)
    except (RanksLost, dist.DistError) as error:
        last_resort = threading.Timer(2 * GRACE_SECONDS, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        _leave(board, error, places)
        return 1
    except Interrupted:
        with contextlib.suppress(RuntimeError):
            board.put(f"heard/{board.rank}", True)
            board.put(f"left/{board.rank}", "a signal")
        return 128 + cast(int, signals.first)
    except BaseException as error:  # of user code, SystemExit too
        text = "".join(format_exception(error))
        with contextlib.suppress(RuntimeError):
            board.put(f"cause/{board.rank}", [f"{type(error).__name__}: {error}", text])
        return 1
    finally:
        board.close()
        if exchanges is not None:
            exchanges.close()


def _work(run: Run, board: Board, exchanges: Exchanges, signals: Signals) -> int:
    """Act and push until all ranks leave; returns the exit code."""
    clock, accord = run.handles.clock, run.handles.accord
    assert accord is not None

    def mailbox(_: Path) -> Mailbox:
        return Mailbox(board)

    with contextlib.ExitStack() as stack:
        roles = [stack.enter_context(contextlib.closing(build_worker(run, board.rank, make_writer=mailbox)))]
        if isinstance(run.handles.experience, Kept):  # its learner's rows would only repeat rank 0's
            learner = build_learner(run, make_writer=lambda _: NoWriter())
            roles.append(stack.enter_context(contextlib.closing(learner)))
        board.put(f"ready/{board.rank}", True)
        wait_for(board, "go")
        _begin_clock(clock, board.size)
        step = Step(run, exchanges, signals)
        for _ in take_turns(roles):
            step.after_update()
    board.put(f"ended/{board.rank}", True)
    return 128 + accord.decided if accord.decided > 0 else 0


def _begin_clock(clock: Clock, size: int) -> None:
    for worker in range(size):
        clock.enter(worker, RUNNING)
    clock.start()


def _leave(board: Board, error: Exception, places: Places) -> None:
    """Report that an exchange failed through no fault of this rank; if it is rank 0 that is lost, say so here."""
    speaks = speaks_for_rank_0(board.rank, places)  # asked now, since the others will leave too
    report = InThread(lambda: _report(board, error))  # the board may be behind a broken link, and never answer
    watch, began = Watch(GRACE_SECONDS), time.monotonic()
    try:
        while not report.is_completed() and watch.silence(began) < GRACE_SECONDS:
            report.wait(timedelta(seconds=POLL_SECONDS))
        if report.is_completed():
            report.wait()
            return
        trouble = "does not answer: it hangs, or cannot be reached"
    except RuntimeError:
        trouble = "is gone, and the run with it"
    if speaks:
        host = places[0][0] if places else board.host
        print_line(f"asyncrl: rank 0 on {host} {trouble} ({first_line(error)})", error=True)
        time.sleep(SILENT_SECONDS)  # ranks that notice it later see that this one lives, and has said so


def _report(board: Board, error: Exception) -> None:
    """Tell rank 0, and return once it has come as far as this rank, or ends the run. Raises RuntimeError if it is gone.

    A rank 0 that hangs in an environment still has its heartbeat, but begins no exchange.
    """
    board.put(f"left/{board.rank}", first_line(error))
    before = board.beats().get(0)
    board.put(f"heard/{board.rank}", True)  # an answer came back, so the link is not cut in one direction only
    while board.get("over") is None:
        beat = board.beats().get(0)
        if beat is not None and beat != before and beat[1] >= board.begun:
            return
        time.sleep(POLL_SECONDS)


def speaks_for_rank_0(rank: int, places: Places) -> bool:
    """Whether this rank says that rank 0 is lost: the lowest of its host that lives.

    Hosts cannot ask each other without rank 0, so this is for its host and the next one only.
    """
    if not places:  # rank 0 has not told yet
        return rank == 1
    hosts = list(dict.fromkeys(host for _, (host, _) in sorted(places.items())))
    here = places[rank][0]
    return here in hosts[:2] and not any(lives(places[r][1]) for r in range(1, rank) if places[r][0] == here)


def lives(pid: int) -> bool:
    """Whether a process of this host runs, and is neither stopped nor dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "TtZX"
    except OSError:
        return False


def share(spec: RunSpec, theta: Tensor, steps: int = 0, seconds: float = 0.0, rank: int = 0) -> Handles:
    """What one rank has, the transport still missing; begun as `clock_of` says."""
    config, kind, clock, accord = spec.config, spec.method.experience, clock_of(spec, steps, seconds), Accord()
    reduces = config.reduce == "gradients" and kind != GRADIENT
    overlap = config.overlap and kind == GRADIENT
    store = Replicas(
        theta, config.descent, config.workers, rank, clock, accord, config.check_replicas, reduces, overlap
    )
    experience: Gathered | Kept | None = None
    if kind != GRADIENT:
        shape = rollout_shape(spec)
        experience = Kept(shape, clock) if reduces else Gathered(shape, config.workers, rank, clock, store, accord)
    return Handles(store, clock, RunMoments(config.workers, spec.moments_size, rank=True), experience, accord)
