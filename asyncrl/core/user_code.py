"""Where code that is not ours is called: environments, networks, explorations and algorithms of users.

It may do whatever Python can: end the program, change the working folder, set a switch of torch for the whole process,
or never return. `user_code` deals with all of that, for one call; `watched` says what is waited for, and for how long.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.output import print_line

HANG_SECONDS = 120.0
"""Seconds after which user code is taken to hang, unless somebody says otherwise."""
SAY_SECONDS = 5.0
"""Seconds after which it is said what is being waited for."""
POLL_SECONDS = 0.1
STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name))
"""The signals that stop a run: from a person, a cluster, or a closed terminal."""

Own = dict[str, Any]
"""The switches that user code has set, by name: they hold again whenever it is called."""
At = Callable[[str], object]
"""Is told which user code runs now: "" when it has returned."""


class Overdue(KeyboardInterrupt):
    """User code has been running for too long. Like a Ctrl-C, it is no exception of that code."""


class _Place(threading.local):
    """Which user code this thread is calling, and who is told of it."""

    at: At | None = None
    what = ""


_place = _Place()
_changed: set[str] = set()


def is_name(text: str) -> bool:
    """Whether this names user code, `module:attribute`. Gymnasium's ids with a colon are no such names."""
    return text.partition(":")[2].isidentifier()


def handed_over(names: Iterable[str]) -> tuple[Any, ...]:
    """What other processes need in order to find those of these names that a program has handed over.

    Raises UsageError for what cannot travel.
    """
    ours = [name for name in names if name.startswith("__main__:")]
    if not ours:
        return ()
    from asyncrl.core.named import parcels

    return parcels(ours)


@contextlib.contextmanager
def user_code(
    what: str, complaint: Callable[[BaseException], Exception] | None = None, own: Own | None = None
) -> Iterator[None]:
    """Call user code in the block; `what` names it where it is waited for.

    Whatever it raises, SystemExit too, becomes the `complaint` about that; only Ctrl-C passes. Without a `complaint`
    exceptions pass, whose traceback an author needs, and all else becomes a UsageError.

    What it has changed for the whole process is put back. With `own` that holds again in the next call with the same
    `own`, except for what others depend on: environment variables and signal handlers.
    """
    outer, at = _place.what, _place.at
    _place.what = what
    if at is not None:
        at(what)
    try:
        with kept({} if own is None else own):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if complaint is not None:
            raise complaint(error) from error
        if isinstance(error, Exception):
            raise
        raise UsageError(f"{what}: {one_line(error)}") from error
    finally:
        _place.what = outer
        if at is not None:
            at(outer)


def announce(whose: str, where: str) -> None:
    """Tell whoever watches this thread that it calls user code now, for code that needs no more care."""
    if _place.at is not None:
        _place.at(f"{whose}'s {where}" if where else "")


def changed() -> frozenset[str]:
    """The switches that user code has changed in this process so far, and that were put back."""
    return frozenset(_changed)


