"""Compiled code acts as the network itself does."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn

from asyncrl.algorithm import algorithm_of
from asyncrl.core.flat import flatten_parameters
from asyncrl.core.spaces import Spaces
from asyncrl.core.updates import UpdateRule
from asyncrl.nets import acting
from asyncrl.nets.acting import Compiled, act_compiled
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.bodies import Body, VectorBody
from asyncrl.nets.convolutions import ConvolutionalBody
from asyncrl.nets.trunk import Trunk, compute_in, keep_activations
from asyncrl.runtime import roles
from asyncrl.runtime.loops import Replica
from tests.support import make_run, shared_store

compiled = pytest.mark.skipif(not acting.LANES, reason="there is no compiled code for acting here")
VECTOR = Spaces((5,), "float32", 3, kind="vector")
CONTINUOUS = Spaces((17,), "float32", 0, (-1.0, -2.0), (1.0, 2.0), kind="vector")
SPACES = {
    "mlp": VECTOR,
    "board": Spaces((7, 10, 10), "uint8", 6, kind="board"),
    "small": Spaces((4, 42, 42), "uint8", 6, kind="atari"),
    "paper": Spaces((4, 84, 84), "uint8", 4, kind="atari"),
    "nature": Spaces((4, 84, 84), "uint8", 18, kind="atari"),
}


def network_of(algorithm: str, spaces: Spaces, **settings: Any) -> Any:
    """With weights that are far from the initial ones, biases among them."""
    torch.manual_seed(3)
    method = algorithm_of(f"asyncrl.{algorithm}")
    network = method.make_network(method.Config(**({"normalize_observations": False} | settings)), spaces)
    for parameter in network.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return network


def observations_of(spaces: Spaces, batch: int) -> Tensor:
    shape = (batch, *spaces.observation_shape)
    return torch.randn(shape) if spaces.kind == "vector" else torch.randint(0, 256, shape, dtype=torch.uint8)


def outputs(network: Any, observations: Tensor) -> Tensor:
    """All that acting needs, as a copy."""
    with torch.inference_mode():
        if hasattr(network, "values_at"):
            return network.values_at(observations)[0].clone()
        policy = network.policy_at(observations)[0]
        return policy.mean if hasattr(policy, "mean") else policy.logits.clone()


def is_compiled(network: nn.Module) -> bool:
    parts = [network, *network.modules()]
    return any(vars(part).keys() & {"policy_at", "values_at", "step"} for part in parts)


def assert_same(own: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_all_networks_give_what_torch_gives(
    name: str, normalized: bool, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the instructions of each kind of processor, in batches of 1 to 17, also after a pull of other weights."""
    if lanes > acting.LANES:
        pytest.skip("this processor has no such instructions")
    monkeypatch.setattr(acting, "LANES", lanes)
    spaces = SPACES[name]
    network, plain = (network_of("a3c", spaces, network=name, normalize_observations=normalized) for _ in range(2))
    store = shared_store(flatten_parameters(plain), UpdateRule("rmsprop"))
    replica = Replica(store, network, None, True, compiled=True)
    for batch in (*range(1, 18), 3):
        for parameter in plain.parameters():
            parameter.data += 0.01 * torch.randn_like(parameter)
        store.theta.copy_(torch.cat([parameter.detach().flatten() for parameter in plain.parameters()]))
        replica.pull(store)
        observations = observations_of(spaces, batch)
        if normalized:
            observations = observations.float() / 100 - 1

        assert_same(outputs(network, observations), outputs(plain, observations))
    assert is_compiled(network)


@compiled
@pytest.mark.parametrize(
    ("algorithm", "spaces", "settings"),
    [
        ("n_step_q", SPACES["small"], {}),
        ("n_step_q", SPACES["small"], {"dueling": True}),
        ("apex", VECTOR, {"hidden_sizes": (48, 80)}),
        ("a3c", CONTINUOUS, {}),
        ("a3c", Spaces((9,), "float32", 3, kind="vector", masked=True), {}),
        ("a3c", SPACES["nature"], {"hidden_sizes": (50, 30)}),
        ("a3c", Spaces((1, 30, 52), "uint8", 6, kind="atari"), {"network": "paper"}),
    ],
    ids=["q", "dueling", "widths", "continuous", "masks", "odd widths", "one image that is not square"],
)
def test_any_head_may_be_on_a_body(algorithm: str, spaces: Spaces, settings: dict[str, Any]) -> None:
    network, plain = (network_of(algorithm, spaces, **settings) for _ in range(2))
    act_compiled(network, changing=False)
    observations = observations_of(spaces, 5)

    assert is_compiled(network)
    assert_same(outputs(network, observations), outputs(plain, observations))


