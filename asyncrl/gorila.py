"""General reinforcement learning architecture: Gorila, DQN made parallel.

Nair et al. 2015, "Massively Parallel Methods for Deep Reinforcement Learning" (arXiv 1507.04296). Experience is kept in
replay memories; actors fill them, learners sample from them, and theta is updated asynchronously:

    each actor, repeatedly
        theta' <- theta, act by epsilon-greedy on Q(s, a; theta'), and store (s, a, r, s') in the replay memory D
    each learner, repeatedly
        theta' <- theta, sample a minibatch of (s, a, r, s') from D
        y = r                                   for a terminal s'
        y = r + gamma max_a' Q(s', a'; theta^-)           otherwise
        update theta with grad (y - Q(s, a; theta'))^2, asynchronously
        every I_target updates of theta: theta^- <- theta
    until T > T_max

*Bundled*, each worker is an actor and a learner with one theta' and its own memory; *unbundled*, the workers act and
learners sample from the steps of all of them. The loops are `actor` and `learner` in `asyncrl.runtime.loops`, the
memory is `asyncrl.experience.replay`; this class is what makes them Gorila. Run it with `python -m asyncrl.gorila`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from asyncrl.action_value import ActionValueMethod, taken
from asyncrl.algorithm import MEMORY
from asyncrl.config.groups import limited
from asyncrl.config.replay import StabilitySettings
from asyncrl.config.value import ValueReplayConfig
from asyncrl.core.errors import UsageError
from asyncrl.core.losses import Metrics, clipped_error
from asyncrl.core.returns import n_step_targets
from asyncrl.core.rollout import Transitions


class Gorila(ActionValueMethod):
    """The action values of an actor or a learner, its exploration, and its loss."""

    experience = MEMORY
    presets = "gorila"

    @dataclass(frozen=True)
    class Config(StabilitySettings, ValueReplayConfig):
        """Gorila: DQN with many actors and learners (Nair et al. 2015)."""

        layout: Literal["unbundled", "bundled"] = "unbundled"
        """unbundled: workers act, learners sample all their steps. bundled: each worker learns from its own steps."""
        learners: int = limited(1, 1, 1_000)
        """unbundled: number of learners, which update theta without waiting for each other; with hosts, per host."""
        push: Literal["exchange", "every-update"] = "every-update"
        """Ray backend: hosts send parameter changes now and then, or each gradient as it is computed (as in Gorila)."""

        def check(self) -> None:
            """Raise UsageError for the first impossible value."""
            super().check()
            if self.layout == "bundled" and self.learners > 1:
                raise UsageError("--learners are for --layout unbundled; bundled, every worker is one")

    config: Config

    def loss(self, part: Transitions) -> tuple[Tensor, Metrics]:
        """Squared errors, averaged over the minibatch."""
        q, _ = self.network(part.observations[None])
        values = taken(q[0], part.actions)
        rewards = part.learning_rewards(self.config.reward_clip)
        following = self.best_value(part.following[None])[0]
        targets = n_step_targets(rewards, part.discounts, part.last, following)  # y
        errors = clipped_error(values, targets, self.config.error_clip)
        return errors.mean(), self.figures(errors, values)


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.gorila"))
