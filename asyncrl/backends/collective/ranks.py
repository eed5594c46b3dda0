"""What every rank of a group does, and the processes of the ranks other than 0."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from traceback import format_exception
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import DistError

from asyncrl.algorithm import GRADIENT, algorithm_of
from asyncrl.backends.collective.board import GRACE_SECONDS, Board, RanksLost, board_of, first_line
from asyncrl.backends.collective.exchanges import Exchanges, Interrupted, in_thread, leave
from asyncrl.backends.collective.launch import LOOPBACK, Launch
from asyncrl.backends.handles import clock_of, rollout_shape
from asyncrl.backends.outcome import Signals
from asyncrl.config.run_config import from_plain, to_plain
from asyncrl.core.errors import UsageError
from asyncrl.core.output import print_line
from asyncrl.core.spaces import Spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.experience.gathered import Gathered, Kept
from asyncrl.parameters.replicas import Replicas
from asyncrl.runtime.agreement import Agreement
from asyncrl.runtime.clock import ENDED, RUNNING
from asyncrl.runtime.normalize import GROWTH, RunMoments
from asyncrl.runtime.protocols import Counts
from asyncrl.runtime.roles import Role, build_learner, build_worker
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.runtime.seeding import seed_libraries
from asyncrl.storage.files import plain
from asyncrl.storage.rows import Passed
from asyncrl.storage.run_folder import RunFolder

Beginning = Mapping[str, Any]
"""What rank 0 tells the others when a run begins, besides tensors."""


def beginning_of(run: Run) -> Beginning:
    """That of a run: what the ranks of a launcher do not know of its description, and its counts, as plain data."""
    spec, handles = run.spec, run.handles
    return {
        "config": to_plain(spec.config),
        "spaces": dataclasses.asdict(spec.spaces),
        "folder": str(spec.folder.path),
        "layout": spec.layout,
        "part": spec.part,
        "steps": handles.clock.steps,
        "seconds": handles.clock.seconds,
        "counts": handles.store.counts(),
        "lost": handles.store.lost,
    }


def spec_from(told: Beginning, algorithm: str) -> RunSpec:
    """The description of the run, for a rank that was started with the command of `algorithm`."""
    config = from_plain(algorithm_of(algorithm).Config, told["config"])
    layout = tuple((name, tuple(shape)) for name, shape in told["layout"])
    folder, spaces = RunFolder(Path(told["folder"])), from_plain(Spaces, told["spaces"])
    parts: Any = spaces.parts
    spaces = dataclasses.replace(spaces, parts=tuple(from_plain(Spaces, part) for part in parts))
    return RunSpec(algorithm, config, EnvSpec.of(config), spaces, folder, layout, told["part"])


def share(spec: RunSpec, theta: Tensor, steps: int = 0, seconds: float = 0.0, rank: int = 0) -> Handles:
    """What one rank has, the transport still missing; begun as `clock_of` says."""
    config, kind, clock, agreement = spec.config, spec.method.experience, clock_of(spec, steps, seconds), Agreement()
    reduces = config.reduce == "gradients" and kind != GRADIENT
    overlap = config.overlap and kind == GRADIENT
    store = Replicas(
        theta, config.descent, config.workers, rank, clock, agreement, config.check_replicas, reduces, overlap
    )
    experience: Gathered | Kept | None = None
    if kind != GRADIENT:
        shape = rollout_shape(spec)
        experience = Kept(shape, clock) if reduces else Gathered(shape, config.workers, rank, clock, store, agreement)
    return Handles(store, clock, RunMoments(config.workers, spec.moments_size, rank=True), experience, agreement)


def connect(handles: Handles, exchanges: Exchanges, rank: int, counts: Counts, lost: int) -> None:
    """Connect the store and the experience to the transport, and copy rank 0's initial state to every rank.

    That is parameters, statistics, target and moments; `counts` and the number of `lost` updates are rank 0's as well.
    """
    store, moments = handles.store, handles.moments
    theta, state, seen = store.snapshot(), store.state(), moments.state()
    for tensor in (theta, *(state[name] for name in sorted(state)), *(seen[name] for name in sorted(seen))):
        exchanges.broadcast(tensor)
    if rank != 0:
        store.restore(theta, state, counts)
        store.lose(lost)
        moments.restore(seen)
    cast(Replicas, store).connect(exchanges.reduce)
    if isinstance(handles.experience, Gathered):
        handles.experience.connect(exchanges.gather, exchanges.broadcast)


def updates(run: Run, roles: Sequence[Role], exchanges: Exchanges, signals: Signals) -> Iterator[None]:
    """Run the roles of a rank in turn until all have ended; yields after each round, at the same T as other ranks.

    Meanwhile it passes a signal on to the next exchange, and shares moments whenever T has grown enough.
    """
    config, handles, running, published = run.spec.config, run.handles, list(roles), -1
    assert handles.agreement is not None
    while running := [role for role in running if next(role.loop, ENDED) is not ENDED]:
        if signals.first is not None:
            handles.agreement.wish = signals.first
        steps = handles.clock.steps
        if (config.normalize_observations or config.normalize_returns) and steps >= GROWTH * published:
            assert handles.moments.gathered is not None
            handles.moments.publish(exchanges.share(handles.moments.gathered))
            published = steps
        yield


def rank_process(spec: RunSpec, port: int, secret: bytes, rank: int) -> None:
    """The process of a rank that rank 0 has started. It ignores signals: rank 0 decides when to stop."""
    size = spec.config.workers
    code = attend(rank, lambda: Board(LOOPBACK, port, rank, size, secret), [], Signals(), lambda _: spec)
    if code:
        os._exit(code)


def attend_launched(launch: Launch, algorithm: str, words: Sequence[str]) -> int:
    """Run a rank other than 0 that a launcher has started; returns the exit code."""
    with Signals().caught() as signals:
        code = attend(launch.rank, lambda: board_of(launch), words, signals, lambda told: spec_from(told, algorithm))
    leave(code)
    return code


def attend(
    rank: int,
    meet: Callable[[], Board],
    words: Sequence[str],
    signals: Signals,
    spec_of: Callable[[Beginning], RunSpec],
) -> int:
    """Run a rank other than 0 when rank 0 says so; returns the exit code. It speaks only if rank 0 cannot."""
    try:
        board = meet()
        board.greet(words)
        board.beat()
        with closing(board):
            return _take_part(board, signals, spec_of)
    except (RanksLost, RuntimeError, UsageError) as error:
        print_line(f"asyncrl: rank {rank} on {socket.gethostname()}: {first_line(error)}", error=True)
        return 2 if isinstance(error, UsageError) else 1


def _take_part(board: Board, signals: Signals, spec_of: Callable[[Beginning], RunSpec]) -> int:
    """The same for a rank that has joined. Raises RanksLost if rank 0 is lost; its own exceptions rank 0 reports."""
    seconds = 0.0
    try:
        told = board.wait_for("answer")
        if isinstance(told, int):
            board.put(f"ended/{board.rank}", True)
            return told
        spec = spec_of(told)
        seconds = spec.config.collective_timeout_seconds
        with closing(Exchanges(board, seconds, signals)) as exchanges:
            size = sum(int(torch.Size(shape).numel()) for _, shape in spec.layout)
            handles = share(spec, torch.zeros(size), told["steps"], told["seconds"], board.rank)
            connect(handles, exchanges, board.rank, Counts(*told["counts"]), told["lost"])
            return _work(Run(spec, handles), board, exchanges, signals)
    except (RanksLost, DistError) as error:
        _await_end(board, error, max(0.0, board.came + seconds - time.monotonic()))
        return 1
    except Interrupted:
        with contextlib.suppress(RuntimeError):
            board.put(f"left/{board.rank}", "a signal")
        return 128 + cast(int, signals.first)
    except BaseException as error:  # of user code, SystemExit too
        text = "".join(format_exception(error))
        with contextlib.suppress(RuntimeError):
            board.put(f"cause/{board.rank}", [f"{type(error).__name__}: {error}", text])
        return 1


def _work(run: Run, board: Board, exchanges: Exchanges, signals: Signals) -> int:
    """Act and push until all ranks leave; returns the exit code."""
    clock, agreement = run.handles.clock, run.handles.agreement
    assert agreement is not None
    seed_libraries(run.spec.config.seed, *run.spec.stream(board.rank))
    rows = Passed(lambda number, row: board.put(f"rows/{board.rank}/{number}", plain(row)))  # rank 0 has the folder
    with contextlib.ExitStack() as stack:
        roles = [stack.enter_context(closing(build_worker(run, board.rank, make_writer=lambda _: rows)))]
        if run.spec.config.reduce == "gradients":  # its learner's rows would only repeat rank 0's
            unread = Passed(lambda *_: None)
            roles.append(stack.enter_context(closing(build_learner(run, make_writer=lambda _: unread))))
        board.put(f"ready/{board.rank}", True)
        board.wait_for("go")
        for worker in range(board.size):
            clock.enter(worker, RUNNING)
        clock.start()
        for _ in updates(run, roles, exchanges, signals):
            pass
    board.put(f"ended/{board.rank}", True)
    return 128 + agreement.decided if agreement.decided > 0 else 0


def _await_end(board: Board, error: Exception, seconds: float) -> None:
    """An exchange failed through no fault of this rank: wait until rank 0 ends the run, for it says why.

    Rank 0 may be on its way to the exchange for so many `seconds`. Raises RanksLost if rank 0 is the one that is lost.
    """

    def report() -> None:
        board.put(f"left/{board.rank}", first_line(error))
        with contextlib.suppress(RanksLost):
            board.wait_for("over")

    who = f"rank 0 at {board.host}"
    try:
        if in_thread(report)(GRACE_SECONDS + seconds):  # the board may be behind a broken link, and never answer
            return
    except RuntimeError:
        raise RanksLost(f"{who} is gone, which ends the run ({first_line(error)})") from None
    raise RanksLost(f"{who} does not answer: it hangs, or cannot be reached ({first_line(error)})")
