"""From environments to rollouts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithm import Algorithm
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import EACH_STEP, Extras, Rollout, State
from asyncrl.core.spaces import Spaces
from asyncrl.envs.environment import Environment, close_all, restore_all, states_of
from asyncrl.runtime.clock import Clock
from asyncrl.runtime.normalize import Normalizer


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole episode: raw return and length in steps."""

    score: float
    length: int
    cut: bool = False
    """Whether it had not ended, nor reached a limit of its own, and an evaluation left it there."""


class Collector(Iterator[Rollout]):
    """Endless rollouts of `t_max` steps from E environments, episodes running on from one rollout to the next.

    With `whole_episodes` a rollout is one episode of each environment: an environment whose episode has ended waits for
    the others, in rows of padding. It has at most `t_max` steps; a longer episode continues in the next rollout.

    `episodes` collects episodes that ended, until its reader clears it. `environment_seconds` and `acting_seconds` add
    up where the time goes.
    """

    def __init__(
        self,
        environments: Sequence[Environment],
        agent: Algorithm,
        spaces: Spaces,
        t_max: int,
        gamma: float,
        clock: Clock,
        look_ahead: bool = False,
        extras: Sequence[str] = (),
        normalizer: Normalizer | None = None,
        whole_episodes: bool = False,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`extras` are the names of what the agent's `act` returns besides actions; `beat` is the sign of life that is
        given before each step and reset of an environment, which may take long.

        With `look_ahead` the action after a rollout's last observation is chosen at its end, and taken in the next one.
        """
        self.episodes: list[Episode] = []
        self.environment_seconds = self.acting_seconds = 0.0
        self._environments = list(environments)
        self._agent = agent
        self._gamma = gamma
        self._clock = clock
        self._beat = beat
        shape = (t_max, len(environments))
        self._raw = torch.empty(
            (t_max + 1, len(environments), *spaces.observation_shape), dtype=getattr(torch, spaces.observation_dtype)
        )
        self._rows = self._raw.numpy()
        # What the network sees: the same memory unless it is normalised.
        changed = normalizer is not None and normalizer.used is not None
        self._observations = torch.empty(self._raw.shape) if changed else self._raw
        # Views of the rows, made once: with one environment, indexing takes as long as the work itself.
        self._raw_rows, self._observation_rows = list(self._raw), list(self._observations)
        self._spaces = spaces
        self._normalizer = normalizer
        if spaces.is_continuous:
            self._actions = torch.empty((*shape, len(spaces.action_low)))
        else:
            self._actions = torch.empty(shape, dtype=torch.int64)
        self._action_rows = list(self._actions)
        self._reward_tensor = torch.empty(shape)
        self._discount_tensor = torch.empty(shape)
        self._last_tensor = torch.empty(shape, dtype=torch.bool)
        # The same memory: single numbers are written faster through numpy.
        self._rewards, self._discounts = self._reward_tensor.numpy(), self._discount_tensor.numpy()
        self._last = self._last_tensor.numpy()
        self._scores = np.zeros(len(environments))
        self._lengths = np.zeros(len(environments), np.int64)
        self._state: State = agent.initial_state(len(environments))
        self._extras = {name: torch.empty(shape) for name in extras}
        self._look_ahead = look_ahead
        self._chosen: tuple[Tensor, Extras, State] | None = None
        """What has been chosen for the next rollout: actions `[E]`, extras, and the recurrent state before."""
        self._whole_episodes = whole_episodes
        self._truncated: list[tuple[int, int]] = []
        self._finals: list[Tensor] = []
        """Where this rollout's episodes were cut, and the observations there."""
        for e in range(len(environments)):
            self._rows[-1, e] = self._reset(e)
        self._see(-1)

    def __next__(self) -> Rollout:
        steps = self._clock.steps
        # Copied: acting happens in inference mode, and tensors made there cannot take part in a gradient.
        before, normalizer = self._state if self._chosen is None else self._chosen[2], self._normalizer
        state_before = None if before is None else tuple(part.clone() for part in before)
        self._rows[0] = self._rows[-1]
        if normalizer is not None:
            normalizer.renew()
        self._see(0)
        self._truncated.clear()
        self._finals.clear()
        lengths = self._play(steps)
        if normalizer is not None:
            raw = self._raw[:-1]  # in which steps were made
            normalizer.share(raw if lengths is None else raw[torch.arange(len(raw))[:, None] < lengths][:, None])
        finals = torch.stack(self._finals) if self._finals else None
        rollout = Rollout(
            observations=self._observations,
            actions=self._actions,
            rewards=self._reward_tensor,
            discounts=self._discount_tensor,
            last=self._last_tensor,
            truncated=places_of(self._truncated) if self._truncated else NOWHERE,
            final_observations=finals if finals is None or normalizer is None else normalizer.observe(finals),
            state=state_before,
            reward_scale=1.0 if normalizer is None else normalizer.reward_scale,
            next_actions=self._next_actions(steps) if self._look_ahead else None,
            acted_at=steps,
            extras=self._extras,
            raw=self._raw,
            raw_final=finals,
            moments=None if normalizer is None else normalizer.used,
        )
        return rollout if lengths is None else shortened(rollout, lengths)

    @torch.inference_mode()
    def _play(self, steps: int) -> Tensor | None:
        """Take t_max steps in all environments.

        For whole episodes an environment stops at the end of its own, and the rollout when all have; returns the steps
        of each, `[E]`.
        """
        playing = np.ones(len(self._environments), np.bool_)
        lengths = np.zeros(len(self._environments), np.int64)
        for t in range(len(self._rewards)):
            actions = self._choose(t, steps)
            self._action_rows[t].copy_(actions)
            acted = time.perf_counter()
            for e, action in enumerate(for_environments(actions, self._spaces)):
                if playing[e]:
                    self._step(t, e, action)
                else:  # it is at the beginning of its next episode
                    self._rewards[t, e], self._discounts[t, e], self._last[t, e] = 0.0, 0.0, True
                    self._rows[t + 1, e] = self._rows[t, e]
            self._see(t + 1)
            if self._normalizer is not None:
                self._normalizer.reward(self._rewards[t], self._last[t], playing)
            self._state = reset_state(self._agent, self._state, self._last[t])
            self.environment_seconds += time.perf_counter() - acted
            if self._whole_episodes:
                lengths += playing
                playing &= ~self._last[t]
                if not playing.any():
                    self._rows[-1] = self._rows[t + 1]
                    break
        return torch.from_numpy(lengths) if self._whole_episodes else None

    def state(self) -> dict[str, Any] | None:
        """Everything the next rollouts depend on; None if an environment cannot save its state."""
        environments = states_of(self._environments)
        if environments is None:
            return None
        return {
            "environments": environments,
            "row": self._rows[-1].copy(),
            "scores": self._scores.copy(),
            "lengths": self._lengths.copy(),
            "recurrent": self._state,
            "chosen": self._chosen,
            "normalizer": None if self._normalizer is None else self._normalizer.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        restore_all(self._environments, state["environments"])
        self._rows[-1] = state["row"]
        self._scores[:], self._lengths[:] = state["scores"], state["lengths"]
        self._state = None if state["recurrent"] is None else tuple(state["recurrent"])
        self._chosen = None if state["chosen"] is None else tuple(state["chosen"])
        if self._normalizer is not None:
            self._normalizer.restore(state["normalizer"])

    def close(self) -> None:
        """Close the environments; some have processes or files to close."""
        close_all(self._environments)

    def _choose(self, t: int, steps: int) -> Tensor:
        """Actions `[E]` for observation t, or those that have been chosen already."""
        if self._chosen is None:
            began, seen = time.perf_counter(), self._observation_rows[t]
            version = seen._version
            actions, self._state, extras = self._agent.act(seen, self._state, steps)
            if t == 0:  # once in a rollout: it costs time
                self._check(actions, extras, seen._version != version)
            self.acting_seconds += time.perf_counter() - began
        else:
            (actions, extras, _), self._chosen = self._chosen, None
        for name, values in extras.items():
            self._extras[name][t].copy_(values)
        return actions

    def _check(self, actions: Tensor, extras: Extras, written: bool) -> None:
        """Raise UsageError if `act` did not do what the loss relies on."""
        name, environments = type(self._agent).__name__, len(self._environments)
        if len(actions) != environments:
            raise UsageError(f"{name}.act returned {len(actions)} actions for {environments} environments")
        if extras.keys() != self._extras.keys():
            raise UsageError(f"{name}.act returned the extras {sorted(extras)}, its class has {sorted(self._extras)}")
        if written:
            raise UsageError(f"{name}.act changed the observations, which the loss needs: let it work on a copy")

    def _next_actions(self, steps: int) -> Tensor:
        """The actions in observations 1..T, `[T, E]`; the last row is chosen now and taken in the next rollout."""
        began, before = time.perf_counter(), self._state
        with torch.inference_mode():
            actions, self._state, extras = self._agent.act(self._observation_rows[-1], before, steps)
        self._chosen = actions, extras, before
        self.acting_seconds += time.perf_counter() - began
        return torch.cat([self._actions[1:], actions[None]])

    def _step(self, t: int, e: int, action: Any) -> None:
        """Step one environment into row t; the observation of row t + 1 begins a new episode where one ended."""
        self._beat()
        observation, reward, terminated, cut, life_lost = self._environments[e].step(action)
        self._rewards[t, e] = reward
        self._discounts[t, e] = 0.0 if terminated or life_lost else self._gamma
        self._last[t, e] = terminated or cut or life_lost
        self._scores[e] += reward
        self._lengths[e] += 1
        if terminated or cut:
            if cut and not terminated:
                self._truncated.append((t, e))
                self._finals.append(torch.from_numpy(np.array(observation)))
            self.episodes.append(Episode(float(self._scores[e]), int(self._lengths[e])))
            self._scores[e], self._lengths[e] = 0.0, 0
            observation = self._reset(e)
        self._rows[t + 1, e] = observation

    def _reset(self, e: int) -> NDArray[Any]:
        """Begin an episode of one environment; returns its first observation."""
        self._beat()
        return self._environments[e].reset()

    def _see(self, t: int) -> None:
        """Normalise the raw observations of row t, for all environments at once."""
        if self._observations is not self._raw:
            assert self._normalizer is not None
            self._normalizer.observe(self._raw_rows[t], out=self._observation_rows[t])


def shortened(rollout: Rollout, lengths: Tensor) -> Rollout:
    """A rollout of as many steps as the longest of `lengths` `[E]`."""
    steps = int(lengths.max())
    return dataclasses.replace(
        rollout,
        **{name: getattr(rollout, name)[:steps] for name in EACH_STEP},
        observations=rollout.observations[: steps + 1],
        extras={name: values[:steps] for name, values in rollout.extras.items()},
        raw=None if rollout.raw is None else rollout.raw[: steps + 1],
        lengths=lengths,
    )


def places_of(truncated: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Times and environments `([K], [K])` from pairs of them."""
    times, environments = torch.tensor(truncated, dtype=torch.int64).reshape(-1, 2).T
    return times, environments


NOWHERE = places_of(())
"""For rollouts without truncated episodes, which are most."""


def for_environments(actions: Tensor, spaces: Spaces) -> Iterable[Any]:
    """One action per environment: an int, or a vector that is clipped to the environment's box.

    Only the environment gets the clipped action: the policy's gradient needs the one that was drawn.
    """
    if not spaces.is_continuous:
        numbers: list[int] = actions.tolist()
        return numbers
    vectors: NDArray[np.float32] = actions.numpy()
    low, high = (np.array(bound, np.float32) for bound in (spaces.action_low, spaces.action_high))
    return vectors.clip(low, high)


def reset_state(agent: Algorithm, state: State, ended: NDArray[np.bool_]) -> State:
    """The recurrent state `[E, ...]` with the initial one wherever an episode `ended` `[E]`."""
    if state is None or not ended.any():
        return state
    fresh = agent.initial_state(len(ended))
    assert fresh is not None
    ended_here = torch.from_numpy(ended)
    return tuple(
        torch.where(ended_here.view(-1, *[1] * (old.dim() - 1)), new, old)
        for old, new in zip(state, fresh, strict=True)
    )
