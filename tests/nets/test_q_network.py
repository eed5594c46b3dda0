"""Action values: the dueling streams by hand, and where they part."""

from __future__ import annotations

import pytest
import torch

from asyncrl import n_step_q, one_step_q
from asyncrl.core.spaces import Spaces
from asyncrl.nets.q_network import Dueling, QNetwork

VECTOR = Spaces((5,), "float32", 3)
BOARD = Spaces((4, 10, 10), "float32", 3, kind="board")


def test_dueling_streams_by_hand() -> None:
    """V = 2 relu(3) + 1 = 7; A = relu(3 - 1) (1, 2, 6) = (2, 4, 12), of mean 6: Q = 7 + (-4, -2, 6) = (3, 5, 13)."""
    head = Dueling(features=1, width=1, actions=3)
    with torch.no_grad():
        head.hidden.weight[:] = 1.0
        head.hidden.bias[:] = torch.tensor([0.0, -1.0])
        head.value.weight[:], head.value.bias[:] = 2.0, 1.0
        head.advantage.weight[:], head.advantage.bias[:] = torch.tensor([[1.0], [2.0], [6.0]]), 0.0

    assert head(torch.tensor([[3.0]])).tolist() == [[3.0, 5.0, 13.0]]
    assert head(torch.tensor([[-3.0]])).tolist() == [[1.0, 1.0, 1.0]]


def test_what_all_advantages_have_in_common_does_not_matter() -> None:
    """The value is the mean of Q, and the only one to say where it lies."""
    torch.manual_seed(0)
    head, features = Dueling(4, 8, 3), torch.randn(6, 4)
    before = head(features)
    with torch.no_grad():
        head.advantage.bias += 100.0

    torch.testing.assert_close(head(features), before, atol=1e-4, rtol=0)
    values = head.value(head.hidden(features).relu()[:, :8])[:, 0]
    torch.testing.assert_close(before.mean(-1), values)


def sizes(network: QNetwork) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")}


def test_the_streams_take_the_last_hidden_layer_with_them() -> None:
    """Of 64 and 64 tanh units one layer is left in the body; of a board's convolutions there is none behind them."""
    vector = one_step_q.OneStepQ.make_network(one_step_q.OneStepQ.Config(dueling=True), VECTOR)
    board = one_step_q.OneStepQ.make_network(one_step_q.OneStepQ.Config(dueling=True), BOARD)

    assert sizes(vector) == {
        "trunk.body.linear.0.weight": (64, 5), "head.hidden.weight": (128, 64),
        "head.value.weight": (1, 64), "head.advantage.weight": (3, 64),
    }  # fmt: skip
    assert sizes(board)["head.hidden.weight"] == (256, 16 * 8 * 8)
    assert "trunk.body.linear.0.weight" not in sizes(board)


def test_behind_a_memory_the_streams_have_a_layer_more() -> None:
    """What the LSTM takes is what the body gives without dueling."""
    plain, dueling = (
        n_step_q.NStepQ.make_network(n_step_q.NStepQ.Config(lstm_cells=7, dueling=d), VECTOR) for d in (False, True)
    )

    before = sizes(plain)
    del before["head.weight"]
    assert before.items() < sizes(dueling).items()
    assert sizes(dueling)["head.hidden.weight"] == (128, 7)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("spaces", [VECTOR, BOARD])
def test_acting_and_learning_see_the_same_values(spaces: Spaces, dueling: bool) -> None:
    """Of the same observations, whichever way they are asked for; every parameter has a gradient."""
    torch.manual_seed(0)
    network = one_step_q.OneStepQ.make_network(one_step_q.OneStepQ.Config(dueling=dueling), spaces)
    observations = torch.randn(2, 3, *spaces.observation_shape)

    q, _ = network(observations)
    (q**2).sum().backward()

    torch.testing.assert_close(network.values_at(observations[1])[0], q[1])
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
