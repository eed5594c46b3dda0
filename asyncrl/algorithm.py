"""What an algorithm is: a class in a file of its own. `asyncrl.actor_critic` and `asyncrl.action_value` have what the
package's own share.

A class says in its attributes where its experience goes and what it needs, has its settings as a nested `Config`, and
defines `loss`. To change an algorithm, derive from it. Nothing is registered.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from asyncrl.catalog import ALGORITHMS, name_of
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.losses import Metrics
from asyncrl.core.named import find, name_for
from asyncrl.core.rollout import Extras, Part, State
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import HANG_SECONDS, user_code, watched
from asyncrl.presets import Presets

GRADIENT, IN_STEP, QUEUE, MEMORY = "gradient", "in step", "queue", "replay"
"""Where rollouts go: into a gradient of the worker that made them; to a learner, in step with all other actors or
through a queue; or into a replay memory from which a learner samples."""
Who: TypeAlias = Literal["worker", "learner", "evaluator"]


class Algorithm:
    """One copy of the network, and what its owner does with it: a worker, a learner or the evaluator.

    A class of one's own has at least `make_network`, `act` and `loss`, or derives from one that has them.
    """

    experience: ClassVar[str] = GRADIENT
    extras: ClassVar[tuple[str, ...]] = ()
    """Names of what `act` returns besides the actions, for the loss."""
    has_target: ClassVar[bool] = False
    """Whether there is a target network."""
    takes_continuous: ClassVar[bool] = False
    """Whether actions may be vectors."""
    private_copy: ClassVar[bool] = True
    """Whether a worker acts with its own copy theta', or on theta itself while others write it."""
    looks_ahead: ClassVar[bool] = False
    """Whether the loss needs the action after a rollout's last observation (Sarsa)."""
    whole_episodes: ClassVar[bool] = False
    """Whether a rollout is an episode of each environment, of at most t_max steps (`Rollout.lengths`)."""
    presets: ClassVar[Presets] = {}
    """Kinds are those of `Spaces`, and "continuous" for vectors with continuous actions."""

    @dataclass(frozen=True)
    class Config(RunConfig):
        """An algorithm."""

    exploration: dict[str, float]
    """How this worker explores, for the records."""
    errors: Tensor
    """`[B]` detached: the errors of the newest loss's transitions, for a memory that samples by priority."""

    def __init__(
        self, config: Any, network: Any, target: Any, who: Who, number: int, generator: torch.Generator
    ) -> None:
        """The algorithm of worker or learner `number`, or of the evaluator.

        `network` is on theta or a copy of it, `target` on theta^-. All random numbers come from `generator`.
        """
        self.config, self.network, self.target = config, network, target
        self.who, self.number, self.generator = who, number, generator
        self.exploration = {}

    @classmethod
    def preset(cls, name: str, spaces: Spaces) -> dict[str, Any]:
        """The settings of preset `name` for such an environment, as far as they differ from the Config's defaults."""
        kind = "continuous" if spaces.kind == "vector" and spaces.is_continuous else spaces.kind
        return dict(cls.presets.get(name, {}).get(kind, {}))

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> nn.Module:
        """A freshly initialised network, from torch's global generator."""
        raise NotImplementedError(f"{cls.__name__} has no make_network")

    def initial_state(self, environments: int) -> State:
        """The recurrent state with which episodes begin; None for feed-forward networks."""
        return None

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """Actions `[E]` for observations `[E, ...]`, the next state, and what else the loss needs, each `[E]`.

        `steps` is T, for annealed exploration. The caller enters torch's inference mode, once for many steps.
        """
        raise NotImplementedError(f"{type(self).__name__} has no act")

    def passes(self, batch: Any) -> Iterator[Part]:
        """The parts of a learner's batch, in the order of their updates: here the whole batch, once."""
        yield batch

    def loss(self, part: Any) -> tuple[Tensor, Metrics]:
        """The scalar to minimise, a pure function of `part` and theta', and detached scalars for the records."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")


def initialisation_of(config: RunConfig) -> str:
    """The name of the scheme by which layers are initialised: the paper's, or the usual one today."""
    return "torch7" if config.preset == "paper" else "orthogonal"


def load(name: str) -> type[Algorithm]:
    """Import an algorithm by its name. Raises UsageError, which says what is missing, if there is none.

    A module whose source does not mention this package cannot have one: neither it nor its parents are imported.
    """
    module = name.partition(":")[0]
    if name_of(name) not in ALGORITHMS and module != "__main__":
        _require_plausible(module)
    # Nobody can have given a limit of his own before his algorithm is there, which reads the settings.
    with (
        watched(HANG_SECONDS),
        user_code(f"the import of {name}", lambda error: UsageError(f"{name}: importing it failed: {one_line(error)}")),
    ):
        algorithm = algorithm_of(name)
    if algorithm.experience not in (GRADIENT, IN_STEP, QUEUE, MEMORY):
        kinds = ", ".join(map(repr, (GRADIENT, IN_STEP, QUEUE, MEMORY)))
        raise UsageError(f"{name}: experience is {kinds}, not {algorithm.experience!r}")
    return algorithm


def algorithm_of(name: str) -> type[Algorithm]:
    """The algorithm that a module defines, or that is named `module:Class`. Raises UsageError."""
    if ":" in name:
        algorithm = find(name)
        if not _is_algorithm(algorithm):
            raise UsageError(f"{name} is no algorithm: it is not derived from asyncrl.algorithm.Algorithm")
        return cast(type[Algorithm], algorithm)
    own = _own_algorithms(importlib.import_module(name))
    if len(own) > 1:
        raise UsageError(f"{name} has several algorithms: {', '.join(f'{name}:{one.__name__}' for one in own)}")
    if not own:
        raise UsageError(f"{name} has no algorithm: no class of its own is derived from asyncrl.algorithm.Algorithm")
    return own[0]


def name_of_class(algorithm: type[Algorithm]) -> str:
    """The name under which all processes of a run find an algorithm: its module, if that has no other."""
    module = sys.modules[algorithm.__module__]
    name = getattr(module.__spec__, "name", "")  # of a module that python -m has started, too
    return name if name and _own_algorithms(module) == [algorithm] else name_for(algorithm)


def _own_algorithms(module: ModuleType) -> list[type[Algorithm]]:
    return [thing for thing in vars(module).values() if _is_algorithm(thing) and thing.__module__ == module.__name__]


def _is_algorithm(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Algorithm)


def _require_plausible(module: str) -> None:
    """Raise UsageError unless there is a module of that name which might have an algorithm."""
    spec = _find(module)
    if spec is None:
        raise UsageError(
            f"there is no algorithm {module!r}: the package's own are {', '.join(ALGORITHMS)}; your own is given by "
            "its module, which must be installed or on PYTHONPATH"
        )
    source = getattr(spec.loader, "get_source", lambda _: None)(module)
    if module not in sys.modules and "asyncrl" not in (source or ""):
        raise UsageError(f"{module} has no algorithm: it uses nothing of asyncrl")


def _find(module: str) -> ModuleSpec | None:
    """Like importlib.util.find_spec, but without importing the module's parents."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    loaded = sys.modules.get(module)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    spec, places = None, None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None or (depth < len(parts) and spec.submodule_search_locations is None):
            return None
        places = spec.submodule_search_locations
    return spec
