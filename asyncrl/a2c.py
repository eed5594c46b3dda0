"""Synchronous advantage actor-critic: A2C.

OpenAI Baselines 2017, the synchronous variant of A3C (Mnih et al. 2016, arXiv 1602.01783). All actors act in step with
the parameters theta of one learner:

    repeat
        each actor: theta' <- theta, act t_max steps with a_t ~ pi(a | s_t; theta')
        wait for all of them, and put their rollouts side by side
        R <- 0 for a terminal s_t, V(s_t; theta) otherwise                      (bootstrap)
        for i = t-1, ..., t_start:  R <- r_i + gamma R
        update theta once, by the mean over all steps of all actors of
            - log pi(a_i | s_i) (R - V(s_i)) + value_cost (R - V(s_i))^2 - beta H(pi(s_i))
    until T > T_max

The loops are `actor` and `learner` in `asyncrl.runtime.loops`; this class is what makes them A2C. Run it with
`python -m asyncrl.a2c`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl import a3c
from asyncrl.algorithm import IN_STEP
from asyncrl.config.policy import InStepConfig
from asyncrl.core.losses import Metrics
from asyncrl.core.rollout import Rollout


class A2C(a3c.A3C):
    """Policy and value of an actor or of the learner, and the learner's loss: A3C's, of all actors at once."""

    experience = IN_STEP
    presets = "a2c"

    @dataclass(frozen=True)
    class Config(InStepConfig):
        """A2C: synchronous advantage actor-critic (OpenAI Baselines 2017)."""

        max_gradient_norm: float = 0.5
        """Scale gradients with a larger L2 norm down to this norm; 0: never."""
        entropy_weights: tuple[float, ...] = (0.01,)
        """beta: weight of the policy's entropy; if several are given, only the first is used."""

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The mean over T steps of E environments."""
        losses, metrics = self.losses(rollout)
        return losses.mean(), metrics


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.a2c"))
