"""The part of a run on several machines or hosts that one of them has."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from asyncrl.algorithm import MEMORY
from asyncrl.runtime.plan import Plan

PlanT = TypeVar("PlanT", bound=Plan)


def on_one_machine(plan: PlanT, workers: int) -> PlanT:
    """The part of a run on several machines that is on one of them."""
    plain, config = type(plan.config), plan.config
    if plan.method.experience == MEMORY:
        config = replace(config, replay_hosts=0)  # type: ignore[call-arg]
    config = replace(
        config, backend="local", workers=workers, hosts=1, address="", parameter_shards=1, learner_resource="",
        push=plain.push, statistics="per-worker" if config.per_worker_statistics else "shared",
    )  # fmt: skip
    return replace(plan, config=config)


def on_one_host(plan: PlanT) -> PlanT:
    """The part of one of several hosts. If each has a replay memory of its own, that is its share of the steps.

    Its optimiser sees one update in so many as there are hosts, and remembers as many updates of the run.
    """
    one, hosts = on_one_machine(plan, plan.config.workers), plan.config.most_hosts
    config = one.config
    if not plan.learns_on_hosts:
        return one
    if plan.config.hosts != "auto":
        decay, momentum = config.optimizer_decay**hosts, config.optimizer_momentum**hosts
        config = replace(config, optimizer_decay=decay, optimizer_momentum=momentum)
    if plan.method.experience == MEMORY:
        shares = {name: max(1, getattr(config, name) // hosts) for name in ("memory_steps", "warmup_steps")}
        config = replace(config, **shares)
    return replace(one, config=config)
