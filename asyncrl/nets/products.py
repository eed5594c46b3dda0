"""Products of large matrices, by the library that is fastest at them.

torch leaves float32 products to MKL, which reaches half of oneDNN's speed on processors that are not Intel's. oneDNN
also adds the bias and applies tanh.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from asyncrl.core.devices import CPU

MANY = 1_000_000
"""From how many multiplications on a product is computed by oneDNN; with fewer, its call costs more than it saves."""

# Each with its overload, for which torch would look at every call.
relu_backward = torch.ops.aten.threshold_backward.default
tanh_backward = torch.ops.aten.tanh_backward.default
onednn_linear: Any = torch.ops.mkldnn._linear_pointwise.default if torch._C._has_mkldnn else None


def by_onednn(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN computes `left @ right`, of `[B, F]` and `[F, O]`, and the products of its gradients.

    What is exported has torch's own layers, which other programs know; autocast reduces their inputs to bfloat16.
    """
    return (
        not torch.compiler.is_compiling()  # first: what is exported must not depend on the batch size
        and onednn_linear is not None
        and left.numel() * right.shape[1] >= MANY
        and left.dtype == right.dtype == torch.float32
        and left.device.type == CPU
        and not torch.is_autocast_enabled(CPU)
    )


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of `[B, F]` and `[F, O]`, without a gradient."""
    if by_onednn(left, right):
        result: Tensor = onednn_linear(left, right.T, None, "none", [], "")
        return result
    return left @ right


def linear(hidden: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """A linear layer with `weight` `[O, F]` and `bias` `[O]`, then "relu" or "tanh", `[B, F]` -> `[B, O]`."""
    if by_onednn(hidden, weight.T):
        result: Tensor = Linear.apply(hidden, weight, bias, activation)  # type: ignore[no-untyped-call]
        return result
    result = F.linear(hidden, weight, bias)
    return result.tanh_() if activation == "tanh" else result.relu_()


class Linear(torch.autograd.Function):
    """The same by oneDNN, whose product adds the bias and applies tanh as well."""

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        """`[B, F]` -> `[B, O]`."""
        is_tanh = activation == "tanh"
        result: Tensor = onednn_linear(hidden, weight, bias, activation if is_tanh else "none", [], "")
        if not is_tanh:
            result.relu_()  # oneDNN's makes 0 of NaN
        context.save_for_backward(hidden, weight, result)
        context.is_tanh = is_tanh
        return result

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the input, the weight and the bias, from that of the output `[B, O]`."""
        hidden, weight, result = context.saved_tensors
        needs_input, needs_weight, needs_bias, _ = context.needs_input_grad
        gradient = tanh_backward(gradient, result) if context.is_tanh else relu_backward(gradient, result, 0)
        return (
            product(gradient, weight) if needs_input else None,
            product(gradient.T, hidden) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
            None,
        )
