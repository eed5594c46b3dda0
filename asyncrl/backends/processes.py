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
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

import torch.multiprocessing  # noqa: F401  (registers how shared tensors travel to a child)

from asyncrl.backends.outcome import STOPPING, Signals
from asyncrl.core.errors import NotFinite
from asyncrl.runtime.allocation import keep_freed_memory
from asyncrl.runtime.protocols import name_of
from asyncrl.runtime.run import Run, RunSpec
from asyncrl.runtime.threads import enforce_one_thread
from asyncrl.storage.files import disk_is_full

LEAVE_SECONDS = 5.0
"""Time for a child to exit before it is killed."""
POLL_SECONDS = 0.1
DUMP_SECONDS = 2.0
"""Time for a child that hangs to write its stack."""

RAISED, NOT_FINITE, DISK_FULL = 70, 65, 74
"""Exit codes of a child that raised and left its traceback; that met numbers no restart can fix; that could write
nothing because the disk is full. They are from sysexits.h; interpreters and shells use none of them."""
LOST = 255
"""The exit code that multiprocessing reports when the fork server was killed, which would know the real one."""

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


def start_context(page: str) -> BaseContext:
    """forkserver with everything heavy imported once, on Linux; spawn elsewhere. Never fork: it copies locks."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch", "gymnasium", "ale_py", "cv2", page, "asyncrl.backends.local", "asyncrl.envs.atari",
            "asyncrl.backends.preloaded",
        ]
    )  # fmt: skip
    return context


def start(
    context: BaseContext, target: Callable[[Run, int], None], run: Run, worker: int, incarnation: int = 0
) -> BaseProcess:
    """Start one child; `incarnation` counts its predecessors. Raises OSError or EOFError."""
    return start_child(context, target, replace(run, spec=replace(run.spec, incarnation=incarnation)), worker)


def start_child(
    context: BaseContext, target: Callable[[PartT, int], None], part: PartT, worker: int, name: str = ""
) -> BaseProcess:
    """Start a child that calls `target(part, worker)`, named by what it is or by `name`. Raises OSError or EOFError."""
    name = name or name_of(worker)
    process: BaseProcess = context.Process(target=child, args=(target, part, worker, name), name=name)  # type: ignore[attr-defined]
    with no_main_module(), signals_held_back():
        process.start()
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


def child(target: Callable[[PartT, int], None], run: PartT, worker: int, name: str) -> None:
    """The frame of every child: signals, threads, parent watch, and a stack or traceback that survives it."""
    # The supervisor decides when to end; a Ctrl-C reaches the whole group and must not tear rollouts apart.
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    leave_with_parent()
    enforce_one_thread()
    keep_freed_memory()
    try:
        with stack_on_request(run.spec.folder.stack_file(name)):
            target(run, worker)
    except BaseException as error:
        if disk_is_full(error):
            os._exit(DISK_FULL)
        with contextlib.suppress(OSError):
            run.spec.folder.traceback_file(name).write_text(traceback.format_exc())
            sys.stderr.flush()
        os._exit(NOT_FINITE if isinstance(error, NotFinite) else RAISED)


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


def leave_with_parent() -> None:
    """End this process when the supervisor dies, however it dies.

    Only a thread that waits for the parent works under both spawn and forkserver: `daemon` does nothing on SIGKILL, and
    a parent-death signal is tied to the fork server instead.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def how_it_died(process: BaseProcess) -> str:
    """The end of a process in words."""
    code = process.exitcode
    if code == DISK_FULL:
        return "could not write its records: the disk is full"
    if code == LOST:
        return "was lost with the fork server"
    if code is not None and code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:  # those for real time have no names
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


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
    deadline = time.monotonic() + DUMP_SECONDS
    size = before
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        if before < (now := size_of(file)) == size:  # it grew, and has stopped growing
            break
        size = now
    return size_of(file) > before


def end(process: BaseProcess) -> None:
    """Kill a child if it is alive, and wait for its end."""
    if process.exitcode is None:
        process.kill()
        process.join()
    if process.exitcode == LOST and process.pid is not None:
        # Nobody waits for it any more, and it goes on as if nothing had happened.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def end_all(processes: list[BaseProcess], signals: Signals) -> None:
    """Give each child some time to exit, then kill it; at once after a second signal.

    All are joined, so there are no zombies.
    """
    deadline = time.monotonic() + LEAVE_SECONDS
    while (running := [process.sentinel for process in processes if process.exitcode is None]) and not signals.urgent:
        if time.monotonic() > deadline:
            break
        wait(running, timeout=POLL_SECONDS)
    for process in processes:
        end(process)


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
