"""Asynchronous reinforcement learning on all cores of a machine (Mnih et al. 2016)."""

from __future__ import annotations

import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # `python -m asyncrl.a3c` is still importing torch: a Ctrl-C now should end it without a traceback from in there.
    # The command itself takes over the signal when it begins.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

__version__ = "0.1.0"
