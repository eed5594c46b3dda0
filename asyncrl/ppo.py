"""Proximal policy optimisation: PPO.

Schulman et al. 2017 (arXiv 1707.06347), Algorithm 1, with the clipped surrogate of equation 7. All actors act in step
with the parameters theta of one learner:

    repeat
        each actor: theta_old <- theta, act T steps with a_t ~ pi(a | s_t; theta_old), and note V(s_t; theta_old)
        wait for all actors, and put their rollouts side by side
        A_t by generalised advantage estimation (equation 11), R_t = A_t + V(s_t; theta_old)
        K epochs of minibatches: update theta by the gradient of
            - min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) + value_cost (R - V(s))^2 - beta H(pi(s)),
              r = pi(a | s; theta) / pi(a | s; theta_old)                                    (equations 7 and 9)
    until T > T_max

The loops are `actor` and `learner` in `asyncrl.runtime.loops`; this class is what makes them PPO. Run it with
`python -m asyncrl.ppo`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.actor_critic import ActorCriticMethod
from asyncrl.algorithm import IN_STEP
from asyncrl.config.groups import limited
from asyncrl.config.policy import InStepConfig
from asyncrl.core.losses import Metrics, clipped_surrogate, clipped_value_loss, squared_error
from asyncrl.core.returns import lambda_returns
from asyncrl.core.rollout import Minibatch, Rollout
from asyncrl.core.schedules import linear


class PPO(ActorCriticMethod):
    """Policy and value of an actor or of the learner, the learner's passes, and its loss."""

    experience = IN_STEP
    extras = ("value", "log_probability")
    presets = "ppo"

    @dataclass(frozen=True)
    class Config(InStepConfig):
        """PPO: proximal policy optimisation (Schulman et al. 2017)."""

        t_max: int = 128
        """Steps of each environment between two batches (T)."""
        learning_rate: float = 2.5e-4
        """Learning rate (eta) at the first step."""
        optimizer_epsilon: float = 1e-5
        """rmsprop: inside the root. adam: outside the root."""
        max_gradient_norm: float = 0.5
        """Scale gradients with a larger L2 norm down to this norm; 0: never."""
        entropy_weights: tuple[float, ...] = (0.01,)
        """beta: weight of the policy's entropy; if several are given, only the first is used."""
        normalize_advantages: bool = True
        """Scale the advantages of a minibatch to mean 0 and standard deviation 1."""
        epochs: int = limited(4, 1, 10_000)
        """Passes over each batch (K)."""
        minibatches: int = 4
        """Parts of a batch, shuffled in each pass, one update each. With an LSTM they consist of whole sequences."""
        clip: float = limited(0.1, above=0)
        """epsilon: how far the ratio of probabilities may be from 1."""
        anneal_clip: bool = True
        """Decrease epsilon linearly to 0 over total_steps, like the learning rate."""
        value_clip: float = limited(0.0, 0)
        """Largest change of values, clipped as in OpenAI Baselines; 0: not clipped."""

        @property
        def fewest(self) -> int:
            """Fewest steps of a minibatch, or sequences with an LSTM: one step cannot be normalised."""
            return 2 if self.normalize_advantages and (self.t_max == 1 or not self.lstm_cells) else 1

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            steps = self.workers * self.envs_per_worker * self.t_max
            self._require("minibatches", 1 <= self.minibatches <= steps, f"must be 1 to the {steps} steps of a batch")
            if not self.lstm_cells:
                most = steps // self.fewest
                self._require(
                    "minibatches", self.minibatches <= most, f"must be 1 to {most}: one step cannot be normalised"
                )

    config: Config

    def passes(self, batch: Rollout) -> Iterator[Minibatch]:
        """Advantages once, then epochs of shuffled minibatches: of single steps, or with memory of whole sequences."""
        whole = self._prepare(batch)
        sequences = batch.state is not None
        count = batch.rewards.shape[1] if sequences else batch.steps
        whole = whole if sequences else whole.flat()
        # Sequences may be fewer, actors may be missing, and nothing can be learnt from no steps.
        parts = min(self.config.minibatches, max(1, count // self.config.fewest))
        for _ in range(self.config.epochs):
            order = torch.randperm(count, generator=self.generator).to(batch.rewards.device)
            for chosen in order.tensor_split(parts):
                yield whole.select(chosen)

    @torch.no_grad()
    def _prepare(self, batch: Rollout) -> Minibatch:
        """The batch with returns R_t, advantages A_t and values V(s_t; theta_old), before theta moves."""
        config = self.config
        if batch.state is None:
            values, states = torch.cat([batch.extras["value"], self.network(batch.observations[-1:])[1]]), None
        else:  # what follows a time limit needs the memory's states after each step, which actors do not send
            _, values, states = self.network(batch.observations, batch.state, batch.last)
        next_values = self.next_values(batch, values, states)
        rewards = batch.learning_rewards(config.reward_clip)
        returns = lambda_returns(rewards, batch.discounts, next_values, batch.last, config.gae_lambda)
        extras = batch.extras | {"return": returns, "advantage": returns - values[:-1], "value": values[:-1]}
        return Minibatch(batch.observations[:-1], batch.actions, extras, batch.acted_at, batch.state, batch.last)

    def loss(self, part: Minibatch) -> tuple[Tensor, Metrics]:
        """The mean over a minibatch."""
        config, old = self.config, part.extras
        policy, values, _ = self.network(part.observations, part.state, part.last)
        advantages = self.scaled(old["advantage"])
        epsilon = linear(config.clip, 0.0, part.acted_at, config.total_steps) if config.anneal_clip else config.clip
        log_probability = policy.log_probability(part.actions)

        policy_loss = clipped_surrogate(log_probability, old["log_probability"], advantages, epsilon)
        if config.value_clip:
            value_loss = clipped_value_loss(values, old["value"], old["return"], config.value_clip)
        else:
            value_loss = squared_error(values, old["return"])
        entropy = policy.entropy()
        figures = self.figures(policy_loss, value_loss, entropy, old["value"], old["return"])

        def metrics() -> dict[str, Tensor]:
            log_ratio = (log_probability - old["log_probability"]).detach()
            return figures() | {
                "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean(),
                "clip_fraction": ((log_ratio.exp() - 1).abs() > epsilon).float().mean(),
            }

        return self.weighted(policy_loss, value_loss, entropy, part.acted_at).mean(), metrics


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.ppo"))
