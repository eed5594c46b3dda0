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
memory is `asyncrl.experience.replay`; this page is what makes them Gorila. Run it with `python -m asyncrl.gorila`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from asyncrl.config.replay import ReplayConfig
from asyncrl.config.stability import StabilitySettings
from asyncrl.core.errors import UsageError
from asyncrl.core.losses import Metrics, clipped_error
from asyncrl.core.returns import best_values, n_step_targets
from asyncrl.core.rollout import Extras, State, Transitions
from asyncrl.core.spaces import Spaces
from asyncrl.nets.q_network import QNetwork, make_q_network
from asyncrl.presets import preset_of

HAS_TARGET = True
TAKES_CONTINUOUS = False
PRIVATE_COPY = True
LOOKS_AHEAD = False
EXPERIENCE = "replay"
EXTRAS = ()


@dataclass(frozen=True)
class Config(StabilitySettings, ReplayConfig):
    """Gorila: DQN with many actors and learners (Nair et al. 2015)."""

    layout: Literal["unbundled", "bundled"] = "unbundled"
    """unbundled: workers act, learners sample all their steps. bundled: each worker learns from its own steps."""
    learners: int = 1
    """unbundled: number of learners, which update theta without waiting for each other; on hosts, of each host."""
    push: Literal["exchange", "every-update"] = "every-update"
    """Ray backend: hosts send changes of parameters now and then, or each gradient as it comes (Gorila's default)."""

    def check(self) -> None:
        """Raise UsageError for the first impossible value."""
        super().check()
        self._require_count("learners", most=1_000)
        if self.layout == "bundled" and self.learners > 1:
            raise UsageError("--learners are for --layout unbundled; bundled, every worker is one")


def preset(name: str, spaces: Spaces) -> dict[str, Any]:
    """The settings of a preset, as far as they differ from the fields' defaults."""
    return preset_of("gorila", name, spaces)


make_network = make_q_network


class Gorila:
    """The action values of an actor or a learner, its exploration, and its loss."""

    def __init__(
        self,
        config: Config,
        network: QNetwork,
        target: QNetwork,
        worker: int,
        generator: torch.Generator,
    ) -> None:
        self.config = config
        self.network = network
        self.target = target
        self.generator = generator
        self.policy = config.exploration_of(worker)
        self.exploration = self.policy.facts()

    def initial_state(self, environments: int) -> State:
        """None: the networks are feed-forward."""
        return self.network.trunk.initial_state(environments)

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Extras]:
        """a_t `[E]` by this actor's exploration over Q(s_t, a; theta')."""
        q, _ = self.network.values_at(observations)
        return self.policy.choose(q, steps, self.generator), state, {}

    def passes(self, batch: Transitions) -> Iterator[Transitions]:
        """The whole minibatch, once."""
        yield batch

    def loss(self, part: Transitions) -> tuple[Tensor, Metrics]:
        """Squared errors, averaged over the minibatch."""
        q, _ = self.network(part.observations[None])
        values = q[0].gather(-1, part.actions[:, None])[:, 0]
        rewards = part.learning_rewards(self.config.reward_clip)
        targets = n_step_targets(rewards, part.discounts, part.last, self._best_value(part.following))  # y
        errors = clipped_error(values, targets, self.config.error_clip)
        return errors.mean(), lambda: {"value_loss": errors.detach().mean(), "q_mean": values.detach().mean()}

    @torch.no_grad()
    def _best_value(self, observations: Tensor) -> Tensor:
        """max_a Q(s, a; theta^-) `[B]`; with double Q the maximum is where theta' has it."""
        online = self.network(observations[None])[0][0] if self.config.double_q else None
        return best_values(self.target(observations[None])[0][0], online)


make_agent = Gorila


if __name__ == "__main__":
    from asyncrl.commands.train import main

    raise SystemExit(main("asyncrl.gorila"))
