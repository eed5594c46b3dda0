"""The small contract of every environment here, and what is put around one: a `Wrapper`, and `Rebuilding`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.core.spaces import Spaces

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32, where a larger one would become infinite."""
NOT_RUNNING = "step() before reset(): no episode is running"


class BadEnvironment(RuntimeError):
    """The environment raised or broke its contract: a wrong shape, a NaN, a step without five values. Names the id."""


class EpisodeLost(Exception):
    """The episode cannot be finished; `reset` begins another one."""


class Environment(Protocol):
    """One environment, in which one agent acts.

    The array returned by `reset` and `step` may be overwritten by the next call: copy it at once. They are called in
    torch's inference mode; an environment that learns something itself leaves it with `torch.inference_mode(False)`.
    """

    spaces: Spaces

    def reset(self) -> NDArray[Any]:
        """Begin a new episode and return its first observation."""

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """Act once: (observation, raw reward, terminated, truncated, life lost).

        After `terminated` or `truncated` the observation is the last one of the ended episode and the caller must call
        `reset`. `life lost` is to be treated as a termination (discount 0), but the game goes on: no reset.
        """

    def close(self) -> None:
        """Release what the environment holds; it is not used afterwards."""


class Untranslated:
    """What Atari and the toys have in common: they show what an agent sees, and hold nothing that must be released."""

    spaces: Spaces

    def close(self) -> None:
        """Does nothing: everything is freed with the object."""

    @property
    def native_space(self) -> Any:
        """The observations as a space of Gymnasium's."""
        import gymnasium  # slow, and needed only to act on observations from elsewhere

        return gymnasium.spaces.Box(-np.inf, np.inf, self.spaces.observation_shape)

    def see(self, seen: NDArray[Any], observation: Any) -> None:
        """Bring `seen`, what an agent has seen, up to date with a native observation; ValueError if it is none."""
        from asyncrl.envs.encoders import as_numbers  # loads Gymnasium

        seen[...] = as_numbers(observation, seen.shape, np.dtype(self.spaces.observation_dtype))

    def native_action(self, action: int) -> int:
        """The environment's own action for an agent's."""
        return action


def did_you_mean(name: str, known: dict[str, str]) -> str:
    """A question with up to three ids like a `name`, of those `known` by their name in lower case; empty: none is."""
    near = [name.lower()] if name.lower() in known else difflib.get_close_matches(name.lower(), known, cutoff=0.7)
    return f"did you mean {' or '.join(known[one] for one in near)}?" if near else ""


def close_all(environments: Iterable[Environment]) -> None:
    """Close environments, ignoring their exceptions."""
    for environment in environments:
        with contextlib.suppress(Exception, SystemExit):
            environment.close()


@contextlib.contextmanager
def closed_on_error(environments: Sequence[Environment]) -> Iterator[None]:
    """Close environments if the block raises: many have processes of their own."""
    try:
        yield
    except BaseException:
        close_all(environments)
        raise


def states_of(environments: Sequence[Environment]) -> list[dict[str, Any]] | None:
    """All that the future of each environment depends on, as plain data, arrays and bytes.

    None if one of them cannot return its state.
    """
    states: list[Any] = [getattr(environment, "state", lambda: None)() for environment in environments]
    return None if None in states else states


def restore_all(environments: Sequence[Environment], states: Sequence[dict[str, Any]]) -> None:
    """Restore the states of environments of the same specification."""
    for environment, state in zip(environments, states, strict=True):
        environment.restore(state)  # type: ignore[attr-defined]


class Wrapper:
    """An environment around another one, and taken for that one by whoever uses it.

    Everything that a subclass does not change is the inner environment's: its spaces, its pictures, the names of its
    actions, its state if it has one, and how its own observations and actions are translated.
    """

    spaces: Spaces

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        """The environment below."""

    def reset(self) -> NDArray[Any]:
        """As the environment below does."""
        return self.environment.reset()

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment below does."""
        return self.environment.step(action)

    def close(self) -> None:
        """Close the environment below."""
        self.environment.close()

    def __getattr__(self, name: str) -> Any:
        if name == "environment":  # before __init__ has set it, this would not end
            raise AttributeError(name)
        return getattr(self.environment, name)
