"""What an algorithm is: a class in a file of its own. `asyncrl.actor_critic` and `asyncrl.action_value` contain what
the algorithms of this package share.

The attributes of the class say where its experience goes and what it needs, its nested `Config` holds its settings, and
it defines `loss`. To change an algorithm, derive from it. Nothing is registered.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import operator
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from asyncrl.catalog import ALGORITHMS
from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Extras, Part, State
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import HANG_SECONDS, user_code, watched

GRADIENT, IN_STEP, QUEUE, MEMORY = "gradient", "in step", "queue", "replay"
"""Where rollouts go: into a gradient of the worker that made them; to a learner, in step with all other actors or
through a queue; or into a replay memory from which a learner samples."""
Who: TypeAlias = Literal["worker", "learner", "evaluator"]


class Algorithm:
    """One copy of the network, and what its owner does with it: a worker, a learner or the evaluator.

    Your own class defines at least `make_network`, `act` and `loss`, or derives from one that does.
    """

    experience: ClassVar[str] = GRADIENT
    extras: ClassVar[tuple[str, ...]] = ()
    """Names of what `act` returns besides the actions, for the loss."""
    has_target: ClassVar[bool] = False
    """Whether there is a target network."""
    takes_continuous: ClassVar[bool] = False
    """Whether actions may be vectors."""
    takes_discrete: ClassVar[bool] = True
    """Whether actions may be discrete choices."""
    private_copy: ClassVar[bool] = True
    """Whether a worker acts with its own copy theta', or on theta itself while others write it."""
    looks_ahead: ClassVar[bool] = False
    """Whether the loss needs the action after a rollout's last observation (Sarsa)."""
    whole_episodes: ClassVar[bool] = False
    """Whether a rollout is an episode of each environment, of at most t_max steps (`Rollout.lengths`)."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]] | str] = {}
    """Tables of settings by preset and kind of environment, or their name in presets.toml.

    Kinds are those of `Spaces`, "continuous" for vectors with continuous actions, and "other" for all without a table.
    """

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
        return _resolved(cls.table(name, spaces) or {})

    @classmethod
    def table(cls, name: str, spaces: Spaces) -> Mapping[str, Any] | None:
        """The table of preset `name` for such an environment, if there is one."""
        kind = "continuous" if spaces.kind == "vector" and spaces.is_continuous else spaces.kind
        tables = _tuned()[cls.presets] if isinstance(cls.presets, str) else cls.presets
        kinds: Mapping[str, Mapping[str, Any]] = tables.get(name, {})
        return kinds.get(kind, kinds.get("other"))

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


@functools.cache
def _tuned() -> dict[str, Any]:
    """What presets.toml holds."""
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))


def _resolved(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a table and of those that it is `like`."""
    settings: dict[str, Any] = {}
    for name in table.get("like", ()):
        settings |= _resolved(functools.reduce(operator.getitem, name.split("."), _tuned()))
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    return settings | {name: value for name, value in own.items() if name != "like"}


def initialisation_of(config: RunConfig) -> str:
    """The name of the scheme by which layers are initialised: the paper's, or the usual one today."""
    return "torch7" if config.preset == "paper" else "orthogonal"


def load(name: str) -> type[Algorithm]:
    """Import an algorithm by its name. Raises UsageError, which says what is missing, if there is none."""
    # Nobody can have given a limit of his own before his algorithm is there, which reads the settings.
    with (
        watched(HANG_SECONDS),
        user_code(f"the import of {name}", lambda error: UsageError(f"{name}: importing it failed: {one_line(error)}")),
    ):
        module = name.partition(":")[0]
        if there := _is_there(module):
            importlib.import_module(module)
    if not there:
        if near := difflib.get_close_matches(name.lower(), ALGORITHMS, 1, 0.7):
            raise UsageError(f"there is no algorithm {name!r}; perhaps you meant {near[0]}")
        raise UsageError(
            f"there is no algorithm {name!r}: asyncrl has {', '.join(ALGORITHMS)}; name your own by its module, "
            "which must be installed or on PYTHONPATH"
        )
    algorithm = algorithm_of(name)
    if algorithm.experience not in (GRADIENT, IN_STEP, QUEUE, MEMORY):
        kinds = ", ".join(map(repr, (GRADIENT, IN_STEP, QUEUE, MEMORY)))
        raise UsageError(f"{name}: experience must be one of {kinds}, not {algorithm.experience!r}")
    return algorithm


def algorithm_of(name: str) -> type[Algorithm]:
    """The algorithm that a module defines, or that is named `module:Class`. Raises UsageError."""
    if ":" in name:
        from asyncrl.core.named import find

        algorithm = find(name)
        if not _is_algorithm(algorithm):
            raise UsageError(f"{name} is not an algorithm: it must be derived from asyncrl.algorithm.Algorithm")
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
    if name and _own_algorithms(module) == [algorithm]:
        return name
    from asyncrl.core.named import name_for

    return name_for(algorithm)


def _own_algorithms(module: ModuleType) -> list[type[Algorithm]]:
    return [thing for thing in vars(module).values() if _is_algorithm(thing) and thing.__module__ == module.__name__]


def _is_algorithm(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Algorithm)


def _is_there(module: str) -> bool:
    """Whether there is a module of that name."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # not even its package, or no name of a module
        return False
