"""Kernels of the replay memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncrl.core.kernels import LIBRARY


def compiled(name: str, *types: Any) -> Callable[..., None] | None:
    """The kernel of this name, with parameters of these ctypes; None where there are no kernels."""
    if LIBRARY is None:
        return None
    function = getattr(LIBRARY, name)
    function.argtypes, function.restype = types, None
    return function  # type: ignore[no-any-return]
