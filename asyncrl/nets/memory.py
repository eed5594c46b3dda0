"""An LSTM after the last hidden layer (Mnih et al. 2016, section 5.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.core.precision import Reducible
from asyncrl.core.rollout import State
from asyncrl.nets.bodies import Body


class Memory(nn.Module):
    """One LSTM layer, unrolled step by step so that any environment may begin a new episode at any step."""

    def __init__(self, inputs: int, cells: int) -> None:
        super().__init__()
        self.cells = cells
        # Input, forget, cell and output gate, in the order of torch's own LSTM.
        self.input_weight = nn.Parameter(nn.init.orthogonal_(torch.empty(4 * cells, inputs)))
        self.recurrent_weight = nn.Parameter(nn.init.orthogonal_(torch.empty(4 * cells, cells)))
        self.bias = nn.Parameter(torch.zeros(4 * cells))

    def initial_state(self, environments: int) -> tuple[Tensor, Tensor]:
        """h and c at the beginning of an episode, `[E, cells]` each."""
        return torch.zeros(environments, self.cells), torch.zeros(environments, self.cells)

    def forward(self, features: Tensor, state: tuple[Tensor, ...], last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """h and c after each step, `[T, E, cells]` each, from features `[T, E, F]` and the state before the first.

        `last` `[T, E]` (or `[T - 1, E]`) says where an episode ended: the next step begins from the initial state.
        """
        h, c = state
        hs, cs = [], []
        gates_from_input = F.linear(features, self.input_weight, self.bias)
        for t, from_input in enumerate(gates_from_input):
            if last is not None and t > 0:
                keep = ~last[t - 1].unsqueeze(-1)
                h, c = h * keep, c * keep
            i, f, g, o = (from_input + F.linear(h, self.recurrent_weight)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            hs.append(h)
            cs.append(c)
        return torch.stack(hs), torch.stack(cs)


def at_end(states: State) -> State:
    """The state after the last step, `[E, ...]`, from the states after each, `[T, E, ...]`."""
    return None if states is None else tuple(part[-1] for part in states)


def at_places(states: State, times: Tensor, environments: Tensor) -> State:
    """The states after certain steps, `[K, ...]`, from the states after each, `[T, E, ...]`."""
    return None if states is None else tuple(part[times, environments] for part in states)


class Trunk(Reducible):
    """A body and, optionally, a memory after it."""

    def __init__(self, body: Body, cells: int = 0) -> None:
        super().__init__()
        self.body = body
        self.memory = Memory(body.features, cells) if cells else None
        self.features = cells or body.features

    def initial_state(self, environments: int) -> State:
        """The state in which episodes begin; None without a memory."""
        return None if self.memory is None else self.memory.initial_state(environments)

    def forward(self, observations: Tensor, state: State, last: Tensor | None = None) -> tuple[Tensor, State]:
        """Features `[T, E, F]` of observations `[T, E, *shape]`, and the states after each step `[T, E, ...]`."""
        steps, environments = observations.shape[:2]
        with self.precision:
            features = self.body(observations.reshape(-1, *observations.shape[2:])).view(steps, environments, -1)
            if self.memory is None:
                return features.float(), None
            assert state is not None
            h, c = self.memory(features, state, last)
        return h.float(), (h.float(), c.float())

    def step(self, observations: Tensor, state: State) -> tuple[Tensor, State]:
        """A single step: features `[E, F]` of observations `[E, *shape]`, and the state after it `[E, ...]`."""
        with self.precision:
            features = self.body.step(observations)
            if self.memory is None:
                return features.float(), None
            assert state is not None
            h, c = self.memory(features[None], state)
        h, c = h[0].float(), c[0].float()
        return h, (h, c)
