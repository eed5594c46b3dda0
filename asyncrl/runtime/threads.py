"""One thread per process. Anything else makes workers fight for cores, and learning stops with no word why."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def request_one_thread() -> None:
    """Set the variables that the numerical libraries read. Must run before torch and numpy are imported."""
    for variable in VARIABLES:
        os.environ[variable] = "1"


def enforce_one_thread() -> None:
    """Tell the libraries themselves, now that they are imported: the variables alone are sometimes ignored."""
    import contextlib

    import torch

    torch.set_num_threads(1)
    if "cv2" in sys.modules:  # an environment that draws with it must not start a pool of its own
        sys.modules["cv2"].setNumThreads(1)
    with contextlib.suppress(RuntimeError):  # can be set once only, and before any parallel work
        torch.set_num_interop_threads(1)


def running_threads() -> int:
    """Threads of this process, those of libraries in C among them; 0 where the system does not tell."""
    folder = Path("/proc/self/task")
    return len(os.listdir(folder)) if folder.is_dir() else 0
