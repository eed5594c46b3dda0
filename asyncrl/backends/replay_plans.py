"""The replay memory of a run, or a replay host's part of it, as plain data."""

from __future__ import annotations

from dataclasses import replace

from asyncrl.config.replay import ReplayConfig
from asyncrl.experience.replay import ReplayPlan
from asyncrl.experience.steps import StepShape
from asyncrl.runtime.hosts import on_one_machine
from asyncrl.runtime.plan import Plan


def memory_plan(plan: Plan, place: tuple[int, ...] = (0,)) -> ReplayPlan:
    """The replay memory of a run, as plain data. `place` distinguishes its random numbers from those of others."""
    config = plan.config
    assert isinstance(config, ReplayConfig)
    exponent, correction = (getattr(config, name, 0.0) for name in ("priority_exponent", "importance_exponent"))
    stack = plan.environment.frames_per_observation
    return ReplayPlan(
        StepShape(plan.spaces, stack, config.n_step, exponent > 0, config.reward_clip),
        config.workers,
        config.envs_per_worker,
        config.t_max,
        config.memory_steps,
        config.warmup_steps,
        config.minibatch,
        config.replay_ratio,
        exponent,
        correction,
        (config.seed, *place),
        config.checkpoint_replay,
        plan.bundled,
        config.workers if plan.bundled else plan.learners,
        config.backend == "serial",
    )


def memory_plan_of_host(plan: Plan, number: int, place: tuple[int, ...]) -> ReplayPlan:
    """The part of a run's replay memory that replay host `number` has: that of hosts `number`, `number` + N, ..."""
    whole = memory_plan(on_one_machine(plan, plan.config.all_workers), place)
    hosts, own = plan.config.most_hosts, len(range(number, plan.config.most_hosts, plan.replay_hosts))
    return replace(
        whole,
        actors=own * plan.config.workers,
        capacity=whole.capacity * own // hosts,
        warmup_steps=whole.warmup_steps * own // hosts,
    )
