"""The replay memory between processes: one overwrites it as fast as it can, another draws all the while."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asyncrl.backends.processes import start, start_context
from asyncrl.core.rollout import Rollout, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.experience.replay import Replay, ReplayPlan
from asyncrl.experience.steps import StepShape
from asyncrl.runtime.clock import Clock

WIDE = Spaces((4000,), "float32", 3)
"""16 kB a row: a rollout is long in the writing."""
T, ROWS, ROLLOUTS = 40, 200, 1500


def no_normalizer() -> None:
    """Nothing is normalised."""


def memory_of(priorities: bool) -> Replay:
    plan = ReplayPlan(
        StepShape(WIDE, n_step=2, priorities=priorities),
        actors=1,
        environments=1,
        t_max=T,
        capacity=ROWS,
        warmup_steps=T,
        minibatch=32,
        ratio=1e9,
        priority_exponent=0.6 if priorities else 0.0,
    )
    return Replay(plan, Clock(1, 10**9, learners=1), no_normalizer)


def rollout_from(first: int) -> Rollout:
    """Steps `first`, `first` + 1, ...: all that there is of a step tells its number. Nothing ends."""
    numbers = torch.arange(first, first + T + 1)
    column = numbers[:-1, None].float()
    return Rollout(
        observations=numbers[:, None, None].expand(T + 1, 1, *WIDE.observation_shape).float(),
        actions=numbers[:-1, None] % 3,
        rewards=column,
        discounts=torch.ones(T, 1),
        last=torch.zeros(T, 1, dtype=torch.bool),
        truncated=(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
        final_observations=None,
        extras={"action_value": column, "state_value": column},
    )


def write_on(memory: Replay) -> None:
    """Go on where the memory ends, until there were so many rollouts, and wait for nobody."""
    for number in range(1, ROLLOUTS):
        memory.put(0, rollout_from(number * T), 0)


def check(drawn: Transitions) -> Tensor:
    """Every transition is of one piece; gives the numbers of their first steps."""
    numbers = drawn.observations[:, 0].clone()
    assert torch.equal(drawn.observations, numbers[:, None].expand_as(drawn.observations))
    assert torch.equal(drawn.following, (numbers + 2)[:, None].expand_as(drawn.following))
    assert torch.equal(drawn.rewards, torch.stack([numbers, numbers + 1]))
    assert torch.equal(drawn.actions, numbers.long() % 3)
    return numbers


@pytest.mark.parametrize("priorities", [False, True], ids=["equally often", "by priority"])
def test_what_is_drawn_while_it_is_overwritten_is_of_one_piece(priorities: bool) -> None:
    """Neither side waits: the memory goes round three hundred times, and no drawn row is half of another."""
    memory = memory_of(priorities)
    memory.put(0, rollout_from(0), 0)
    writer = start_context("asyncrl.apex").Process(target=write_on, args=(memory,))
    start(writer)

    newest, batches = 0, 0
    while True:
        over = not writer.is_alive()
        batch = memory.take()
        if batch is not None:
            assert isinstance(batch.rollout, Transitions)
            numbers = check(batch.rollout)
            newest, batches = max(newest, int(numbers.max())), batches + 1
            if batch.keys is not None:
                memory.feedback(batch.keys, torch.rand(len(numbers)))
            memory.release()
        if over:
            break

    assert writer.exitcode == 0
    assert memory.steps.put.tolist() == [ROLLOUTS * T]
    assert int(memory.steps.written[0]) == ROLLOUTS * T
    assert batches >= 1
    assert ROLLOUTS * T - ROWS <= newest <= ROLLOUTS * T - 3