@contextlib.contextmanager
def told(at: At) -> Iterator[None]:
    """During the block, `at` is told which user code this thread calls."""
    outer, _place.at = _place.at, at
    try:
        yield
    finally:
        _place.at = outer


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Wait for the user code that is called in the block, and say so after a while.

    Raises UsageError if one call takes longer than `seconds` (0: no limit). Only the main thread can be called back
    from such a call, and not from within C; for others it is only said.
    """
    watch = _Watch(seconds)
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    watch.interrupts = before is not None

    def interrupted(number: int, frame: FrameType | None) -> None:
        if watch.called_back():
            if watch.overdue:
                raise Overdue(watch.what)
        elif callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            raise KeyboardInterrupt

    if watch.interrupts:
        signal.signal(signal.SIGINT, interrupted)
    watch.start()
    try:
        with told(watch.at):
            yield
    except Overdue as error:
        raise UsageError(too_long(str(error), seconds)) from None
    finally:
        watch.end()
        if watch.interrupts:
            signal.signal(signal.SIGINT, before)


def too_long(what: str, seconds: float) -> str:
    """What to say of user code that has not returned."""
    return f"{what} did not return within {seconds:g} seconds"


def say_waiting(what: str) -> None:
    """Say that user code is taking its time."""
    say(f"waiting for {what} ...")


def say(line: str) -> None:
    """Print a line to stderr, whatever user code has put in its place."""
    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        print_line(f"asyncrl: {line}", sys.__stderr__)


class _Watch(threading.Thread):
    """Looks at the clock while another thread calls user code."""

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True, name="user-code-watch")
        self.what, self.interrupts = "", False
        self._since, self._next = time.monotonic(), 0.0
        self._seconds = seconds
        self._calls = 0
        """How often the main thread was called back and has not noticed it yet."""
        self._lock, self._over = threading.Lock(), threading.Event()

    def at(self, what: str) -> None:
        """The thread that is watched calls this now."""
        with self._lock:
            self.what, self._since, self._next = what, time.monotonic(), 0.0

    def called_back(self) -> bool:
        """Whether a SIGINT is of this watch."""
        self._calls, calls = max(0, self._calls - 1), self._calls
        return calls > 0

    @property
    def overdue(self) -> bool:
        """Whether the call is still running that took too long."""
        return self._next > 0.0

    def run(self) -> None:
        """Say once of each call that it is waited for, and call the main thread back when it takes too long."""
        said = 0.0
        while not self._over.wait(POLL_SECONDS):
            with self._lock:
                waited = time.monotonic() - self._since if self.what else 0.0
                if self._seconds and waited > self._seconds and self.interrupts and time.monotonic() > self._next:
                    self._next = time.monotonic() + 1.0  # it may have been swallowed
                    self._calls += 1
                    _interrupt_main()
                    continue
                what, since = self.what, self._since
            if waited >= SAY_SECONDS and said != since:
                said = since
                say_waiting(what)

    def end(self) -> None:
        """From now on nobody is called back."""
        self._over.set()
        self.join()


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def kept(own: Own) -> Iterator[None]:
    """Put back what the block changes for the whole process, and keep it in `own`, whose switches hold in the block."""
    switches = _switches()
    if threading.current_thread() is not threading.main_thread():  # the program may change these meanwhile
        switches = {name: switch for name, switch in switches.items() if switch.matters}
    before = {name: switch.get() for name, switch in switches.items()}
    handlers, variables = _handlers(), dict(os.environ)
    for name in own.keys() & switches.keys():
        switches[name].set(own[name])
    inside = before | own
    try:
        yield
    finally:
        for name, switch in switches.items():
            value = switch.get()
            if value != inside[name] and switch.matters:
                own[name] = value
                _changed.add(name)
            if value != before[name]:
                switch.set(before[name])
        for name in _put_back(handlers, variables):
            own[name] = None  # so that it is known to do so
            _changed.add(name)


def _put_back(handlers: dict[int, Any], variables: dict[str, str]) -> Iterator[str]:
    """Handlers of signals, and variables that were removed: what user code adds to them may be meant for others."""
    for number, handler in _handlers().items():
        if handler != handlers[number] and handlers[number] is not None:
            signal.signal(number, handlers[number])
            yield "signal handlers"
    if missing := variables.keys() - os.environ.keys():
        os.environ.update({name: variables[name] for name in missing})
        yield "environment variables"


def _handlers() -> dict[int, Any]:
    """The handlers of the signals that stop a run, which only the main thread may set."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in STOPPING}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""


def _enter(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _errors() -> list[Any]:
    """The warnings that are raised as errors; those that user code hides may stay hidden."""
    return [kind for kind in warnings.filters if kind[0] == "error"]


def _leave_errors(errors: list[Any]) -> None:
    for kind in _errors():
        if kind not in errors:
            warnings.filters.remove(kind)  # type: ignore[attr-defined]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _set_recursion_limit(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # it lies deeper already
        sys.setrecursionlimit(limit)


def _opencv_threads() -> int:
    """One, too, if nobody has imported it: so it is to be when somebody does."""
    return int(sys.modules["cv2"].getNumThreads()) if "cv2" in sys.modules else 1


@dataclass(frozen=True)
class _Switch:
    """Something that is set for the whole process."""

    get: Callable[[], Any]
    set: Callable[[Any], object]
    matters: bool = True
    """Whether it holds again when the user code is called again, and people are told."""


@functools.cache
def _switches() -> dict[str, _Switch]:
    """All switches by name. They need what is slow to import, and is there before user code is called."""
    import numpy as np
    import torch

    def put_device(device: torch.device) -> None:
        torch.set_default_device(None if device.type == "cpu" else device)

    return {
        "the working folder": _Switch(_folder, _enter),
        "the umask": _Switch(_umask, os.umask),
        "sys.stdout": _Switch(lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream), matters=False),
        "sys.stderr": _Switch(lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream), matters=False),
        "warnings that are errors": _Switch(_errors, _leave_errors, matters=False),
        "Python's recursion limit": _Switch(sys.getrecursionlimit, _set_recursion_limit),
        "numpy's error handling": _Switch(np.geterr, lambda kinds: np.seterr(**kinds)),
        "torch's threads": _Switch(torch.get_num_threads, torch.set_num_threads, matters=False),
        "OpenCV's threads": _Switch(_opencv_threads, lambda n: sys.modules["cv2"].setNumThreads(n), matters=False),
        "torch's default dtype": _Switch(torch.get_default_dtype, torch.set_default_dtype),
        "torch's default device": _Switch(torch.get_default_device, put_device),
        "torch's gradient recording": _Switch(torch.is_grad_enabled, torch.set_grad_enabled),
        "torch's anomaly detection": _Switch(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "torch's deterministic algorithms": _Switch(
            torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms
        ),
    }
