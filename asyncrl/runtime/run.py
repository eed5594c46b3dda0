"""A run: its description as data, what its processes share, and how each process is built from both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncrl.algorithm import algorithm_of
from asyncrl.core.flat import check_shareable, flatten_parameters
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.normalize import RunMoments
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR, Experience, Store
from asyncrl.runtime.seeding import GLOBAL_GENERATOR, NETWORK, derive
from asyncrl.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from asyncrl.core.named import Parcel
    from asyncrl.runtime.agreement import Agreement

Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of each parameter, in the order of the flat vector."""


@dataclass(frozen=True)
class RunSpec(Plan):
    """The description of a run, or of one part of a resumed run: plain data, no live memory."""

    folder: RunFolder
    layout: Layout
    part: int = 0
    """Number of earlier parts that left a checkpoint: each part has new random streams."""
    exact: dict[str, Any] | None = None
    """Serial backend: the state of every worker, from the checkpoint."""
    incarnation: int = 0
    """How many processes held this one's place before and died: each draws new random streams."""
    parcels: tuple[Parcel, ...] = ()
    """What a program has handed over and other processes could not import."""
    first_worker: int = 0
    """Several hosts: the number of this host's first worker among those of all."""
    first_learner: int = 0
    """Several hosts: how many learners the hosts before this one have."""

    @property
    def random_part(self) -> int:
        """The part that has this one's random streams: an exact resume goes on with earlier ones."""
        earlier = None if self.exact is None else self.exact.get("part")
        return earlier if isinstance(earlier, int) else self.part

    def among_all(self, who: int) -> int:
        """The number of a worker or learner of this host among those of all hosts; of the evaluator its own."""
        if who >= 0:
            return who + self.first_worker
        return who if who == EVALUATOR else who - self.first_learner

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The settings of an algorithm that was handed over travel as values, behind the parcel of their class."""
        if not self.algorithm.startswith("__main__:"):
            return super().__reduce_ex__(protocol)
        values = {name: value for name, value in vars(self).items() if name not in ("parcels", "config")}
        return _arrived, (self.parcels, values, vars(self.config))

    def stream(self, worker: int, *place: int) -> tuple[int, ...]:
        """What distinguishes a random stream of a worker from all others of its purpose."""
        return (self.among_all(worker), *place, self.random_part, *([self.incarnation] if self.incarnation else []))


def _arrived(parcels: tuple[Parcel, ...], values: dict[str, Any], settings: dict[str, Any]) -> RunSpec:
    return RunSpec(**values, config=algorithm_of(values["algorithm"]).Config(**settings), parcels=parcels)


@dataclass(frozen=True)
class Handles:
    """What the processes of a run share, as its backend built it: shared memory here, messages elsewhere."""

    store: Store
    clock: Clock
    moments: RunMoments
    experience: Experience | None = None
    """Where rollouts go; None if they go into gradients of the workers that made them."""
    agreement: Agreement | None = None
    """What ranks agree on, if workers are ranks in step."""


@dataclass(frozen=True)
class Run:
    """A run as seen by one of its processes."""

    spec: RunSpec
    handles: Handles


def initial_parameters(plan: Plan) -> tuple[Tensor, Layout]:
    """theta `[P]` at the beginning of a run with this seed, and its layout. Raises UsageError."""
    with GLOBAL_GENERATOR:
        torch.manual_seed(derive(plan.config.seed, NETWORK))
        network = plan.method.make_network(plan.config, plan.spaces)
    check_shareable(network, f"the network of {plan.algorithm}")
    layout = tuple((name, tuple(parameter.shape)) for name, parameter in network.named_parameters())
    return flatten_parameters(network), layout
