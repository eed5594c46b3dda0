"""One child of a run: how it starts, runs and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar, cast

import torch.multiprocessing  # noqa: F401  (registers how shared tensors travel to a child)

from asyncrl.backends import families, sockets
from asyncrl.backends.memory import Kills
from asyncrl.backends.outcome import STOPPING, Signals
from asyncrl.core.errors import NotFinite
from asyncrl.runtime.clock import DISK_FAILS, DISK_FULL, NOT_FINITE, RAISED, UNKNOWN, Clock, Watch
from asyncrl.runtime.protocols import name_of
from asyncrl.runtime.run import Run, RunSpec
from asyncrl.runtime.threads import enforce_one_thread, keep_freed_memory
from asyncrl.storage.checkpoints import NotSaved
from asyncrl.storage.files import disk_is_full
from asyncrl.storage.run_folder import RunFolder

LEAVE_SECONDS = 5.0
"""Time for a child to exit before it is killed."""
POLL_SECONDS = 0.1
DUMP_SECONDS = 2.0
"""Time for a child that hangs to write its stack."""

LOST = 255
"""The exit code that multiprocessing reports when the fork server was killed, which would know the real one; also that
of C's exit(-1)."""

if hasattr(signal, "SIGUSR2"):
    DUMP_SIGNAL = signal.SIGUSR2
"""Asks a child to write its stack."""


class Part(Protocol):
    """What a child receives: a run, or a part of it."""

    @property
    def spec(self) -> RunSpec:
        """What run it is of."""
        ...


PartT = TypeVar("PartT", bound=Part)
_without_main = threading.Lock()


@dataclass(frozen=True)
class End:
    """How a child has ended."""

    kind: int
    """What it told itself: RAISED, NOT_FINITE, DISK_FULL or DISK_FAILS; else UNKNOWN."""
    cause: str
    """In words."""
    traceback: str | None = None


KILLS = Kills()
"""Of children of this process, and of others in its control group."""


def start_context(algorithm: str) -> BaseContext:
    """forkserver with everything heavy imported once, on Linux; spawn elsewhere. Never fork: it copies locks.

    Raises UsageError if there is no place for the fork server's socket.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    sockets.make_place()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch", "gymnasium", "ale_py", "cv2", algorithm, "asyncrl.backends.local", "asyncrl.envs.atari",
            "asyncrl.backends.preloaded",
        ]
    )  # fmt: skip
    return context


def start(
    context: BaseContext, target: Callable[[Run, int], None], run: Run, worker: int, incarnation: int = 0
) -> BaseProcess:
    """Start one child; `incarnation` counts its predecessors. Raises OSError or EOFError."""
    part, clock = replace(run, spec=replace(run.spec, incarnation=incarnation)), run.handles.clock
    return start_child(context, target, part, worker, clock)


def start_child(
    context: BaseContext, target: Callable[[PartT, int], None], part: PartT, worker: int, clock: Clock, name: str = ""
) -> BaseProcess:
    """Start a child that calls `target(part, worker)`, named by what it is or by `name`. Raises OSError or EOFError.

    In its row of `clock` it will tell why it ends.
    """
    name = name or name_of(worker)
    clock.explain(worker, UNKNOWN)
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=child, args=(target, part, worker, name, clock, families.TOKEN), name=name
    )
    with no_main_module(), signals_held_back():
        process.start()
    families.add(process)
    return process


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Start processes with the signals that stop a run blocked.

    Otherwise a Ctrl-C would end the fork server, or a child, while it still imports. Signals that arrive here meanwhile
    are delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # it would unblock some of them when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def no_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the command's own module a second time in each child.

    It is not needed there: children receive data, and functions they can import.
    """
    with _without_main:  # or another thread would take the empty one for the program's
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def begin(token: str) -> None:
    """What every child process does first: signals, its family, the parent watch, and one thread."""
    # The supervisor decides when to end; a signal to all processes of a job must not tear rollouts apart.
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    leave_with_parent(families.lead(token))
    enforce_one_thread()


def child(target: Callable[[PartT, int], None], part: PartT, worker: int, name: str, clock: Clock, token: str) -> None:
    """The frame of every child of a run: how it begins, and a stack or traceback that survives it."""
    begin(token)
    keep_freed_memory()
    try:
        with stack_on_request(part.spec.folder.stack_file(name)), explaining(part, worker, name, clock):
            target(part, worker)
    except BaseException:
        os._exit(1)


@contextlib.contextmanager
def explaining(part: Part, worker: int, name: str, clock: Clock) -> Iterator[None]:
    """Tell why this process ends if the block raises: in its row of the clock, with a traceback in the run's folder.

    Whatever closes environments is around such a block, since that may hang.
    """
    try:
        yield
    except BaseException as error:
        if clock.cause(worker) == UNKNOWN:
            cause = _kind_of(error)
            with contextlib.suppress(OSError):
                part.spec.folder.traceback_file(name).write_text(traceback.format_exc())
            clock.explain(worker, cause)
        raise


