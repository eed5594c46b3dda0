"""What a run has learnt, as a function from observations to actions."""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.api.advice import as_typed, best_in_words
from asyncrl.api.playing import Loaded, load_run
from asyncrl.api.runs import Run, folder_of, random_numbers_kept
from asyncrl.catalog import name_of
from asyncrl.config.run_config import RunConfig
from asyncrl.config.settings import settings_for
from asyncrl.core.errors import UsageError
from asyncrl.core.rollout import State
from asyncrl.core.spaces import Spaces
from asyncrl.runtime.collect import for_environments, reset_state
from asyncrl.runtime.protocols import EVALUATOR
from asyncrl.runtime.roles import build_environments
from asyncrl.runtime.threads import on_the_cpu, one_thread
from asyncrl.storage.stored import Permission

ACTING = threading.Lock()
"""Of all threads one acts at a time: a policy has one memory for random numbers and for what compiled code computes."""


@dataclass(frozen=True)
class PolicyState:
    """What a policy must remember between two steps of B environments."""

    memory: State
    """The network's recurrent state, `[B, ...]` each; None for a feed-forward network."""
    seen: NDArray[Any]
    """The last observations, `[B, *shape]`, with the images or vectors that the next stack needs."""


class Policy:
    """Acts as a run's evaluations do, on observations of its environment as Gymnasium gives them.

    Atari's observations are the exception: they come preprocessed, uint8 [stack, size, size], as Gymnasium's wrappers
    AtariPreprocessing and FrameStackObservation make them with the run's settings. Chain and Catch are similar. For an
    environment with a frame skip, the caller repeats each action that often.
    """

    def __init__(self, loaded: Loaded) -> None:
        run = loaded.run
        self.algorithm = run.spec.algorithm
        """Module of the algorithm."""
        self.env_id = run.spec.environment.env_id
        self.steps = loaded.checkpoint.steps
        """Agent steps for which its checkpoint had been trained."""
        self.greedy = run.spec.config.evaluation_policy == "greedy"
        """Whether it takes the best action; otherwise it samples, with the seed it was loaded with."""
        self.spaces: Spaces = run.spec.spaces
        """Observations and actions of the network."""
        self._agent, self._normalizer = loaded.agent, loaded.normalizer
        environment = build_environments(run, EVALUATOR, 1, evaluation=True)[0]
        environment.close()
        self._environment: Any = environment
        self._loaded = loaded
        self._other: Policy | None = None
        """The same policy, sampling instead of greedy or the reverse; None until `predict` needs it."""

    def __repr__(self) -> str:
        name, checkpoint = self._loaded.name, self._loaded.checkpoint
        named = f"{name} checkpoint" if name in ("best", "newest") else name
        how = self._loaded.run.spec.config.evaluation_policy
        known = f"{self.steps:,} steps, {best_in_words(checkpoint.facts.get('best_score'))}"
        where = as_typed(self._loaded.path, "shell")
        return f"<Policy of {name_of(self.algorithm)} on {self.env_id}: {how}, {named} after {known}, in {where}>"

    def act(
        self, observation: Any, state: PolicyState | None = None, *, action_masks: Any = None
    ) -> tuple[Any, PolicyState]:
        """The action for one observation, or the actions `[B, ...]` for a batch `[B, ...]`, and the next state.

        A batch of Dict or Tuple observations is a Dict or Tuple of batches. Actions are as the environment takes them:
        an int, or an array of its action space. `state` is what the previous call returned, None at the beginning of an
        episode. A run with --action-masks needs `action_masks`, `[A]` or `[B, A]`: 1 for each valid action, 0 for the
        others. Raises UsageError for an observation that cannot be the environment's.
        """
        if (action_masks is not None) != self.spaces.masked:
            what = "needs action_masks" if self.spaces.masked else "takes no action_masks"
            raise UsageError(f"{self.env_id}: a run with{'' if self.spaces.masked else 'out'} --action-masks {what}")
        if self.spaces.masked:
            observation = {"observation": observation, "action_mask": action_masks}
        from asyncrl.envs.encoders import rows_of  # with all of Gymnasium, which starting a run need not wait for

        try:
            batch, single = rows_of(self._environment.native_space, observation)
        except ValueError as error:
            raise UsageError(f"not an observation of {self.env_id}: {error}") from None
        if state is None:
            seen = np.zeros((len(batch), *self.spaces.observation_shape), self.spaces.observation_dtype)
            with on_the_cpu():
                state = PolicyState(self._agent.initial_state(len(batch)), seen)
        elif len(state.seen) != len(batch):
            raise UsageError(f"the state is for {len(state.seen)} environments, the observations are for {len(batch)}")
        with ACTING, torch.inference_mode(), on_the_cpu():
            seen = self._encoded(batch, state.seen)
            observations = torch.from_numpy(seen)
            if self._normalizer is not None:
                observations = self._normalizer.observe(observations)
            chosen, memory, _ = self._agent.act(observations, state.memory, self.steps)
        actions = [self._environment.native_action(one) for one in for_environments(chosen, self.spaces)]
        return (actions[0] if single else np.array(actions)), PolicyState(memory, seen)

    def predict(
        self,
        observation: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        deterministic: bool | None = None,
        action_masks: Any = None,
    ) -> tuple[Any, PolicyState]:
        """`act` with the signature of Stable-Baselines3: the action or actions, and the next state.

        `episode_start`, bool or `[B]` bool, says which observations begin an episode. `deterministic` True takes the
        best action, False samples one; None acts as the policy was loaded. `action_masks` are as in `act`, and so are
        the errors raised.
        """
        if state is not None and episode_start is not None and np.any(episode_start):
            every = np.ones(len(state.seen), np.bool_)
            state = self.restart(state, episode_start if np.ndim(episode_start) else every)
        if deterministic in (None, self.greedy):
            return self.act(observation, state, action_masks=action_masks)
        if self._other is None:
            self._other = self._with_greedy(not self.greedy)
        return self._other.act(observation, state, action_masks=action_masks)

    def _with_greedy(self, greedy: bool) -> Policy:
        """This policy with the same network and random numbers, which takes the best action or samples."""
        agent: Any = self._agent
        config = dataclasses.replace(agent.config, evaluation_policy="greedy" if greedy else "sampled")
        other = copy.copy(self)
        other.greedy = greedy
        other._agent = type(agent)(config, agent.network, agent.target, agent.who, agent.number, agent.generator)
        return other

    def restart(self, state: PolicyState, ended: Any) -> PolicyState:
        """The state of a batch after the episodes of some environments have `ended`, `[B]` bool. Raises UsageError."""
        over = np.array(ended, np.bool_)
        seen = state.seen.copy()
        if over.shape != (len(seen),):
            raise UsageError(f"the state is for {len(seen)} environments, the ended episodes have shape {over.shape}")
        seen[over] = 0
        with on_the_cpu():
            return PolicyState(reset_state(self._agent, state.memory, over), seen)

    def _encoded(self, batch: Sequence[Any], before: NDArray[Any]) -> NDArray[Any]:
        """Observations as the network takes them, `[B, *shape]`, in a new array."""
        seen = before.copy()
        for place, observation in zip(seen, batch, strict=True):
            try:
                self._environment.see(place, observation)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{self.env_id}: {error}") from error
        return seen


def load(
    run: Run | str | os.PathLike[str],
    checkpoint: str = "best",
    greedy: bool | None = None,
    seed: int = 0,
    *,
    env_id: str | Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    network: str | Callable[..., Any] | None = None,
    trust: bool = False,
) -> Policy:
    """The policy that a run has learnt, for use in your program.

    `checkpoint` is "best", "newest" or a checkpoint's name; `greedy` None means as in the run's own evaluations; `seed`
    is for sampled actions. `env_id`, `env_kwargs` and `network`, as `train` takes them, replace the run's own, which
    another program may have handed over. Code named by somebody else's folder is imported only with `trust`. Raises
    UsageError.
    """
    path = folder_of(run)
    with one_thread(), random_numbers_kept():
        own = {"env_id": env_id, "env_kwargs": env_kwargs, "network": network}
        given = settings_for(RunConfig, {name: value for name, value in own.items() if value is not None})
        permission = Permission(given, trust)
        return Policy(load_run(path, checkpoint, seed, greedy, permission=permission))
