"""The compiled part: `kernels.c`, built when the package is installed, if there is a C compiler then.

Python code beside each caller does the same, to the bit, where there is no library or ASYNCRL_KERNELS is 0. ctypes lets
other threads run meanwhile.
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
    except OSError:
        return None, "not compiled"
    library.kernels_source.restype = c_uint32
    if library.kernels_source() != crc32(Path(__file__).with_suffix(".c").read_bytes()):
        return None, "compiled from other sources"
    return library, ""


LIBRARY, MISSING = load()
RULES: dict[str, Any] = {}
"""The compiled update rules."""
if LIBRARY:
    RULES |= {"rmsprop": LIBRARY.rmsprop, "centred-rmsprop": LIBRARY.centred_rmsprop}
    RULES |= {"momentum-sgd": LIBRARY.momentum_sgd}
    for rule in RULES.values():
        rule.argtypes, rule.restype = [c_void_p] * 3 + [c_int64] + [c_float] * 4 + [c_int], None
