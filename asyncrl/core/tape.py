"""What a network computed while its worker acted, kept for the gradient.

A worker acts a whole rollout with one theta' and takes the gradient at the same theta'. So the loss need not compute
the activations once more, which is a third of the time of loss and gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Tape:
    """The activations of some layers at the observations of a rollout, in the order of time.

    Observations are told apart by their place in memory: those of a rollout follow each other. The tape holds on to the
    first ones, so that no others take their place.
    """

    def __init__(self, steps: int, activations: Sequence[Tensor]) -> None:
        """For `steps` observations of E environments each; `activations` `[steps x E, ...]` is the memory."""
        self._activations = list(activations)
        self._environments = len(activations[0]) // steps
        # Views, made once: with one environment, indexing takes as long as the work itself.
        self._rows = list(zip(*(torch.split(part, self._environments) for part in activations), strict=True))
        self.rewind()

    def rewind(self) -> None:
        """Forget everything: theta' is another one."""
        self._recorded = 0
        self._first: Tensor | None = None

    def row_for(self, observations: Tensor) -> tuple[Tensor, ...] | None:
        """The memory for the activations at `observations` `[E, ...]`, each `[E, ...]`.

        None if they are not the first ones of a rollout, nor follow those of the row before.
        """
        here = observations.data_ptr()
        if self._first is None or here == self._first.data_ptr():
            self._recorded, self._first = 0, observations
        follows = here == self._first.data_ptr() + self._recorded * observations.nbytes
        if not follows or len(observations) != self._environments or self._recorded == len(self._rows):
            return None
        self._recorded += 1
        return self._rows[self._recorded - 1]

    def missing(self, observations: Tensor) -> Sequence[Tensor] | None:
        """Those of `observations` `[T x E, ...]` that are not on the tape, `[E, ...]` each; None if it has no use."""
        recorded = self._recorded * self._environments
        if self._first is None or observations.data_ptr() != self._first.data_ptr():
            return None
        if not 0 < recorded <= len(observations) <= len(self._activations[0]) or len(observations) % self._environments:
            return None
        return torch.split(observations[recorded:], self._environments) if recorded < len(observations) else ()

    def used(self, gradient: Tensor) -> int:
        """How many of the observations have a `gradient` `[T x E, F]`; those for a bootstrap have none."""
        before = len(gradient) - self._environments
        return before if before and not gradient[before:].any() else len(gradient)

    def up_to(self, count: int) -> list[Tensor]:
        """The activations `[count, ...]` at the first `count` observations."""
        return [part[:count] for part in self._activations]


class Taped(nn.Module):
    """A part of a network that can keep what it computes while acting."""

    tape: Tape | None = None

    def make_tape(self, steps: int, environments: int) -> Tape | None:
        """A tape for rollouts with `steps` observations of each of E `environments`; None where it would not pay."""
        raise NotImplementedError


def record(network: nn.Module, steps: int, environments: int) -> list[Tape]:
    """Let all parts of `network` that can do so keep what they compute while acting; returns their tapes.

    For networks whose parameters do not change between acting and loss. Rewind the tapes when they do.
    """
    parts = [part for part in network.modules() if isinstance(part, Taped)]
    for part in parts:
        part.tape = part.make_tape(steps, environments)
    return [part.tape for part in parts if part.tape is not None]
