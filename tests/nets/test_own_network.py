"""Networks and exploration of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import asyncrl
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import EpsilonGreedy
from asyncrl.core.spaces import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_agent
from tests.support import make_run

HERE = __name__
SPACES = Spaces((4,), "float32", 2)
SCREEN = Spaces((3, 8, 8), "uint8", 2, kind="board")


def threes(shape: tuple[int, ...]) -> nn.Module:
    """A body whose weights are all 3, so that they can be recognised."""
    layer = nn.Linear(shape[0], 5, bias=False)
    nn.init.constant_(layer.weight, 3.0)
    return nn.Sequential(layer, nn.Tanh())


def of_images(shape: tuple[int, ...]) -> nn.Module:
    """A body for images."""
    return nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.ReLU(), nn.Flatten())


def with_batch_norm(shape: tuple[int, ...]) -> nn.Module:
    return nn.BatchNorm1d(shape[0])


def without_features(shape: tuple[int, ...]) -> nn.Module:
    return nn.Flatten(0)


def of_doubles(shape: tuple[int, ...]) -> nn.Module:
    class Doubles(nn.Linear):
        def forward(self, observations: Tensor) -> Tensor:
            return super().forward(observations.double()).float()

    return Doubles(shape[0], 2, dtype=torch.float64)


def broken(shape: tuple[int, ...]) -> nn.Module:
    raise ValueError("no idea")


def test_a_body_of_ones_own_keeps_its_weights_and_gets_the_heads() -> None:
    """Only what is ours is initialised; its width is found out."""
    network = asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=f"{HERE}:threes"), SPACES)

    assert isinstance(network, ActorCritic)
    weight = dict(network.named_parameters())["trunk.body.body.0.weight"]
    assert torch.equal(weight, torch.full((5, 4), 3.0))
    assert network.policy.in_features == 5


def test_action_values_take_it_too() -> None:
    """Of images, in two streams: whole, before they part."""
    config = asyncrl.one_step_q.OneStepQ.Config(network=f"{HERE}:of_images", dueling=True)
    network = asyncrl.one_step_q.OneStepQ.make_network(config, SCREEN)

    values, _ = network.values_at(torch.zeros(7, 3, 8, 8, dtype=torch.uint8))
    assert values.shape == (7, 2)
    assert network.trunk.features == 2 * 6 * 6


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        (with_batch_norm, "has buffers, as batch norm does; only parameters are shared"),
        (without_features, r"must return an nn.Module from \[B, 4\] to \[B, features\]"),
        (of_doubles, "has parameters that are not float32"),
        (broken, "failed: ValueError: no idea"),
    ],
)
def test_what_is_no_body_is_refused(factory: Callable[..., nn.Module], line: str) -> None:
    """In one line, by name."""
    name = f"{HERE}:{factory.__name__}"
    with pytest.raises(UsageError, match=f"--network {name} {line}"):
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=name), SPACES)


def with_dropout(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 32), nn.Tanh(), nn.Dropout(0.5))


def test_who_plays_drops_nothing_out(tmp_path: Path) -> None:
    """Neither the evaluator nor a policy: the same observation has the same value each time; a worker's has not."""
    run = make_run(tmp_path, "one_step_q", env_id="CartPole-v1", network=f"{HERE}:with_dropout")

    def values_of(who: int) -> int:
        agent, replica = build_agent(run, who)
        replica.pull(run.handles.store)
        return len({tuple(agent.network.values_at(torch.ones(1, 4))[0].tolist()[0]) for _ in range(20)})

    assert values_of(EVALUATOR) == 1
    assert values_of(0) > 1


def half_and_half(config: Any, worker: int) -> EpsilonGreedy:
    """Every second worker never explores."""
    return EpsilonGreedy(0.5 if worker % 2 else 0.0)


def test_widths_are_refused_for_layers_of_ones_own() -> None:
    """Rather than ignored; a dueling network has layers of ours beside it."""
    with pytest.raises(UsageError, match=r"--hidden-sizes is not for --network .*threes"):
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=f"{HERE}:threes", hidden_sizes=(64,)), SPACES)

    settings = {"network": f"{HERE}:threes", "hidden_sizes": (64,), "dueling": True}
    assert asyncrl.n_step_q.NStepQ.make_network(asyncrl.n_step_q.NStepQ.Config(**settings), SPACES) is not None


def test_exploration_of_ones_own_is_asked_for_each_worker() -> None:
    """The evaluator explores as it always does."""
    config = asyncrl.one_step_q.OneStepQ.Config(exploration=f"{HERE}:half_and_half")

    assert [config.exploration_of(worker).facts()["final_epsilon"] for worker in (0, 1, None)] == [0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"network": "natur"}, "--network takes auto, small, board, paper, nature, mlp or module:factory, got 'natur'"),
        (
            {"exploration": "often"},
            "--exploration takes drawn, ladder, boltzmann, equal or module:factory, got 'often'",
        ),
    ],
)
def test_a_name_that_is_none_is_refused(settings: dict[str, str], line: str) -> None:
    """With those there are."""
    with pytest.raises(UsageError, match=line):
        asyncrl.one_step_q.OneStepQ.Config(**settings)  # type: ignore[arg-type]
