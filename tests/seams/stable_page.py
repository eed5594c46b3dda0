"""A page of the tests' own: A3C with the two rules of stability."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl import a3c
from asyncrl.a3c import (
    EXPERIENCE,
    EXTRAS,
    HAS_TARGET,
    LOOKS_AHEAD,
    PRIVATE_COPY,
    TAKES_CONTINUOUS,
    make_agent,
    make_network,
    preset,
)
from asyncrl.config.stability import StabilitySettings


@dataclass(frozen=True)
class Config(StabilitySettings, a3c.Config):
    """A3C that drops what is too old or of an unusual loss."""


__all__ = [
    "EXPERIENCE", "EXTRAS", "HAS_TARGET", "LOOKS_AHEAD", "PRIVATE_COPY", "TAKES_CONTINUOUS",
    "make_agent", "make_network", "preset",
]  # fmt: skip
