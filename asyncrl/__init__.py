"""Asynchronous reinforcement learning on all cores of a machine (Mnih et al. 2016)."""

from __future__ import annotations

import signal
import sys


def _is_the_command() -> bool:
    """Whether this is `python -m asyncrl.a3c` or the like, about to import the module that it names.

    While the packages above that module are imported, argv is "-m" and the words that follow its name.
    """
    return sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").split(".")[0] == __name__


if _is_the_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # It still has torch to import: a Ctrl-C now should end it without a traceback from in there. The command itself
    # takes over the signal when it begins. A program that only imports this package keeps its own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

__version__ = "0.1.0"
