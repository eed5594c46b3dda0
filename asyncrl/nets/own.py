"""The body of `--network module:factory`: made by a user's function."""

from __future__ import annotations

from weakref import WeakSet

import torch
from torch import Tensor, nn

from asyncrl.core.errors import UsageError, one_line
from asyncrl.core.flat import check_shareable
from asyncrl.core.named import find
from asyncrl.core.user_code import user_code
from asyncrl.nets.bodies import Body

_made = WeakSet[nn.Module]()  # layers that users' factories have made, and that learn


class OwnBody(Body):
    """A body made by a user's factory."""

    initialises_itself = True

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises UsageError if the factory does not make a body for observations of this shape."""
        super().__init__()
        with user_code(f"--network {name}"):
            factory = find(name)
        with user_code(f"--network {name}", lambda error: UsageError(f"--network {name} failed: {one_line(error)}")):
            self.body = factory(shape)
            with torch.no_grad():
                features = self.body(torch.zeros(2, *shape))
        if not isinstance(self.body, nn.Module) or not isinstance(features, Tensor) or features.shape[:-1] != (2,):
            sizes = ", ".join(map(str, shape))
            raise UsageError(f"--network {name} must return an nn.Module from [B, {sizes}] to [B, features]")
        learnt = {part for part in self.body.modules() if any(own.requires_grad for own in part.parameters(False))}
        if any(part in _made for part in learnt):
            raise UsageError(f"--network {name} must make new layers at each call: a run has several copies")
        _made.update(learnt)
        check_shareable(self.body, f"--network {name}")
        self.features = features.shape[-1]

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, F]` of observations `[B, *shape]`, which are converted to float32."""
        features: Tensor = self.body(observations.to(torch.float32, copy=True))  # the body may work in place
        return features
