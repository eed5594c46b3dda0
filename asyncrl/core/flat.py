"""All parameters of a network as one flat vector, so that a pull is one copy and a snapshot one clone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from asyncrl.core.errors import UsageError


def check_shareable(network: nn.Module, name: str) -> None:
    """Raise UsageError unless float32 parameters are all that a network has: nothing else is shared and saved."""
    if any(True for _ in network.buffers()):
        raise UsageError(f"{name} has buffers, as batch norm does; only parameters are shared")
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        raise UsageError(f"{name} has parameters that are not float32")


def flatten_parameters(network: nn.Module) -> Tensor:
    """Move the parameters of `network` into one new flat float32 vector `[P]` and make them views of it.

    The network sees every later write to the vector. The order is that of `network.parameters()`.
    Raises ValueError for parameters that are not float32: they could not share one buffer.
    """
    for name, parameter in network.named_parameters():
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameter {name} is {parameter.dtype}; the shared store holds float32 only")
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])
    bind_parameters(network, flat)
    return flat


def bind_parameters(network: nn.Module, flat: Tensor) -> None:
    """Make the parameters of `network` views of `flat` `[P]`, whatever they were before."""
    parameters = list(network.parameters())
    for parameter, view in zip(parameters, split_like(flat, parameters), strict=True):
        parameter.data = view


def split_like(flat: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Views of `flat` `[P]` with the shapes of `parameters`, in their order."""
    return split(flat, [parameter.shape for parameter in parameters])


def split(flat: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Views of `flat` `[P]` with these shapes, one after the other."""
    sizes = [math.prod(shape) for shape in shapes]
    ends = accumulate(sizes)  # `torch.split` makes no views on torch's lazy device
    return [flat[end - size : end].view(shape) for shape, size, end in zip(shapes, sizes, ends, strict=True)]


def gradient_of(loss: Tensor, parameters: Sequence[Tensor], out: Tensor) -> Tensor:
    """The gradient of `loss` in the `parameters` of a network, written to the flat vector `out` `[P]` and returned.

    The gradient is a value, never state attached to a parameter: with `.grad` shared between processes, torch 2
    silently applies stale or accumulated gradients. Parameters that do not enter the loss, or are frozen, get zeros.
    """
    found = iter(torch.autograd.grad(loss, [one for one in parameters if one.requires_grad], allow_unused=True))
    pieces = [
        torch.zeros_like(one).view(-1) if not one.requires_grad or (made := next(found)) is None else made.reshape(-1)
        for one in parameters
    ]
    return torch.cat(pieces, out=out)


def clip_by_norm(gradient: Tensor, max_norm: float) -> float:
    """Scale the flat `gradient` in place to an L2 norm of at most `max_norm` (0: no limit); returns the norm before.

    A gradient with a NaN or an infinity has no finite norm and is left as it is.
    """
    norm = float(torch.linalg.vector_norm(gradient))
    if 0 < max_norm < norm < float("inf"):
        gradient.mul_(max_norm / norm)
    return norm
