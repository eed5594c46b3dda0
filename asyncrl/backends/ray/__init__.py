"""Workers on several machines with Ray: what a command needs to know of it before it is used."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from torch import Tensor

from asyncrl.algorithm import GRADIENT, MEMORY
from asyncrl.backends.handles import clock_of
from asyncrl.catalog import command_of
from asyncrl.config.groups import flag
from asyncrl.core.devices import CPU
from asyncrl.core.errors import UsageError
from asyncrl.parameters.mirror import Mirror
from asyncrl.runtime.hosts import on_one_machine
from asyncrl.runtime.normalize import RunMoments
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.run import Handles, Run, RunSpec
from asyncrl.runtime.snapshots import keeps_replay

if TYPE_CHECKING:
    from asyncrl.backends.outcome import Outcome, Signals
    from asyncrl.runtime.monitor import Monitor, View


def require_ray() -> None:
    """Raise UsageError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        from asyncrl.core.extras import to_install

        raise UsageError(f"--backend ray needs Ray: {to_install('ray')}")


def run(run: Run, monitor: Monitor, view: View, signals: Signals) -> Outcome:
    """Follow the run to its end on a cluster. None of its processes is left on this machine when it returns."""
    from asyncrl.backends.ray import leader  # by the command alone: the actors do not need it

    return leader.run(run, monitor, view, signals)


def refuse(plan: Plan) -> None:
    """Raise UsageError for methods and settings that do not run on hosts, or if Ray is not installed."""
    config, kind, command = plan.config, plan.method.experience, command_of(plan.algorithm)
    if kind == MEMORY:
        if keeps_replay(config):
            raise UsageError("--checkpoint-replay needs a single machine: replay memory on hosts is not saved")
        if config.hosts == "auto":
            raise UsageError("--hosts auto is not for methods with a replay memory, which hosts divide: give a number")
        on_one_machine(plan, config.all_workers)  # whether the memory has room for the steps of all workers
        if plan.replay_hosts and plan.learns_on_hosts:
            which = "--layout bundled" if plan.bundled else "several --learners"
            raise UsageError(f"--replay-hosts is for a single learner; with {which} each host has its own memory")
    for name in ("parameter_shards", "push"):
        if getattr(config, name) != getattr(type(config), name) and not plan.learns_on_hosts:
            several = "; with several --learners or --layout bundled, hosts do" if hasattr(config, "layout") else ""
            raise UsageError(f"{flag(name)} is for methods whose workers learn; in {command} one learner does{several}")
    for name, plain in (("learner_resource", ""), ("learner_device", CPU)):
        if getattr(config, name, plain) != plain and plan.learns_on_hosts:
            who = "workers learn" if kind == GRADIENT else "each host has its own learners with these settings"
            raise UsageError(f"{flag(name)} is for methods with a learner; in {command} {who}")
    require_ray()


def share(spec: RunSpec, theta: Tensor, steps: int = 0, seconds: float = 0.0) -> Handles:
    """What the driver has; begun as `clock_of` says."""
    clock = clock_of(spec, steps, seconds)
    store = Mirror(theta, spec.config.descent, spec.config.all_workers, clock)
    return Handles(store, clock, RunMoments(1, spec.moments_size))
