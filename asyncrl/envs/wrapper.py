"""What all environments around other environments have in common."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from asyncrl.envs.spec import Environment


class Wrapper:
    """An environment around another one, and taken for that one by whoever uses it.

    Everything that a subclass does not change is the inner environment's: its spaces, its pictures, the names of its
    actions, its state if it has one, and how its own observations and actions are translated.
    """

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
