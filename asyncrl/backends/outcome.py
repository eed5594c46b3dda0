"""How a run ends, whichever backend ran it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import format_exception
from types import FrameType

from asyncrl.core import user_code
from asyncrl.core.errors import NotFinite, UsageError
from asyncrl.storage.checkpoints import NotSaved
from asyncrl.storage.files import disk_trouble

STOPPING = user_code.STOPPING
"""The signals that stop a run: from a person, a cluster, or a closed terminal."""
PROGRAM = 1000
"""Instead of a signal's number, if the program that trains asked for the end."""
ASKED = "the program asked the run to end"


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its state, why, and the command's exit code."""

    state: str
    """finished, stopped or failed."""
    reason: str
    exit_code: int
    traceback: str | None = None


def finished(reason: str) -> Outcome:
    """The run has reached its end."""
    return Outcome("finished", reason, 0)


def stopped(number: int) -> Outcome:
    """A signal stopped the run: exit code 128 + its number, as shells expect. Or the program that trains did: 0."""
    if number == PROGRAM:
        return Outcome("stopped", ASKED, 0)
    return Outcome("stopped", f"received {signal.Signals(number).name}", 128 + number)


def failed(reason: str, traceback: str | None = None) -> Outcome:
    """The run broke: exit code 1."""
    return Outcome("failed", reason, 1, traceback)


def broken(error: BaseException) -> Outcome:
    """An exception ended the run. Errors that the user can fix need one line, others a traceback."""
    if (trouble := disk_trouble(error)) is not None:
        return failed(f"{trouble}: {error}")
    if isinstance(error, NotSaved | NotFinite | UsageError):
        return failed(str(error))
    return failed(f"{type(error).__name__}: {error}", "".join(format_exception(error)))


@dataclass
class Signals:
    """Received signals, for loops to check: the first asks for an orderly end, a second one for an immediate end."""

    received: list[int] = field(default_factory=list)
    reason: str = ASKED
    """Why the program asked the run to end."""

    @property
    def first(self) -> int | None:
        """The signal that asked for the end, or None."""
        return self.received[0] if self.received else None

    @property
    def urgent(self) -> bool:
        """Whether a second signal has come."""
        return len(self.received) > 1

    def ask(self, reason: str = "") -> None:
        """Ask for an orderly end, as a signal would; asking again does not hurry it."""
        if not self.received:
            self.reason = reason or ASKED
            self.received.append(PROGRAM)

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch signals during the block. An ignored SIGHUP stays ignored, as under nohup.

        Outside the main thread nothing is caught, since Python delivers signals only there.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def note(number: int, _: FrameType | None) -> None:
            self.received.append(number)

        hangup = getattr(signal, "SIGHUP", None)
        caught = [n for n in STOPPING if n != hangup or signal.getsignal(n) != signal.SIG_IGN]
        caught = [n for n in caught if signal.getsignal(n) is not None]  # None: set in C, and could not be put back
        before = {number: signal.signal(number, note) for number in caught}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
