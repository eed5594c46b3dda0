"""bfloat16 in the large layers, float32 around them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from asyncrl import catalog
from asyncrl.core.flat import flatten_parameters, gradient_of, split_like
from asyncrl.core.spaces import Spaces
from asyncrl.core.updates import UpdateRule
from asyncrl.nets.trunk import Trunk, compute_in, make_body
from asyncrl.runtime.loops import Replica
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_agent
from tests.contracts.test_algorithms import BOARD, CONTINUOUS, CONTROL, VECTOR, build, name_of, parts_of, rollout_of
from tests.support import make_run, shared_store

REDUCED = torch.bfloat16


def trunk_of(kind: str, cells: int = 0) -> Trunk:
    torch.manual_seed(0)
    if kind == "vector":
        return Trunk(make_body("mlp", (16,), Spaces((8,), "float32", 2), normalized=True), cells)
    spaces = Spaces((4, 10, 10), "uint8", 2, kind="board")
    return Trunk(make_body("board", (128,), spaces, normalized=False), cells)


def observations_for(kind: str, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "vector":
        return torch.randn(*leading, 8, generator=generator)
    return torch.randint(0, 256, (*leading, 4, 10, 10), dtype=torch.uint8, generator=generator)


def test_layers_multiply_in_bfloat16() -> None:
    """The features are those of inputs, weights and biases that were cast by hand, as float32."""
    trunk = trunk_of("vector")
    observations = observations_for("vector", 5, 2)
    plain = trunk(observations, None)[0]
    compute_in(trunk, "bfloat16")

    features, _ = trunk(observations, None)

    layer = trunk.body.linear[0]  # type: ignore[index]
    weight, bias = layer.weight.to(REDUCED), layer.bias.to(REDUCED)
    expected = F.linear(observations.to(REDUCED), weight, bias).tanh()
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected.float(), rtol=0, atol=0)
    assert not torch.equal(features, plain)
    torch.testing.assert_close(features, plain, rtol=0, atol=0.02)


@pytest.mark.parametrize("cells", [0, 6])
@pytest.mark.parametrize("kind", ["vector", "board"])
def test_the_gradient_is_float32_and_close_to_that_of_float32(kind: str, cells: int) -> None:
    """In every parameter, after the same loss of all features."""
    trunk = trunk_of(kind, cells)
    flatten_parameters(trunk)
    parameters = list(trunk.parameters())
    observations = observations_for(kind, 6, 4)
    gradients = []
    for precision in ("float32", "bfloat16"):
        compute_in(trunk, precision)
        features, states = trunk(observations, trunk.initial_state(4))
        assert all(state.dtype == torch.float32 for state in states or ())
        flat = torch.empty(sum(parameter.numel() for parameter in parameters))
        gradients.append(gradient_of(features.square().mean(), parameters, out=flat))

    difference = torch.linalg.vector_norm(gradients[1] - gradients[0])
    assert 0 < difference < 0.02 * torch.linalg.vector_norm(gradients[0])


@pytest.mark.parametrize("private_copy", [False, True])
def test_every_pull_renews_what_was_cast(private_copy: bool) -> None:
    """The large layers act and learn with theta as it was at the pull, cast; the heads with theta' itself."""
    network = build("a3c", BOARD, {}).network
    shapes = [parameter.detach().clone() for parameter in network.parameters()]
    store = shared_store(flatten_parameters(network).clone(), UpdateRule("rmsprop"))
    replica = Replica(store, network, None, private_copy, "bfloat16")
    for scale in (1.0, 3.0):
        store.theta.mul_(scale)
        replica.pull(store)

        parts = split_like(store.theta, shapes)
        for (name, own), part in zip(network.named_parameters(), parts, strict=True):
            assert own.dtype == (REDUCED if name.startswith("trunk") else torch.float32)
            assert torch.equal(own, part.to(own.dtype))


@pytest.mark.parametrize("worker", [0, EVALUATOR])
def test_who_evaluates_does_so_in_float32(tmp_path: Path, worker: int) -> None:
    """Workers compute as the setting says."""
    agent, _ = build_agent(make_run(tmp_path, precision="bfloat16"), worker)

    assert isinstance(agent.network.trunk.precision, torch.autocast) == (worker != EVALUATOR)


@pytest.mark.parametrize("spaces", [BOARD, VECTOR], ids=name_of)
@pytest.mark.parametrize("algorithm", catalog.ALGORITHMS)
def test_every_algorithm_learns_in_bfloat16(algorithm: str, spaces: Spaces) -> None:
    """Losses and gradients are float32, finite, and close to those of float32."""
    losses, spaces = {}, CONTINUOUS if algorithm in CONTROL else spaces
    for precision in ("float32", "bfloat16"):
        agent = build(algorithm, spaces, {})
        parameters = list(agent.network.parameters())
        part = parts_of(algorithm, agent, rollout_of(agent, spaces, 5, 4))[0]
        compute_in(agent.network, precision)
        if agent.target is not None:
            compute_in(agent.target, precision, cast_weights=False)
        loss, _ = agent.loss(part)
        flat = torch.empty(sum(parameter.numel() for parameter in parameters))
        assert gradient_of(loss, parameters, out=flat).isfinite().all()
        assert loss.dtype == torch.float32
        losses[precision] = loss.item()

    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.1, abs=0.05)
