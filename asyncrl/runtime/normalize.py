"""Scales observations and rewards to unit size with statistics of all workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core.errors import UsageError
from asyncrl.core.moments import Moments, mean_and_deviation, merge, standardize
from asyncrl.runtime.clock import shared_zeros
from asyncrl.runtime.plan import Plan
from asyncrl.runtime.protocols import EVALUATOR

SMALLEST_GREY_DEVIATION = 2.0
"""Atari: least deviation of a pixel, in grey levels, so that pixels that hardly change are not amplified."""
SMALLEST_RETURN_DEVIATION = 1e-3
"""Below this spread of returns rewards are left as they are."""
GROWTH = 1.01
"""The moments are read again when the number of samples has grown by this factor."""


class RunMoments:
    """A row per worker, and one for the time before a resume, in shared memory: one writer each, no lock.

    On a *rank*, which shares no memory with the others, new samples are kept apart until all ranks `publish` theirs, so
    that all normalise with the same moments.
    """

    def __init__(self, workers: int, observation_size: int = 0, rank: bool = False) -> None:
        """`observation_size` is how many components of an observation have moments; 0: they are not normalised."""
        sizes = {"observation": 1 + 2 * observation_size, "return": 3}
        self._rows = {of: shared_zeros(workers + 1, size, dtype=torch.float64) for of, size in sizes.items()}
        self.gathered = torch.zeros(sum(sizes.values()), dtype=torch.float64) if rank else None
        """A rank's own rows behind each other, of observations and of returns, those not published among them."""
        self._observation_size = sizes["observation"]

    @property
    def observations(self) -> Moments:
        """Those of observations."""
        return Moments(
            self._rows["observation"], None if self.gathered is None else self.gathered[: self._observation_size]
        )

    @property
    def returns(self) -> Moments:
        """Those of discounted returns."""
        return Moments(self._rows["return"], None if self.gathered is None else self.gathered[self._observation_size :])

    def publish(self, gathered: Sequence[Tensor]) -> None:
        """From now on all normalise with what each rank has gathered so far, in the order of ranks."""
        rows = torch.stack(list(gathered))
        self._rows["observation"][:-1] = rows[:, : self._observation_size]
        self._rows["return"][:-1] = rows[:, self._observation_size :]

    def state(self) -> dict[str, Tensor]:
        """All rows merged, for a checkpoint."""
        return {f"{of}_moments": torch.from_numpy(Moments(rows).merged()) for of, rows in self._rows.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint's. Raises UsageError, naming the setting, if it does not fit."""
        for of, rows in self._rows.items():
            if (name := f"{of}_moments") not in state:
                raise UsageError(f"the checkpoint cannot be used: it lacks {name}")
            if state[name].shape != rows[-1].shape:
                raise UsageError(
                    "--normalize-observations cannot change on resume: the network was trained with the other setting"
                )
            rows[-1] = state[name]

    def of_workers(self) -> tuple[NDArray[np.float64], ...]:
        """What these workers have gathered, of observations and of returns, each merged to one row."""
        return tuple(Moments(rows[:-1]).merged() for rows in self._rows.values())

    def lay_down(self, *elsewhere: Sequence[NDArray[np.float64]]) -> None:
        """Set the moments not gathered by these workers: before a resume, and on other hosts."""
        for number, rows in enumerate(self._rows.values()):
            rows[-1] = torch.from_numpy(functools.reduce(merge, [own[number] for own in elsewhere]))

    def rows(self) -> dict[str, Tensor]:
        """Copies of all rows, for a run that resumes exactly."""
        return {f"{of}s": rows.clone() for of, rows in self._rows.items()}

    def restore_rows(self, rows: Mapping[str, Tensor]) -> None:
        """Restore what `rows` returned."""
        for of, own in self._rows.items():
            own.copy_(rows[f"{of}s"])


def make_normalizer(moments: RunMoments, worker: int, plan: Plan) -> Normalizer | None:
    """A worker's view of the shared moments, or a learner's; None if nothing is normalised."""
    config = plan.config
    if not (config.normalize_observations or config.normalize_returns):
        return None
    return Normalizer(
        moments,
        worker,
        plan.moments_shape,
        config.normalize_returns and worker != EVALUATOR,
        config.gamma,
        least_deviation=SMALLEST_GREY_DEVIATION if plan.environment.is_atari else 0.0,
        kept=slice(-plan.spaces.actions, None) if plan.spaces.masked else slice(0),
    )


class Normalizer:
    """What one worker (or the evaluator, which only reads) does with the shared moments.

    The moments are read between rollouts, like the parameters. Observations are shifted and scaled; rewards are only
    scaled, by the spread of discounted returns, so that they keep their sign.

    Each pixel of an image has its own moments: what stands still becomes 0 and what moves stands out, however small it
    is. The images of an Atari stack share theirs, which come from the newest image.
    """

    def __init__(
        self,
        moments: RunMoments,
        worker: int,
        shape: tuple[int, ...],
        returns: bool,
        gamma: float,
        least_deviation: float = 0.0,
        kept: slice = slice(0),
    ) -> None:
        """`shape` is that of the moments of observations, empty: no normalisation; `kept` is what stays as it is."""
        self._kept = kept
        self._worker = worker
        self._gamma = gamma
        self._shape = shape
        self._observations = moments.observations if shape else None
        self._least = least_deviation
        self.read: NDArray[np.float64] | None = None
        """The merged moments `[1 + 2 n]` with which observations are normalised; None: they are not."""
        self._returns = moments.returns if returns else None
        self._discounted: NDArray[np.float64] | None = None
        self._seen_returns: list[NDArray[np.float64]] = []
        self.reward_scale = 1.0
        """The factor of rewards in the loss."""
        self.renew()

    def renew(self) -> None:
        """Read what all workers have seen so far."""
        if self._observations is not None and (
            self.read is None or self._observations.count > GROWTH * float(self.read[0])
        ):
            self._use(self._observations.merged())
        if self._returns is not None:
            spread = float(mean_and_deviation(self._returns.merged())[1][0])
            # Without any rewards so far there is no scale, and the first ones must not be amplified.
            self.reward_scale = 1.0 / spread if spread > SMALLEST_RETURN_DEVIATION else 1.0

    def _use(self, read: NDArray[np.float64]) -> None:
        """Normalise with these moments from now on. Every process derives the same scales from them."""
        self.read = read
        mean, deviation = mean_and_deviation(read)
        self._mean = torch.from_numpy(mean).view(self._shape)
        self._scale = torch.from_numpy(deviation).clamp_min(self._least).reciprocal().view(self._shape)
        self._mean[self._kept], self._scale[self._kept] = 0.0, 1.0  # an action mask

    def state(self) -> dict[str, Any]:
        """What it has read, and the returns it tracks: what `renew` would not restore."""
        return {"read": self.read, "discounted": self._discounted}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._discounted = state["discounted"]
        if state["read"] is not None:
            self._use(state["read"])

    @property
    def used(self) -> tuple[Tensor, Tensor] | None:
        """Mean and reciprocal deviation with which observations are normalised; None if they are not."""
        return (self._mean, self._scale) if self._observations is not None else None

    def observe(self, observations: Tensor, out: Tensor | None = None) -> Tensor:
        """Raw `observations` `[..., *shape]` as the network should see them, float32, written to `out` if given."""
        if self._observations is None:
            return observations
        if out is None:
            return standardize(observations, self._mean, self._scale)
        from asyncrl.core.standardizing import standardize_into  # the command's own process does not need it

        return standardize_into(observations, self._mean, self._scale, out)

    def reward(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_], played: NDArray[np.bool_]) -> None:
        """Track the discounted return of each environment, `[E]` rewards at a time; not `played`: no step was made."""
        if self._returns is None:
            return
        before = np.zeros(len(rewards)) if self._discounted is None else self._discounted
        discounted = self._gamma * before + rewards
        self._seen_returns.append(discounted[played])
        self._discounted = np.where(ended, 0.0, discounted)

    def share(self, observations: Tensor) -> None:
        """Add raw `observations` `[T, E, *shape]` and the returns since the last time to this worker's moments."""
        if self._observations is not None:
            newest = observations[:, :, -self._shape[0] :].reshape(-1, math.prod(self._shape)).float()
            self._observations.add(self._worker, newest)
        if self._returns is not None and self._seen_returns:
            self._returns.add(self._worker, torch.from_numpy(np.concatenate(self._seen_returns)[:, None]))
        self._seen_returns.clear()
