"""A wrapper is taken for the environment that it wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.api.films import Filmed
from asyncrl.envs.environment import Environment, Wrapper, restore_all, states_of
from asyncrl.envs.rebuilding import Rebuilding
from asyncrl.envs.spec import EnvSpec

AROUND: list[Callable[[Environment], Environment]] = [
    Wrapper,
    lambda inner: Rebuilding(lambda number: inner, False, print),
    lambda inner: Filmed(inner, lambda step: None),
    lambda inner: Wrapper(Rebuilding(lambda number: Wrapper(inner), False, print)),
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(
    ("env_id", "stack"), [("Chain", 0), ("ALE/Pong-v5", 0), ("CartPole-v1", 0), ("CartPole-v1", 3)]
)
def test_all_that_an_environment_has_its_wrapper_has(
    around: Callable[[Environment], Environment], env_id: str, stack: int
) -> None:
    """And nothing else, so that asking whether there is something gives the same answer."""
    inner = EnvSpec(env_id, frame_stack=stack).make(1, evaluation=True)
    wrapped: Any = around(inner)
    own = {"reset", "step", "close", "state", "restore", "environment"}

    names = {"picture", "see", "native_space", "native_action", "action_names", "observation_names", "native"}
    for name in {*dir(inner), *names} - own:
        if not name.startswith("_"):
            assert hasattr(wrapped, name) == hasattr(inner, name), name
    assert wrapped.spaces == inner.spaces  # type: ignore[attr-defined]


@pytest.mark.parametrize("around", AROUND[:2])
def test_a_state_is_that_of_the_environment(around: Callable[[Environment], Environment]) -> None:
    """None where it has none."""
    first, second = (around(EnvSpec("Chain").make(1, evaluation=True)) for _ in "ab")
    first.reset()
    first.step(1)
    states = states_of([first])
    assert states is not None
    restore_all([second], states)
    assert second.step(1)[0].argmax() == 2
    assert states_of([around(object())]) is None  # type: ignore[list-item]


def test_the_names_of_actions_go_through_a_stack() -> None:
    """A film shows them."""
    plain, stacked = (EnvSpec("FrozenLake-v1", frame_stack=stack).make(1, evaluation=True) for stack in (0, 2))
    assert stacked.action_names == plain.action_names == ("left", "down", "right", "up")  # type: ignore[attr-defined]
