"""The machines of a Ray cluster, and the places of a run on them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray

from asyncrl.backends.reports import Seen
from asyncrl.backends.supervisor import BUDGET_SECONDS

SILENT_SECONDS = 75.0
"""An actor that has not answered for this long is replaced; earlier with a shorter `--hang-seconds`.

Ray finds a dead machine after about 65 seconds, and a host waits for 120 seconds for the keepers of theta.
"""


def patience(hang_seconds: float) -> float:
    """How long an actor may take to answer; without end if hangs are not to be noticed."""
    return min(hang_seconds, SILENT_SECONDS) if hang_seconds else float("inf")


def living_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, in Ray's words; this one comes first."""
    here = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"]))


@dataclass
class Place:
    """The place of a host or of the learner in the run, on whichever machine."""

    number: int
    node: str = ""
    name: str = ""
    """Name of the machine."""
    actor: Any = None
    """None: the place is empty."""
    incarnation: int = 0
    look: Any = None
    """A pending call of `Host.look`."""
    looked: float = 0.0
    told: int = 0
    seen: Seen | None = None
    losses: list[float] = field(default_factory=list)
    """Times of losses, by the monotonic clock, within the budget's time."""
    due: float = 0.0
    """When the place may be filled again."""
    cause: str = ""
    """Of the last loss."""
    gone: bool = False
    """Whether it stays empty after too many losses."""
    left: bool = False
    """Whether its work is finished."""

    def lose(self, cause: str, budget: int) -> None:
        """Note a loss; the place is gone if it was lost more often than `budget` within the budget's time."""
        self.cause = cause
        now = time.monotonic()
        self.losses = [moment for moment in self.losses if now - moment < BUDGET_SECONDS] + [now]
        self.gone = len(self.losses) > budget
