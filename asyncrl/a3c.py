"""Asynchronous advantage actor-critic: A3C.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning" (arXiv 1602.01783), Algorithm S3. Each
actor-learner, with theta' its own copy of the shared parameters theta:

    repeat
        theta' <- theta
        act t_max steps with a_t ~ pi(a | s_t; theta'), receiving r_t and s_{t+1}
        R <- 0 for a terminal s_t, V(s_t; theta') otherwise                     (bootstrap)
        for i = t-1, ..., t_start:
            R <- r_i + gamma R
            d theta += grad log pi(a_i | s_i) (R - V(s_i)) + beta grad H(pi(s_i))   (ascent)
            d theta -= value_cost grad (R - V(s_i))^2                               (descent)
        update theta with d theta, asynchronously and without a lock
    until T > T_max

The loop itself is `asyncrl.runtime.loops.actor_learner`; this class is what makes it A3C. Run it with
`python -m asyncrl.a3c`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl.actor_critic import ActorCriticMethod
from asyncrl.config.policy import PolicyConfig
from asyncrl.core.losses import Metrics, policy_gradient_loss, squared_error
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Rollout


class A3C(ActorCriticMethod):
    """One worker's policy and value, and its loss."""

    presets = "a3c"

    @dataclass(frozen=True)
    class Config(PolicyConfig):
        """A3C: asynchronous advantage actor-critic (Mnih et al. 2016, Algorithm S3)."""

    def loss(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Summed over the T steps, as the paper accumulates its gradient, and averaged over the E environments."""
        losses, metrics = self.losses(rollout)
        return losses.sum() / losses.shape[1], metrics

    def losses(self, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The loss of each step `[T, E]`, and the figures for the records."""
        config = self.config
        # One pass over all T + 1 observations: the last one is only there for the bootstrap.
        policy, values, states = self.network(rollout.observations, rollout.state, rollout.last)
        next_values = self.next_values(rollout, values, states)
        policy, values = policy[:-1], values[:-1]
        rewards = rollout.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, rollout.discounts, next_values, rollout.last, config.gae_lambda)  # R
        advantages = self.scaled(returns - values.detach())

        policy_loss = policy_gradient_loss(policy.log_probability(rollout.actions), advantages)
        value_loss = squared_error(values, returns)
        entropy = policy.entropy()
        metrics = self.figures(policy_loss, value_loss, entropy, values, returns)
        return self.weighted(policy_loss, value_loss, entropy, rollout.acted_at), metrics


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.a3c"))
