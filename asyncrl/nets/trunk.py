"""All of a network below its heads: a body, optionally with an LSTM after it (Mnih et al. 2016, section 5.1).

With a precision of bfloat16 the large layers multiply in bfloat16 and accumulate in float32, which some processors do
in half the time (`asyncrl.runtime.precision`). These layers hold a bfloat16 copy of theta', renewed by each pull.
Autocast casts their inputs; their outputs are cast back to float32. Theta, the optimiser's statistics, recurrent
states, returns and losses are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces
from asyncrl.core.user_code import is_name
from asyncrl.nets.bodies import Body, VectorBody

AUTO = {"atari": "small", "screen": "small", "board": "board", "vector": "mlp"}
"""The network that "auto" chooses, by the kind of observation."""
WIDTHS = {"mlp": (64, 64), "board": (128,), "nature": (512,)}
"""Widths of the fully connected layers, where they are not 256."""


class Reducible(nn.Module):
    """A part of a network that may compute in bfloat16, within `precision`. Its outputs are float32."""

    def __init__(self) -> None:
        super().__init__()
        self.precision: AbstractContextManager[object] = nullcontext()

    def large(self) -> nn.Module:
        """The layers whose weights become bfloat16."""
        return self


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


def hidden_widths(network: str, sizes: tuple[int, ...], kind: str) -> tuple[int, ...]:
    """Widths of a body's fully connected layers: the given `sizes`, or the body's own; a user's body has 256."""
    return sizes or WIDTHS.get(AUTO[kind] if network == "auto" else network, (256,))


def make_body(network: str, widths: tuple[int, ...], spaces: Spaces, normalized: bool) -> Body:
    """The body named `network`, with fully connected layers of these `widths`; a user's own makes its own layers.

    `normalized` observations are no longer pixels. Raises UsageError for a body that cannot take such observations.
    """
    if spaces.parts:
        from asyncrl.nets.parts import PartsBody

        return PartsBody(network, widths, spaces, normalized, make_body)
    name, shape = AUTO[spaces.kind] if network == "auto" else network, spaces.observation_shape
    if is_name(name):
        from asyncrl.nets.own import OwnBody

        return OwnBody(name, shape)
    if spaces.is_image == (name == "mlp"):
        what = "an image" if spaces.is_image else "a vector"
        raise UsageError(f"--network {name} cannot take {what} of shape {shape}; use --network auto")
    if name == "mlp":
        return VectorBody(shape[0], widths)
    from asyncrl.nets.convolutions import CONVOLUTIONS, ConvolutionalBody

    raw_pixels = spaces.observation_dtype == "uint8" and not normalized
    return ConvolutionalBody(shape, CONVOLUTIONS[name], widths, raw_pixels)


def compute_in(network: nn.Module, precision: str, cast_weights: bool = True) -> None:
    """Let all parts of `network` that may do so compute in "float32" or "bfloat16".

    Without `cast_weights` the weights stay float32 and are cast on each use: for networks on weights that another
    process changes.
    """
    if precision == "float32":
        return
    for part in network.modules():
        if isinstance(part, Reducible):
            part.precision = torch.autocast("cpu", torch.bfloat16)
            for layer in part.large().modules() if cast_weights else ():
                if not isinstance(layer, nn.LayerNorm | nn.GroupNorm | _NormBase):  # they take both kinds
                    for weight in layer.parameters(recurse=False):
                        weight.data = weight.data.to(torch.bfloat16)


def keep_activations(network: nn.Module, steps: int, environments: int) -> list[Callable[[], None]]:
    """Let the bodies of `network` keep what they compute while acting, for the gradient, where that pays.

    For networks whose parameters do not change between acting and loss: call what is returned when they do.
    """
    kept = [part.keep_activations(steps, environments) for part in network.modules() if isinstance(part, Body)]
    return [forget for forget in kept if forget is not None]
