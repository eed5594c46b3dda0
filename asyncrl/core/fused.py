"""Adam and AdaGrad by torch's own fused kernels, which also pass over the memory once."""

from __future__ import annotations

import torch
from torch import Tensor


def adam(
    theta: Tensor,
    gradient: Tensor,
    statistics: Tensor,
    eta: float,
    updates: int,
    decay: float,
    epsilon: float,
    momentum: float,
) -> None:
    """Adam (Kingma & Ba 2015, Algorithm 1).

    The step of the bias correction is the caller's exact count instead of a shared cell on which workers race.
    """
    torch._fused_adam_(
        [theta],
        [gradient],
        [statistics[0]],
        [statistics[1]],
        [],
        [torch.tensor(float(updates + 1))],
        lr=eta,
        beta1=momentum,
        beta2=decay,
        weight_decay=0.0,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )


def adagrad(
    theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int, _: float, epsilon: float, __: float
) -> None:
    """g <- g + d^2;  theta <- theta - eta d / (sqrt(g) + eps)   (Duchi et al. 2011).

    g only grows, so steps become smaller with every update.
    """
    torch._fused_adagrad_(
        [theta],
        [gradient],
        [statistics[0]],
        [torch.ones(())],  # unused unless eta decays with the number of updates
        lr=eta,
        lr_decay=0.0,
        weight_decay=0.0,
        eps=epsilon,
        maximize=False,
    )


RULES = {"adam": adam, "adagrad": adagrad}
