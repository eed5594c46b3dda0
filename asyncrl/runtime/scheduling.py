"""What the operating system's scheduler is asked for."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_SECONDS = 0.1
"""The longest slice that Linux grants."""
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call sched_setattr, for which the C library has had a name only since 2025."""


def ask_for_long_slices() -> bool:
    """Ask to compute for 0.1 s at a time instead of a few milliseconds; returns whether the system agreed.

    With more workers than cores each turn begins with caches full of another worker's network and emulator. Fewer
    and longer turns change nobody's share of the time, and whoever wakes up, as the supervisor does, still gets its
    turn at once. Linux listens to it from 6.12 on (for ordinary processes, whose "runtime" the slice is); older ones
    and other systems go on as they would.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # would be set to 0 otherwise
    # struct sched_attr: size, policy, flags, nice, priority, runtime in nanoseconds, deadline, period
    attributes = struct.pack("=IIQiIQQQ", 48, os.SCHED_OTHER, 0, niceness, 0, round(SLICE_SECONDS * 1e9), 0, 0)
    result: int = ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    return result == 0
