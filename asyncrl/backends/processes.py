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
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch.multiprocessing  # registers how shared tensors travel to a child

from asyncrl.backends import process_trees, sockets
from asyncrl.backends.outcome import STOPPING, Signals
from asyncrl.core.errors import NotFinite
from asyncrl.runtime.clock import DISK_FAILS, DISK_FULL, ENDED, NOT_FINITE, RAISED, UNKNOWN, Clock, polling
from asyncrl.runtime.protocols import EVALUATOR, name_of
from asyncrl.runtime.run import Run
from asyncrl.runtime.seeding import seed_libraries
from asyncrl.runtime.threads import enforce_one_thread, keep_freed_memory
from asyncrl.storage.checkpoints import NotSaved
from asyncrl.storage.files import disk_is_full, unlinked
from asyncrl.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from asyncrl.runtime.roles import Role

LEAVE_SECONDS = 5.0
"""Time for a child to exit before it is killed."""
POLL_SECONDS = 0.1
SHORTEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.0001, 0.002
"""Pauses of an actor that waits for room, or a learner that waits for a batch: longer and longer."""
NICENESS = 5
"""Priority of workers. With more workers than cores, an evaluation of seconds would otherwise take minutes;
`--evaluation-cpu-share` bounds what the evaluator takes."""
DUMP_SECONDS = 2.0
"""Time for a child that hangs to write its stack."""

LOST = 255
"""The exit code that multiprocessing reports when the fork server was killed, which would know the real one; also that
of C's exit(-1)."""

RECENT_SECONDS = 60.0
"""A process that was killed for lack of memory has ended by then, however much it had."""
GIB = 2**30

if hasattr(signal, "SIGUSR2"):
    DUMP_SIGNAL = signal.SIGUSR2
"""Asks a child to write its stack."""

_without_main = threading.Lock()


@dataclass(frozen=True)
class End:
    """How a child has ended."""

    kind: int
    """What it told itself: RAISED, NOT_FINITE, DISK_FULL or DISK_FAILS; else UNKNOWN."""
    cause: str
    """In words."""
    traceback: str | None = None


@dataclass(frozen=True)
class Child:
    """A child of a run as its parent and the child itself see it: who it is, and where it tells why it ends.

    That is a cell of the clock which nobody else writes meanwhile, and a file in the run's folder.
    """

    who: int
    """Whose row of the clock it has."""
    name: str
    """Of the process and of its files."""
    clock: Clock
    folder: RunFolder

    @classmethod
    def of(cls, run: Run, who: int) -> Child:
        """A worker, a learner or the evaluator."""
        return cls(who, name_of(who), run.handles.clock, run.spec.folder)

    def start(self, context: BaseContext, target: Callable[..., None], *given: Any) -> BaseProcess:
        """Start a process that calls `target(*given)`. Raises OSError or EOFError."""
        self.clock.explain(self.who, UNKNOWN)
        arguments = (self, process_trees.TOKEN, target, given)
        process: BaseProcess = context.Process(target=_main, args=arguments, name=self.name)  # type: ignore[attr-defined]
        start(process)
        process_trees.add(process)
        return process

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """The child: tell why it ends if the block raises.

        Whatever closes environments is around such a block, since that may hang.
        """
        try:
            yield
        except BaseException as error:
            if self.clock.cause(self.who) == UNKNOWN:
                self.folder.write_traceback(self.name, traceback.format_exc())
                self.clock.explain(self.who, _kind_of(error))
            raise

    def end_of(self, process: BaseProcess) -> End:
        """The parent: how its process came to its end."""
        kind = self.clock.cause(self.who)
        if kind == UNKNOWN:
            return End(kind, how_it_died(process))
        if kind in (DISK_FULL, DISK_FAILS):
            return End(kind, f"could not save a checkpoint: the disk is {'full' if kind == DISK_FULL else 'failing'}")
        try:
            file = self.folder.traceback_file(self.name)
            with open(file, encoding="utf-8", errors="replace", opener=unlinked) as opened:
                text = opened.read()
        except OSError:
            return End(kind, "raised an exception that could not be passed on")
        return End(kind, f"raised {last_line(text)}", text)

    def stack_of(self, process: BaseProcess) -> str | None:
        """The parent: make a process that hangs write its stack; returns the name of the file, None if it did not."""
        if process.pid is None or not hasattr(signal, "SIGUSR2"):
            return None
        file = self.folder.stack_file(self.name)
        before = size = size_of(file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, DUMP_SIGNAL)
        for _ in polling(DUMP_SECONDS, POLL_SECONDS):
            if before < (now := size_of(file)) == size:  # it grew, and has stopped growing
                break
            size = now
        return file.name if size_of(file) > before else None


