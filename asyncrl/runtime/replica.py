"""One process's side of the store: the memory under its networks, and how it is refreshed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from asyncrl.core.devices import CPU
from asyncrl.core.flat import bind_parameters, flatten_parameters, split_like
from asyncrl.nets.trunk import compute_in, keep_activations
from asyncrl.runtime.protocols import Store


class Replica:
    """theta' of a network, and theta^- of a target network: views on the store's vectors if it has any, or copies."""

    def __init__(
        self,
        store: Store,
        network: nn.Module,
        target: nn.Module | None,
        private_copy: bool,
        precision: str = "float32",
        taped: tuple[int, int] | None = None,
    ) -> None:
        """Puts each network on one flat vector. `private_copy`: theta' is a copy even if theta can be viewed.

        Both are copies for networks on another device than the store's.

        With a `precision` of "bfloat16" large layers have a copy in bfloat16 of their part of theta' in any case.
        `taped`: keep what the network computes when it acts between two pulls; so many observations of each of so many
        environments.
        """
        there = any(parameter.device.type != CPU for parameter in network.parameters())
        theta = None if private_copy or there else store.view()
        self.theta: Tensor = flatten_parameters(network) if theta is None else theta
        """theta' `[P]`."""
        if theta is not None:
            bind_parameters(network, theta)
        parameters = list(network.parameters())
        parts = split_like(self.theta, parameters)
        compute_in(network, precision)
        self._casts = [
            (parameter.detach(), part)
            for parameter, part in zip(parameters, parts, strict=True)
            if parameter.dtype != torch.float32
        ]
        self._forgets = keep_activations(network, *taped) if taped else []
        self.target: Tensor | None = None
        """theta^- `[P]`, or this process's copy of it."""
        self._copies_target = False
        if target is not None:
            view = None if there else store.target_view()
            self._copies_target = view is None
            self.target = flatten_parameters(target) if view is None else view
            if view is not None:
                bind_parameters(target, view)
            compute_in(target, precision, cast_weights=False)

    def pull(self, store: Store) -> int:
        """theta' <- theta, and theta^- if it is copied; returns the version."""
        if self._copies_target and self.target is not None:
            store.target(self.target)
        version = store.pull(self.theta)
        for cast, part in self._casts:
            cast.copy_(part)
        for forget in self._forgets:
            forget()
        return version
