"""Update rules: what a gradient does to the flat parameters and to their statistics.

Each works in place on flat float32 vectors `[P]`. The rule is the same whether the statistics are shared by all workers
or private to one (Mnih et al. 2016, section 7 of the supplement). Other processes may write to the same memory at the
same time; that is Hogwild, and no rule here takes a lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.core.schedules import linear


@dataclass(frozen=True)
class UpdateRule:
    """The name and the constants of an update rule. `apply` is the rule itself."""

    name: str
    decay: float = 0.99
    """alpha: how much of the old statistics survives an update (rmsprop, momentum); beta_2 for adam."""
    epsilon: float = 0.1
    """rmsprop, centred or not: added *inside* the root, as in their papers. adam, adagrad: added to the root, as in
    theirs."""
    momentum: float = 0.9
    """beta_1 of adam."""

    @property
    def statistics(self) -> int:
        """How many flat vectors of statistics the rule keeps; without momentum, SGD keeps none."""
        if self.name == "momentum-sgd":
            return int(self.decay > 0)
        return 2 if self.name in ("adam", "centred-rmsprop") else 1

    def apply(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """Change `theta` `[P]` and `statistics` `[S, P]` in place by one `gradient` `[P]`.

        All are contiguous. `updates` is the number of updates these statistics have seen before this one. The gradient
        may be overwritten: it is the caller's scratch space afterwards.
        """
        from asyncrl.core import kernels  # the command's own process does not need it

        known = theta.is_cpu and theta.dtype == torch.float32 and len(statistics) > 0
        compiled = kernels.RULES.get(self.name) if known else None
        if compiled:  # to the bit what the rule below does, in one pass over the memory
            memory = theta.data_ptr(), gradient.data_ptr(), statistics.data_ptr(), theta.numel()
            compiled(*memory, self.decay, 1.0 - self.decay, self.epsilon, -eta, kernels.FUSED)
        else:
            getattr(self, self.name.replace("-", "_"))(theta, gradient, statistics, eta, updates)

    def rmsprop(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """g <- alpha g + (1 - alpha) d^2;  theta <- theta - eta d / sqrt(g + eps)   (equations S2 and S3).

        torch.optim.RMSprop divides by sqrt(g) + eps: with the authors' eps of 0.1 a different optimiser.
        """
        g = statistics[0]
        g.mul_(self.decay).addcmul_(gradient, gradient, value=1.0 - self.decay)
        theta.addcmul_(gradient, torch.add(g, self.epsilon).rsqrt_(), value=-eta)

    def centred_rmsprop(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """g <- alpha g + (1 - alpha) d^2;  m <- alpha m + (1 - alpha) d;  theta <- theta - eta d / sqrt(g - m^2 + eps).

        Graves 2013 (arXiv 1308.0850), equations 38 to 41, without their momentum.
        """
        g, m = statistics
        g.mul_(self.decay).addcmul_(gradient, gradient, value=1.0 - self.decay)
        m.mul_(self.decay).add_(gradient, alpha=1.0 - self.decay)
        # Rounding, or another worker's write between the two lines above, may leave a variance below 0.
        variance = torch.addcmul(g, m, m, value=-1.0).clamp_(min=0.0)
        theta.addcmul_(gradient, variance.add_(self.epsilon).rsqrt_(), value=-eta)

    def momentum_sgd(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """m <- alpha m + (1 - alpha) d;  theta <- theta - eta m   (section 7).

        With alpha = 0, m is d. It must not be in shared memory then: between the two lines another worker may write its
        own d there, which would be applied twice, by both.
        """
        if not len(statistics):
            theta.add_(gradient, alpha=-eta)
            return
        m = statistics[0]
        m.mul_(self.decay).add_(gradient, alpha=1.0 - self.decay)
        theta.add_(m, alpha=-eta)

    def adam(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """Adam (Kingma & Ba 2015, Algorithm 1) by torch's fused kernel, one pass over the memory.

        The step of the bias correction is the caller's exact count instead of a shared cell on which workers race.
        """
        torch._fused_adam_(
            [theta], [gradient], [statistics[0]], [statistics[1]], [], [torch.tensor(float(updates + 1))],
            lr=eta, beta1=self.momentum, beta2=self.decay, weight_decay=0.0, eps=self.epsilon,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def adagrad(self, theta: Tensor, gradient: Tensor, statistics: Tensor, eta: float, updates: int) -> None:
        """g <- g + d^2;  theta <- theta - eta d / (sqrt(g) + eps)   (Duchi et al. 2011), by torch's fused kernel.

        g only grows, so steps become smaller with every update. One pass over the memory takes a third of the time.
        """
        torch._fused_adagrad_(
            [theta], [gradient], [statistics[0]],
            [torch.ones(())],  # unused unless eta decays with the number of updates
            lr=eta, lr_decay=0.0, weight_decay=0.0, eps=self.epsilon, maximize=False,
        )  # fmt: skip


@dataclass(frozen=True)
class Descent:
    """All settings that determine what a gradient does to theta, as plain data."""

    rule: UpdateRule
    learning_rate: float = 1e-3
    """eta at T = 0."""
    anneal_over: int = 0
    """T at which the schedule of eta has ended; 0: it is constant."""
    max_gradient_norm: float = 0.0
    """Scale gradients with a larger L2 norm down to this norm; 0: never."""
    per_worker_statistics: bool = False
    """Whether each worker has its own statistics."""
    target_interval_steps: int = 0
    """Refresh theta^- whenever T crosses a multiple of this; 0: not by T."""
    target_interval_updates: int = 0
    """Refresh theta^- whenever the number of updates crosses a multiple of this; 0: not by updates."""
    target_rate: float = 1.0
    """tau of a refresh: theta^- <- theta^- + tau (theta - theta^-); 1 copies theta."""
    max_staleness: int = 0
    """Drop a gradient if others have made more updates than this since; 0: never."""
    max_loss_deviations: float = 0.0
    """Drop a gradient whose loss is more than this many standard deviations above the running mean; 0: never."""

    schedule: str = "linear"
    """The factor of eta over that time, by name or points (`asyncrl.core.points`)."""

    @property
    def has_target(self) -> bool:
        """Whether there is a theta^-."""
        return bool(self.target_interval_steps or self.target_interval_updates)

    def learning_rate_at(self, steps: int) -> float:
        """eta at T = `steps`."""
        if self.schedule == "linear" or not self.anneal_over:
            return linear(self.learning_rate, 0.0, steps, self.anneal_over) if self.anneal_over else self.learning_rate
        from asyncrl.core.points import value_at

        return self.learning_rate * value_at(self.schedule, steps / self.anneal_over)