def _kind_of(error: BaseException) -> int:
    """What a process tells of an exception that ends it. Only a checkpoint that cannot be saved is due to the disk."""
    if isinstance(error, NotSaved):
        return DISK_FULL if disk_is_full(error) else DISK_FAILS
    return NOT_FINITE if isinstance(error, NotFinite) else RAISED


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
            "torch", "gymnasium", "ale_py", "cv2", "asyncrl.backends.local", "asyncrl.runtime.evaluator",
            "asyncrl.runtime.roles", "asyncrl.envs.atari", "asyncrl.backends.preloaded",
            *([algorithm] if algorithm.startswith("asyncrl.") else []),  # a user's own may change before the next run
        ]
    )  # fmt: skip
    return context


def start(process: BaseProcess) -> None:
    """Start a child with the signals that stop a run blocked, and without this program's main module.

    Otherwise a Ctrl-C would end the fork server, or a child, while it still imports; signals that arrive here meanwhile
    are delivered afterwards. And multiprocessing would run the main module a second time in each child, which needs
    only data and functions that it can import.
    """
    with _without_main, contextlib.ExitStack() as stack:  # or another thread would take the empty one for the program's
        stack.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = ModuleType("__main__")
        if hasattr(signal, "pthread_sigmask"):
            multiprocessing.resource_tracker.ensure_running()  # it would unblock some of them when it starts
            before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        process.start()


def begin(token: str) -> None:
    """What every child process does first: signals, its process tree, the parent watch, and one thread."""
    # The supervisor decides when to end; a signal to all processes of a job must not tear rollouts apart.
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    leave_with_parent(process_trees.lead(token))
    enforce_one_thread()


def _main(child: Child, token: str, target: Callable[..., None], given: Sequence[Any]) -> None:
    """The main function of every child of a run: it leaves a stack or a traceback behind.

    The stack of all threads is written on DUMP_SIGNAL, and when the process crashes (SIGSEGV and the like). A handler
    in C writes it, so it works even if Python no longer runs.
    """
    begin(token)
    keep_freed_memory()
    try:
        with contextlib.suppress(OSError):  # without a stack the process can do its work all the same
            file = child.folder.stack_file(child.name)
            stack = open(file, "ab", opener=unlinked)  # noqa: SIM115  (until the process ends)
            faulthandler.enable(stack)
            if hasattr(faulthandler, "register"):
                faulthandler.register(DUMP_SIGNAL, stack)
        with child.explaining():
            target(*given)
    except BaseException:
        os._exit(1)


def role_process(run: Run, who: int) -> None:
    """The process of a worker, a learner or the evaluator; however it ends, its environments are closed."""
    seed_libraries(run.spec.config.seed, *run.spec.stream(who))
    # Only the run's own processes need these: the fork server imports them, the command does not.
    if who == EVALUATOR:
        from asyncrl.runtime.evaluator import Evaluator, serve

        with Evaluator(run) as evaluator, Child.of(run, who).explaining():
            serve(evaluator, run)
        return
    from asyncrl.runtime.roles import build_learner, build_worker

    if who < 0:
        torch.set_num_threads(getattr(run.spec.config, "learner_threads", 1))
    elif hasattr(os, "nice"):
        os.nice(NICENESS)
    role = build_worker(run, who) if who >= 0 else build_learner(run, who)
    with contextlib.closing(role), Child.of(run, who).explaining():
        follow(role, run.handles.clock, who)


