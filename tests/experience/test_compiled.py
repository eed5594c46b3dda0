"""The replay memory's kernels do what its Python code does, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from asyncrl.core import kernels
from asyncrl.experience import priorities, transitions
from asyncrl.experience.priorities import Priorities
from asyncrl.experience.steps import StepShape
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


@pytest.mark.parametrize("actions", [None, (-1.0,), (-1.0, -1.0, -1.0)])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 20])
def test_transitions_and_their_first_priorities_are_alike(
    n: int, clip: float, actions: tuple[float, ...] | None
) -> None:
    """With all marks, values that are not finite, and rings that go round, whatever the size of an action."""
    spaces = (
        spaces_of(1) if actions is None else replace(spaces_of(1), actions=0, action_low=actions, action_high=actions)
    )
    record = StepShape(spaces, 1, n, priorities=True).record
    random, memory = np.random.default_rng(0), np.zeros(5000, record)
    for name in ("rewards", "discounts", "action_value", "state_value"):
        memory[name] = random.normal(size=5000) * 10 ** random.uniform(-5, 5, 5000)
    memory["state_value"][::97] = np.nan
    memory["marks"] = random.choice([0] * 30 + [1, 2, 3, 4, 5], 5000)
    streams, rows = random.integers(0, 5, 3000), random.integers(0, 3000, 3000)

    def compute() -> bytes:
        found = transitions.find(memory.view(f"V{record.itemsize}"), record, 1000, n, streams, rows)
        first = transitions.first_priorities(found, 1.7, clip)
        assert first.dtype == np.float32
        return b"".join(np.ascontiguousarray(array).tobytes() for array in (*found, first))

    one, other = by_both(transitions, ("_FIND", "_FIRST_PRIORITIES"), compute)

    assert one == other