@compiled
def test_observations_of_other_types_and_layouts_are_converted() -> None:
    network, plain = (network_of("a3c", SPACES["small"]) for _ in range(2))
    act_compiled(network, changing=False)
    observations = observations_of(SPACES["small"], 3)
    expected = outputs(plain, observations)

    assert_same(outputs(network, observations.double()), expected)
    assert_same(outputs(network, observations.contiguous(memory_format=torch.channels_last)), expected)


@compiled
@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_outputs_are_kept_by_who_has_them(algorithm: str) -> None:
    """The next step does not overwrite them."""
    network = network_of(algorithm, VECTOR)
    act_compiled(network, changing=False)
    with torch.inference_mode():
        called = network.values_at if algorithm == "n_step_q" else network.policy_at
        first, _ = called(torch.ones(2, 5))
        kept = outputs(network, torch.ones(2, 5))
        called(torch.zeros(2, 5))

    assert torch.equal(getattr(first, "logits", first), kept)


@compiled
def test_observations_that_do_not_fit_are_refused() -> None:
    network = network_of("a3c", VECTOR)
    act_compiled(network, changing=False)

    for shape in ((2, 4), (2, 1, 5)):
        with torch.inference_mode(), pytest.raises(ValueError, match=rf"{re.escape(str(shape))} do not fit"):
            network.policy_at(torch.zeros(*shape))


@compiled
@pytest.mark.parametrize("spaces", [VECTOR, SPACES["small"]], ids=lambda spaces: spaces.kind)
@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_a_loss_of_what_acting_gives_has_its_gradient(algorithm: str, spaces: Spaces) -> None:
    """Also after acting, which has no gradient, and with a tape."""
    network, plain = (network_of(algorithm, spaces) for _ in range(2))
    keep_activations(network, 5, 4)
    act_compiled(network, changing=False)
    observations = observations_of(spaces, 4)
    outputs(network, observations)

    found = []
    for one in (network, plain):
        called = one.values_at if algorithm == "n_step_q" else one.policy_at
        given, _ = called(observations=observations, state=None)
        given = getattr(given, "logits", given)
        (given**2).sum().backward()
        found.append([parameter.grad for parameter in one.trunk.parameters()])
    assert all(
        gradient is not None and torch.equal(gradient, expected) for gradient, expected in zip(*found, strict=True)
    )


class Normed(Trunk):
    """Does something after the body."""

    def step(self, observations: Tensor, state: Any) -> tuple[Tensor, Any]:
        features, state = super().step(observations, state)
        return features - features.mean(-1, keepdim=True), state


class Doubled(nn.Linear):
    """A head that is not torch's own."""

    def forward(self, features: Tensor) -> Tensor:
        return 2 * super().forward(features)


def another_trunk(network: Any) -> None:
    network.trunk = Normed(network.trunk.body)


def another_head(network: Any) -> None:
    head = network.policy
    network.policy = Doubled(head.in_features, head.out_features)
    network.policy.load_state_dict(head.state_dict())


def no_bias(network: Any) -> None:
    network.policy.bias = None


def weight_norm(network: Any) -> None:
    nn.utils.parametrizations.weight_norm(network.policy)


def second_trunk(network: Any) -> None:
    network.predictor = Trunk(VectorBody(5, (32,)))


def only_the_second_known(network: Any) -> None:
    network.predictor, network.trunk = network.trunk, Trunk(OneLayer())


class OneLayer(Body):
    """A user's own."""

    features = 64

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 64)

    def forward(self, observations: Tensor) -> Tensor:
        return self.linear(observations).tanh()


@compiled
@pytest.mark.parametrize(
    "change", [another_trunk, another_head, no_bias, weight_norm, second_trunk, only_the_second_known]
)
def test_networks_that_only_look_like_known_ones_act_as_they_do(change: Any) -> None:
    network, plain = (network_of("a3c", VECTOR) for _ in range(2))
    for one in (network, plain):
        torch.manual_seed(1)
        change(one)
    act_compiled(network, changing=False)

    assert_same(outputs(network, observations := torch.randn(3, 5)), outputs(plain, observations))


@compiled
def test_only_the_first_convolution_may_have_a_border() -> None:
    torch.manual_seed(1)
    body = ConvolutionalBody((3, 8, 8), ((16, 3, 1, 1), (16, 3, 1, 1)), (32,), raw_pixels=False)
    network = ActorCritic(Trunk(body), 4)

    assert act_compiled(network, changing=False) == []


