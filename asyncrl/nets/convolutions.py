"""Convolutional bodies, which keep what they compute while their worker acts.

A worker acts a whole rollout with one theta' and takes the gradient at the same theta'. So the loss need not compute
the activations once more, which is a third of the time of loss and gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from asyncrl.core.errors import UsageError
from asyncrl.nets.bodies import Body, layers_of, linear_layers, parameters_of
from asyncrl.nets.products import linear, product, relu_backward

Layers = tuple[tuple[int, int, int, int], ...]
"""Output channels, kernel, stride and padding of each convolutional layer."""
CONVOLUTIONS: dict[str, Layers] = {
    # Mnih et al. 2013; figures 1 to 4 of Mnih et al. 2016
    "paper": ((16, 8, 4, 0), (32, 4, 2, 0)),
    # Mnih et al. 2015
    "nature": ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)),
    # For CPUs and 42 x 42 screens: an eighth of the multiplications of the paper's network on 84 x 84, so acting and
    # learning together take a quarter of the emulator's time. The 7 x 7 patches overlap, so no edge cuts what moves.
    "small": ((16, 7, 5, 3), (32, 3, 3, 0)),
    # For boards of about ten by ten, such as MinAtar's; its own baselines use this one (Young & Tian 2019).
    "board": ((16, 3, 1, 0),),
}

TAPED_ENVIRONMENTS, TAPED_MULTIPLICATIONS = 4, 2_000_000
"""From how many environments, and multiplications per observation, it pays to keep activations for the gradient."""

# Each with its overload, for which torch would look at every call.
relu_into = torch.ops.aten.relu.out
convolution_backward = torch.ops.aten.convolution_backward.default


class Tape:
    """The activations of some layers at the observations of a rollout, in the order of time.

    Observations are told apart by their place in memory: those of a rollout follow each other. The tape holds on to the
    first ones, so that no others take their place.
    """

    def __init__(self, steps: int, activations: Sequence[Tensor]) -> None:
        """For `steps` observations of E environments each; `activations` `[steps x E, ...]` is the memory."""
        self._activations = list(activations)
        self._environments = len(activations[0]) // steps
        # Views, made once: with one environment, indexing takes as long as the work itself.
        self._rows = list(zip(*(torch.split(part, self._environments) for part in activations), strict=True))
        self.rewind()

    def rewind(self) -> None:
        """Forget everything: theta' is another one."""
        self._recorded = 0
        self._first: Tensor | None = None

    def row_for(self, observations: Tensor) -> tuple[Tensor, ...] | None:
        """The memory for the activations at `observations` `[E, ...]`, each `[E, ...]`.

        None if they are not the first ones of a rollout, nor follow those of the row before.
        """
        here = observations.data_ptr()
        if self._first is None or here == self._first.data_ptr():
            self._recorded, self._first = 0, observations
        follows = here == self._first.data_ptr() + self._recorded * observations.nbytes
        if not follows or len(observations) != self._environments or self._recorded == len(self._rows):
            return None
        self._recorded += 1
        return self._rows[self._recorded - 1]

    def missing(self, observations: Tensor) -> Sequence[Tensor] | None:
        """Those of `observations` `[T x E, ...]` that are not on the tape, `[E, ...]` each; None if it has no use."""
        recorded = self._recorded * self._environments
        if self._first is None or observations.data_ptr() != self._first.data_ptr():
            return None
        if not 0 < recorded <= len(observations) <= len(self._activations[0]) or len(observations) % self._environments:
            return None
        return torch.split(observations[recorded:], self._environments) if recorded < len(observations) else ()

    def used(self, gradient: Tensor) -> int:
        """How many of the observations have a `gradient` `[T x E, F]`; those for a bootstrap have none."""
        before = len(gradient) - self._environments
        return before if before and not gradient[before:].any() else len(gradient)

    def up_to(self, count: int) -> list[Tensor]:
        """The activations `[count, ...]` at the first `count` observations."""
        return [part[:count] for part in self._activations]


