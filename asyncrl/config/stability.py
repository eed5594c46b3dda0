"""Gorila's two rules of stability, for any algorithm whose Config derives from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncrl.config.groups import Settings


@dataclass(frozen=True)
class StabilitySettings(Settings):
    """Which gradients are dropped and counted (Nair et al. 2015). They never end a run."""

    max_staleness: int = 0
    """Drop a gradient if others have made more updates than this since its parameters were read; 0: never."""
    max_loss_deviations: float = 0.0
    """Drop a gradient whose loss is more than this many standard deviations above its worker's mean; 0: never."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_not_negative("max_staleness")
        self._require("max_loss_deviations", 0 <= self.max_loss_deviations < math.inf, "must be a number from 0 up")
