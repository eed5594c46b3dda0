"""Policy and value on one body."""

from __future__ import annotations

from torch import Tensor, nn

from asyncrl.nets.bodies import Body, orthogonal_, torch7_uniform_


class ActorCritic(nn.Module):
    """Logits of a categorical policy and a state value; all layers but the two outputs are shared (section 4).

    `initialisation` is "orthogonal", or "torch7" for what the paper's code did.
    """

    def __init__(self, body: Body, actions: int, initialisation: str = "orthogonal") -> None:
        super().__init__()
        self.body = body
        self.policy = nn.Linear(body.features, actions)
        self.value = nn.Linear(body.features, 1)
        if initialisation == "torch7":
            torch7_uniform_(self)
            return
        for layer in self.body.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                orthogonal_(layer, 2**0.5)
        # A small policy head: the first policy is nearly uniform whatever the body says.
        orthogonal_(self.policy, 0.01)
        orthogonal_(self.value, 1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[..., A]` and values `[...]` of observations `[..., *shape]`, whatever the leading dimensions."""
        leading = observations.shape[: observations.dim() - self.body.rank]
        features = self.body(observations.reshape(-1, *observations.shape[len(leading) :]))
        return self.policy(features).view(*leading, -1), self.value(features).view(leading)
