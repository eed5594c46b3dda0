"""Networks and exploration of a user's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import asyncrl
from asyncrl.commands.train import configure
from asyncrl.core.errors import UsageError
from asyncrl.core.exploration import EpsilonGreedy
from asyncrl.core.spaces import Spaces
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.trunk import compute_in
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_agent
from asyncrl.storage.checkpoints import load_newest
from asyncrl.storage.run_folder import RunFolder
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


ONE = nn.Linear(4, 3)


def always_the_same(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), ONE)


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
        (always_the_same, "must make new layers at each call: a run has several copies"),
    ],
)
def test_what_is_no_body_is_refused(factory: Callable[..., nn.Module], line: str) -> None:
    """In one line, by name; at the second call if the first is right."""
    name = f"{HERE}:{factory.__name__}"
    with contextlib.suppress(UsageError):
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=name), SPACES)
    with pytest.raises(UsageError, match=f"--network {name} {line}"):
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=name), SPACES)


def in_place(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(shape[0], 4))


def test_a_body_that_works_in_place_leaves_the_observations_as_they_are() -> None:
    """They are the rollout's, and go into a replay memory."""
    network = asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=f"{HERE}:in_place"), SPACES)
    observations = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])

    network.policy_at(observations)

    assert observations.tolist() == [[-1.0, 2.0, -3.0, 4.0]]


def half_frozen(shape: tuple[int, ...]) -> nn.Module:
    encoder = threes(shape).requires_grad_(False)
    return nn.Sequential(encoder, nn.Linear(5, 4))


@pytest.mark.parametrize("algorithm", ["a3c", "one_step_q", "apex"])
def test_frozen_layers_keep_their_weights(algorithm: str, tmp_path: Path) -> None:
    """The others learn."""
    settings: dict[str, Any] = {"warmup_steps": 50, "memory_steps": 1000} if algorithm == "apex" else {}
    run = asyncrl.train(
        algorithm, env_id="CartPole-v1", network=half_frozen, backend="serial", workers=1, total_steps=300, quiet=True,
        evaluation_episodes=1, runs_dir=tmp_path, **settings,
    )  # fmt: skip

    found, _ = load_newest(RunFolder(run.path).checkpoints)
    names = [name for name in found.parameters if name.endswith("body.0.0.weight")]
    assert names
    assert all(torch.equal(found.parameters[name], torch.full((5, 4), 3.0)) for name in names)


def after_norm(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(shape[0]), nn.Linear(shape[0], 8), nn.LayerNorm(8), nn.Tanh())


def test_a_body_that_begins_with_a_norm_computes_in_bfloat16_too() -> None:
    """Its norms take numbers of both kinds."""
    network = asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=f"{HERE}:after_norm"), SPACES)
    exact = network.policy_at(torch.ones(3, 4))[0].logits

    compute_in(network, "bfloat16")

    torch.testing.assert_close(network.policy_at(torch.ones(3, 4))[0].logits, exact, rtol=0.02, atol=0.02)


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
    """Rather than ignored; a dueling network has layers of ours behind it, as have policy and critics of SAC."""
    with pytest.raises(UsageError, match=r"--hidden-sizes is not for --network .*threes"):
        asyncrl.a3c.A3C.make_network(asyncrl.a3c.A3C.Config(network=f"{HERE}:threes", hidden_sizes=(64,)), SPACES)

    for name in ("sac", "apex_dpg"):
        words = ["--env-id", "Pendulum-v1", "--preset", "paper", "--network", f"{HERE}:threes"]
        assert configure(f"asyncrl.{name}", words).config.hidden_sizes
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
