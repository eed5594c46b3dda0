"""Bodies: observations in, features out. Which one an algorithm uses is chosen by `make_body`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asyncrl.config.run_config import RunConfig
from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.named import find, is_name
from asyncrl.core.tape import Tape, Taped
from asyncrl.core.user_code import user_code


@dataclass(frozen=True)
class Convolutions:
    """Convolutional layers as data."""

    layers: tuple[tuple[int, int, int, int], ...]
    """Output channels, kernel, stride and padding of each."""
    width: int
    """Units of the fully connected layer after them."""

    @property
    def least(self) -> int:
        """Least height and width of an image."""
        size = 1
        for _, kernel, stride, padding in reversed(self.layers):
            size = max(1, (size - 1) * stride + kernel - 2 * padding)
        return size


CONVOLUTIONS = {
    # Mnih et al. 2013; figures 1 to 4 of Mnih et al. 2016
    "paper": Convolutions(((16, 8, 4, 0), (32, 4, 2, 0)), 256),
    # Mnih et al. 2015
    "nature": Convolutions(((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)), 512),
    # For CPUs and 42 x 42 screens: an eighth of the multiplications of the paper's network on 84 x 84, so acting and
    # learning together take a quarter of the emulator's time. The 7 x 7 patches overlap, so no edge cuts what moves.
    "small": Convolutions(((16, 7, 5, 3), (32, 3, 3, 0)), 256),
    # For boards of about ten by ten, such as MinAtar's; its own baselines use this one (Young & Tian 2019).
    "board": Convolutions(((16, 3, 1, 0),), 128),
}
SMALL = CONVOLUTIONS["small"]
MLP_WIDTHS = (64, 64)

TAPED_ENVIRONMENTS, TAPED_MULTIPLICATIONS = 4, 2_000_000
"""From how many environments, and multiplications per observation, it pays to keep activations for the gradient."""


relu_into = torch.ops.aten.relu.out
relu_backward = torch.ops.aten.threshold_backward
convolution_backward = torch.ops.aten.convolution_backward


class Body(nn.Module):
    """A module from observations to features."""

    features: int
    """Width of the output."""

    def step(self, observations: Tensor) -> Tensor:
        """Features `[E, F]` of observations `[E, ...]`, for acting."""
        features: Tensor = self(observations)
        return features


class ConvolutionalBody(Body, Taped):
    """Convolutions and fully connected layers with ReLU after each. `[B, C, H, W]` uint8 or float -> `[B, features]`.

    For uint8 pixels the first layer's weights are divided by 255 instead: for the paper's network these are 4 096
    divisions, while one observation has 28 224 pixels.
    """

    def __init__(
        self, shape: tuple[int, ...], convolutions: Convolutions, widths: Sequence[int], raw_pixels: bool
    ) -> None:
        super().__init__()
        self.scale = 1 / 255 if raw_pixels else 1.0
        channels, height, width = shape
        if min(height, width) < convolutions.least:
            raise UsageError(
                f"an image of {height}x{width} pixels is too small for this --network, which needs at least "
                f"{convolutions.least}x{convolutions.least}: use --network auto or a larger --image-size"
            )
        layers: list[nn.Conv2d] = []
        self._shapes: list[tuple[int, ...]] = [shape]
        for out, kernel, stride, padding in convolutions.layers:
            height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
            channels = out
            self._shapes.append((channels, height, width))
        self.convolutions = nn.ModuleList(layers)
        self.linear = linear_layers((channels * height * width, *widths))
        self.features = widths[-1] if widths else channels * height * width
        # For a single observation, looking layers up and calling them takes a good part of the time.
        self._convolutions = [(layer.weight, layer.bias, layer.stride, layer.padding) for layer in layers]
        self._linear = parameters_of(self.linear)
        self._shapes += [(width,) for width in widths]

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, C, H, W]`, from the tape where it has them."""
        tape = self.tape if torch.is_grad_enabled() else None
        missing = None if tape is None else tape.missing(observations)
        if tape is None or missing is None:
            return self._compute(observations)
        with torch.no_grad():
            for row in missing:
                self.step(row)
        features: Tensor = Retrace.apply(self, tape, len(observations), *self.parameters())  # type: ignore[no-untyped-call]
        return features

    def step(self, observations: Tensor) -> Tensor:
        """Features `[E, F]` of observations `[E, C, H, W]`, for acting; all activations go on the tape if there is one.

        The features may lie on the tape, where the next rollout overwrites them.
        """
        row = None if self.tape is None else self.tape.row_for(observations)
        if row is None:
            return self._compute(observations)
        hidden, scale = row[0].copy_(observations), self.scale
        for (weight, bias, stride, padding), out in zip(self._convolutions, row[1:], strict=False):
            hidden = F.conv2d(hidden, weight if scale == 1.0 else weight * scale, bias, stride, padding)
            hidden = relu_into(hidden, out=out)
            scale = 1.0
        hidden = hidden.flatten(1)
        for (weight, bias), out in zip(self._linear, row[1 + len(self._convolutions) :], strict=True):
            hidden = relu_into(F.linear(hidden, weight, bias), out=out)
        return hidden

    def make_tape(self, steps: int, environments: int) -> Tape | None:
        """A tape for rollouts with `steps` observations of each of E `environments`; None where it would not pay."""
        if environments < TAPED_ENVIRONMENTS or self._multiplications() < TAPED_MULTIPLICATIONS:
            return None
        dtype = self._convolutions[0][0].dtype
        activations = [torch.empty(steps * environments, *shape, dtype=dtype) for shape in self._shapes]
        last = len(self._convolutions)
        if last > 1 and dtype == torch.float32:  # as when it computes with a gradient; bfloat16 has no use for it
            activations[:last] = [part.contiguous(memory_format=torch.channels_last) for part in activations[:last]]
        return Tape(steps, activations)

    def gradients(self, gradient: Tensor, activations: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of all parameters, in their order, from the `gradient` of the features, both of `[B, F]`.

        `activations` are the observations and the outputs of all layers, `[B, ...]` each.
        """
        backwards: list[Tensor] = []
        below = list(activations)
        for weight, _ in reversed(self._linear):
            gradient = relu_backward(gradient, below.pop(), 0)
            backwards += [gradient.sum(0), gradient.T @ below[-1].flatten(1)]
            gradient = gradient @ weight
        gradient = gradient.view(below[-1].shape)
        for weight, _, stride, padding in reversed(self._convolutions):
            gradient = relu_backward(gradient, below.pop(), 0)
            first = len(below) == 1
            gradient, of_weight, of_bias = convolution_backward(
                gradient, below[-1], weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), 1,
                (not first, True, True),
            )  # fmt: skip
            backwards += [of_bias, of_weight * self.scale if first and self.scale != 1.0 else of_weight]
        return backwards[::-1]

    def _multiplications(self) -> int:
        """Of a forward pass, per observation."""
        weights = [layer[0] for layer in self._convolutions] + [layer[0] for layer in self._linear]
        return sum(
            weight.numel() * math.prod(shape[1:]) for weight, shape in zip(weights, self._shapes[1:], strict=True)
        )

    def _compute(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, C, H, W]`."""
        hidden = observations.to(self._convolutions[0][0].dtype)  # bfloat16, too, represents all integers up to 255
        # Without a gradient, and with one layer, oneDNN reorders its inputs faster than torch does. The backward pass
        # of several layers is faster if everything already has the layout that oneDNN uses.
        scale, last = self.scale, len(self._convolutions) - 1
        if last and torch.is_grad_enabled():
            hidden = hidden.contiguous(memory_format=torch.channels_last)
        for number, (weight, bias, stride, padding) in enumerate(self._convolutions):
            hidden = F.conv2d(hidden, weight if scale == 1.0 else weight * scale, bias, stride, padding)
            if number == last:
                hidden = hidden.contiguous()  # flattened below anyway; going back, a ReLU between two layouts is slow
            hidden = hidden.relu_()
            scale = 1.0
        hidden = hidden.flatten(1)
        for weight, bias in self._linear:
            hidden = F.linear(hidden, weight, bias).relu_()
        return hidden


class Retrace(torch.autograd.Function):
    """The features on a body's tape; going back, the gradient that autograd takes after a forward pass."""

    @staticmethod
    def forward(context: Any, body: ConvolutionalBody, tape: Tape, count: int, *parameters: Tensor) -> Tensor:
        """Features `[count, F]`."""
        context.body, context.tape = body, tape
        return tape.up_to(count)[-1].flatten(1).clone()

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters, from that of the features `[count, F]`."""
        count = context.tape.used(gradient)
        return None, None, None, *context.body.gradients(gradient[:count], context.tape.up_to(count))


class VectorBody(Body):
    """Fully connected layers with tanh after each. `[B, n]` -> `[B, features]`."""

    def __init__(self, inputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.linear = linear_layers((inputs, *widths))
        self.features = widths[-1] if widths else inputs
        self._linear = parameters_of(self.linear)

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, n]`."""
        hidden = observations
        for weight, bias in self._linear:
            hidden = F.linear(hidden, weight, bias).tanh_()
        return hidden


class OwnBody(Body):
    """A body made by a user's factory. It keeps its own initial weights."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises UsageError if the factory does not make a body for observations of this shape."""
        super().__init__()
        with user_code(f"--network {name}"):
            factory = find(name)
        with user_code(f"--network {name}", lambda error: UsageError(f"--network {name} failed: {one_line(error)}")):
            self.body = factory(shape)
            with torch.no_grad():
                features = self.body(torch.zeros(2, *shape))
        if not isinstance(self.body, nn.Module) or not isinstance(features, Tensor) or features.shape[:-1] != (2,):
            sizes = ", ".join(map(str, shape))
            raise UsageError(f"--network {name} must return an nn.Module from [B, {sizes}] to [B, features]")
        if any(True for _ in self.body.buffers()):
            raise UsageError(f"--network {name} has buffers, as batch norm does; only parameters are shared")
        if any(parameter.dtype != torch.float32 for parameter in self.body.parameters()):
            raise UsageError(f"--network {name} has parameters that are not float32")
        self.features = features.shape[-1]

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, *shape]`, which are converted to float32."""
        features: Tensor = self.body(observations.float())
        return features


def linear_layers(sizes: Sequence[int]) -> nn.ModuleList:
    """Linear layers between consecutive `sizes`."""
    return nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))


def parameters_of(layers: nn.ModuleList) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer."""
    return [(layer.weight, layer.bias) for layer in layers if isinstance(layer, nn.Linear)]


AUTO = {"atari": "small", "screen": "small", "board": "board", "vector": "mlp"}
"""The network that "auto" chooses, by the kind of observation."""


def body_name(config: RunConfig, kind: str) -> str:
    """The name of the configured body, with "auto" resolved."""
    return AUTO[kind] if config.network == "auto" else config.network


def hidden_widths(config: RunConfig, kind: str) -> tuple[int, ...]:
    """Widths of the body's fully connected layers; for a user's own body, those of "small"."""
    name = body_name(config, kind)
    return config.hidden_sizes or (MLP_WIDTHS if name == "mlp" else (CONVOLUTIONS.get(name, SMALL).width,))


def make_body(config: RunConfig, shape: tuple[int, ...], dtype: str, kind: str, without_last: bool = False) -> Body:
    """The configured body, for observations of this `shape`, `dtype` and `kind`.

    `without_last` leaves the last fully connected layer to the heads. Raises UsageError for a body that cannot take
    such observations.
    """
    name, widths = body_name(config, kind), hidden_widths(config, kind)
    if is_name(name):
        if config.hidden_sizes and not getattr(config, "dueling", False):
            raise UsageError(f"--hidden-sizes is not for --network {name}, which makes its own layers")
        return OwnBody(name, shape)
    if without_last:
        widths = widths[:-1]
    if (kind == "vector") != (name == "mlp"):
        what = "a vector" if kind == "vector" else "an image"
        raise UsageError(f"--network {name} cannot take {what} of shape {shape}; use --network auto")
    if name == "mlp":
        return VectorBody(shape[0], widths)
    # Normalised observations are no longer pixels.
    raw_pixels = dtype == "uint8" and not config.normalize_observations
    return ConvolutionalBody(shape, CONVOLUTIONS[name], widths, raw_pixels)


def initialise(network: nn.Module, how: str, head_gains: Mapping[nn.Module, float]) -> None:
    """Initialise every layer of `network` except the memory and a user's own body, which initialise themselves.

    "orthogonal": orthogonal weights, with the gain from `head_gains` for heads and sqrt(2) elsewhere, and zero biases
    (Saxe et al. 2014). "torch7": U(+-1/sqrt(fan_in)) for weights and biases, which the paper's author calls the default
    Torch initialisation.
    """
    own = {layer for body in network.modules() if isinstance(body, OwnBody) for layer in body.modules()}
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
