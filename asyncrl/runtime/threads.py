"""One thread per process. With more, workers fight for cores, and learning silently stops."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_found: dict[str, str | None] = {}
"""What the variables were when this process was started."""
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def request_one_thread() -> None:
    """Set the variables that numerical libraries read. Must run before torch and numpy are imported."""
    for variable in VARIABLES:
        _found.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = "1"


def left_by_launcher() -> str | None:
    """OMP_NUM_THREADS as it was when this process was started; None: it was not set."""
    return _found.get("OMP_NUM_THREADS")


def limit_threads() -> None:
    """Set the imported libraries to one thread."""
    import torch

    torch.set_num_threads(1)
    if "cv2" in sys.modules:  # an environment that draws with it must not start a pool of its own
        sys.modules["cv2"].setNumThreads(1)


def enforce_one_thread() -> None:
    """The same permanently, in our own processes: the variables alone are sometimes ignored."""
    import torch

    limit_threads()
    with contextlib.suppress(RuntimeError):  # can be set only once, before any parallel work
        torch.set_num_interop_threads(1)


def compute_with(threads: int) -> None:
    """Let torch use several threads in this process, for when other processes leave cores idle."""
    import torch

    torch.set_num_threads(threads)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread in a process that is not ours, and in those it starts, during the block; then all is as before."""
    import torch

    variables = {variable: os.environ.get(variable) for variable in VARIABLES}
    threads = torch.get_num_threads()
    opencv = sys.modules["cv2"].getNumThreads() if "cv2" in sys.modules else -1  # -1: its own default
    request_one_thread()
    limit_threads()
    try:
        yield
    finally:
        for variable, value in variables.items():
            os.environ.pop(variable)
            if value is not None:
                os.environ[variable] = value
        torch.set_num_threads(threads)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(opencv)


def running_threads() -> int:
    """Threads of this process, including those of C libraries; 0 if the system does not tell."""
    folder = Path("/proc/self/task")
    return len(os.listdir(folder)) if folder.is_dir() else 0
