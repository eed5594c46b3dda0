"""A child of a run and whatever it has started itself, such as simulators: they stop, go on and end together.

A child leads a session, so a process group, of its own. What it starts is in that group, and has a mark in its
environment variables, by which it is found (on Linux) even if it leads a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

VARIABLE = "ASYNCRL_PROCESS_TREES"
"""The trees to which a process belongs, each with a semicolon: that of the child of a run, and of those above it."""
TOKEN = secrets.token_hex(8)
"""Tells this process's children from those of all others, in other containers too."""
MOST_ROUNDS = 5
"""How often what is left of a tree is looked for: its members may start others meanwhile."""
PR_SET_PDEATHSIG = 1

_children: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
"""Children of this process that are roots of trees."""


def add(process: BaseProcess) -> None:
    """Note a child that has been started and will call `lead`."""
    _children.add(process)


def lead(token: str) -> str:
    """Make this process, a child, the root of a tree; returns the tree's name. `token` is the parent's TOKEN."""
    tree = f"{token}-{os.getpid()}"
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')}{tree};"
    lead_session()
    if sys.platform == "linux":
        # A child that is stopped could not notice that the command is gone. The fork server notices, once no child
        # keeps it alive, and its death wakes the child.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        with contextlib.suppress(AttributeError, TypeError, OSError):
            os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    return tree


def lead_session() -> None:
    """Make this process lead a session, if it does not yet: a Ctrl-C in the terminal is for the supervisor alone."""
    if hasattr(os, "setsid") and os.getsid(0) != os.getpid():
        os.setsid()


def end(trees: Sequence[str]) -> None:
    """Kill all members of trees, the roots included. Does nothing on systems without process groups."""
    if not hasattr(os, "killpg"):
        return
    for _ in range(MOST_ROUNDS):
        if not (found := _marked(trees)):
            break
        for pid in found:
            _send(os.kill, pid, signal.SIGKILL)
    for tree in trees:
        _send(os.killpg, int(tree.rpartition("-")[2]), signal.SIGKILL)


def _marked(trees: Sequence[str]) -> list[int]:
    """Living processes with the mark of one of these trees, except this one."""
    marks, found = [f"{tree};".encode() for tree in trees], []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            variables = (folder / "environ").read_bytes()
            if any(mark in variables for mark in marks) and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _send(send: Callable[[int, int], None], whom: int, number: int) -> None:
    with contextlib.suppress(OSError):
        send(whom, number)


@contextlib.contextmanager
def stopping_together() -> Iterator[None]:
    """During the block, Ctrl-Z stops the children with this process; a terminal does not do so to other sessions.

    They go on when it does. Does nothing outside the main thread, or where something else handles or ignores SIGTSTP.
    """
    here = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGTSTP")
    if not here or signal.getsignal(signal.SIGTSTP) != signal.SIG_DFL:
        yield
        return

    def stop(_: int, __: FrameType | None) -> None:
        to_all(signal.SIGSTOP)
        signal.raise_signal(signal.SIGSTOP)  # returns when this process goes on
        to_all(signal.SIGCONT)

    def to_all(number: int) -> None:
        for child in list(_children):
            with contextlib.suppress(ValueError):  # it has been closed
                if child.pid is not None:
                    _send(os.killpg, child.pid, number)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
