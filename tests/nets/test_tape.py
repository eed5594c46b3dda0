"""What was computed while acting is not computed again for the gradient, and the gradient stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.a3c import A3C
from asyncrl.core.flat import flatten_parameters, gradient_of
from asyncrl.core.spaces import Spaces
from asyncrl.core.updates import UpdateRule
from asyncrl.nets import acting, convolutions
from asyncrl.nets.actor_critic import ActorCritic
from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody
from asyncrl.nets.trunk import compute_in, keep_activations
from asyncrl.runtime import loops
from asyncrl.runtime.loops import Replica
from asyncrl.runtime.roles import build_worker
from tests.support import make_run, shared_store

STEPS, ENVIRONMENTS = 5, 3
SCREENS = {"board": (4, 10, 10), "small": (4, 42, 42), "paper": (4, 84, 84), "nature": (4, 84, 84)}


@pytest.fixture(autouse=True)
def for_small_networks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "TAPED_ENVIRONMENTS", 1)
    monkeypatch.setattr(convolutions, "TAPED_MULTIPLICATIONS", 0)


def network_of(name: str, **settings: Any) -> ActorCritic:
    torch.manual_seed(1)
    spaces = Spaces(SCREENS[name], "uint8", 6, kind="board" if name == "board" else "atari")
    network = A3C.make_network(A3C.Config(normalize_observations=False, network=name, **settings), spaces)
    assert isinstance(network, ActorCritic)
    flatten_parameters(network)
    return network


def observations_of(name: str) -> Tensor:
    return torch.randint(0, 256, (STEPS + 1, ENVIRONMENTS, *SCREENS[name]), dtype=torch.uint8)


def act(network: ActorCritic, observations: Tensor) -> None:
    """A rollout: the last observation is not acted on."""
    state = network.initial_state(ENVIRONMENTS)
    with torch.inference_mode():
        for row in observations[:-1]:
            _, state = network.policy_at(row, state)


def gradient_at(network: ActorCritic, observations: Tensor, bootstrap: bool = False) -> Tensor:
    """Of a loss of all outputs, those at the last observation only with `bootstrap`."""
    policy, values, _ = network(observations, network.initial_state(ENVIRONMENTS))
    rows = slice(None) if bootstrap else slice(-1)
    chosen = policy.log_probability(torch.ones(values.shape, dtype=torch.int64))
    loss = (values[rows] * torch.linspace(-1, 2, values[rows].numel()).view_as(values[rows])).sum() + chosen[rows].sum()
    parameters = list(network.parameters())
    return gradient_of(loss, parameters, torch.empty(sum(parameter.numel() for parameter in parameters)))


def assert_equal(own: Tensor, expected: Tensor, error: float = 1e-5) -> None:
    assert torch.linalg.vector_norm(own - expected) <= error * torch.linalg.vector_norm(expected)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes of the forward passes that are not recorded."""
    sizes: list[int] = []
    compute = ConvolutionalBody._compute

    def counted(body: ConvolutionalBody, observations: Tensor) -> Tensor:
        sizes.append(len(observations))
        return compute(body, observations)

    monkeypatch.setattr(ConvolutionalBody, "_compute", counted)
    return sizes


@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("cells", [0, 8])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SCREENS)
def test_the_gradient_is_that_of_a_second_pass(
    name: str, precision: str, cells: int, bootstrap: bool, passes: list[int]
) -> None:
    """For all networks, with and without an LSTM, also if the loss uses the outputs at the last observation."""
    network, observations = network_of(name, lstm_cells=cells), observations_of(name)
    compute_in(network, precision)
    expected = gradient_at(network, observations, bootstrap)
    passes.clear()

    keep_activations(network, STEPS + 1, ENVIRONMENTS)
    act(network, observations)
    own = gradient_at(network, observations, bootstrap)

    assert passes == []
    assert_equal(own, expected, 1e-5 if precision == "float32" else 1e-2)


