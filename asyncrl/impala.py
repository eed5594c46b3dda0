"""Importance-weighted actor-learner architecture: IMPALA.

Espeholt et al. 2018 (arXiv 1802.01561). Actors run free, and one learner corrects for the age of what they did:

    each actor, repeatedly
        theta' <- theta, act t_max steps with a_t ~ mu = pi(a | s_t; theta'), and queue the rollout
    learner, repeatedly
        take what is in the queue, up to a batch
        v_s = V(s_s) + sum_t (prod_{i<t} gamma c_i) rho_t (r_t + gamma V(s_{t+1}) - V(s_t))          (equation 1)
        update theta by the gradient of
            - rho_s log pi(a_s | s_s) (r_s + gamma v_{s+1} - V(s_s)) + value_cost (v_s - V(s_s))^2 - beta H(pi(s_s))
    until T > T_max,   with rho = min(rho_bar, pi / mu) and c = lambda min(c_bar, pi / mu)

The loops are `actor` and `learner` in `asyncrl.runtime.loops`; this class is what makes them IMPALA. Run it with
`python -m asyncrl.impala`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl.actor_critic import ActorCriticMethod
from asyncrl.algorithm import QUEUE
from asyncrl.config.groups import LearnerSettings, limited
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, policy_gradient_loss, squared_error
from asyncrl.core.rollout import Rollout
from asyncrl.core.vtrace import vtrace


class Impala(ActorCriticMethod):
    """Policy and value of an actor or of the learner, and the learner's loss."""

    experience = QUEUE
    extras = ("log_probability",)
    presets = "impala"

    @dataclass(frozen=True)
    class Config(PolicyConfig, LearnerSettings):
        """IMPALA: free-running actors, one learner, V-trace (Espeholt et al. 2018)."""

        gae_lambda: float = 1.0
        """lambda of V-trace; 1 uses the whole rollout."""
        entropy_weights: tuple[float, ...] = (0.003,)
        """beta: weight of the policy's entropy; if several are given, only the first is used."""
        rho_bar: float = limited(1.0, above=0)
        """Upper bound on the importance weight of a step's value error."""
        c_bar: float = limited(1.0, above=0)
        """Upper bound on the importance weights with which errors are carried back to earlier steps."""
        queue_length: int = limited(2, 1, 10_000)
        """Rollouts of each actor that may wait for the learner; beyond that the actor waits."""
        batch_rollouts: int = limited(0, 0, 100_000)
        """Maximum number of waiting rollouts used for one update; 0: as many as there are workers."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            self._require("normalize_advantages", not self.normalize_advantages, "is for methods without V-trace")

    config: Config

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Summed over the T steps and averaged over the E environments."""
        config = self.config
        policy, values, states = self.network(rollout.observations, rollout.state, rollout.last)
        next_values = self.next_values(rollout, values, states)
        policy, values = policy[:-1], values[:-1]
        log_probability = policy.log_probability(rollout.actions)
        trace = vtrace(
            log_probability.detach() - rollout.extras["log_probability"],
            rollout.learning_rewards(config.reward_clip), rollout.discounts, values.detach(), next_values, rollout.last,
            config.rho_bar, config.c_bar, config.gae_lambda,
        )  # fmt: skip

        policy_loss = policy_gradient_loss(log_probability, trace.advantages)
        value_loss = squared_error(values, trace.targets)
        entropy = policy.entropy()
        total = self.weighted(policy_loss, value_loss, entropy, rollout.acted_at).sum()
        return total / values.shape[1], self.figures(policy_loss, value_loss, entropy, values, trace.targets)


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.impala"))