def _kind_of(error: BaseException) -> int:
    """What a process tells of an exception that ends it. Only a checkpoint that cannot be saved is due to the disk."""
    if isinstance(error, NotSaved):
        return DISK_FULL if disk_is_full(error) else DISK_FAILS
    return NOT_FINITE if isinstance(error, NotFinite) else RAISED


@contextlib.contextmanager
def stack_on_request(file: Path) -> Iterator[None]:
    """Write the stack of all threads to `file` on DUMP_SIGNAL, and when the process crashes (SIGSEGV and the like).

    A handler in C writes it, so it works even if Python no longer runs. An empty file is removed at the end, for a
    killed child by the supervisor.
    """
    with open(file, "ab") as stack:
        faulthandler.enable(stack)
        if hasattr(faulthandler, "register"):
            faulthandler.register(DUMP_SIGNAL, stack)
        try:
            yield
        finally:
            if hasattr(faulthandler, "unregister"):
                faulthandler.unregister(DUMP_SIGNAL)
            faulthandler.disable()
            remove_if_empty(file)


def leave_with_parent(family: str) -> None:
    """End this process and what it has started when the supervisor dies, however it dies.

    Only a thread that waits for the parent works under both spawn and forkserver: `daemon` does nothing on SIGKILL, and
    a parent-death signal is tied to the fork server instead.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        sockets.remove_place()
        families.end([family])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def end_of(process: BaseProcess, clock: Clock, worker: int, folder: RunFolder) -> End:
    """How a child that `start_child` has started came to its end."""
    kind = clock.cause(worker)
    if kind == UNKNOWN:
        return End(kind, how_it_died(process))
    if kind in (DISK_FULL, DISK_FAILS):
        return End(kind, f"could not save a checkpoint: the disk {'is full' if kind == DISK_FULL else 'fails'}")
    try:
        text = folder.traceback_file(process.name).read_text()
    except OSError:
        return End(kind, "raised, and could not say what")
    return End(kind, f"raised {last_line(text)}", text)


def how_it_died(process: BaseProcess) -> str:
    """The end of a process that said nothing itself, in words."""
    code = process.exitcode
    if is_lost(process):
        return "was lost with the fork server"
    if code == -getattr(signal, "SIGKILL", 9) and (memory := KILLS.claim()) is not None:
        return "was killed, probably for lack of memory" + (f" ({memory})" if memory else "")
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:  # those for real time have no names
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def is_lost(process: BaseProcess) -> bool:
    """Whether the fork server has died, and this child lives: nobody waits for it any more."""
    if sys.platform != "linux" or process.exitcode != LOST or process.pid is None:
        return False
    try:
        os.kill(process.pid, 0)
    except OSError:
        return False
    return True


def last_line(traceback: str) -> str:
    """The line of a traceback that names the exception."""
    return (traceback.strip().splitlines() or ["what could not be written down"])[-1]


def dump_stack(process: BaseProcess, file: Path) -> bool:
    """Make a hanging child write its stack to `file`; whether it did."""
    if process.pid is None or not hasattr(signal, "SIGUSR2"):
        return False
    before = size_of(file)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, DUMP_SIGNAL)
    watch, began = Watch(DUMP_SECONDS), time.monotonic()
    size = before
    while watch.silence(began) < DUMP_SECONDS:
        time.sleep(POLL_SECONDS)
        if before < (now := size_of(file)) == size:  # it grew, and has stopped growing
            break
        size = now
    return size_of(file) > before


def end(process: BaseProcess) -> None:
    """Kill a child if it is alive, wait for its end, and kill whatever it has started."""
    end_now([process])


def end_now(processes: Sequence[BaseProcess]) -> None:
    """The same for several."""
    for process in processes:
        if process.exitcode is None:
            process.kill()
        elif is_lost(process):  # it goes on as if nothing had happened
            with contextlib.suppress(ProcessLookupError):  # or has ended just now
                os.kill(cast(int, process.pid), signal.SIGKILL)
    for process in processes:
        process.join()
    families.end_those_of([process.pid for process in processes if process.pid is not None])


def end_all(processes: Sequence[BaseProcess], signals: Signals) -> None:
    """Give each child some time to exit, then kill it; at once after a second signal.

    All are joined, so there are no zombies.
    """
    watch, began = Watch(LEAVE_SECONDS), time.monotonic()
    while (running := [process.sentinel for process in processes if process.exitcode is None]) and not signals.urgent:
        if watch.silence(began) > LEAVE_SECONDS:
            break
        wait(running, timeout=POLL_SECONDS)
    end_now(processes)


def size_of(file: Path) -> int:
    """Bytes in a file; 0 if there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def remove_if_empty(file: Path) -> None:
    """Remove a file in which nothing was written."""
    with contextlib.suppress(OSError):
        if size_of(file) == 0:
            file.unlink()
