"""Memory that a process has freed stays its own."""

from __future__ import annotations

import contextlib
import ctypes

KEPT = 2**30
"""Bytes up to which a freed piece, or the free end of the heap, is kept."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc's malloc.h calls them."""


def keep_freed_memory() -> None:
    """Let malloc keep what is freed for the next one who asks.

    By itself glibc hands pieces of megabytes back to the kernel, such as gradients and batches of screens, and gets
    them again at the next update page by page, zeroed: with large networks a fifth of the time. Another C library than
    glibc is left as it is.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT)
        mallopt(_MMAP_THRESHOLD, KEPT)
