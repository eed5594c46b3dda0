"""The replay memory's kernels do what its Python code does, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.core import kernels
from asyncrl.core.rollout import Rollout
from asyncrl.experience import priorities, steps
from asyncrl.experience.priorities import Priorities
from asyncrl.experience.steps import Steps, StepShape
from tests.experience.streams import spaces_of

pytestmark = pytest.mark.skipif(kernels.LIBRARY is None, reason=f"the kernels are not used: {kernels.MISSING}")


def by_both(module: ModuleType, names: tuple[str, ...], compute: Callable[[], bytes]) -> tuple[bytes, bytes]:
    """What is computed with the kernels of these names, and without them."""
    compiled = compute()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            assert getattr(module, name) is not None
            patch.setattr(module, name, None)
        return compiled, compute()


def test_a_tree_adds_up_and_draws_alike() -> None:
    """Priorities of very different size, a fifth of them 0, in a tree with two levels below the top."""

    def compute() -> bytes:
        random, tree, drawn = np.random.default_rng(0), Priorities(100_000), []
        for _ in range(30):
            indices = random.integers(0, 100_000, random.integers(1, 600))
            tree.set(indices, 10 ** random.uniform(-9, 9, len(indices)) * (random.random(len(indices)) > 0.2))
            drawn.append(tree.sample(random.random(300)))
        return b"".join(array.tobytes() for array in (*drawn, *tree._levels, tree._top))

    one, other = by_both(priorities, ("_ADD_UP", "_DESCEND"), compute)

    assert one == other


def some_rollouts(shape: StepShape, environments: int, count: int) -> Iterator[Rollout]:
    """With ends of all kinds, images that look like the first of an episode, and values that are not finite."""
    random, spaces, each = np.random.default_rng(0), shape.spaces, (7, environments)

    def numbers(*size: int) -> Tensor:
        some = random.normal(size=size) * 10 ** random.uniform(-5, 5, size)
        return torch.from_numpy(np.where(random.random(size) < 0.02, np.nan, some).astype(np.float32))

    def observations(*leading: int) -> Tensor:
        some = random.integers(1, 256, (*leading, *spaces.observation_shape))
        some = some * random.choice([1, 1, -0.0], (*leading, 1, 1, 1))
        return torch.from_numpy(some.astype(spaces.observation_dtype))

    for number in range(count):
        last = random.random(each) < random.choice([0, 0.1, 0.5])
        times, cut = torch.from_numpy(last & (random.random(each) < 0.5)).nonzero().T
        actions = numbers(*each, len(spaces.action_low)) if spaces.is_continuous else torch.arange(last.size).view(each)
        yield Rollout(
            observations=observations(8, environments),
            actions=actions,
            rewards=numbers(*each),
            discounts=torch.from_numpy(random.choice([0, 0.9, 0.99], each).astype(np.float32)),
            last=torch.from_numpy(last),
            truncated=(times, cut),
            final_observations=observations(len(cut)) if len(cut) else None,
            reward_scale=1.7,
            acted_at=number,
            extras={name: numbers(*each) for name in ("action_value", "state_value")},
        )


@pytest.mark.parametrize(
    ("stack", "kind", "actions"),
    [(1, "float32", None), (3, "uint8", (-1.0,)), (3, "float32", (-1.0, -1.0, -1.0))],
)
@pytest.mark.parametrize("clip", [0.0, 1.0, None])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 20])
def test_rows_are_put_and_read_alike(
    n: int, clip: float | None, stack: int, kind: str, actions: tuple[float, ...] | None
) -> None:
    """In rings that go round, with two writers one after the other; without `clip` there are no priorities."""
    spaces = replace(spaces_of(stack), observation_dtype=kind)
    if actions:
        spaces = replace(spaces, actions=0, action_low=actions, action_high=actions)
    shape = StepShape(spaces, stack, n, priorities=clip is not None, reward_clip=clip or 0.0)

    def compute() -> bytes:
        memory = Steps(shape, 2, 3, 60)
        for number, rollout in enumerate(some_rollouts(shape, 3, 40)):
            if number == 30:
                memory.begin(1)
            memory.add(number % 2, rollout)
        random = np.random.default_rng(0)
        streams = random.integers(0, 6, 2000)
        drawn, acted_at, usable = memory.read(streams, memory.written[streams] - random.integers(n + 1, 70, 2000))
        assert {True, False} == set(usable.tolist())
        copies = (getattr(drawn, field.name) for field in fields(drawn))
        arrays = (copy.numpy() for copy in copies if isinstance(copy, Tensor))
        everything = (*arrays, acted_at, usable, *(memory.state()[name].numpy() for name in memory.state()))
        return b"".join(np.ascontiguousarray(array).tobytes() for array in everything)

    one, other = by_both(steps, ("_PUT", "_READ"), compute)

    assert one == other
