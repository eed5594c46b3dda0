"""Bodies: observations in, features out. Those for images are in `convolutions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from asyncrl.core.errors import UsageError

L = TypeVar("L", bound=nn.Module)


class Body(nn.Module):
    """A module from observations to features."""

    features: int
    """Width of the output."""
    initialises_itself = False
    """Whether it keeps the weights that it was made with."""

    def step(self, observations: Tensor) -> Tensor:
        """Features `[E, F]` of observations `[E, ...]`, for acting."""
        features: Tensor = self(observations)
        return features

    def keep_activations(self, steps: int, environments: int) -> Callable[[], None] | None:
        """Keep what is computed while acting for the gradient, if that pays; returns what forgets it."""
        return None


class VectorBody(Body):
    """Fully connected layers with tanh after each. `[B, n]` -> `[B, features]`."""

    def __init__(self, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.linear = linear_layers((inputs, *widths))
        self.features = widths[-1] if widths else inputs

    @cached_property
    def _linear(self) -> list[tuple[Tensor, Tensor]]:  # at the first pass: until then layers may be replaced
        return parameters_of(self.linear)

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, n]`."""
        hidden = observations
        for weight, bias in self._linear:
            hidden = F.linear(hidden, weight, bias).tanh_()
        return hidden


def linear_layers(sizes: Sequence[int]) -> nn.ModuleList:
    """Linear layers between consecutive `sizes`."""
    return nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))


def layers_of(layers: nn.ModuleList, kind: type[L]) -> Iterator[L]:
    """The layers, all of one kind. Raises UsageError if one is of another."""
    for layer in layers:
        if not isinstance(layer, kind):
            raise UsageError(f"a body's {kind.__name__} cannot become a {type(layer).__name__}: write your own body")
        yield layer


def parameters_of(layers: nn.ModuleList) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer. Raises UsageError if one is of another kind."""
    return [(layer.weight, layer.bias) for layer in layers_of(layers, nn.Linear)]


def initialise(network: nn.Module, how: str, head_gains: Mapping[nn.Module, float]) -> None:
    """Initialise every layer of `network` except the memory and bodies that initialise themselves.

    "orthogonal": orthogonal weights, with the gain from `head_gains` for heads and sqrt(2) elsewhere, and zero biases
    (Saxe et al. 2014). "torch7": U(+-1/sqrt(fan_in)) for weights and biases, which the paper's author calls the default
    Torch initialisation.
    """
    bodies = [part for part in network.modules() if isinstance(part, Body) and part.initialises_itself]
    own = {layer for body in bodies for layer in body.modules()}
    for layer in network.modules():
        if layer in own or not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        assert layer.bias is not None
        if how == "torch7":
            bound = float(layer.weight[0].numel()) ** -0.5
            nn.init.uniform_(layer.weight, -bound, bound)
            nn.init.uniform_(layer.bias, -bound, bound)
        else:
            nn.init.orthogonal_(layer.weight, head_gains.get(layer, 2**0.5))
            nn.init.zeros_(layer.bias)
