"""A rollout through a block of memory and back is the rollout."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.backends.handles import rollout_shape
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.experience import blocks
from asyncrl.experience.blocks import Ring, RolloutShape
from asyncrl.runtime.roles import build_worker
from asyncrl.runtime.run import Run
from tests.support import make_run

VECTOR = Spaces(observation_shape=(3,), observation_dtype="float32", actions=4)
IMAGE = Spaces(observation_shape=(2, 5, 5), observation_dtype="uint8", actions=4)
CONTINUOUS = Spaces((3,), "float32", 0, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))


def observations_of(spaces: Spaces, *lead: int) -> Tensor:
    shape = (*lead, *spaces.observation_shape)
    return (
        torch.randint(0, 256, shape, dtype=torch.uint8) if spaces.observation_dtype == "uint8" else torch.randn(shape)
    )


def rollout_of(shape: RolloutShape, truncated: int = 0) -> Rollout:
    """One of random numbers, of which the first `truncated` places were cut by a time limit."""
    spaces, each = shape.spaces, (shape.steps, shape.environments)
    continuous = spaces.is_continuous
    places = torch.tensor([divmod(i, shape.environments) for i in range(truncated)], dtype=torch.int64).view(-1, 2)
    return Rollout(
        observations=observations_of(spaces, shape.steps + 1, shape.environments),
        actions=torch.randn(*each, len(spaces.action_low)) if continuous else torch.randint(0, 4, each),
        rewards=torch.randn(each),
        discounts=torch.rand(each),
        last=torch.rand(each) < 0.3,
        truncated=(places[:, 0], places[:, 1]),
        final_observations=observations_of(spaces, truncated) if truncated else None,
        state=tuple(torch.randn(shape.environments, *part) for part in shape.state) or None,
        reward_scale=0.25,
        acted_at=12_345,
        extras={name: torch.randn(each) for name in shape.extras},
    )  # fmt: skip


def through_a_block(shape: RolloutShape, *rollouts: Rollout) -> tuple[Rollout, int]:
    """Each is written over the one before; what is read is the last."""
    ring = Ring(shape.layout(), 1)
    for version, rollout in enumerate(rollouts):
        if version:
            ring.release()
        blocks.write(ring.begin(), rollout, version)
        ring.publish()
    return blocks.read(ring.read())


def assert_same(one: Any, other: Any, name: str = "") -> None:
    """Equal to the bit, type and shape included."""
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same(one[key], other[key], f"{name}.{key}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), name
        for left, right in zip(one, other, strict=True):
            assert_same(left, right, name)
    else:
        assert one == other, name


@pytest.mark.parametrize("truncated", [0, 1, 6])
@pytest.mark.parametrize(
    "shape",
    [
        RolloutShape(3, 2, VECTOR),
        RolloutShape(3, 2, IMAGE),
        RolloutShape(3, 2, CONTINUOUS, extras=("log_probability",)),
        RolloutShape(3, 2, VECTOR, state=((8,), (8,)), extras=("log_probability", "value")),
    ],
    ids=["vectors", "images", "continuous", "memory"],
)
def test_what_is_read_is_what_was_written(shape: RolloutShape, truncated: int) -> None:
    """Every field, and the version; up to every step of every environment may be cut by a time limit."""
    torch.manual_seed(1)
    rollout = rollout_of(shape, truncated)

    back, version = through_a_block(shape, rollout)

    assert version == 0
    for field in fields(Rollout):
        assert_same(getattr(back, field.name), getattr(rollout, field.name), field.name)


def test_nothing_is_left_of_the_rollout_that_was_there_before() -> None:
    """One with six truncations, then one with none."""
    shape = RolloutShape(3, 2, VECTOR)

    back, version = through_a_block(shape, rollout_of(shape, 6), rollout_of(shape))

    assert version == 1
    assert back.final_observations is None
    assert [len(part) for part in back.truncated] == [0, 0]


CASES: dict[str, dict[str, Any]] = {
    "vectors": {"env_id": "CartPole-v1"},
    "memory": {"env_id": "CartPole-v1", "lstm_cells": 4},
    "images": {"env_id": "ALE/Pong-v5"},
}


def collected(run: Run) -> tuple[Rollout, Rollout]:
    """A later rollout of a real actor: as its network saw it, and out of a block."""
    role = build_worker(run, 0)
    assert role.collector is not None
    for _ in range(3):
        rollout = next(role.collector)
    back, _ = through_a_block(rollout_shape(run.spec), rollout)
    role.close()
    return rollout, back


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("normalize", [True, False])
def test_the_learner_sees_what_the_actor_saw(tmp_path: Path, case: str, normalize: bool) -> None:
    """Raw observations travel, with the moments: normalised again they are equal to the bit, last ones included."""
    settings = {"normalize_observations": normalize, "normalize_returns": True, "t_max": 12, "envs_per_worker": 2}
    run = make_run(tmp_path, "ppo", **(settings | CASES[case]))
    environment = replace(run.spec.environment, max_episode_steps=5)
    rollout, back = collected(replace(run, spec=replace(run.spec, environment=environment)))

    assert (rollout.moments is not None) == normalize
    assert rollout.final_observations is not None
    travelled = replace(rollout, raw=None, raw_final=None) if not normalize else rollout
    for field in fields(Rollout):
        assert_same(getattr(back, field.name), getattr(travelled, field.name), field.name)
