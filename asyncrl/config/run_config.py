"""The part of the configuration that every algorithm shares. Each algorithm adds its own fields to it, once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.config.groups import (
    EnvironmentSettings,
    EvaluationSettings,
    FaultSettings,
    LearnerSettings,
    NetworkSettings,
    OptimiserSettings,
    ParallelismSettings,
    RunSettings,
    Settings,
)
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.updates import Descent, UpdateRule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PlainT = TypeVar("PlainT", bound="DataclassInstance")


@dataclass(frozen=True)
class RunConfig(
    # Fields are in the order of the bases from last to first, and so are the checks.
    FaultSettings,
    EvaluationSettings,
    NetworkSettings,
    OptimiserSettings,
    ParallelismSettings,
    EnvironmentSettings,
    RunSettings,
):
    """What every algorithm takes: all groups of settings together, flat.

    *Steps* are agent steps, summed over all workers. A *frame* is one of the environment's: 4 per step on
    Atari and 1 elsewhere, unless `frame_skip` says otherwise.
    Constructing one checks it and raises UsageError with one line for the first impossible value.
    """

    @property
    def all_workers(self) -> int:
        """Workers of all hosts."""
        return self.workers * (self.most_hosts if self.backend == "ray" else 1)

    @property
    def update_rule(self) -> UpdateRule:
        """The optimiser these settings describe."""
        return UpdateRule(self.optimizer, self.optimizer_decay, self.optimizer_epsilon, self.optimizer_momentum)

    @property
    def per_worker_statistics(self) -> bool:
        """Whether each worker has its own statistics of the optimiser.

        auto: those of momentum SGD, as in the paper (section 7), where workers learn and share one memory.
        """
        if self.statistics == "shared" or self.backend not in ("local", "serial"):
            return False
        own_momentum = self.optimizer == "momentum-sgd" and self.update_rule.statistics > 0
        return self.statistics == "per-worker" or (own_momentum and not isinstance(self, LearnerSettings))

    @property
    def descent(self) -> Descent:
        """What a gradient does to theta under these settings."""
        names = [field.name for field in dataclasses.fields(Descent) if hasattr(self, field.name)]
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        over = 0 if self.learning_rate_schedule == "constant" else self.total_steps
        given |= {"rule": self.update_rule, "anneal_over": over, "schedule": self.learning_rate_schedule}
        return Descent(**given)


def to_plain(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain data for config.json."""
    return dataclasses.asdict(config)


def from_plain(cls: type[PlainT], data: dict[str, Any]) -> PlainT:
    """A configuration, or other plain data, from what JSON holds of it.

    Raises UsageError for a field this version does not know, or a setting of another type.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise UsageError(f"the stored configuration has fields this version does not know: {', '.join(unknown)}")
    if issubclass(cls, Settings):
        return cls(**settings_for(cls, data))
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})
