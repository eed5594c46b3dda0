"""A rollout as a block of a ring, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.core.moments import standardize
from asyncrl.core.rollout import Rollout
from asyncrl.core.spaces import Spaces
from asyncrl.experience.ring import Block, BlockLayout, Field

_PIECE = 65_536
"""Numbers normalised at once: 256 KiB of float32."""


@dataclass(frozen=True)
class RolloutShape:
    """What all rollouts of a run have in common, as plain data."""

    steps: int
    """T."""
    environments: int
    """E."""
    spaces: Spaces
    state: tuple[tuple[int, ...], ...] = ()
    """Shapes of the recurrent state's tensors for one environment; none for a feed-forward network."""
    extras: tuple[str, ...] = ()
    """Names of what `act` stores for the loss."""
    moments: tuple[int, ...] = ()
    """Shape of the observations' moments; empty: observations are not normalised."""

    def layout(self, finals: int | None = None) -> BlockLayout:
        """The block for one rollout, with room for the last observations of `finals` truncated episodes.

        None: room for the worst case. Pages that are never written take no memory.
        """
        steps, environments = self.steps, self.environments
        finals = steps * environments if finals is None else finals
        observation, dtype = self.spaces.observation_shape, getattr(torch, self.spaces.observation_dtype)
        each: tuple[int, ...] = (steps, environments)
        continuous = self.spaces.is_continuous
        fields: list[Field] = [
            ("observations", (steps + 1, environments, *observation), dtype),
            ("actions", (*each, len(self.spaces.action_low)) if continuous else each,
             torch.float32 if continuous else torch.int64),
            ("rewards", each, torch.float32),
            ("discounts", each, torch.float32),
            ("last", each, torch.bool),
            ("truncated", (2, finals), torch.int64),
            ("finals", (finals, *observation), dtype),
            ("numbers", (3,), torch.int64),
            ("reward_scale", (), torch.float64),
        ]  # fmt: skip
        fields += [(f"state.{i}", (environments, *shape), torch.float32) for i, shape in enumerate(self.state)]
        fields += [(f"extras.{name}", each, torch.float32) for name in self.extras]
        fields += [(name, self.moments, torch.float32) for name in ("mean", "scale") if self.moments]
        return BlockLayout(tuple(fields))


def write(block: Block, rollout: Rollout, version: int) -> None:
    """Copy a rollout, made with theta of `version`, into a block."""
    block["observations"].copy_(rollout.observations if rollout.raw is None else rollout.raw)
    for name in ("actions", "rewards", "discounts", "last"):
        block[name].copy_(getattr(rollout, name))
    finals = rollout.final_observations if rollout.raw is None else rollout.raw_final
    count = 0 if finals is None else len(finals)
    if finals is not None:
        block["finals"][:count].copy_(finals)
        block["truncated"][0, :count].copy_(rollout.truncated[0])
        block["truncated"][1, :count].copy_(rollout.truncated[1])
    block["numbers"].copy_(torch.tensor([version, rollout.acted_at, count]))
    block["reward_scale"].fill_(rollout.reward_scale)
    for i, part in enumerate(rollout.state or ()):
        block[f"state.{i}"].copy_(part)
    for name, values in rollout.extras.items():
        block[f"extras.{name}"].copy_(values)
    if rollout.moments is not None:
        block["mean"].copy_(rollout.moments[0])
        block["scale"].copy_(rollout.moments[1])


def finals_in(block: Block) -> int:
    """Number of truncated episodes of the rollout in a block."""
    return int(block["numbers"][2])


def copy(source: Block, target: Block) -> None:
    """Copy the rollout in one block into another, which may have room for fewer or more last observations."""
    count = finals_in(source)
    for name, tensor in source.items():
        if name == "finals":
            target[name][:count].copy_(tensor[:count])
        elif name == "truncated":
            target[name][:, :count].copy_(tensor[:, :count])
        else:
            target[name].copy_(tensor)


def read(block: Block, observations: Tensor | None = None) -> tuple[Rollout, int]:
    """The rollout in a block, as views where possible, and the version of theta it was made with.

    Observations are copied into `observations` `[T + 1, E, ...]`, or into new memory. They are normalised by the
    actor's moments, so that the learner sees what the actor saw.
    """
    version, acted_at, count = block["numbers"].tolist()
    finals = block["finals"][:count] if count else None
    moments = (block["mean"], block["scale"]) if "mean" in block else None
    if observations is None:
        raw = block["observations"]
        observations = torch.empty_like(raw, dtype=raw.dtype if moments is None else torch.float32)
    if moments is None:
        observations.copy_(block["observations"])
    else:
        _standardize_in_pieces(block["observations"], *moments, observations)

    state = tuple(block[f"state.{i}"] for i in range(sum(name.startswith("state.") for name in block)))
    return Rollout(
        observations=observations,
        actions=block["actions"],
        rewards=block["rewards"],
        discounts=block["discounts"],
        last=block["last"],
        truncated=(block["truncated"][0, :count], block["truncated"][1, :count]),
        final_observations=finals if finals is None or moments is None else standardize(finals, *moments),
        state=state or None,
        reward_scale=float(block["reward_scale"]),
        acted_at=acted_at,
        extras={name.removeprefix("extras."): values for name, values in block.items() if name.startswith("extras.")},
        raw=None if moments is None else block["observations"],
        raw_final=None if moments is None else finals,
        moments=moments,
    ), version


def read_raw(block: Block) -> Rollout:
    """The same as a view, with observations that are not normalised."""
    raw = {name: tensor for name, tensor in block.items() if name not in ("mean", "scale")}
    return read(raw, block["observations"])[0]


def _standardize_in_pieces(raw: Tensor, mean: Tensor, scale: Tensor, out: Tensor) -> None:
    """`standardize`, in half the time: each piece stays in the cache for the three passes over it."""
    rows = max(1, _PIECE // raw[0].numel())
    for begin in range(0, len(raw), rows):
        piece = slice(begin, begin + rows)
        standardize(raw[piece], mean, scale, out[piece])