@compiled
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: cloudpickle.loads(cloudpickle.dumps(network))])
@pytest.mark.parametrize("spaces", [VECTOR, CONTINUOUS], ids=["discrete", "continuous"])
def test_copies_act_with_their_own_weights(copied: Any, spaces: Spaces) -> None:
    network, plain = (network_of("a3c", spaces) for _ in range(2))
    act_compiled(network, changing=False)
    observations = observations_of(spaces, 3)
    outputs(network, observations)
    frozen = copied(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)

    assert_same(outputs(frozen, observations), outputs(plain, observations))
    assert not torch.allclose(outputs(network, observations), outputs(plain, observations))


@compiled
def test_memory_does_not_grow_with_each_batch_size() -> None:
    network, plain = (network_of("a3c", VECTOR) for _ in range(2))
    found = Compiled(network.trunk.body, network.policy, changing=False)
    with torch.inference_mode():
        for batch in (*range(1, 30), 3, 3):
            observations = torch.randn(batch, 5)
            assert_same(found(observations), outputs(plain, observations))

    assert len(found._memory) == acting.SIZES


@compiled
@pytest.mark.parametrize("algorithm", ["a3c", "one_step_q"])
@pytest.mark.parametrize("spaces", [VECTOR, SPACES["small"]], ids=lambda spaces: spaces.kind)
def test_weights_that_somebody_changes_or_moves_are_used(algorithm: str, spaces: Spaces) -> None:
    """In place, by binding parameters to other memory, as an export does, or to other parameters."""
    network, plain = (network_of(algorithm, spaces) for _ in range(2))
    act_compiled(network, changing=False)
    observations = observations_of(spaces, 3)
    others = {name: 1.1 * part for name, part in plain.state_dict().items()}

    def in_place(changed: nn.Module) -> None:
        changed.load_state_dict(others)

    def elsewhere(changed: nn.Module) -> None:
        for parameter in changed.parameters():
            parameter.data = 0.9 * parameter.data

    def replaced(changed: nn.Module) -> None:
        changed.load_state_dict({name: part.clone() for name, part in plain.state_dict().items()}, assign=True)

    for change in (in_place, elsewhere, in_place, replaced):
        before = outputs(network, observations)
        for one in (network, plain):
            change(one)
        assert_same(outputs(network, observations), outputs(plain, observations))
        assert not torch.equal(outputs(network, observations), before) or change is replaced

    network.double()
    with pytest.raises(ValueError, match="not contiguous float32"):
        outputs(network, observations)


@compiled
def test_theta_itself_may_change_at_any_time() -> None:
    """A worker that acts on theta sees what others have written since its last step."""
    network, plain = (network_of("n_step_q", SPACES["small"]) for _ in range(2))
    store = shared_store(flatten_parameters(plain), UpdateRule("rmsprop"))
    Replica(store, network, None, private_copy=False, compiled=True)
    observations = observations_of(SPACES["small"], 2)
    outputs(network, observations)

    store.theta.mul_(1.3)
    for parameter in plain.parameters():
        parameter.data *= 1.3

    assert is_compiled(network)
    assert_same(outputs(network, observations), outputs(plain, observations))


@pytest.mark.parametrize(
    "settings", [{"lstm_cells": 8}, {"hidden_sizes": (20,)}, {"network": "tests.nets.test_acting:own"}]
)
def test_other_networks_act_as_before(settings: dict[str, Any]) -> None:
    network = network_of("a3c", VECTOR, **settings)

    assert act_compiled(network, changing=False) == []
    assert not is_compiled(network)


def own(shape: tuple[int, ...]) -> nn.Module:
    """A user's body."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.ReLU())


def test_bfloat16_acts_as_before() -> None:
    network = network_of("a3c", SPACES["small"])
    compute_in(network, "bfloat16")

    assert act_compiled(network, changing=False) == []


def test_serial_runs_do_not_use_it(tmp_path: Path) -> None:
    """They are the same, to the bit, with and without a compiler."""
    role = roles.build_worker(make_run(tmp_path), 0)

    assert not is_compiled(role.agent.network)
    role.close()


@compiled
def test_workers_of_other_runs_use_it(tmp_path: Path) -> None:
    """What they say of their actions' probabilities and of values is what a learner computes, but for rounding."""
    role = roles.build_worker(make_run(tmp_path, "ppo", backend="local", envs_per_worker=6), 0)
    agent: Any = role.agent
    rollout = next(role.collector) if role.collector else None
    role.close()

    assert rollout is not None
    assert is_compiled(agent.network)
    policy, value, _ = agent.network(rollout.observations[:-1])
    expected = {"log_probability": policy.log_probability(rollout.actions).detach(), "value": value.detach()}
    torch.testing.assert_close(rollout.extras, expected, rtol=0.0, atol=1e-5)
