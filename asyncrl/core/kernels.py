"""The compiled part: the C files beside this one, built when the package is installed, if there is a C compiler then.

Python code beside each caller does the same where there is no library or ASYNCRL_KERNELS is 0: to the bit, except for
acting, whose sums are rounded differently (`nets/acting.py`). ctypes lets other threads run meanwhile.
"""

from __future__ import annotations

import os
import platform
from ctypes import CDLL, c_float, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

FUSED = "86" not in platform.machine() or torch.backends.cpu.get_cpu_capability() != "DEFAULT"
"""Whether torch rounds a product and a sum once, so that the kernels must."""


def load() -> tuple[CDLL | None, str]:
    """The library, or None and why."""
    if os.environ.get("ASYNCRL_KERNELS") == "0":
        return None, "ASYNCRL_KERNELS is 0"
    try:
        library = CDLL(str(Path(__file__).with_name("_kernels.abi3.so")))
        library.kernels_source.restype = c_uint32
        built_from = library.kernels_source()
        sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("[a-z]*.c")))
    except (OSError, AttributeError):
        return None, "not compiled"
    return (library, "") if built_from == crc32(sources) else (None, "compiled from other sources")


def compiled(name: str, *types: Any, result: Any = None) -> Any:
    """The library's function of this name, with parameters and a result of these ctypes; None without a library."""
    if LIBRARY is None:
        return None
    function = getattr(LIBRARY, name)
    function.argtypes, function.restype = types, result
    return function


LIBRARY, MISSING = load()
_RULE = *[c_void_p] * 3, c_int64, *[c_float] * 4, c_int
RULES = {name: compiled(name.replace("-", "_"), *_RULE) for name in ("rmsprop", "centred-rmsprop", "momentum-sgd")}
"""The compiled update rules; None without a library."""
LANES: int = LIBRARY.acting_lanes() if LIBRARY else 0
"""Numbers that `acting.c` computes at once on this processor; 0: it does not run here."""
