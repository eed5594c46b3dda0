"""Algorithms whose parameters count their own updates: an independent check of every count that a run reports.

Each update adds exactly 2^-10 to every parameter, which begins at 0: the loss is minus the sum of all parameters, and
the optimiser is plain gradient descent. In float32 this is exact for up to 2^24 updates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from asyncrl.algorithm import Algorithm
from asyncrl.core.losses import Metrics
from asyncrl.core.spaces import Spaces
from asyncrl.storage.checkpoints import load_newest

STEP = 2.0**-10
SETTINGS = {
    "optimizer": "momentum-sgd",
    "optimizer_decay": 0.0,
    "learning_rate": STEP,
    "learning_rate_schedule": "constant",
    "max_gradient_norm": 0.0,
}
"""Of the optimiser."""


class Counts(Algorithm):
    """What turns another algorithm, its second base, into one that counts: one update after five steps of each worker.

    Its gradient is -1 for every parameter, on whatever data.
    """

    presets: ClassVar[Any] = {"default": {"vector": {**SETTINGS, "envs_per_worker": 1, "t_max": 5}}}

    @classmethod
    def make_network(cls, config: Any, spaces: Spaces) -> nn.Module:
        """The same network with all parameters at 0."""
        network = super().make_network(config, spaces)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
        return network

    def loss(self, part: Any) -> tuple[Tensor, Metrics]:
        """Minus the sum of all parameters."""
        total = torch.stack([parameter.sum() for parameter in self.network.parameters()]).sum()
        return -total, lambda: {}


def updates_in(theta: Tensor) -> list[int]:
    """The numbers of updates that parameters `[P]` have had, ascending: one number if all have had the same."""
    counts = theta.double() / STEP
    assert torch.equal(counts, counts.round()), "an update was applied in part, or not by 2^-10"
    return [int(count) for count in torch.unique(counts)]


def updates_saved(run: Path) -> tuple[list[int], int]:
    """The same of the newest checkpoint of a run, with the number of updates in its manifest."""
    newest, _ = load_newest(run / "checkpoints")
    return updates_in(torch.cat([own.reshape(-1) for own in newest.parameters.values()])), newest.updates
