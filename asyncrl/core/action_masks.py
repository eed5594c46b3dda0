"""Action masks: scores of invalid actions, and exploration among the valid ones.

The logit or the value of an invalid action is replaced by the lowest float32, as sb3-contrib's MaskablePPO does with
-1e8: softmax gives it a probability of exactly 0, no maximum chooses it, and no gradient flows into it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.core.distributions import sample
from asyncrl.core.exploration import EpsilonGreedy, Exploration

INVALID = float(torch.finfo(torch.float32).min)
"""The score of an invalid action. It is finite: 0 times it is 0, not NaN."""


def masked(scores: Tensor, observations: Tensor) -> Tensor:
    """Scores `[..., A]`, INVALID where the mask at the end of `observations` `[..., n]` does not allow an action."""
    return scores.masked_fill(observations[..., -scores.shape[-1] :] == 0, INVALID)


@dataclass(frozen=True)
class ValidEpsilonGreedy:
    """Epsilon-greedy whose random actions are valid ones, all equally likely."""

    among_all: EpsilonGreedy
    """The same without masks, which says what epsilon is."""

    def choose(self, values: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Actions `[E]` from masked action values `[E, A]`."""
        explore = torch.rand(len(values), generator=generator) < self.among_all.epsilon(steps)
        anything = sample(torch.where(values > INVALID, 0.0, INVALID), generator)
        return torch.where(explore, anything, values.argmax(-1))

    def probabilities(self, values: Tensor, steps: int) -> Tensor:
        """epsilon / (number of valid actions) for each of these, and the rest for the best."""
        epsilon, valid = self.among_all.epsilon(steps), (values > INVALID).to(values.dtype)
        return (epsilon * valid / valid.sum(-1, keepdim=True)).scatter_add(
            -1, values.argmax(-1, True), torch.full_like(values[..., :1], 1.0 - epsilon)
        )

    def facts(self) -> dict[str, float]:
        """Those without masks."""
        return self.among_all.facts()


def among_valid(exploration: Exploration) -> Exploration:
    """The same exploration among valid actions.

    Those that draw from softmax(values), as Boltzmann, need no change, and a user's own `choose` is left as it is.
    """
    if isinstance(exploration, EpsilonGreedy) and type(exploration).choose is EpsilonGreedy.choose:
        return ValidEpsilonGreedy(exploration)
    return exploration