class ConvolutionalBody(Body):
    """Convolutions and fully connected layers with ReLU after each. `[B, C, H, W]` uint8 or float -> `[B, features]`.

    For uint8 pixels the first layer's weights are divided by 255 instead: for the paper's network these are 4 096
    divisions, while one observation has 28 224 pixels.
    """

    tape: Tape | None = None

    def __init__(self, shape: tuple[int, ...], convolutions: Layers, widths: Sequence[int], raw_pixels: bool) -> None:
        super().__init__()
        self.scale = 1 / 255 if raw_pixels else 1.0
        channels, height, width = shape
        layers: list[nn.Conv2d] = []
        self.shapes: list[tuple[int, ...]] = [shape]
        for out, kernel, stride, padding in convolutions:
            if min(height, width) + 2 * padding < kernel:
                raise UsageError(
                    f"an image of {shape[1]}x{shape[2]} pixels is too small for this --network: use --network auto or "
                    "a larger --image-size"
                )
            height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
            channels = out
            self.shapes.append((channels, height, width))
        self.convolutions = nn.ModuleList(layers)
        self.linear = linear_layers((channels * height * width, *widths))
        self.features = widths[-1] if widths else channels * height * width
        self.shapes += [(width,) for width in widths]

    # For a single observation, looking layers up and calling them takes a good part of the time. They are looked up at
    # the first pass: until then they may be replaced.
    @cached_property
    def _convolutions(self) -> list[tuple[Any, ...]]:
        layers = layers_of(self.convolutions, nn.Conv2d)
        return [(layer.weight, layer.bias, layer.stride, layer.padding) for layer in layers]

    @cached_property
    def _linear(self) -> list[tuple[Tensor, Tensor]]:
        return parameters_of(self.linear)

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
        row = None if self.tape is None or torch.is_grad_enabled() else self.tape.row_for(observations)
        if row is None:
            return super().step(observations) if self._has_own_forward else self._compute(observations)
        hidden, scale = row[0].copy_(observations), self.scale
        for (weight, bias, stride, padding), out in zip(self._convolutions, row[1:], strict=False):
            hidden = F.conv2d(hidden, weight if scale == 1.0 else weight * scale, bias, stride, padding)
            hidden = relu_into(hidden, out=out)
            scale = 1.0
        hidden = hidden.flatten(1)
        for (weight, bias), out in zip(self._linear, row[1 + len(self._convolutions) :], strict=True):
            hidden = out.copy_(linear(hidden, weight, bias, "relu"))
        return hidden

    def keep_activations(self, steps: int, environments: int) -> Callable[[], None] | None:
        """Put activations on a tape, for rollouts with `steps` observations of each of E `environments`.

        Returns what forgets them, to be called with every new theta'. None where a tape would not pay.
        """
        work = 0 if self._has_own_forward else self._multiplications()
        if environments < TAPED_ENVIRONMENTS or work < TAPED_MULTIPLICATIONS:
            return None
        dtype = self._convolutions[0][0].dtype
        activations = [torch.empty(steps * environments, *shape, dtype=dtype) for shape in self.shapes]
        last = len(self._convolutions)
        if last > 1 and dtype == torch.float32:  # as when it computes with a gradient; bfloat16 has no use for it
            activations[:last] = [part.contiguous(memory_format=torch.channels_last) for part in activations[:last]]
        self.tape = Tape(steps, activations)
        return self.tape.rewind

    def gradients(self, gradient: Tensor, activations: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of all parameters, in their order, from the `gradient` of the features, both of `[B, F]`.

        `activations` are the observations and the outputs of all layers, `[B, ...]` each.
        """
        backwards: list[Tensor] = []
        below = list(activations)
        for weight, _ in reversed(self._linear):
            gradient = relu_backward(gradient, below.pop(), 0)
            backwards += [gradient.sum(0), product(gradient.T, below[-1].flatten(1))]
            gradient = product(gradient, weight)
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

    @property
    def _has_own_forward(self) -> bool:
        """Whether this is a class that computes something else."""
        return type(self).forward is not ConvolutionalBody.forward

    def _multiplications(self) -> int:
        """Of a forward pass, per observation."""
        weights = [layer[0] for layer in self._convolutions] + [layer[0] for layer in self._linear]
        return sum(
            weight.numel() * math.prod(shape[1:]) for weight, shape in zip(weights, self.shapes[1:], strict=True)
        )

    def _compute(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, C, H, W]`."""
        scale, last = self.scale, len(self._convolutions) - 1
        # Without a gradient, and with one layer, oneDNN reorders its inputs faster than torch does. The backward pass
        # of several layers is faster if everything already has the layout that oneDNN uses. Converted and reordered in
        # one pass over the memory; bfloat16, too, represents all integers up to 255.
        layout = torch.channels_last if last and torch.is_grad_enabled() else torch.contiguous_format
        hidden = observations.to(self._convolutions[0][0].dtype, memory_format=layout)
        for number, (weight, bias, stride, padding) in enumerate(self._convolutions):
            hidden = F.conv2d(hidden, weight if scale == 1.0 else weight * scale, bias, stride, padding)
            if number == last:
                hidden = hidden.contiguous()  # flattened below anyway; going back, a ReLU between two layouts is slow
            hidden = hidden.relu_()
            scale = 1.0
        hidden = hidden.flatten(1)
        for weight, bias in self._linear:
            hidden = linear(hidden, weight, bias, "relu")
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
