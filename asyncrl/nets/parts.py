"""Observations of several parts, `Spaces.parts`: a body for each, joined by fully connected layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.core.spaces import Spaces
from asyncrl.nets.bodies import Body, linear_layers, parameters_of

VECTOR_WIDTHS = (64, 64)
"""Widths of the layers for the numbers beside images."""


class PartsBody(Body):
    """Each part of an observation through its own body; several are joined by fully connected layers with ReLU.

    `[B, n]` -> `[B, features]`. An action mask at the end of observations is left out.
    """

    def __init__(
        self, network: str, widths: tuple[int, ...], spaces: Spaces, normalized: bool, make_body: Callable[..., Body]
    ) -> None:
        """`make_body` makes the body of a part from the same four arguments. Beside images, numbers have an "mlp".

        `widths` are those of the only body, or of the layers that join several; then images have only convolutions.
        """
        super().__init__()
        self._spaces = spaces
        alone = len(spaces.parts) == 1
        self.bodies = nn.ModuleList(
            make_body(
                network if part.is_image == spaces.is_image else "mlp",
                widths if alone else () if part.is_image else VECTOR_WIDTHS,
                part,
                normalized,
            )
            for part in stacked_parts(spaces)
        )
        features = 0
        for body in self.bodies:
            assert isinstance(body, Body)
            features += body.features
            # A tape tells observations apart by their place in memory, and parts have none of their own.
            body.keep_activations = lambda steps, environments: None  # type: ignore[method-assign]
        self.joined = linear_layers(() if alone else (features, *widths))
        self.features = features if alone or not widths else widths[-1]

    @cached_property
    def _joined(self) -> list[tuple[Tensor, Tensor]]:  # at the first pass: until then layers may be replaced
        return parameters_of(self.joined)

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, n]`."""
        parts, _ = taken_apart(self._spaces, observations)
        hidden = torch.cat([body(part) for body, part in zip(self.bodies, parts, strict=True)], -1)
        for weight, bias in self._joined:
            hidden = F.linear(hidden, weight, bias).relu_()
        return hidden


def stacked_parts(spaces: Spaces) -> list[Spaces]:
    """The parts with the shapes that they have in a stack of observations: each is stacked along its first axis."""
    stack, shapes = _stack(spaces), [part.observation_shape for part in spaces.parts]
    stacked = [(stack * first, *rest) for first, *rest in shapes]
    return [replace(part, observation_shape=shape) for part, shape in zip(spaces.parts, stacked, strict=True)]


def taken_apart(spaces: Spaces, observations: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """The parts `[B, *shape]` of observations `[B, n]`, and the newest action mask `[B, A]`, None if there is none."""
    frames = observations.reshape(-1, _stack(spaces), sum(_sizes(spaces)))
    pieces = frames.split(_sizes(spaces), -1)  # type: ignore[no-untyped-call]
    shapes = [part.observation_shape for part in stacked_parts(spaces)]
    parts = [piece.reshape(-1, *shape) for piece, shape in zip(pieces, shapes, strict=False)]
    return parts, pieces[-1][:, -1] if spaces.masked else None


def put_together(spaces: Spaces, parts: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """The reverse of `taken_apart`: observations `[B, n]`; of a stack all masks are the newest one."""
    stack, dtype = _stack(spaces), getattr(torch, spaces.observation_dtype)
    pieces = [part.reshape(-1, stack, size).to(dtype) for part, size in zip(parts, _sizes(spaces), strict=False)]
    if mask is not None:
        pieces.append(mask.to(dtype).unsqueeze(1).expand(-1, stack, -1))
    return torch.cat(pieces, -1).flatten(1)


def _sizes(spaces: Spaces) -> list[int]:
    """Numbers of each part in one observation that is not stacked, and of the mask."""
    return [math.prod(part.observation_shape) for part in spaces.parts] + [spaces.actions] * spaces.masked


def _stack(spaces: Spaces) -> int:
    """Observations in a stack."""
    return spaces.observation_shape[0] // sum(_sizes(spaces))
