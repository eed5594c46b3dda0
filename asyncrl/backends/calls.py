"""What hosts ask the learner and replay hosts, and what the learner asks replay hosts, with the answers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.rollout import Transitions
from asyncrl.experience.credit import Taken
from asyncrl.parameters.shards import Report
from asyncrl.runtime.protocols import Counts


@dataclass(frozen=True)
class Question:
    """A host asks for news."""

    host: int
    """Its number; for a replay host its number among the hosts of that memory."""
    incarnation: int
    epoch: int = 0
    """The epoch of the learner or replay host that answered last; 0: none has."""
    news: int = 0
    """What its `Landing.news` was then."""
    version: int = 0
    """Updates in the host's theta."""
    theta: bool = True
    """Whether the host wants a newer theta."""
    seconds: float = 0.0
    """How long to wait for news before answering."""
    report: Report | None = None


@dataclass(frozen=True)
class Answer:
    """The answer of the learner, or of a replay host, which only says what it has taken and is done with."""

    taken: Taken
    """Its epoch is that of whoever answers."""
    news: int = 0
    done: list[int] = field(default_factory=list)
    """How many rollouts of each worker of this host it is done with, in this epoch."""
    counts: Counts = field(default_factory=Counts)
    """What became of the updates of the whole run."""
    theta: NDArray[np.float32] | None = None
    """`[P]` with all of these updates; None if the host has it already or does not want it."""
    others: Report | None = None
    """Sums over all but this incarnation of the host, with tallies `[K]`, if it has reported."""


@dataclass(frozen=True)
class Feedback:
    """A learner's newest errors of what it has drawn."""

    epoch: int
    """The epoch of the memory that it was drawn from."""
    keys: NDArray[np.int64]
    """`[B]`"""
    errors: NDArray[np.float32]
    """`[B]`"""


@dataclass(frozen=True)
class Draw:
    """A learner asks for a minibatch."""

    learner: int
    """The epoch of the learner."""
    number: int
    """Counts the minibatches that this learner asks this memory for, from 1; a repeated call keeps its number."""
    steps: int
    """T as the learner knows it."""
    seconds: float
    """How long to wait until a minibatch is due."""
    feedback: Feedback | None = None
    """Of the minibatch before the last one."""


@dataclass(frozen=True)
class Drew:
    """The memory's answer."""

    epoch: int
    """The epoch of the memory."""
    transitions: dict[str, NDArray[np.generic]] | None = None
    """The tensors of `Transitions` by name, nothing normalised; None: no minibatch is due."""
    keys: NDArray[np.int64] | None = None
    """`[B]` for the feedback, if the memory samples by priority."""
    facts: dict[str, float] = field(default_factory=dict)
    """Figures for the records."""


def arrays_of(transitions: Transitions) -> dict[str, NDArray[np.generic]]:
    """The tensors of transitions as arrays, by name."""
    found = {one.name: getattr(transitions, one.name) for one in fields(transitions)}
    return {name: value.numpy() for name, value in found.items() if isinstance(value, Tensor)}


def transitions_of(arrays: dict[str, NDArray[np.generic]]) -> Transitions:
    """The transitions that `arrays_of` took apart, as copies."""
    tensors: dict[str, Any] = {name: tensor_of(array) for name, array in arrays.items()}
    return Transitions(**tensors)


def tensor_of(array: NDArray[np.generic]) -> Tensor:
    """A copy: what has come over a transport may be read-only."""
    return torch.from_numpy(np.array(array))
