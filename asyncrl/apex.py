"""Distributed prioritized experience replay: Ape-X DQN.

Horgan et al. 2018 (arXiv 1803.00933). Many actors, each with its own epsilon, one memory, one learner:

    each actor i of N, repeatedly (Algorithm 1)
        theta' <- theta, act by epsilon_i-greedy on Q(s, a; theta'),   epsilon_i = epsilon^(1 + alpha i / (N - 1))
        p = |G - Q(s_t, a_t; theta')|, from the values it has acted with
        store the n-step transitions in the memory, with their priorities p
    the learner, repeatedly (Algorithm 2)
        sample a minibatch with P(k) = p_k^alpha / sum_i p_i^alpha,  w_k = (N P(k))^-beta / max w
        G = r_t + gamma r_{t+1} + ... + gamma^n Q(s_{t+n}, argmax_a Q(s_{t+n}, a; theta); theta^-)
        update theta with grad w (G - Q(s_t, a_t; theta))^2, and renew p = |G - Q(s_t, a_t; theta)|
        every I_target updates: theta^- <- theta;  new steps overwrite the oldest ones
    until T > T_max,   with Q from a dueling network (Wang et al. 2016)

The loops are `actor` and `learner` in `asyncrl.runtime.loops`, the memory is `asyncrl.experience.replay`; this class is
what makes them Ape-X. Run it with `python -m asyncrl.apex`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl.action_value import ActionValueMethod, taken
from asyncrl.algorithm import MEMORY
from asyncrl.config.replay import PrioritySettings
from asyncrl.config.value import ValueReplayConfig
from asyncrl.core.losses import Metrics, clipped_error
from asyncrl.core.returns import n_step_targets
from asyncrl.core.rollout import Extras, State, Transitions


class ApeX(ActionValueMethod):
    """The action values of an actor or of the learner, its exploration, and its loss."""

    experience = MEMORY
    extras = ("action_value", "state_value")
    presets = "apex"

    @dataclass(frozen=True)
    class Config(ValueReplayConfig, PrioritySettings):
        """Ape-X: one learner samples from one memory by priority (Horgan et al. 2018)."""

        exploration: str = "ladder"
        """How exploration differs: ladder (its own), drawn (final epsilons), boltzmann, equal, or module:factory."""
        double_q: bool = True
        """Let theta choose the action that theta^- values (van Hasselt et al. 2016)."""
        dueling: bool = True
        """Split Q into two streams, the state's value and the actions' advantages (Wang et al. 2016)."""
        n_step: int = 3
        """Steps of a transition, after which its return bootstraps."""

    config: Config

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E]` by this actor's exploration, and the values for its initial priority."""
        q, state = self.network.values_at(observations, state)
        actions = self.policy.choose(q, steps, self.generator)
        return actions, state, {"action_value": taken(q, actions), "state_value": q.amax(-1)}

    def loss(self, part: Transitions) -> tuple[Tensor, Metrics]:
        """Weighted squared errors, averaged over the minibatch."""
        q, _ = self.network(part.observations[None])
        values = taken(q[0], part.actions)
        rewards = part.learning_rewards(self.config.reward_clip)
        following = self.best_value(part.following[None])[0]
        targets = n_step_targets(rewards, part.discounts, part.last, following)  # G
        self.errors = targets - values.detach()
        errors = clipped_error(values, targets, self.config.error_clip)
        return (part.weights * errors).mean(), self.figures(errors, values)


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.apex"))
