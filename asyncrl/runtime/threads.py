"""One thread per process. With more, workers compete for cores, and learning silently stops."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.core.errors import UsageError

before_start: dict[str, str | None] = {}
"""What VARIABLES were when this process was started, before we set them; None: not set."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def request_one_thread() -> None:
    """Set the variables that numerical libraries read. Must run before torch and numpy are imported."""
    for variable in VARIABLES:
        before_start.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = "1"


def limit_threads() -> None:
    """Set the imported libraries to one thread."""
    import torch

    torch.set_num_threads(1)
    if "cv2" in sys.modules:  # an environment that draws with it must not start a pool of its own
        sys.modules["cv2"].setNumThreads(1)


def enforce_one_thread() -> None:
    """The same permanently, in our own processes and their children: the variables alone are sometimes ignored."""
    import torch

    request_one_thread()
    limit_threads()
    with contextlib.suppress(RuntimeError):  # can be set only once, before any parallel work
        torch.set_num_interop_threads(1)


@contextlib.contextmanager
def _put_back() -> Iterator[None]:
    """What is set now in this process is so again after the block."""
    import torch

    variables, threads = {variable: os.environ.get(variable) for variable in VARIABLES}, torch.get_num_threads()
    opencv = sys.modules["cv2"].getNumThreads() if "cv2" in sys.modules else -1  # -1: its own default
    yield
    for variable, value in variables.items():
        os.environ.pop(variable, None)
        if value is not None:
            os.environ[variable] = value
    torch.set_num_threads(threads)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(opencv)


_blocks, _blocks_lock = 0, threading.Lock()
_after_blocks = contextlib.ExitStack()
"""Puts back what was before the first of the blocks."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread in a process that is not ours, and in those it starts, during the block; then all is as before.

    Several threads of a program may be in such a block at a time: the last one to leave puts back what was before the
    first. Tensors are on the CPU, and gradients are recorded. Raises UsageError for a program that computes in float64.
    """
    import torch

    global _blocks
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise UsageError(f"torch's default dtype is {dtype} here: asyncrl needs torch.set_default_dtype(torch.float32)")
    with _blocks_lock:
        if _blocks == 0:
            _after_blocks.enter_context(_put_back())
            request_one_thread()
        _blocks += 1
        limit_threads()
    try:
        with on_the_cpu(), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        with _blocks_lock:
            _blocks -= 1
            if _blocks == 0:
                _after_blocks.close()


def on_the_cpu() -> contextlib.AbstractContextManager[Any]:
    """Tensors are made on the CPU, whatever the program's default device is; torch is slower only if it is another."""
    import torch

    return torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext()


def running_threads() -> int:
    """Threads of this process, including those of C libraries; 0 if the system does not tell."""
    folder = Path("/proc/self/task")
    return len(os.listdir(folder)) if folder.is_dir() else 0


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
