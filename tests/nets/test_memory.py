"""The LSTM: against torch's own, over boundaries, and where episodes end."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from asyncrl import a3c, n_step_q
from asyncrl.core.rollout import State, at_end, at_places
from asyncrl.core.spaces import Spaces
from asyncrl.nets.trunk import Memory, Trunk, make_body
from asyncrl.runtime.collect import Collector
from asyncrl.runtime.roles import build_agent, build_environments
from tests.support import make_run


def test_the_memory_is_torchs_lstm() -> None:
    """Same weights, same outputs over six steps of three environments."""
    torch.manual_seed(0)
    memory, reference = Memory(4, 5), nn.LSTM(4, 5)
    with torch.no_grad():
        reference.weight_ih_l0.copy_(memory.input_weight)
        reference.weight_hh_l0.copy_(memory.recurrent_weight)
        reference.bias_ih_l0.copy_(memory.bias)
        reference.bias_hh_l0.zero_()
    features, (h, c) = torch.randn(6, 3, 4), (torch.randn(3, 5), torch.randn(3, 5))

    hs, cs = memory(features, (h, c))

    expected, (_, last_c) = reference(features, (h[None], c[None]))
    torch.testing.assert_close(hs, expected)
    torch.testing.assert_close(cs[-1], last_c[0])


def test_a_rollout_in_two_halves_is_the_rollout() -> None:
    """The state carried over a t_max boundary makes no difference forwards."""
    torch.manual_seed(0)
    memory = Memory(2, 3)
    features = torch.randn(8, 2, 2)

    whole = memory(features, memory.initial_state(2))
    first = memory(features[:5], memory.initial_state(2))
    second = memory(features[5:], at_end(first))  # type: ignore[arg-type]

    torch.testing.assert_close(torch.cat([first[0], second[0]]), whole[0])


def test_an_episodes_end_forgets_for_that_environment_only() -> None:
    """After its end at step 1 environment 0 goes on as if it began at step 2; environment 1 does not notice."""
    torch.manual_seed(0)
    memory = Memory(2, 3)
    features = torch.randn(4, 2, 2)
    last = torch.tensor([[False, False], [True, False], [False, False], [False, False]])

    with_end, _ = memory(features, memory.initial_state(2), last)

    fresh, _ = memory(features[2:], memory.initial_state(2))
    undisturbed, _ = memory(features, memory.initial_state(2))
    torch.testing.assert_close(with_end[2:, 0], fresh[:, 0])
    torch.testing.assert_close(with_end[:, 1], undisturbed[:, 1])


def test_no_gradient_flows_over_the_end_of_an_episode() -> None:
    """A loss after the end does not depend on features before it."""
    memory = Memory(2, 3)
    features = torch.randn(4, 1, 2, requires_grad=True)
    last = torch.tensor([[False], [True], [False], [False]])

    memory(features, memory.initial_state(1), last)[0][2:].sum().backward()

    assert features.grad is not None
    assert features.grad[:2].abs().sum() == 0
    assert features.grad[2:].abs().sum() > 0


def test_states_at_places() -> None:
    """Time 1 of environment 0 and time 0 of environment 1."""
    states = (torch.arange(6.0).view(3, 2, 1),)

    picked = at_places(states, torch.tensor([1, 0]), torch.tensor([0, 1]))

    assert picked is not None
    assert picked[0].flatten().tolist() == [2.0, 1.0]


def test_a_trunk_without_cells_has_no_state() -> None:
    """Feed-forward is the same code with nothing to remember."""
    trunk = Trunk(make_body("mlp", (4,), Spaces((3,), "float32", 2), normalized=True))

    features, states = trunk(torch.randn(5, 2, 3), None)

    assert features.shape == (5, 2, 4)
    assert states is trunk.initial_state(2) is None


def test_bootstrapping_does_not_advance_the_stored_state(tmp_path: Path) -> None:
    """The loss is a function of the rollout: computed twice it gives the same, and the next rollout goes on from
    the state that acting left."""
    run = make_run(tmp_path, lstm_cells=4, workers=1)
    agent, replica = build_agent(run, 0)
    replica.pull(run.handles.store)
    environments = build_environments(run, 0, 2, evaluation=False)
    collector = Collector(environments, agent, run.spec.spaces, t_max=5, gamma=0.9, clock=run.handles.clock)
    rollout = next(collector)
    state = [part.clone() for part in collector._state]

    first, second = (agent.loss(rollout)[0].item() for _ in range(2))

    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(state, collector._state, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(state, next(collector).state, strict=True))


def test_acting_step_by_step_equals_the_unrolled_loss(tmp_path: Path) -> None:
    """The logits that chose the actions are those the loss differentiates."""
    spaces = Spaces((3,), "float32", 2)
    torch.manual_seed(0)
    network = a3c.A3C.make_network(a3c.A3C.Config(lstm_cells=5), spaces)
    observations, last = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    state = network.initial_state(2)
    stepwise = []
    for observation in observations:
        policy, state = network.policy_at(observation, state)
        stepwise.append(policy.logits)

    unrolled, _, states = network(observations, network.initial_state(2), last)

    torch.testing.assert_close(torch.stack(stepwise), unrolled.logits)
    assert_same_state(state, at_end(states))


def test_acting_on_vectors_of_actions_moves_both_memories() -> None:
    """Mean and deviation step by step are those of the unrolled network, and so are the four parts of the state."""
    spaces = Spaces((3,), "float32", 0, action_low=(-1.0, -1.0), action_high=(1.0, 1.0))
    torch.manual_seed(0)
    network = a3c.A3C.make_network(a3c.A3C.Config(lstm_cells=5, variance="state"), spaces)
    observations = torch.randn(6, 2, 3)
    state = network.initial_state(2)
    means = []
    for observation in observations:
        policy, state = network.policy_at(observation, state)
        means.append(policy.mean)

    unrolled, _, states = network(observations, network.initial_state(2))

    torch.testing.assert_close(torch.stack(means), unrolled.mean)
    assert state is not None
    assert len(state) == 4
    assert_same_state(state, at_end(states))


def test_action_values_step_by_step_equal_the_unrolled_ones() -> None:
    """With a memory and without one."""
    spaces = Spaces((3,), "float32", 2)
    for cells in (0, 5):
        torch.manual_seed(0)
        network = n_step_q.NStepQ.make_network(n_step_q.NStepQ.Config(lstm_cells=cells), spaces)
        observations = torch.randn(6, 2, 3)
        state = network.trunk.initial_state(2)
        stepwise = []
        for observation in observations:
            q, state = network.values_at(observation, state)
            stepwise.append(q)

        unrolled, states = network(observations, network.trunk.initial_state(2))

        torch.testing.assert_close(torch.stack(stepwise), unrolled)
        assert_same_state(state, at_end(states))


def assert_same_state(actual: State, expected: State) -> None:
    """Part by part, or None both."""
    if actual is None or expected is None:
        assert actual is expected
        return
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
