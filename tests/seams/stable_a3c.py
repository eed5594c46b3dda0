"""An algorithm of the tests' own: A3C with the two rules of stability."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.a3c import A3C
from asyncrl.config.replay import StabilitySettings


class Stable(A3C):
    """A3C that drops what is too old or of an unusual loss."""

    @dataclass(frozen=True)
    class Config(StabilitySettings, A3C.Config):
        """A3C with the rules of stability."""
