"""What a run prints on the terminal at its start and at its end."""

from __future__ import annotations

import math
from typing import Any

from asyncrl.algorithm import MEMORY
from asyncrl.api.advice import Language, at_first
from asyncrl.backends.outcome import Outcome
from asyncrl.catalog import short
from asyncrl.config.groups import default_workers
from asyncrl.core.devices import usable_cores
from asyncrl.runtime.monitor import Summary
from asyncrl.runtime.run import Run
from asyncrl.runtime.terminal import number


def introduction(run: Run, changes: list[str], language: Language) -> list[str]:
    """The lines printed before a run begins. What they leave out is in config.json."""
    config, spaces = run.spec.config, run.spec.spaces
    parameters = sum(math.prod(shape) for _, shape in run.spec.layout)
    up_to = "up to " if config.hosts == "auto" else ""
    hosts = f"{up_to}{config.most_hosts} hosts x " if config.backend == "ray" else ""
    actions = f"{len(spaces.action_low)} continuous" if spaces.is_continuous else str(spaces.actions)
    lines = [
        f"{short(run.spec.algorithm)} on {config.env_id}: {actions} actions, observation {spaces.observation_dtype} "
        f"{list(spaces.observation_shape)}, {parameters:,} parameters",
        f"{hosts}{config.workers} workers x {config.envs_per_worker} environments, {how_updated(run)}, t_max "
        f"{config.t_max}, {config.optimizer} {config.learning_rate:g}, {config.precision}",
        chosen_by_preset(run),
    ]
    if config.backend == "local" and config.workers > default_workers():
        cores = len(usable_cores())
        lines.append(f"{config.workers} workers share {cores} cores: no faster than {default_workers()} would be")
    if run.handles.experience is not None and run.spec.method.experience == MEMORY:
        lines += remembered(run.handles.experience, run)
    if run.spec.part:
        lines.append(
            f"resumed at {run.handles.clock.steps:,} steps after {run.handles.clock.seconds:.0f} s; "
            + ("every worker continues where it was" if run.spec.exact else "environments begin new episodes")
        )
    return [*lines, *at_first(run.spec.folder.path, language), *changes]


def how_updated(run: Run) -> str:
    """Who updates the shared parameters, and how."""
    config = run.spec.config
    if config.backend == "collective":
        return "in step"
    if run.spec.learners == 1:
        return "one learner"
    if config.backend == "ray" and run.spec.pushes_every_update:
        return "every update pushed to the shards"
    owner = "per-worker" if config.per_worker_statistics else "shared" if config.update_rule.statistics else "no"
    return f"{config.update} updates, {owner} statistics"


def chosen_by_preset(run: Run) -> str:
    """The settings that the preset changes in the algorithm's defaults, and the command line did not override."""
    method, config, spaces = run.spec.method, run.spec.config, run.spec.spaces
    plain = method.Config()
    chosen = {
        name: value
        for name, value in method.preset(config.preset, spaces).items()
        if value != getattr(plain, name) and value == getattr(config, name)
    }
    kind = "Atari" if spaces.kind == "atari" else f"a {spaces.kind}"
    kind += " and continuous actions" if spaces.is_continuous else ""
    text = ", ".join(f"{name} {_plainly(value)}" for name, value in chosen.items())
    return f"preset {config.preset} for {kind}: {text or 'the plain defaults'}"


def _plainly(value: Any) -> str:
    """The value of a setting, as typed on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_plainly, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def remembered(memory: Any, run: Run) -> list[str]:
    """Lines about the replay memory."""
    plan = memory.plan
    lines = [
        f"replay memory: {plan.capacity:,} steps take {plan.bytes / 2**20:,.0f} MiB; after {plan.warmup_steps:,} steps "
        f"{plan.ratio:g} updates per step, each of {plan.minibatch} transitions of {plan.shape.n_step} steps"
    ]
    if run.spec.part and not run.spec.exact and not memory.steps.put.any():
        lines.append(f"the memory starts empty: learning begins once it holds {plan.warmup_steps:,} steps")
    return lines


def conclusion(outcome: Outcome, summary: Summary) -> list[str]:
    """How the run ended, and what is missing in its files."""
    remark = [line for line in (summary.remark, missing(summary)) if line]
    return [*remark, f"{outcome.state}: {outcome.reason}; best evaluation {number(summary.best_score)}"]


def missing(summary: Summary) -> str:
    """What could not be written, in one line; empty if nothing."""
    units = {"records": "record rows", "TensorBoard": "TensorBoard events"}
    counts = {name: count for name, count in summary.unwritten.items() if count}
    if not counts:
        return ""
    status = ["status.json"] if counts.pop("status.json", 0) else []
    parts = [f"{count:,} {units.get(name, f'{name} calls')}" for name, count in counts.items()] + status
    line = f"could not be written: {', '.join(parts)}" + (f" ({summary.trouble})" if summary.trouble else "")
    if summary.unrecorded["steps"]:
        line += f"; {summary.unrecorded['steps']:,} steps are in no worker's records"
    return line
