"""What goes in and out of an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["atari", "screen", "board", "vector"]
"""atari: a game's screen, shrunk and stacked. screen: any other image. board: an image below 36 rows, of symbols."""


@dataclass(frozen=True)
class Spaces:
    """What goes in and out of an environment: all that a network has to know about it."""

    observation_shape: tuple[int, ...]
    """[C, H, W] for images and planes, [n] for vectors."""
    observation_dtype: str
    """"uint8" (images, 0 to 255) or "float32"."""
    actions: int
    """Number of discrete actions; 0 when actions are continuous."""
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    """Lower and upper bound of each component of a continuous action."""
    kind: Kind = "vector"
    """The kind of observation, for presets and networks; without `parts`, all but vectors are [C, H, W]."""
    parts: tuple[Spaces, ...] = ()
    """What an observation `[n]` is made of, if it is not one image or vector: numbers, images, one after the other."""
    masked: bool = False
    """Whether it ends with the action mask, `[actions]`: 1 for each valid action, 0 for the others."""

    @property
    def is_image(self) -> bool:
        """Whether an observation has channels, rows and columns, or a part of it has."""
        return self.kind != "vector"

    @property
    def is_continuous(self) -> bool:
        """Whether an action is a vector of real numbers."""
        return self.actions == 0