@pytest.mark.skipif(not acting.LANES, reason="there is no compiled code for acting here")
@pytest.mark.parametrize("bootstrap", [False, True])
@pytest.mark.parametrize("name", SCREENS)
def test_compiled_acting_keeps_the_same_activations(
    name: str, bootstrap: bool, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient is that of a second pass, in the first rollout and in later ones, which reuse the memory.

    What has not been acted on, the last observation, is computed by compiled code, too.
    """
    network, observations = network_of(name), observations_of(name)
    expected = gradient_at(network, observations, bootstrap)
    monkeypatch.delattr(ConvolutionalBody, "step")
    store = shared_store(flatten_parameters(network).clone(), UpdateRule("rmsprop"))
    replica = Replica(store, network, None, True, taped=(STEPS + 1, ENVIRONMENTS), compiled=True)
    for _ in range(2):
        replica.pull(store)
        passes.clear()
        act(network, observations)
        own = gradient_at(network, observations, bootstrap)

        assert passes == []
        assert_equal(own, expected)


def test_features_without_a_layer_of_their_own_are_recorded_too() -> None:
    """As before the two streams of a dueling network."""
    torch.manual_seed(1)
    body = ConvolutionalBody(SCREENS["small"], CONVOLUTIONS["small"], (), raw_pixels=True)
    observations = observations_of("small")
    gradients = []
    for taped in (False, True):
        if taped:
            keep_activations(body, STEPS + 1, ENVIRONMENTS)
            with torch.inference_mode():
                for row in observations:
                    body.step(row)
        loss = body(observations.flatten(0, 1)).square().sum()
        gradients.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(body.parameters()))]))

    assert_equal(gradients[1], gradients[0])


def test_a_pull_makes_it_compute_anew(passes: list[int]) -> None:
    """The gradient is taken at the theta' of the pull, whatever was recorded with an older one."""
    network, observations = network_of("small"), observations_of("small")
    store = shared_store(flatten_parameters(network).clone(), UpdateRule("rmsprop"))
    replica = Replica(store, network, None, True, taped=(STEPS + 1, ENVIRONMENTS))
    replica.pull(store)
    act(network, observations)
    store.theta.mul_(1.5)
    replica.pull(store)
    passes.clear()

    own = gradient_at(network, observations)

    assert passes == [(STEPS + 1) * ENVIRONMENTS]
    plain = network_of("small")
    for parameter in plain.parameters():
        parameter.data.mul_(1.5)
    assert_equal(own, gradient_at(plain, observations))


def test_only_the_rollout_that_was_acted_comes_from_the_tape(passes: list[int]) -> None:
    """Others are computed: other memory, half of a rollout, single observations; each new rollout is recorded anew."""
    network, observations, others = network_of("small"), observations_of("small"), observations_of("small")
    expected = [gradient_at(network_of("small"), which) for which in (observations, others)]
    keep_activations(network, STEPS + 1, ENVIRONMENTS)
    passes.clear()

    act(network, observations)
    assert_equal(gradient_at(network, others), expected[1])
    assert passes == [(STEPS + 1) * ENVIRONMENTS]
    with torch.inference_mode():
        network.policy_at(others[2])  # somebody acts in between, elsewhere
    assert passes[1:] == [ENVIRONMENTS]
    assert_equal(gradient_at(network, observations), expected[0])
    network(observations[2:4])
    network(observations[-1:, :1])
    assert passes[2:] == [2 * ENVIRONMENTS, 1]

    observations.copy_(others)  # the next rollout lies in the same memory
    act(network, observations)
    assert_equal(gradient_at(network, observations), expected[1])
    assert len(passes) == 4


def test_observations_that_are_gone_are_not_mistaken_for_others(passes: list[int]) -> None:
    """An agent may act on what it makes of the observations, and the memory of that may be used again."""
    network, observations = network_of("small"), observations_of("small")
    expected = gradient_at(network_of("small"), observations)
    keep_activations(network, STEPS + 1, ENVIRONMENTS)
    for _ in range(20):
        with torch.inference_mode():
            network.policy_at(observations[1].clone())
        passes.clear()
        assert_equal(gradient_at(network, observations.clone()), expected)
        assert passes == [(STEPS + 1) * ENVIRONMENTS]


def test_a_second_derivative_is_refused() -> None:
    """It would need the activations' own graph."""
    network, observations = network_of("small"), observations_of("small")
    keep_activations(network, STEPS + 1, ENVIRONMENTS)
    act(network, observations)
    weight = next(network.parameters())
    (gradient,) = torch.autograd.grad(network(observations)[1].sum(), weight, create_graph=True)

    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("algorithm", ["a3c", "n_step_q"])
def test_workers_learn_the_same_with_and_without(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[int]
) -> None:
    """Two dozen updates of a worker; with it, only other networks and truncated episodes need a pass of their own."""
    thetas, counts = [], []
    for taped in (True, False):
        if not taped:
            monkeypatch.setattr(loops, "keep_activations", lambda network, *size: [])
        run = make_run(tmp_path / str(taped), algorithm, envs_per_worker=2, t_max=5, env_id="MinAtar/Breakout-v1")
        worker = build_worker(run, 0)
        passes.clear()
        for _ in range(24):
            next(worker.loop)
        counts.append(len(passes))
        thetas.append(run.handles.store.snapshot())
        worker.close()

    assert counts[0] <= 24 < counts[1]
    torch.testing.assert_close(thetas[0], thetas[1])


def test_it_is_made_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """For large networks and several environments."""
    monkeypatch.undo()
    tapes = {(name, count): len(keep_activations(network_of(name), 6, count)) for name in SCREENS for count in (3, 4)}

    assert {which for which, made in tapes.items() if made} == {("paper", 4), ("nature", 4)}


@pytest.mark.parametrize("algorithm", ["one_step_q", "one_step_sarsa", "reinforce", "a2c"])
def test_who_learns_with_another_theta_or_from_whole_episodes_keeps_nothing(algorithm: str, tmp_path: Path) -> None:
    """Others change theta while such a worker acts; whole episodes may be long."""
    worker = build_worker(make_run(tmp_path, algorithm), 0)

    assert all(getattr(part, "tape", None) is None for part in worker.agent.network.modules())
    worker.close()