def follow(role: Role, clock: Clock, worker: int) -> None:
    """Run a role's loop from the start of the clock to its end."""
    clock.await_start(worker)
    pause = SHORTEST_WAIT_SECONDS
    for worked in role.loop:
        if worked:
            pause = SHORTEST_WAIT_SECONDS
        else:  # it waits for another process, which needs the core
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_WAIT_SECONDS)
    clock.enter(worker, ENDED)


def leave_with_parent(tree: str) -> None:
    """End this process and what it has started when the supervisor dies, however it dies.

    Only a thread that waits for the parent works under both spawn and forkserver: `daemon` does nothing on SIGKILL, and
    a parent-death signal is tied to the fork server instead.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        sockets.remove_place()
        process_trees.end([tree])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def control_groups(root: Path = Path("/")) -> list[Path]:
    """The folders of this process's control group and of those above it, as far as there are any."""
    top, own = root / "sys/fs/cgroup", ""
    with contextlib.suppress(OSError):  # version 2 of control groups has one line, 0::/PATH
        own = (root / "proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
    # In a container the group is mounted as the root, so that its own path need not exist.
    return [group for group in (top / own, *(top / own).parents) if group.is_relative_to(top)]


class Kills:
    """Counts processes that the kernel has killed for lack of memory: in this control group, or on this machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._group = next((group for group in control_groups(root) if (group / "memory.events").exists()), None)
        self._file = self._group / "memory.events" if self._group else root / "proc/vmstat"
        self._count = self._read()
        self._risen: list[float] = []
        """When each kill that nobody has claimed was seen, by the monotonic clock."""

    def look(self) -> None:
        """Note kills since the last look."""
        now, count = time.monotonic(), self._read()
        self._risen = [moment for moment in self._risen if now - moment < RECENT_SECONDS]
        self._risen += [now] * (count - self._count)
        self._count = count

    def claim(self) -> str | None:
        """If a process that was killed now was probably killed for lack of memory: the memory in use, in words.

        None if there was no such kill. Each kill is claimed once.
        """
        self.look()
        if not self._risen:
            return None
        self._risen.pop(0)
        if self._group is None:
            return ""
        try:
            used, limit = (int((self._group / name).read_text()) / GIB for name in ("memory.peak", "memory.max"))
        except (OSError, ValueError):  # an older kernel, or no limit: `max`
            return ""
        return f"{used:.1f} GiB of {limit:.1f} GiB were used"

    def _read(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split()[:2] for line in self._file.read_text().splitlines())
            return int(counts.get("oom_kill", 0))
        return 0


KILLS = Kills()
"""Of children of this process, and of others in its control group."""


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
    return (traceback.strip().splitlines() or ["an exception that could not be stored"])[-1]


def end(*processes: BaseProcess) -> None:
    """Kill those children that are alive, wait for the end of all, and kill whatever they have started."""
    for process in processes:
        if process.exitcode is None:
            process.kill()
        elif is_lost(process):  # it goes on as if nothing had happened
            with contextlib.suppress(ProcessLookupError):  # or has ended just now
                os.kill(cast(int, process.pid), signal.SIGKILL)
    for process in processes:
        process.join()
    process_trees.end([f"{process_trees.TOKEN}-{process.pid}" for process in processes if process.pid is not None])


def end_all(processes: Sequence[BaseProcess], signals: Signals, folder: RunFolder) -> None:
    """Give each child of a run some time to exit, then kill it; at once after a second signal.

    All are joined, so there are no zombies. The files for stacks go in which nothing was written.
    """
    for _ in polling(LEAVE_SECONDS):
        running = [process.sentinel for process in processes if process.exitcode is None]
        if not running or signals.urgent:
            break
        wait(running, timeout=POLL_SECONDS)
    end(*processes)
    with contextlib.suppress(OSError):  # nothing depends on them
        for file in folder.path.glob(folder.stack_file("*").name):
            if size_of(file) == 0:
                file.unlink(missing_ok=True)


def size_of(file: Path) -> int:
    """Bytes in a file; 0 if there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
