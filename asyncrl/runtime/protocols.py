"""The glossary, in code: what a page must offer, what a store must do.

actor-learner, worker
    acts in its own environments and learns from what it sees, with its own exploration.
theta, theta'
    the shared parameters, and a worker's private copy of them.
T
    steps made by all workers together; `Progress.steps`.
page
    the module of one algorithm: a Config, an Agent, `make_network`, `preset`.
store
    where the parameters live: `pull` and `push`.
staleness
    updates that others made to theta since the version at which a gradient was computed, when it is pushed.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from asyncrl.core.config import RunConfig
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout, State
from asyncrl.envs.spec import Spaces


class Agent(Protocol):
    """One worker's copy of the network and what it does with it."""

    network: nn.Module
    generator: torch.Generator
    """All of its chance."""
    exploration: dict[str, float]
    """How this worker explores, for the records: what differs between workers."""

    def initial_state(self, environments: int) -> State:
        """The recurrent state with which episodes begin; None for feed-forward networks."""
        ...

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State]:
        """Actions `[E]` for observations `[E, ...]`, and the next state. `steps` is T, for annealed exploration.

        Called in torch's inference mode, which is the caller's to enter: once for many steps.
        """
        ...

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The scalar to descend, a pure function of the rollout and theta', and detached scalars for the records."""
        ...


class Page(Protocol):
    """The module of one algorithm."""

    Config: type[RunConfig]
    HAS_TARGET: bool
    """Whether there is a target network."""
    TAKES_CONTINUOUS: bool
    """Whether actions may be vectors."""
    PRIVATE_COPY: bool
    """Whether a worker acts with its own copy theta' of the parameters, or on theta itself while others write it."""
    LOOKS_AHEAD: bool
    """Whether the loss needs to know the action after a rollout's last observation (Sarsa)."""

    def preset(self, name: str, spaces: Spaces) -> dict[str, Any]:
        """The settings in which preset `name` for such an environment differs from the Config's own defaults."""
        ...

    def make_network(self, config: Any, spaces: Spaces) -> nn.Module:
        """A freshly initialised network, from torch's global generator."""
        ...

    def make_agent(
        self,
        config: Any,
        spaces: Spaces,
        network: nn.Module,
        target: nn.Module | None,
        worker: int,
        generator: torch.Generator,
    ) -> Agent:
        """The agent of a worker; `worker` is EVALUATOR for the evaluator's. `target` is the network on theta^-."""
        ...


class Store(Protocol):
    """Where the parameters live. The only thing in which Hogwild, a parameter server and Ray differ."""

    def pull(self, into: Tensor) -> int:
        """Copy theta to `into` `[P]`; returns the version of what was copied: the updates it contains."""
        ...

    def push(self, worker: int, gradient: Tensor, learning_rate: float, version: int) -> Push:
        """Apply `gradient` `[P]`, computed at theta of `version`, once; it may be overwritten."""
        ...

    def refresh_target(self, steps: int, period: int) -> bool:
        """theta^- <- theta if T = `steps` has crossed a multiple of `period` since the last time."""
        ...


class Push:
    """What became of a gradient."""

    __slots__ = ("applied", "norm", "staleness")

    def __init__(self, applied: bool, norm: float, staleness: int) -> None:
        self.applied = applied
        """False: it was not finite and has been dropped."""
        self.norm = norm
        """L2 norm before clipping."""
        self.staleness = staleness
        """Updates by others since the version the gradient is of."""


EVALUATOR = -1
"""The worker number of the evaluator's agent."""
